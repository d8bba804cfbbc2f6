//! Receipts: the replicas that had acknowledged a write at the time of its answer. A receipt is a
//! dictionary of structured fields (RFC 9651):
//!
//! ```text
//!  Kvorum-Receipt: version="0123456789abcdef-01234567", epoch=1, ack=2, from=3, sync=always,
//!                  by=("n1" "n2")
//! ```

use std::fmt::{self, Display, Formatter};
use std::iter::Peekable;
use std::str::Chars;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use protocol::{Acks, Quorum, Tag};
use serde::Serialize;

use super::Service;

/// Header with a receipt.
pub(crate) const RECEIPT: HeaderName = HeaderName::from_static("kvorum-receipt");

/// The contents of a receipt.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Receipt {
    /// Version of the key after the write: the `ETag` without its quotes.
    pub(crate) version: String,
    /// Epoch of the view that determined the key's replicas.
    pub(crate) epoch: u64,
    /// Number of replicas that had to acknowledge the write.
    pub(crate) ack: u8,
    /// Number of the key's replicas.
    pub(crate) from: u8,
    /// Sync mode of the acknowledged write: `always`, `interval` or `never`.
    pub(crate) sync: String,
    /// Names of the replicas that had acknowledged the write, in the key's order; `None` if the
    /// members changed during the write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<Vec<String>>,
}

/// A receipt that a client has requested.
pub(super) struct ReceiptRequest {
    key: Bytes,
    quorum: Quorum,
    sync: &'static str,
}

impl ReceiptRequest {
    /// Requests a receipt for a plain write, whose `sync` is this node's sync mode.
    pub(super) fn plain(service: &Service, key: &Bytes, quorum: Quorum) -> Self {
        Self { key: key.clone(), quorum, sync: service.requests.sync() }
    }

    /// Requests a receipt for a conditional write, which is synced in every mode.
    pub(super) fn conditional(key: &Bytes, quorum: Quorum) -> Self {
        Self { key: key.clone(), quorum, sync: "always" }
    }

    /// Returns the receipt's header after the write.
    pub(super) fn header(self, service: &Service, tag: Tag, acks: Acks) -> Box<HeaderValue> {
        let etag = service.etags.of(tag);
        let etag = etag.to_str().expect("hex digits and quotes are text");
        let Quorum { ack, from } = self.quorum;
        let receipt = Receipt {
            version: etag.trim_matches('"').to_owned(),
            epoch: acks.epoch,
            ack,
            from,
            sync: self.sync.to_owned(),
            by: service.requests.acknowledging_replicas(&self.key, from, acks),
        };
        let text = receipt.to_string();
        Box::new(HeaderValue::try_from(text).expect("structured fields are printable ASCII"))
    }
}

impl Display for Receipt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { version, epoch, ack, from, sync, by } = self;
        let version = Quoted(version);
        write!(f, "version={version}, epoch={epoch}, ack={ack}, from={from}, sync={sync}")?;
        let Some(by) = by else { return Ok(()) };
        let names: Vec<String> = by.iter().map(|name| Quoted(name).to_string()).collect();
        write!(f, ", by=({})", names.join(" "))
    }
}

/// A quoted string; a display string if the text has characters other than printable ASCII.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return write!(f, "\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""));
        }
        f.write_str("%\"")?;
        for byte in self.0.bytes() {
            match byte {
                b'%' | b'"' | ..b' ' | 0x7f.. => write!(f, "%{byte:02x}")?,
                byte => write!(f, "{}", char::from(byte))?,
            }
        }
        f.write_str("\"")
    }
}

/// The value of one member of a dictionary.
enum DictionaryValue {
    Text(String),
    Number(u64),
    List(Vec<String>),
}

impl Receipt {
    /// Parses a receipt, and ignores unknown members. `None` if the text is not a receipt.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (mut version, mut sync, mut by) = (None, None, None);
        let (mut epoch, mut ack, mut from) = (None, None, None);
        for member in members(text)? {
            match (member.0.as_str(), member.1) {
                ("version", DictionaryValue::Text(text)) => version = Some(text),
                ("sync", DictionaryValue::Text(text)) => sync = Some(text),
                ("epoch", DictionaryValue::Number(number)) => epoch = Some(number),
                ("ack", DictionaryValue::Number(number)) => ack = Some(u8::try_from(number).ok()?),
                ("from", DictionaryValue::Number(number)) => {
                    from = Some(u8::try_from(number).ok()?)
                }
                ("by", DictionaryValue::List(names)) => by = Some(names),
                _ => {}
            }
        }
        let (version, epoch, sync) = (version?, epoch?, sync?);
        Some(Self { version, epoch, ack: ack?, from: from?, sync, by })
    }
}

/// Parses a dictionary of texts, numbers and lists of texts, all without parameters. Receipts use
/// only this subset; `None` for any other text.
fn members(text: &str) -> Option<Vec<(String, DictionaryValue)>> {
    let mut rest = text.chars().peekable();
    let mut members = Vec::new();
    loop {
        let key = word(&mut rest);
        (rest.next()? == '=' && !key.is_empty()).then_some(())?;
        let item = match rest.peek()? {
            '(' => DictionaryValue::List(list(&mut rest)?),
            '0'..='9' => DictionaryValue::Number(word(&mut rest).parse().ok()?),
            _ => DictionaryValue::Text(parse_quoted_or_token(&mut rest)?),
        };
        members.push((key, item));
        match rest.next() {
            None => return Some(members),
            Some(',') => while rest.next_if_eq(&' ').is_some() {},
            Some(_) => return None,
        }
    }
}

fn list(rest: &mut Peekable<Chars<'_>>) -> Option<Vec<String>> {
    let mut items = Vec::new();
    rest.next_if_eq(&'(')?;
    loop {
        while rest.next_if_eq(&' ').is_some() {}
        if rest.next_if_eq(&')').is_some() {
            return Some(items);
        }
        items.push(parse_quoted_or_token(rest)?);
    }
}

/// Reads a key, a number or a token.
fn word(rest: &mut Peekable<Chars<'_>>) -> String {
    let is_part = |next: &char| next.is_ascii_alphanumeric() || "_-.*:/+".contains(*next);
    std::iter::from_fn(|| rest.next_if(is_part)).collect()
}

fn parse_quoted_or_token(rest: &mut Peekable<Chars<'_>>) -> Option<String> {
    let is_display = rest.next_if_eq(&'%').is_some();
    if rest.next_if_eq(&'"').is_none() {
        return Some(word(rest)).filter(|word| !word.is_empty() && !is_display);
    }
    let mut bytes = Vec::new();
    loop {
        match rest.next()? {
            '"' => return String::from_utf8(bytes).ok(),
            '%' if is_display => {
                let mut digit = || rest.next()?.to_digit(16);
                bytes.push((digit()? << 4 | digit()?) as u8);
            }
            '\\' if !is_display => bytes.push(u8::try_from(rest.next()?).ok()?),
            next => bytes.push(u8::try_from(next).ok().filter(u8::is_ascii)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn receipt(by: Option<&[&str]>) -> Receipt {
        let names = |by: &[&str]| by.iter().map(|name| (*name).to_owned()).collect();
        let (version, sync) = ("0123456789abcdef-01234567".to_owned(), "always".to_owned());
        Receipt { version, epoch: 1, ack: 2, from: 3, sync, by: by.map(names) }
    }

    #[test]
    fn a_receipt_is_a_dictionary_of_structured_fields() {
        let start = "version=\"0123456789abcdef-01234567\", epoch=1, ack=2, from=3, sync=always";
        for (by, text) in [
            (Some(&["n1", "n2"][..]), ", by=(\"n1\" \"n2\")"),
            (Some(&["http://127.0.0.1:8080"]), ", by=(\"http://127.0.0.1:8080\")"),
            (Some(&["a\"b\\"]), ", by=(\"a\\\"b\\\\\")"),
            (Some(&["K\u{f6}ln-100%"]), ", by=(%\"K%c3%b6ln-100%25\")"),
            (None, ""),
        ] {
            let text = format!("{start}{text}");
            assert_eq!(receipt(by).to_string(), text);
            assert_eq!(Receipt::parse(&text), Some(receipt(by)));
        }
        let more = format!("{start}, later=\"x\", by=(\"n1\")");
        assert_eq!(Receipt::parse(&more), Some(receipt(Some(&["n1"]))), "unknown members");
    }

    #[test]
    fn a_malformed_receipt_counts_as_none() {
        let whole = receipt(Some(&["n1"])).to_string();
        for end in 0..whole.find(", by").unwrap() - "always".len() {
            assert_eq!(Receipt::parse(&whole[..end]), None, "{}", &whole[..end]);
        }
        for text in ["", "x", "version=\"a\" epoch=1", &whole.replace("ack=2", "ack=256")] {
            assert_eq!(Receipt::parse(text), None, "{text}");
        }
    }

    /// Generates texts from the parts of the syntax, and other texts.
    const TEXTS: &str = "[ -~]{0,60}|((version|by|ack|[=\"%(), 1]){0,20})";

    proptest! {
        #[test]
        fn any_names_are_read_back(by in vec(".{1,20}", 0..4), epoch in any::<u64>()) {
            let (version, sync) = ("0-1-2-3".to_owned(), "interval".to_owned());
            let receipt = Receipt { version, epoch, ack: 1, from: 8, sync, by: Some(by) };
            let text = receipt.to_string();
            prop_assert!(HeaderValue::from_str(&text).is_ok());
            prop_assert_eq!(Receipt::parse(&text), Some(receipt));
        }

        #[test]
        fn any_text_is_a_receipt_or_none(text in TEXTS) {
            let _ = Receipt::parse(&text);
        }
    }
}
