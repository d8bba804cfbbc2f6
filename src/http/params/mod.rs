//! Parsers of query strings. An unknown, duplicate or malformed parameter is an error that names
//! the parameter. Otherwise a typing error could become another request.

mod range;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use memchr::memchr;
use profile::{Event, Format};
use protocol::layout::{Joiner, PlanChange};
use protocol::{AskedQuorum, Quorum, ReplicaSet, quorum};

use super::percent::DecodeError;
use super::problem::Problem;
use super::{MAX_KEY_LEN, percent};
use crate::joining::answers::NotAsking;
use crate::settings::members::parse_node;
use crate::settings::units::Ttl;
pub(crate) use range::MAX_LIMIT;
#[cfg(test)]
pub(super) use range::RANGE;
pub(super) use range::{Bounds, RangeParams, entities};

/// The cluster's numbers from which quorums follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replication {
    /// Number of the cluster's nodes.
    pub(crate) nodes: u32,
    /// Default number of copies of a key.
    pub(crate) replicas: u32,
}

/// Parameters of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadParams<'a> {
    pub(crate) key: Cow<'a, [u8]>,
    /// `ack` and `from` with their defaults for this cluster.
    pub(crate) quorum: Quorum,
    /// `ack` and `from` as the request gives them.
    pub(crate) asked: AskedQuorum,
}

/// Parameters of a plain write: a PUT or DELETE without a condition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WriteParams<'a> {
    pub(crate) key: Cow<'a, [u8]>,
    pub(crate) quorum: Quorum,
    pub(crate) asked: AskedQuorum,
    /// `from` if the request has it, otherwise 0. The record stores this number of copies.
    pub(crate) copies: u8,
    /// True if the answer is to name the replicas that acknowledged the write.
    pub(crate) receipt: bool,
    /// Time to live of the value; `None` = unlimited.
    pub(crate) ttl: Option<Ttl>,
}

/// Parameters of a conditional write, which at least a majority of the key's replicas decides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConditionalParams<'a> {
    pub(crate) key: Cow<'a, [u8]>,
    pub(crate) quorum: Quorum,
    pub(crate) asked: AskedQuorum,
    /// True if the answer is to name the replicas that acknowledged the write.
    pub(crate) receipt: bool,
    /// Time to live of the value. `None` = unlimited; for an addition, the value keeps its expiry.
    pub(crate) ttl: Option<Ttl>,
}

/// Parameters of an addition: a key, and the number that is added to its value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addition<'a> {
    pub(crate) params: ConditionalParams<'a>,
    pub(crate) number: i64,
}

/// Parameters of a query for a key's replicas.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlacementParams<'a> {
    pub(crate) key: Cow<'a, [u8]>,
    /// Number of replicas to show.
    pub(crate) copies: u8,
}

/// Parameters of a recording: its events, and the form of the answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProfileParams {
    pub(crate) events: Vec<Event>,
    pub(crate) duration: Duration,
    pub(crate) format: Format,
    pub(crate) idle: bool,
}

/// Parameters of a read.
pub(crate) const READ: [&str; 3] = ["id", "ack", "from"];

/// Parameters of a write.
pub(crate) const PUT: [&str; 5] = ["id", "ack", "from", "receipt", "ttl"];

/// Parameters of a deletion.
pub(crate) const DELETE: [&str; 4] = ["id", "ack", "from", "receipt"];

/// Parameters of an addition.
pub(crate) const ADD: [&str; 6] = ["id", "add", "ack", "from", "receipt", "ttl"];

/// Parameters of a query for a key's replicas.
pub(crate) const PLACEMENT: [&str; 2] = ["id", "from"];

/// Parameters of the dashboard's event stream.
pub(crate) const EVENTS: [&str; 1] = ["local"];

/// Parameters of a recording.
pub(crate) const PROFILE: [&str; 4] = ["event", "seconds", "format", "idle"];

/// Parameters of a request for a repair round.
pub(crate) const REPAIR: [&str; 1] = ["full"];

/// Parameters of a plan.
pub(crate) const PLAN: [&str; 6] =
    ["add", "remove", "remove_dead", "weight", "replicas", "council"];

/// Parameters of a plan's application.
pub(crate) const APPLY: [&str; 1] = ["plan"];

/// Greatest number of replicas of a key.
const MAX_REPLICAS: u32 = u8::MAX as u32;

/// Default duration of a recording, in seconds.
const DEFAULT_SECONDS: u32 = 20;

/// The raw value of one parameter; `None` if the query does not have it.
pub(crate) type RawValue<'a> = Option<&'a str>;

/// Returns the raw values of the named parameters. Other names and duplicates are errors.
pub(crate) fn raw_values<'a, const N: usize>(
    query: &'a str,
    names: [&str; N],
) -> Result<[RawValue<'a>; N], Problem> {
    let mut slots = [None; N];
    if query.is_empty() {
        return Ok(slots);
    }
    let mut rest = Some(query);
    while let Some(text) = rest {
        let pair = match memchr(b'&', text.as_bytes()) {
            Some(end) => {
                rest = Some(&text[end + 1..]);
                &text[..end]
            }
            None => {
                rest = None;
                text
            }
        };
        // Names are short, so a search byte by byte is the fastest.
        let is_equals = |byte: &u8| *byte == b'=';
        let name_len = pair.as_bytes().iter().position(is_equals).unwrap_or(pair.len());
        let (name, value) = (&pair[..name_len], pair.get(name_len + 1..).unwrap_or(""));
        let Some(place) = names.iter().position(|known| *known == name) else {
            let shown: String = name.chars().take(100).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            if is_token(name) {
                return Err(token_in_url());
            }
            if pair.is_empty() {
                return Err(bad_parameter(
                    "the query has a '&' without a parameter behind or before it",
                ));
            }
            let fix = if name == "ttl" { "; omit it: only PUT and POST take a ttl" } else { "" };
            return Err(malformed_parameter(
                &shown,
                name,
                format!("unknown parameter {shown:?}; known: {known}{fix}"),
            ));
        };
        if slots[place].replace(value).is_some() {
            return Err(bad_parameter(format!("duplicate parameter {name:?}")));
        }
    }
    Ok(slots)
}

/// True if a parameter with this name has a token as its value.
fn is_token(name: &str) -> bool {
    ["token", "access_token", "authorization"].iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// True if the query has a parameter whose value is a token.
pub(crate) fn has_token(query: &str) -> bool {
    !query.is_empty() && query.split('&').any(|pair| is_token(pair.split('=').next().unwrap_or("")))
}

/// Returns the problem for a URL with a token.
pub(crate) fn token_in_url() -> Problem {
    bad_parameter(
        "a token must not be in a URL, for URLs are kept in logs and histories: revoke it, and \
        send the next one as Authorization: Bearer TOKEN"
            .to_owned(),
    )
}

#[inline]
pub(crate) fn read(query: &str, replication: Replication) -> Result<ReadParams<'_>, Problem> {
    let [id, ack, from] = raw_values(query, READ)?;
    let key = key("id", require("id", id)?)?;
    let (asked, quorum) = effective_quorum(ack, from, replication)?;
    Ok(ReadParams { key, quorum, asked })
}

/// Parses a plain PUT. `most` is the maximum time to live.
#[inline]
pub(crate) fn put(
    query: &str,
    replication: Replication,
    most: Ttl,
) -> Result<WriteParams<'_>, Problem> {
    let [id, ack, from, receipt, ttl] = raw_values(query, PUT)?;
    write([id, ack, from, receipt], parse_ttl(ttl, most)?, replication)
}

pub(crate) fn delete(query: &str, replication: Replication) -> Result<WriteParams<'_>, Problem> {
    write(raw_values(query, DELETE)?, None, replication)
}

fn write(
    [id, ack, from, receipt]: [RawValue<'_>; 4],
    ttl: Option<Ttl>,
    on: Replication,
) -> Result<WriteParams<'_>, Problem> {
    let key = key("id", require("id", id)?)?;
    let (asked, quorum) = effective_quorum(ack, from, on)?;
    let copies = asked.from.unwrap_or(0);
    let receipt = wants_receipt(receipt, quorum)?;
    Ok(WriteParams { key, quorum, asked, copies, receipt, ttl })
}

/// Parses a conditional PUT. `most` is the maximum time to live.
pub(crate) fn conditional_put(
    query: &str,
    replication: Replication,
    most: Ttl,
) -> Result<ConditionalParams<'_>, Problem> {
    let [id, ack, from, receipt, ttl] = raw_values(query, PUT)?;
    majority([id, ack, from, receipt], parse_ttl(ttl, most)?, replication)
}

pub(crate) fn conditional_delete(
    query: &str,
    replication: Replication,
) -> Result<ConditionalParams<'_>, Problem> {
    majority(raw_values(query, DELETE)?, None, replication)
}

/// Parses an addition. `most` is the maximum time to live.
pub(crate) fn addition(
    query: &str,
    replication: Replication,
    most: Ttl,
) -> Result<Addition<'_>, Problem> {
    let is_add = |pair: &str| pair.split('=').next() == Some("add");
    if !query.split('&').any(is_add) {
        return Err(Problem::no_addition());
    }
    let [id, add, ack, from, receipt, ttl] = raw_values(query, ADD)?;
    let add = require("add", add)?;
    let number = protocol::decimal(add.as_bytes()).ok_or_else(|| {
        let shown: String = add.chars().take(100).collect();
        let detail = format!("add={shown:?} is not a decimal number of 64 bits, such as 12 or -3");
        malformed_parameter("add", add, detail)
    })?;
    let params = majority([id, ack, from, receipt], parse_ttl(ttl, most)?, replication)?;
    Ok(Addition { params, number })
}

/// Parses a time to live. A time above `most` is an error.
fn parse_ttl(ttl: RawValue<'_>, most: Ttl) -> Result<Option<Ttl>, Problem> {
    let Some(text) = ttl else { return Ok(None) };
    let ttl: Ttl =
        text.parse().map_err(|error| malformed_parameter("ttl", text, format!("ttl={error}")))?;
    if ttl > most {
        return Err(bad_parameter(format!(
            "ttl={ttl} is more than this node's --max-ttl: {most} or less; without a ttl a value \
             never expires"
        )));
    }
    Ok(Some(ttl))
}

fn majority(
    [id, ack, from, receipt]: [RawValue<'_>; 4],
    ttl: Option<Ttl>,
    on: Replication,
) -> Result<ConditionalParams<'_>, Problem> {
    let key = key("id", require("id", id)?)?;
    let (_, usual) = effective_quorum(None, None, on)?;
    if from.is_some() && effective_quorum(None, from, on)?.1.from != usual.from {
        let usual = usual.from;
        return Err(bad_parameter(format!(
            "a conditional write is from={usual}, the default; omit from"
        )));
    }
    let (asked, quorum) = effective_quorum(ack, None, on)?;
    if quorum.ack < usual.ack {
        let (ack, usual) = (quorum.ack, usual.ack);
        return Err(bad_parameter(format!(
            "ack={ack} is too few for a conditional write: {usual} or more"
        )));
    }
    let receipt = wants_receipt(receipt, quorum)?;
    Ok(ConditionalParams { key, quorum, asked, receipt, ttl })
}

/// Parses `receipt`. One byte encodes the set of acknowledging replicas, which limits `from`.
fn wants_receipt(value: RawValue<'_>, Quorum { from, .. }: Quorum) -> Result<bool, Problem> {
    let (wanted, most) = (flag("receipt", value)?, ReplicaSet::MOST);
    if wanted && from > most {
        return Err(bad_parameter(format!(
            "receipt=true is limited to from={most}; this is from={from}"
        )));
    }
    Ok(wanted)
}

/// Parses a query for a key's replicas.
pub(crate) fn placement(
    query: &str,
    replication: Replication,
) -> Result<PlacementParams<'_>, Problem> {
    let [id, from] = raw_values(query, PLACEMENT)?;
    let key = key("id", require("id", id)?)?;
    let copies = effective_quorum(Some("1"), from, replication)?.1.from;
    Ok(PlacementParams { key, copies })
}

/// Parses a request for a repair round. Returns true if the round is to be full.
pub(crate) fn repair(query: &str) -> Result<bool, Problem> {
    let [full] = raw_values(query, REPAIR)?;
    flag("full", full)
}

/// Refuses a query with any parameter.
pub(crate) fn refuse_parameters(query: &str) -> Result<(), Problem> {
    raw_values(query, []).map(|[]| ())
}

/// Parses the id of the plan to apply.
pub(crate) fn apply(query: &str) -> Result<u128, Problem> {
    let [plan] = raw_values(query, APPLY)?;
    let plan = require("plan", plan)?;
    let id = plan.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(plan);
    id.and_then(|id| u128::from_str_radix(id, 16).ok()).ok_or_else(|| {
        bad_parameter(format!(
            "{plan:?} is not a valid plan id: 32 hexadecimal digits, as the plan shows it"
        ))
    })
}

/// Parses the changes of a plan. In one parameter, commas separate several nodes. An added node is
/// either described in full, or named; `asking` finds a named node among those that ask to join.
pub(crate) fn change(
    query: &str,
    asking: impl Fn(&str) -> Result<Joiner, NotAsking>,
) -> Result<PlanChange, Problem> {
    let query = decode_query(query)?;
    let [add, remove, remove_dead, weight, replicas, council] = raw_values(&query, PLAN)?;
    let names = |list: Option<&str>| list.map(|list| list.split(',').map(str::to_owned).collect());
    let joiner = |node: &str| {
        if !node.contains("://") {
            return asking(node).map_err(|error| bad_parameter(format!("add: {error}")));
        }
        let (member, url) =
            parse_node(node).map_err(|error| bad_parameter(format!("add: {error}")))?;
        Ok(Joiner { member, url, disk: None })
    };
    let weight_of = |text: &str| {
        let parsed = text
            .rsplit_once('=')
            .and_then(|(name, weight)| Some((name.to_owned(), parse_digits(weight)?)));
        parsed.ok_or_else(|| bad_parameter(format!("weight: {text:?} is not NODE=1..1000")))
    };
    let copies = |text: &str| {
        parse_digits(text)
            .ok_or_else(|| bad_parameter(format!("replicas: {text:?} is not a number, 1..255")))
    };
    Ok(PlanChange {
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

/// Parses `local`. Returns true if the stream is to have only this node's events.
pub(crate) fn events(query: &str) -> Result<bool, Problem> {
    let [local] = raw_values(query, EVENTS)?;
    flag("local", local)
}

pub(crate) fn profile(query: &str) -> Result<ProfileParams, Problem> {
    let query = decode_query(query)?;
    let [events, seconds, format, idle] = raw_values(&query, PROFILE)?;
    let events = profile::event::list(events.unwrap_or("cpu")).map_err(bad_parameter)?;
    let format: Format = format.unwrap_or("html").parse().map_err(bad_parameter)?;
    if format.holds_one_event() && events.len() > 1 {
        let (name, events) = (format.name(), profile::event::names(&events));
        return Err(bad_parameter(format!(
            "format={name} holds one event, not {events}; use html or json, or request one event \
             at a time"
        )));
    }
    let most = *profile::SECONDS.end() as u32;
    let seconds = u64::from(digits("seconds", seconds, most)?.unwrap_or(DEFAULT_SECONDS));
    if !profile::SECONDS.contains(&seconds) {
        let (least, most) = (profile::SECONDS.start(), profile::SECONDS.end());
        return Err(bad_parameter(format!("seconds={seconds} is out of range {least}..{most}")));
    }
    let idle = flag("idle", idle)?;
    Ok(ProfileParams { events, duration: Duration::from_secs(seconds), format, idle })
}

/// Decodes names and values of a query together, because some programs encode characters that need
/// no encoding.
fn decode_query(query: &str) -> Result<String, Problem> {
    let decoded = percent::decode(query.as_bytes())
        .map_err(|error| bad_parameter(format!("the query {error}")))?;
    String::from_utf8(decoded.into_owned()).map_err(|_| bad_parameter("the query is not UTF-8"))
}

fn flag(name: &str, value: RawValue<'_>) -> Result<bool, Problem> {
    match value {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(100).collect();
            Err(malformed_parameter(
                name,
                other,
                format!("{name}={shown:?} is not a boolean: use true or false"),
            ))
        }
    }
}

pub(crate) fn bad_parameter(detail: impl Display) -> Problem {
    Problem::bad_request(detail.to_string())
}

/// Returns the problem for a malformed parameter. If its text has a raw `+`, the problem is about
/// the `+`, which may be the only error.
fn malformed_parameter(name: &str, text: &str, detail: String) -> Problem {
    if text.contains('+') {
        return bad_parameter(format!("parameter {name:?} {}", DecodeError::Plus));
    }
    bad_parameter(detail)
}

pub(crate) fn require<'a>(name: &str, value: RawValue<'a>) -> Result<&'a str, Problem> {
    match value {
        None => Err(bad_parameter(format!("parameter {name:?} is missing"))),
        Some("") => Err(bad_parameter(format!("parameter {name:?} is empty"))),
        Some(value) => Ok(value),
    }
}

pub(crate) fn key<'a>(name: &str, value: &'a str) -> Result<Cow<'a, [u8]>, Problem> {
    let key = percent::decode(value.as_bytes())
        .map_err(|error| bad_parameter(format!("parameter {name:?} {error}")))?;
    if key.len() > MAX_KEY_LEN {
        let len = key.len();
        return Err(bad_parameter(format!(
            "parameter {name:?} is {len} bytes long; keys are limited to \
            {MAX_KEY_LEN}"
        )));
    }
    Ok(key)
}

/// Resolves a quorum. Returns the numbers that the request has, and the effective numbers in the
/// view in force.
fn effective_quorum(
    ack: RawValue<'_>,
    from: RawValue<'_>,
    on: Replication,
) -> Result<(AskedQuorum, Quorum), Problem> {
    let ack = digits("ack", ack, MAX_REPLICAS)?;
    let from = digits("from", from, MAX_REPLICAS)?;
    let quorum = quorum(ack, from, on.nodes, on.replicas).map_err(Problem::quorum)?;
    let asked = AskedQuorum { ack: ack.map(|_| quorum.ack), from: from.map(|_| quorum.from) };
    Ok((asked, quorum))
}

/// Parses a number of plain digits; `None` for a sign, a space or an overflow.
pub(crate) fn parse_digits<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Parses a number of plain digits. `most` is the greatest permitted number, for the message about
/// an overflow. The caller checks the range.
#[inline]
fn digits(name: &str, value: RawValue<'_>, most: u32) -> Result<Option<u32>, Problem> {
    value.map(|value| number(name, value, most)).transpose()
}

fn number(name: &str, value: &str, most: u32) -> Result<u32, Problem> {
    parse_digits(value).ok_or_else(|| not_a_count(name, value, most))
}

#[cold]
fn not_a_count(name: &str, value: &str, most: u32) -> Problem {
    let shown: String = value.chars().take(100).collect();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return bad_parameter(format!("{name}={shown} must not exceed {most}"));
    }
    malformed_parameter(name, value, format!("{name}={shown:?} is not a decimal number"))
}
