//! `/v0/entity`: one value.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use cluster::Quorum;
use hyper::{HeaderMap, StatusCode};
use lsm::{Fields, Kind, Version};
use node::records;

use super::params::{self, EntityParams};
use super::problem::{self, Problem};
use super::upload::Upload;
use super::{Answer, Body, NOSNIFF, screen};
use crate::node::clock::wall_micros;
use crate::runtime::event_loop::EventLoop;
use crate::settings::memory::{LONG_RECORD, longest_wait};

const TOO_MANY_READ: &str = "the memory for large values in responses is in use";

const TOO_MANY: &str = "too many large writes are in progress";

/// A write waits for the clock's bound for one part in so many of `--deadline`: the replicas get
/// the whole of it afterwards.
const CLOCK_SHARE: u32 = 2;

/// `unless`: the headers, if they say which versions the client has already.
pub(super) async fn get(
    event_loop: &Rc<EventLoop>,
    query: &str,
    unless: Option<&HeaderMap>,
) -> Result<Answer, Problem> {
    let EntityParams { key, quorum, .. } = params::entity(query, event_loop.replication())?;
    let key = shared_key(key);
    let room = event_loop.room_for(&key).await;
    let room = room.map_err(|_| Problem::overload(TOO_MANY_READ).votes(quorum))?;
    let record = match event_loop.get(key, quorum, room).await {
        cluster::Answer::Found(Some(record)) => records::to_store(&record),
        cluster::Answer::Found(None) => return Ok(problem::not_found()),
        cluster::Answer::Denied(denied) => return Err(refused(event_loop, denied)),
        cluster::Answer::Written(_) => unreachable!("a read writes nothing"),
    };
    let view = record.view();
    if !records::is_live(&view, wall_micros) {
        return Ok(problem::not_found());
    }
    if let Some(headers) = unless
        && screen::lists(headers, &event_loop.etags.of(view.version()))?
    {
        let version = Some(view.version());
        return Ok(Answer { version, ..Answer::empty(StatusCode::NOT_MODIFIED) });
    }
    // A long one has its memory until the last byte is sent: see `memory`.
    let body = Body::Whole(record.value());
    Ok(Answer {
        status: StatusCode::OK,
        version: Some(view.version()),
        content_type: Some("application/octet-stream"),
        headers: NOSNIFF,
        body,
    })
}

pub(super) async fn put(
    event_loop: &Rc<EventLoop>,
    query: &str,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let EntityParams { key, quorum, copies } = params::entity(query, event_loop.replication())?;
    let value = upload.receive(&event_loop.node).await?;
    // Until it passes nothing is sent, and it can be refused as if it had never come.
    let passed = if value.len() > LONG_RECORD {
        let most = longest_wait(event_loop.node.config.deadline);
        let patience = most.saturating_sub(upload.waited_for_room());
        let pass = event_loop.gate.enter(value.len(), patience).await;
        Some(pass.ok_or_else(|| Problem::overload(TOO_MANY).undone().votes(quorum))?)
    } else {
        None
    };
    let mut record = record(event_loop, &key, quorum, copies, Kind::Value, &value).await?;
    // The record has the value now; the memory that is set aside for it goes over to it, until the
    // last replica has it.
    if let Some(held) = value.into_held() {
        record.bytes = held.keep(record.bytes);
    }
    let version = write(event_loop, key, quorum, record).await?;
    drop(passed);
    Ok(Answer { version: Some(version), ..Answer::empty(StatusCode::CREATED) })
}

pub(super) async fn delete(event_loop: &Rc<EventLoop>, query: &str) -> Result<Answer, Problem> {
    let EntityParams { key, quorum, copies } = params::entity(query, event_loop.replication())?;
    let record = record(event_loop, &key, quorum, copies, Kind::Tombstone, &[]).await?;
    write(event_loop, key, quorum, record).await?;
    Ok(Answer::empty(StatusCode::ACCEPTED))
}

/// A new record with a new version.
async fn record(
    event_loop: &EventLoop,
    key: &[u8],
    quorum: Quorum,
    copies: u8,
    kind: Kind,
    value: &[u8],
) -> Result<cluster::Record, Problem> {
    let node = &event_loop.node;
    node.comparison.wait().await;
    let version = node.clock.issue_within(node.config.deadline / CLOCK_SHARE).await;
    let version = version.map_err(|error| Problem::version(&error, quorum))?;
    if node.facts.is_ahead_of_most(version.time) {
        return Err(Problem::clock_ahead(quorum));
    }
    let fields = Fields { copies, ..Fields::new(kind, version) };
    Ok(records::new(key, &fields, value))
}

/// Has a record written; the version that it has in the end.
async fn write(
    event_loop: &Rc<EventLoop>,
    key: Cow<'_, [u8]>,
    quorum: Quorum,
    record: cluster::Record,
) -> Result<Version, Problem> {
    match event_loop.write(shared_key(key), record, quorum).await {
        cluster::Answer::Written(stamp) => Ok(records::version(stamp)),
        cluster::Answer::Denied(denied) => Err(refused(event_loop, denied)),
        cluster::Answer::Found(_) => unreachable!("a write reads nothing"),
    }
}

/// What the client is told of a request that too few replicas did their part of.
fn refused(event_loop: &EventLoop, denied: cluster::Denied) -> Problem {
    let took = event_loop.now().mono.saturating_sub(denied.since);
    let name = |node| event_loop.node.shared.name_of(node);
    Problem::denied(denied, name, Duration::from_micros(took))
}

fn shared_key(key: Cow<'_, [u8]>) -> Bytes {
    match key {
        Cow::Borrowed(key) => Bytes::copy_from_slice(key),
        Cow::Owned(key) => key.into(),
    }
}
