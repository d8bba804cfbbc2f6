//! Parser of queries for a range.

use protocol::layout::end_of_prefix;
use protocol::{AskedQuorum, Quorum};

use super::{
    RawValue, Replication, bad_parameter, digits, effective_quorum, flag, key, raw_values, required,
};
use crate::http::entities::cursor;
use crate::http::entities::form::Form;
use crate::http::percent;
use crate::http::problem::Problem;

/// Parameters of a range.
pub(in crate::http) const RANGE: [&str; 9] =
    ["start", "end", "ack", "from", "local", "prefix", "limit", "after", "values"];

/// Parameters that [`Form::Chunks`] does not support.
const PAGED: [&str; 4] = ["prefix", "limit", "after", "values"];

/// Maximum number of a page's items, which are in memory before the head is sent.
pub(crate) const MAX_LIMIT: u32 = 10_000;

/// The keys of a range: `start ≤ key < end`; no `end` = to the last key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Bounds {
    /// First key of the range; empty = from the first key there is.
    pub(in crate::http) start: Vec<u8>,
    pub(in crate::http) end: Option<Vec<u8>>,
}

impl Bounds {
    /// True if the range can continue at `next`: one of its keys, or its end.
    pub(in crate::http) fn can_continue_at(&self, next: &[u8]) -> bool {
        self.start.as_slice() <= next && self.end.as_deref().is_none_or(|end| next <= end)
    }
}

/// A range to read.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct RangeParams {
    /// The whole range given by `start`, `prefix` and `end`, independent of `after`.
    pub(in crate::http) whole: Bounds,
    /// Position given by `after`, at which the range continues.
    after: Option<Vec<u8>>,
    pub(in crate::http) quorum: Quorum,
    pub(in crate::http) asked: AskedQuorum,
    /// True if only this node's own records are wanted.
    pub(in crate::http) local: bool,
    /// Maximum number of a page's items; `None` = no pages.
    pub(in crate::http) limit: Option<usize>,
    /// True if values are sent.
    pub(in crate::http) values: bool,
    /// The form in which items are sent.
    pub(in crate::http) form: Form,
    /// The query without `after`, for links.
    base: String,
}

impl RangeParams {
    /// Returns the keys to read: the whole range, or the rest behind the cursor.
    pub(in crate::http) fn rest(&self) -> (&[u8], Option<&[u8]>) {
        (self.after.as_ref().unwrap_or(&self.whole.start), self.whole.end.as_deref())
    }

    /// Returns the cursor that continues at `next`.
    pub(in crate::http) fn cursor(&self, next: &[u8]) -> String {
        cursor::encode(&self.whole, next)
    }

    /// Returns the value of a `Link` header to the page that a cursor begins: visible ASCII.
    pub(in crate::http) fn link(&self, cursor: &str) -> String {
        let mut link = "</v0/entities?".to_owned();
        for byte in self.base.bytes() {
            if byte.is_ascii_graphic() && !b"<>\"".contains(&byte) {
                link.push(char::from(byte));
            } else {
                link += &percent::encode(&[byte]);
            }
        }
        // The query is not empty: pages need a `limit`.
        link + "&after=" + cursor + ">; rel=\"next\""
    }
}

/// The raw parameters of a query for a range.
struct RawRange<'a> {
    start: RawValue<'a>,
    end: RawValue<'a>,
    ack: RawValue<'a>,
    from: RawValue<'a>,
    local: RawValue<'a>,
    prefix: RawValue<'a>,
    limit: RawValue<'a>,
    after: RawValue<'a>,
    values: RawValue<'a>,
}

fn raw_range(query: &str) -> Result<RawRange<'_>, Problem> {
    let [start, end, ack, from, local, prefix, limit, after, values] = raw_values(query, RANGE)?;
    Ok(RawRange { start, end, ack, from, local, prefix, limit, after, values })
}

impl RawRange<'_> {
    /// Returns the whole range, and the position behind the cursor if one is given.
    fn keys(&self) -> Result<(Bounds, Option<Vec<u8>>), Problem> {
        let start = given("start", self.start)?.unwrap_or_default();
        let prefix = given("prefix", self.prefix)?.unwrap_or_default();
        if self.end == Some("") {
            return Err(bad_parameter("end must not be empty; omit it to read to the last key"));
        }
        let end = given("end", self.end)?;
        let behind = if prefix.is_empty() { None } else { end_of_prefix(&prefix) };
        let end = match (end, behind) {
            (Some(end), Some(behind)) => Some(end.min(behind)),
            (end, behind) => end.or(behind),
        };
        let whole = Bounds { start: start.max(prefix), end };
        let Some(after) = self.after else { return Ok((whole, None)) };
        let text = percent::decode(after.as_bytes())
            .map_err(|error| bad_parameter(format!("parameter \"after\" {error}")))?;
        let after = cursor::decode(&whole, &text).map_err(bad_parameter)?;
        Ok((whole, Some(after)))
    }

    /// Returns the query without `after`, each value in its original encoding.
    fn base(&self) -> String {
        let RawRange { start, end, ack, from, local, prefix, limit, after: _, values } = self;
        let all = [start, end, ack, from, local, prefix, limit, &None, values];
        let pairs = RANGE.iter().zip(all).filter_map(|(name, value)| Some((name, (*value)?)));
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join("&")
    }
}

/// Parses a parameter that is a key, if it is given.
fn given(name: &str, value: RawValue<'_>) -> Result<Option<Vec<u8>>, Problem> {
    let Some(_) = value else { return Ok(None) };
    Ok(Some(key(name, required(name, value)?)?.into_owned()))
}

pub(in crate::http) fn entities(
    query: &str,
    form: Form,
    replication: Replication,
) -> Result<RangeParams, Problem> {
    let said = raw_range(query)?;
    if form == Form::Chunks {
        let paged = [said.prefix, said.limit, said.after, said.values];
        let paged = PAGED.iter().zip(paged).find(|(_, value)| value.is_some());
        if let Some((name, _)) = paged {
            return Err(bad_parameter(format!(
                "{name}= is for responses that tell items apart: send Accept: {} or Accept: {}",
                Form::Lines.content_type(),
                Form::Frames.content_type(),
            )));
        }
        if said.start.is_none() {
            return Err(bad_parameter(format!(
                "parameter \"start\" is missing; to list all keys, or those with a prefix=, send \
                 Accept: {}",
                Form::Lines.content_type(),
            )));
        }
        required("start", said.start)?;
    }
    let (whole, after) = said.keys()?;
    let local = flag("local", said.local)?;
    if local && (said.ack.is_some() || said.from.is_some()) {
        return Err(bad_parameter(
            "local=true reads the records of the asked node alone: leave out ack= and from=, or \
             local="
                .to_owned(),
        ));
    }
    let values = said.values.is_none() || flag("values", said.values)?;
    let limit = digits("limit", said.limit, MAX_LIMIT)?;
    if let Some(limit) = limit.filter(|limit| !(1..=MAX_LIMIT).contains(limit)) {
        return Err(bad_parameter(format!("limit={limit} is out of range 1..{MAX_LIMIT}")));
    }
    let limit = limit.map(|limit| limit as usize);
    let (asked, quorum) = effective_quorum(said.ack, said.from, replication)?;
    let base = said.base();
    Ok(RangeParams { whole, after, quorum, asked, local, limit, values, form, base })
}
