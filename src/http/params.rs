//! What a query string asks for. Strict: a parameter that is unknown, doubled or malformed is an
//! error that names it, for a typing error must not quietly become another request.

mod quotas;
mod tokens;

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use cluster::layout::{Change, Joiner};
use cluster::{AskedQuorum, Quorum, ReplicaSet, quorum};
use profile::{Event, Format};

use super::MAX_KEY_LEN;
use super::problem::Problem;
use crate::operations::joining::NotAsking;
use crate::settings::members::parse_node;
use crate::settings::units::Ttl;
#[cfg(test)]
pub(super) use quotas::{QUOTA, REMOVE};
pub(super) use quotas::{quota, quota_to_remove};
#[cfg(test)]
pub(super) use tokens::{REVOKE, TOKEN};
pub(super) use tokens::{revoke, token};

/// The cluster as quorums see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replication {
    /// Nodes of the cluster.
    pub(crate) nodes: u32,
    /// Copies of a key if the request does not say.
    pub(crate) replicas: u32,
}

/// One key that is read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReadParams<'a> {
    pub(super) key: Cow<'a, [u8]>,
    pub(super) quorum: Quorum,
    pub(super) asked: AskedQuorum,
}

/// One key that is written or deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WriteParams<'a> {
    pub(super) key: Cow<'a, [u8]>,
    pub(super) quorum: Quorum,
    pub(super) asked: AskedQuorum,
    /// `from` if it was said, otherwise 0: what a record keeps of it.
    pub(super) copies: u8,
    /// Whether the answer is to name who acknowledged it.
    pub(super) receipt: bool,
    /// How long the value lives; `None` = for ever.
    pub(super) ttl: Option<Ttl>,
}

/// One key whose value is changed under a condition: by a majority of its replicas at least.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConditionalParams<'a> {
    pub(super) key: Cow<'a, [u8]>,
    pub(super) quorum: Quorum,
    pub(super) asked: AskedQuorum,
    /// As of any write.
    pub(super) receipt: bool,
    /// The same; of an addition `None` = as long as what it adds to.
    pub(super) ttl: Option<Ttl>,
}

/// A range of keys: `start ≤ key < end`; no `end` = to the last key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntitiesParams {
    pub(super) start: Vec<u8>,
    pub(super) end: Option<Vec<u8>>,
    pub(super) quorum: Quorum,
    pub(super) asked: AskedQuorum,
    /// Whether only what this node holds is meant.
    pub(super) local: bool,
}

/// What is to be recorded, and how the answer looks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProfileParams {
    pub(super) events: Vec<Event>,
    pub(super) duration: Duration,
    pub(super) format: Format,
    pub(super) idle: bool,
}

/// What may be asked of a read …
pub(super) const READ: [&str; 3] = ["id", "ack", "from"];

/// … of a write …
pub(super) const PUT: [&str; 5] = ["id", "ack", "from", "receipt", "ttl"];

/// … of a deletion …
pub(super) const DELETE: [&str; 4] = ["id", "ack", "from", "receipt"];

/// … of an addition …
pub(super) const ADD: [&str; 6] = ["id", "add", "ack", "from", "receipt", "ttl"];

/// … of a range …
pub(super) const RANGE: [&str; 5] = ["start", "end", "ack", "from", "local"];

/// … of a key's replicas …
pub(super) const PLACEMENT: [&str; 2] = ["id", "from"];

/// … of the dashboard's events …
pub(super) const EVENTS: [&str; 1] = ["local"];

/// … and of a recording.
pub(super) const PROFILE: [&str; 4] = ["event", "seconds", "format", "idle"];

/// … and of a round of repair.
pub(super) const REPAIR: [&str; 1] = ["full"];

/// … of a plan of the members …
pub(super) const PLAN: [&str; 6] =
    ["add", "remove", "remove_dead", "weight", "replicas", "council"];

/// … and of having one applied.
pub(super) const APPLY: [&str; 1] = ["plan"];

/// Seconds of a recording that does not say how long.
const DEFAULT_SECONDS: u32 = 20;

/// What was found for one parameter so far.
type Slot<'a> = Option<&'a str>;

/// What a query has under each of these names.
fn fill<'a, const N: usize>(query: &'a str, names: [&str; N]) -> Result<[Slot<'a>; N], Problem> {
    let mut slots = [None; N];
    if query.is_empty() {
        return Ok(slots);
    }
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(place) = names.iter().position(|known| *known == name) else {
            let shown: String = name.chars().take(100).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            if is_token(name) {
                return Err(token_in_url());
            }
            let fix = if name == "ttl" { "; omit it: only PUT and POST take a ttl" } else { "" };
            return Err(bad(format!("unknown parameter {shown:?}; known: {known}{fix}")));
        };
        if slots[place].replace(value).is_some() {
            return Err(bad(format!("duplicate parameter {name:?}")));
        }
    }
    Ok(slots)
}

/// Whether a parameter of that name has a token.
fn is_token(name: &str) -> bool {
    ["token", "access_token", "authorization"].iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// Whether somebody sent a token where it must not be.
pub(super) fn has_token(query: &str) -> bool {
    !query.is_empty() && query.split('&').any(|pair| is_token(pair.split('=').next().unwrap_or("")))
}

/// What is said of that.
pub(super) fn token_in_url() -> Problem {
    bad("a token must not be in a URL, for URLs are kept in logs and histories: revoke it, and \
        send the next one as Authorization: Bearer TOKEN"
        .to_owned())
}

/// The key that a request is about, whatever else it says; `None` = it will be refused.
pub(super) fn key_of(query: &str) -> Option<Cow<'_, [u8]>> {
    let [id, ..] = fill(query, ADD).ok()?;
    key("id", required("id", id).ok()?).ok()
}

/// The range that a request is about, the same.
pub(super) fn range(query: &str) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let [start, end, ..] = fill(query, RANGE).ok()?;
    bounds(start, end).ok()
}

pub(super) fn read(query: &str, replication: Replication) -> Result<ReadParams<'_>, Problem> {
    let [id, ack, from] = fill(query, READ)?;
    let key = key("id", required("id", id)?)?;
    let (asked, quorum) = agree(ack, from, replication)?;
    Ok(ReadParams { key, quorum, asked })
}

/// A key that is written; `most` is what its value may live.
pub(super) fn put(
    query: &str,
    replication: Replication,
    most: Ttl,
) -> Result<WriteParams<'_>, Problem> {
    let [id, ack, from, receipt, ttl] = fill(query, PUT)?;
    write([id, ack, from, receipt], live(ttl, most)?, replication)
}

pub(super) fn delete(query: &str, replication: Replication) -> Result<WriteParams<'_>, Problem> {
    write(fill(query, DELETE)?, None, replication)
}

fn write(
    [id, ack, from, receipt]: [Slot<'_>; 4],
    ttl: Option<Ttl>,
    on: Replication,
) -> Result<WriteParams<'_>, Problem> {
    let key = key("id", required("id", id)?)?;
    let (asked, quorum) = agree(ack, from, on)?;
    let copies = asked.from.unwrap_or(0);
    let receipt = wants_receipt(receipt, quorum)?;
    Ok(WriteParams { key, quorum, asked, copies, receipt, ttl })
}

/// The same under a condition.
pub(super) fn conditional_put(
    query: &str,
    replication: Replication,
    most: Ttl,
) -> Result<ConditionalParams<'_>, Problem> {
    let [id, ack, from, receipt, ttl] = fill(query, PUT)?;
    majority([id, ack, from, receipt], live(ttl, most)?, replication)
}

pub(super) fn conditional_delete(
    query: &str,
    replication: Replication,
) -> Result<ConditionalParams<'_>, Problem> {
    majority(fill(query, DELETE)?, None, replication)
}

/// A key, and what is to be added to its value.
pub(super) fn addition(
    query: &str,
    replication: Replication,
    most: Ttl,
) -> Result<(ConditionalParams<'_>, i64), Problem> {
    let [id, add, ack, from, receipt, ttl] = fill(query, ADD)?;
    let add = required("add", add)?;
    let digits = add.strip_prefix('-').unwrap_or(add);
    let number = add.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let number = number.ok_or_else(|| {
        let shown: String = add.chars().take(100).collect();
        bad(format!("add={shown:?} is not a decimal number of 64 bits, such as 12 or -3"))
    })?;
    Ok((majority([id, ack, from, receipt], live(ttl, most)?, replication)?, number))
}

/// How long a value lives, if that is said: no longer than `most`.
fn live(ttl: Slot<'_>, most: Ttl) -> Result<Option<Ttl>, Problem> {
    let Some(text) = ttl else { return Ok(None) };
    let ttl: Ttl = text.parse().map_err(|wrong| bad(format!("ttl={wrong}")))?;
    if ttl > most {
        return Err(bad(format!(
            "ttl={ttl} is more than this node's --max-ttl: {most} or less; without a ttl a value \
             never expires"
        )));
    }
    Ok(Some(ttl))
}

fn majority(
    [id, ack, from, receipt]: [Slot<'_>; 4],
    ttl: Option<Ttl>,
    on: Replication,
) -> Result<ConditionalParams<'_>, Problem> {
    let key = key("id", required("id", id)?)?;
    let (_, usual) = agree(None, None, on)?;
    if from.is_some() && agree(None, from, on)?.1.from != usual.from {
        let usual = usual.from;
        return Err(bad(format!("a conditional write is from={usual}, the default; omit from")));
    }
    let (asked, quorum) = agree(ack, None, on)?;
    if quorum.ack < usual.ack {
        let (ack, usual) = (quorum.ack, usual.ack);
        return Err(bad(format!("ack={ack} is too few for a conditional write: {usual} or more")));
    }
    let receipt = wants_receipt(receipt, quorum)?;
    Ok(ConditionalParams { key, quorum, asked, receipt, ttl })
}

/// Whether a receipt is asked for. Which replicas acknowledged is told by one byte.
fn wants_receipt(value: Slot<'_>, Quorum { from, .. }: Quorum) -> Result<bool, Problem> {
    let (wanted, most) = (flag("receipt", value)?, ReplicaSet::MOST);
    if wanted && from > most {
        return Err(bad(format!("receipt=true is limited to from={most}; this is from={from}")));
    }
    Ok(wanted)
}

pub(super) fn entities(query: &str, replication: Replication) -> Result<EntitiesParams, Problem> {
    let [start, end, ack, from, local] = fill(query, RANGE)?;
    let (start, end) = bounds(start, end)?;
    let local = flag("local", local)?;
    let (asked, quorum) = agree(ack, from, replication)?;
    Ok(EntitiesParams { start, end, quorum, asked, local })
}

fn bounds(start: Slot<'_>, end: Slot<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), Problem> {
    let start = key("start", required("start", start)?)?.into_owned();
    let end = match end {
        Some("") => {
            return Err(bad("end must not be empty; omit it to read to the last key".to_owned()));
        }
        Some(end) => Some(key("end", end)?.into_owned()),
        None => None,
    };
    Ok((start, end))
}

/// The key whose replicas are asked for, and how many.
pub(super) fn placement(
    query: &str,
    replication: Replication,
) -> Result<(Cow<'_, [u8]>, u8), Problem> {
    let [id, from] = fill(query, PLACEMENT)?;
    let key = key("id", required("id", id)?)?;
    Ok((key, agree(Some("1"), from, replication)?.1.from))
}

/// Whether everything is to be compared.
pub(super) fn repair(query: &str) -> Result<bool, Problem> {
    let [full] = fill(query, REPAIR)?;
    flag("full", full)
}

/// Nothing can be said.
pub(super) fn none(query: &str) -> Result<(), Problem> {
    fill(query, []).map(|[]| ())
}

/// Which plan is to be applied.
pub(super) fn apply(query: &str) -> Result<u128, Problem> {
    let [plan] = fill(query, APPLY)?;
    let plan = required("plan", plan)?;
    let id = plan.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(plan);
    id.and_then(|id| u128::from_str_radix(id, 16).ok()).ok_or_else(|| {
        bad(format!("{plan:?} is not a valid plan id: 32 hexadecimal digits, as the plan shows it"))
    })
}

/// What a plan is to change. Several nodes of one parameter have commas between them. Who is
/// added asks to join, and is known to `asking` by name, or is described.
pub(super) fn change(
    query: &str,
    asking: impl Fn(&str) -> Result<Joiner, NotAsking>,
) -> Result<Change, Problem> {
    let query = percent_decode(query.as_bytes())
        .and_then(|decoded| String::from_utf8(decoded.into_owned()).ok())
        .ok_or_else(|| bad("the query is not percent-encoded UTF-8".to_owned()))?;
    let [add, remove, remove_dead, weight, replicas, council] = fill(&query, PLAN)?;
    let names = |list: Option<&str>| list.map(|list| list.split(',').map(str::to_owned).collect());
    let joiner = |node: &str| {
        if !node.contains("://") {
            return asking(node).map_err(|error| bad(format!("add: {error}")));
        }
        let (member, url) = parse_node(node).map_err(|error| bad(format!("add: {error}")))?;
        Ok(Joiner { member, url, disk: None })
    };
    let weight_of = |text: &str| {
        let parsed = text
            .rsplit_once('=')
            .and_then(|(name, weight)| Some((name.to_owned(), weight.parse().ok()?)));
        parsed.ok_or_else(|| bad(format!("weight: {text:?} is not NODE=1..1000")))
    };
    let copies = |text: &str| {
        text.parse().map_err(|_| bad(format!("replicas: {text:?} is not a number, 1..255")))
    };
    Ok(Change {
        add: add
            .into_iter()
            .flat_map(|add| add.split(','))
            .map(joiner)
            .collect::<Result<_, _>>()?,
        remove: names(remove).unwrap_or_default(),
        remove_lost: names(remove_dead).unwrap_or_default(),
        weights: weight
            .into_iter()
            .flat_map(|weight| weight.split(','))
            .map(weight_of)
            .collect::<Result<_, _>>()?,
        replicas: replicas.map(copies).transpose()?,
        council: names(council),
        urls: Vec::new(),
    })
}

/// Whether only this node's events are meant.
pub(super) fn events(query: &str) -> Result<bool, Problem> {
    let [local] = fill(query, EVENTS)?;
    flag("local", local)
}

pub(super) fn profile(query: &str) -> Result<ProfileParams, Problem> {
    // Programs encode what need not be: the commas between events.
    let query = percent_decode(query.as_bytes())
        .and_then(|decoded| String::from_utf8(decoded.into_owned()).ok())
        .ok_or_else(|| bad("the query is not percent-encoded UTF-8".to_owned()))?;
    let [events, seconds, format, idle] = fill(&query, PROFILE)?;
    let events = profile::event::list(events.unwrap_or("cpu")).map_err(bad)?;
    let format: Format = format.unwrap_or("html").parse().map_err(bad)?;
    if format.is_of_one() && events.len() > 1 {
        let (name, events) = (format.name(), profile::event::names(&events));
        return Err(bad(format!(
            "format={name} holds one event, not {events}; use html or json, or request one event \
             at a time"
        )));
    }
    let seconds = u64::from(digits("seconds", seconds)?.unwrap_or(DEFAULT_SECONDS));
    if !profile::SECONDS.contains(&seconds) {
        let (least, most) = (profile::SECONDS.start(), profile::SECONDS.end());
        return Err(bad(format!("seconds={seconds} is out of range {least}..{most}")));
    }
    let idle = flag("idle", idle)?;
    Ok(ProfileParams { events, duration: Duration::from_secs(seconds), format, idle })
}

fn flag(name: &str, value: Slot<'_>) -> Result<bool, Problem> {
    match value {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(100).collect();
            Err(bad(format!("{name}={shown:?} is not a boolean: use true or false")))
        }
    }
}

fn bad(detail: impl Display) -> Problem {
    Problem::bad_request(detail.to_string())
}

fn required<'a>(name: &str, value: Slot<'a>) -> Result<&'a str, Problem> {
    match value {
        None => Err(bad(format!("parameter {name:?} is missing"))),
        Some("") => Err(bad(format!("parameter {name:?} is empty"))),
        Some(value) => Ok(value),
    }
}

fn key<'a>(name: &str, value: &'a str) -> Result<Cow<'a, [u8]>, Problem> {
    let key = percent_decode(value.as_bytes()).ok_or_else(|| {
        bad(format!("parameter {name:?} has a % without two hex digits after it"))
    })?;
    if key.len() > MAX_KEY_LEN {
        let len = key.len();
        return Err(bad(format!(
            "parameter {name:?} is {len} bytes long; keys are limited to \
            {MAX_KEY_LEN}"
        )));
    }
    Ok(key)
}

/// Decodes `%XX`. Everything else stands for itself, `+` too.
fn percent_decode(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(first) = text.iter().position(|byte| *byte == b'%') else {
        return Some(Cow::Borrowed(text));
    };
    let mut decoded = Vec::with_capacity(text.len());
    decoded.extend_from_slice(&text[..first]);
    let mut rest = &text[first..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = if byte == b'%' {
            let (&[high, low], after) = after.split_first_chunk()?;
            let hex = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
            decoded.push(hex(high)? << 4 | hex(low)?);
            after
        } else {
            decoded.push(byte);
            after
        };
    }
    Some(Cow::Owned(decoded))
}

/// What was said of a quorum, and what it is by the view in force.
fn agree(ack: Slot<'_>, from: Slot<'_>, on: Replication) -> Result<(AskedQuorum, Quorum), Problem> {
    let ack = digits("ack", ack)?;
    let from = digits("from", from)?;
    let quorum = quorum(ack, from, on.nodes, on.replicas).map_err(Problem::quorum)?;
    let asked = AskedQuorum { ack: ack.map(|_| quorum.ack), from: from.map(|_| quorum.from) };
    Ok((asked, quorum))
}

/// A number of plain digits; one that is too large for any cluster is as large as can be.
fn digits(name: &str, value: Slot<'_>) -> Result<Option<u32>, Problem> {
    let Some(value) = value else { return Ok(None) };
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        let shown: String = value.chars().take(100).collect();
        return Err(bad(format!("{name}={shown:?} is not a decimal number")));
    }
    Ok(Some(value.parse().unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Queries made of what means something in them, and any text.
    const QUERIES: &str = "[ -~]{0,60}|\
        ((id|ack|from|add|receipt|ttl|start|end|local|x)(=[%0-9a-fxsmhd]{0,8})?[&=]?){0,6}";

    /// The same of what only operators ask for.
    const ORDERS: &str = "\\PC{0,60}|\
        ((id|name|methods|for|prefix|expires|requests|bytes|limit|keys|event|seconds|format|idle|\
        full|plan|add|remove|remove_dead|weight|replicas|council|local)\
        =?([+%,=:/0-9a-fnmhd]{0,8}|read,write|n1=[0-9]{1,4}|n1@z=http://h:1)?&?){0,6}";

    const ONE: Replication = Replication { nodes: 1, replicas: 3 };
    const FIVE: Replication = Replication { nodes: 5, replicas: 3 };

    const MONTH: &str = "30d";

    fn most() -> Ttl {
        MONTH.parse().unwrap()
    }

    fn write(query: &str, on: Replication) -> Result<WriteParams<'_>, Problem> {
        put(query, on, most())
    }

    fn conditional(query: &str, on: Replication) -> Result<ConditionalParams<'_>, Problem> {
        conditional_put(query, on, most())
    }

    fn addition(query: &str, on: Replication) -> Result<(ConditionalParams<'_>, i64), Problem> {
        super::addition(query, on, most())
    }

    fn detail(problem: Problem) -> String {
        serde_json::to_value(problem).unwrap()["detail"].as_str().unwrap().to_owned()
    }

    fn decoded(query: &str) -> Vec<u8> {
        read(query, ONE).unwrap().key.into_owned()
    }

    #[test]
    fn any_bytes_but_none_are_a_key() {
        assert_eq!(decoded("id=a"), b"a");
        assert_eq!(decoded("id=%00"), b"\0");
        assert_eq!(decoded("id=%2e%2E/%ff"), b"../\xff");
        assert_eq!(decoded("id=a+b%2B"), b"a+b+");
        assert_eq!(decoded("id=a=b"), b"a=b");
        assert_eq!(decoded("id=%25%32%35"), b"%25");
        assert_eq!(decoded("id=%C3%28"), b"\xc3(");
        assert_eq!(decoded(&format!("id={}", "%61".repeat(1024))), vec![b'a'; 1024]);
    }

    #[test]
    fn a_key_without_escapes_is_not_copied() {
        assert!(matches!(read("id=plain", ONE).unwrap().key, Cow::Borrowed(_)));
    }

    #[test]
    fn quorums_are_read() {
        let quorum = |query| read(query, FIVE).unwrap().quorum;
        assert_eq!(quorum("id=a"), Quorum { ack: 2, from: 3 });
        assert_eq!(quorum("ack=1&id=a&from=5"), Quorum { ack: 1, from: 5 });
        assert_eq!(quorum("ack=0002&id=a"), Quorum { ack: 2, from: 3 });
        let copies = |query| write(query, FIVE).unwrap().copies;
        assert_eq!((copies("id=a&ack=1"), copies("id=a&from=3")), (0, 3));
    }

    #[test]
    fn what_is_wrong_with_an_entity_is_refused() {
        let long = format!("id={}", "a".repeat(1025));
        for query in [
            "",
            "id",
            "id=",
            "ack=1",
            "id=a&id=a",
            "id=a&id=b",
            "id=a&ack=1&ack=3",
            "id=a&b=1",
            "id=a&",
            "&id=a",
            "id=a&&ack=1",
            "ID=a",
            "id=%",
            "id=%4",
            "id=%4g",
            "id=%+1",
            "id=a%",
            "id=a&ack=",
            "id=a&ack=x",
            "id=a&ack=-1",
            "id=a&ack=%31",
            "id=a&ack=+1",
            "id=a&ack=0",
            "id=a&ack=4",
            "id=a&from=6",
            "id=a&from=256",
            "id=a&from=0",
            "id=a&ack=2&from=1",
            "id=a&from=99999999999999999999",
            "id=a&local=true",
            "id=a&start=b",
            &long,
        ] {
            assert!(read(query, FIVE).is_err(), "{query:?} was taken to read");
            assert!(write(query, FIVE).is_err(), "{query:?} was taken to write");
            assert!(delete(query, FIVE).is_err(), "{query:?} was taken to delete");
        }
    }

    #[test]
    fn receipts_are_for_writes() {
        let many = Replication { nodes: 20, replicas: 9 };
        let wants = |query| write(query, FIVE).unwrap().receipt;
        assert_eq!([wants("id=a"), wants("id=a&receipt=false")], [false, false]);
        assert!(wants("receipt=true&id=a&ack=1&from=5"));
        assert!(conditional("id=a&receipt=true", FIVE).unwrap().receipt);
        assert!(addition("id=a&add=1&receipt=true", FIVE).unwrap().0.receipt);
        assert!(write("id=a&from=8&receipt=true", many).unwrap().receipt);
        for query in
            ["receipt=", "receipt", "receipt=1", "receipt=True", "receipt=true&receipt=true"]
        {
            let query = format!("id=a&{query}");
            let refused = detail(write(&query, FIVE).unwrap_err());
            assert!(refused.contains("receipt"), "{query}: {refused}");
            assert!(conditional(&query, FIVE).is_err() && addition(&query, FIVE).is_err());
        }
        assert!(write("id=a&receipt=true", many).is_err(), "from=9 by default");
        for refused in [
            read("id=a&receipt=true", FIVE).err(),
            entities("start=a&receipt=true", FIVE).err(),
            placement("id=a&receipt=true", FIVE).err(),
            profile("receipt=true").err(),
        ] {
            let refused = detail(refused.unwrap());
            assert!(refused.contains("unknown parameter \"receipt\""), "{refused}");
        }
    }

    #[test]
    fn values_may_be_given_a_time_to_live() {
        let lives = |ttl: &str| {
            let (put, add) = (format!("id=a&ttl={ttl}"), format!("id=a&add=1&ttl={ttl}"));
            let all = [
                write(&put, FIVE).map(|params| params.ttl),
                conditional(&put, FIVE).map(|params| params.ttl),
                addition(&add, FIVE).map(|(params, _)| params.ttl),
            ];
            let all = all.map(|ttl| ttl.map_err(detail));
            assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
            let [one, ..] = all;
            one.map(|ttl| ttl.unwrap().to_string())
        };
        assert_eq!([lives("1s"), lives("30d")], [Ok("1s".to_owned()), Ok(MONTH.to_owned())]);
        assert_eq!(write("id=a", FIVE).unwrap().ttl, None);
        for (ttl, wrong) in [
            (
                "",
                "ttl=\"\" is not a time to live: write a whole number and s, m, h or d, as in 90s",
            ),
            ("-1", "ttl=\"-1\" is not a time to live"),
            ("0", "ttl=\"0\" is not a time to live"),
            ("1.5h", "ttl=\"1.5h\" is not a time to live"),
            ("999y", "ttl=\"999y\" is not a time to live"),
            ("%39s", "ttl=\"%39s\" is not a time to live"),
            ("0s", "ttl=\"0s\" is out of range 1s..3650d"),
            ("3651d", "ttl=\"3651d\" is out of range 1s..3650d"),
            ("99999999999999999999s", "ttl=\"99999999999999999999s\" is out of range 1s..3650d"),
            ("31d", "ttl=31d is more than this node's --max-ttl: 30d or less"),
            ("2592001s", "ttl=2592001s is more than this node's --max-ttl: 30d or less"),
            ("1s&ttl=1s", "duplicate parameter \"ttl\""),
        ] {
            let said = lives(ttl).unwrap_err();
            assert!(said.starts_with(wrong), "{ttl}: {said}");
        }
        for refused in [
            read("id=a&ttl=1s", FIVE).err(),
            delete("id=a&ttl=1s", FIVE).err(),
            conditional_delete("id=a&ttl=1s", FIVE).err(),
            entities("start=a&ttl=1s", FIVE).err(),
            placement("id=a&ttl=1s", FIVE).err(),
        ] {
            let refused = detail(refused.unwrap());
            assert!(refused.starts_with("unknown parameter \"ttl\""), "{refused}");
            assert!(refused.ends_with("only PUT and POST take a ttl"), "{refused}");
        }
    }

    #[test]
    fn a_sign_is_no_digit_of_a_plan() {
        assert!(apply("plan=+ff").is_err() && apply("plan=ff").is_ok());
    }

    #[test]
    fn ranges_are_read() {
        let all = entities("start=a", FIVE).unwrap();
        assert_eq!((&all.start[..], all.end, all.local), (&b"a"[..], None, false));
        let part = entities("end=%ff&start=%00&local=true&ack=1&from=2", FIVE).unwrap();
        assert_eq!((&part.start[..], part.end), (&b"\0"[..], Some(vec![0xff])));
        assert_eq!((part.quorum, part.local), (Quorum { ack: 1, from: 2 }, true));
        for query in [
            "",
            "start=",
            "end=b",
            "start=a&end=",
            "start=a&end",
            "start=a&local=",
            "start=a&id=b",
            "start=a&local=1",
            "start=a&start=b",
            "start=a&end=%",
            "start=a&ack=9",
        ] {
            assert!(entities(query, FIVE).is_err(), "{query:?} was taken");
        }
    }

    proptest! {
        /// Whatever a client puts into a query: understood, or refused; never a panic.
        #[test]
        fn any_query_is_understood_or_refused(query in QUERIES) {
            let replication = FIVE;
            let _ = read(&query, replication);
            let _ = write(&query, replication);
            let _ = delete(&query, replication);
            let _ = conditional(&query, replication);
            let _ = conditional_delete(&query, replication);
            let _ = addition(&query, replication);
            let _ = entities(&query, replication);
            let _ = placement(&query, replication);
            let _ = profile(&query);
        }

        /// The same for what operators put into one.
        #[test]
        fn any_order_is_understood_or_refused(query in ORDERS) {
            let _ = (revoke(&query).err(), token(&query).err());
            let _ = (quota(&query).err(), quota_to_remove(&query).err());
            let _ = (repair(&query), none(&query), events(&query), profile(&query));
            let _ = change(&query, |node| Err(node.to_owned()));
            if let Ok(plan) = apply(&query) {
                let digits = query.strip_prefix("plan=").unwrap().trim_start_matches('0');
                let written = format!("{plan:x}");
                prop_assert_eq!(written.trim_start_matches('0'), digits.to_lowercase());
            }
        }

        /// Each `%` stands before two hex digits and is one byte with them; nothing else changes.
        #[test]
        fn any_bytes_are_decoded_as_a_reader_would(
            text in vec(prop_oneof![3 => Just(b'%'), 4 => b'0'..=b'g', 1 => any::<u8>()], 0..30),
        ) {
            let mut decoded = Some(Vec::new());
            let mut bytes = text.iter();
            while let Some(&byte) = bytes.next() {
                let hex = |digit: Option<&u8>| char::from(*digit?).to_digit(16);
                let byte = if byte == b'%' {
                    let (high, low) = (hex(bytes.next()), hex(bytes.next()));
                    high.zip(low).map(|(high, low)| (high * 16 + low) as u8)
                } else {
                    Some(byte)
                };
                decoded = decoded.zip(byte).map(|(decoded, byte)| [decoded, vec![byte]].concat());
            }
            prop_assert_eq!(percent_decode(&text).map(Cow::into_owned), decoded);
        }

        /// What is looked at before a request is done is what it does.
        #[test]
        fn who_may_ask_is_decided_by_the_same_key(query in QUERIES) {
            let keys = [
                read(&query, FIVE).map(|params| params.key).ok(),
                write(&query, FIVE).map(|params| params.key).ok(),
                delete(&query, FIVE).map(|params| params.key).ok(),
                conditional(&query, FIVE).map(|params| params.key).ok(),
                conditional_delete(&query, FIVE).map(|params| params.key).ok(),
                addition(&query, FIVE).map(|(params, _)| params.key).ok(),
                placement(&query, FIVE).map(|(key, _)| key).ok(),
            ];
            for done in keys.into_iter().flatten() {
                prop_assert_eq!(Some(done), key_of(&query));
            }
            if let Ok(done) = entities(&query, FIVE) {
                prop_assert_eq!(Some((done.start, done.end)), range(&query));
            }
        }

        #[test]
        fn any_key_survives_being_encoded(key in vec(any::<u8>(), 1..40), bare in any::<u8>()) {
            let encode = |byte: &u8| match byte {
                byte if byte.is_ascii_alphanumeric() && *byte != bare => {
                    char::from(*byte).to_string()
                }
                byte => format!("%{byte:02x}"),
            };
            let query = format!("id={}", key.iter().map(encode).collect::<String>());
            prop_assert_eq!(decoded(&query), key);
        }
    }
}
