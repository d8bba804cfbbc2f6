//! Parser of range queries.

use protocol::layout::end_of_prefix;
use protocol::{AskedQuorum, Quorum};

use super::{
    RawValue, Replication, bad_parameter, digits, effective_quorum, flag, key, raw_values, require,
};
use crate::http::entities::cursor;
use crate::http::entities::form::Form;
use crate::http::percent;
use crate::http::problem::Problem;

/// Parameters of a range.
pub(in crate::http) const RANGE: [&str; 9] =
    ["start", "end", "ack", "from", "local", "prefix", "limit", "after", "values"];

/// Parameters that are errors with [`Form::Chunks`].
const PAGED: [&str; 4] = ["prefix", "limit", "after", "values"];

/// Maximum number of items of a page. The whole page is in memory before its head is sent.
pub(crate) const MAX_LIMIT: u32 = 10_000;

/// The keys of a range: from `start` to before `end`; without `end` to the last key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Bounds {
    /// First key of the range; empty = from the first key of the store.
    pub(in crate::http) start: Vec<u8>,
    pub(in crate::http) end: Option<Vec<u8>>,
}

impl Bounds {
    /// True if the range can continue at `next`: `next` is a key of the range, or its end.
    pub(in crate::http) fn can_continue_at(&self, next: &[u8]) -> bool {
        self.start.as_slice() <= next && self.end.as_deref().is_none_or(|end| next <= end)
    }
}

/// A range to read.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct RangeParams {
    /// The range that `start`, `prefix` and `end` define, whatever `after` is.
    pub(in crate::http) whole: Bounds,
    /// Position at which the range continues, decoded from `after`.
    after: Option<Vec<u8>>,
    pub(in crate::http) quorum: Quorum,
    pub(in crate::http) asked: AskedQuorum,
    /// True if only this node's own records are wanted.
    pub(in crate::http) local: bool,
    /// Maximum number of items of a page; `None` = no pages.
    pub(in crate::http) limit: Option<usize>,
    /// True if values are sent.
    pub(in crate::http) values: bool,
    /// The form in which items are sent.
    pub(in crate::http) form: Form,
    /// The query without `after`, for links.
    base: String,
}

impl RangeParams {
    /// Returns the keys to read: the whole range, or its rest after the cursor.
    pub(in crate::http) fn rest(&self) -> (&[u8], Option<&[u8]>) {
        (self.after.as_ref().unwrap_or(&self.whole.start), self.whole.end.as_deref())
    }

    /// Encodes a cursor that continues at `next`.
    pub(in crate::http) fn cursor(&self, next: &[u8]) -> String {
        cursor::encode(&self.whole, next)
    }

    /// Returns the value of a `Link` header to the page that begins at `cursor`, in visible ASCII.
    pub(in crate::http) fn link(&self, cursor: &str) -> String {
        let mut link = "</v0/entities?".to_owned();
        for byte in self.base.bytes() {
            if byte.is_ascii_graphic() && !b"<>\"".contains(&byte) {
                link.push(char::from(byte));
            } else {
                link += &percent::encode(&[byte]);
            }
        }
        // The query is not empty, because a page requires `limit`.
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
    /// Returns the bounds of the whole range, and the position of the cursor if the query has one.
    fn bounds_and_cursor(&self) -> Result<(Bounds, Option<Vec<u8>>), Problem> {
        let start = parse_key("start", self.start)?.unwrap_or_default();
        let prefix = parse_key("prefix", self.prefix)?.unwrap_or_default();
        if self.end == Some("") {
            return Err(bad_parameter("end must not be empty; omit it to read to the last key"));
        }
        let end = parse_key("end", self.end)?;
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

    /// Returns the query without `after`. Each value keeps its encoding.
    fn base(&self) -> String {
        let RawRange { start, end, ack, from, local, prefix, limit, after: _, values } = self;
        let all = [start, end, ack, from, local, prefix, limit, &None, values];
        let pairs = RANGE.iter().zip(all).filter_map(|(name, value)| Some((name, (*value)?)));
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join("&")
    }
}

/// Parses a parameter whose value is a key; `None` if the query does not have it.
fn parse_key(name: &str, value: RawValue<'_>) -> Result<Option<Vec<u8>>, Problem> {
    let Some(_) = value else { return Ok(None) };
    Ok(Some(key(name, require(name, value)?)?.into_owned()))
}

pub(in crate::http) fn entities(
    query: &str,
    form: Form,
    replication: Replication,
) -> Result<RangeParams, Problem> {
    let raw_params = raw_range(query)?;
    if form == Form::Chunks {
        let paged = [raw_params.prefix, raw_params.limit, raw_params.after, raw_params.values];
        let paged = PAGED.iter().zip(paged).find(|(_, value)| value.is_some());
        if let Some((name, _)) = paged {
            return Err(bad_parameter(format!(
                "{name}= is for responses that tell items apart: send Accept: {} or Accept: {}",
                Form::Lines.content_type(),
                Form::Frames.content_type(),
            )));
        }
        if raw_params.start.is_none() {
            return Err(bad_parameter(format!(
                "parameter \"start\" is missing; to list all keys, or those with a prefix=, send \
                 Accept: {}",
                Form::Lines.content_type(),
            )));
        }
        require("start", raw_params.start)?;
    }
    let (whole, after) = raw_params.bounds_and_cursor()?;
    let local = flag("local", raw_params.local)?;
    if local && (raw_params.ack.is_some() || raw_params.from.is_some()) {
        return Err(bad_parameter(
            "local=true reads the records of the asked node alone: leave out ack= and from=, or \
             local="
                .to_owned(),
        ));
    }
    let values = raw_params.values.is_none() || flag("values", raw_params.values)?;
    let limit = digits("limit", raw_params.limit, MAX_LIMIT)?;
    if let Some(limit) = limit.filter(|limit| !(1..=MAX_LIMIT).contains(limit)) {
        return Err(bad_parameter(format!("limit={limit} is out of range 1..{MAX_LIMIT}")));
    }
    let limit = limit.map(|limit| limit as usize);
    let (asked, quorum) = effective_quorum(raw_params.ack, raw_params.from, replication)?;
    let base = raw_params.base();
    Ok(RangeParams { whole, after, quorum, asked, local, limit, values, form, base })
}
