//! `/v0/entity`: one value.

use hyper::StatusCode;
use lsm::{Lookup, Space};

use super::params::{self, EntityParams};
use super::problem::{self, Problem};
use super::upload::Upload;
use super::{Answer, Body};
use crate::clock::wall_micros;
use crate::event_loop::EventLoop;
use crate::reads::ReadError;
use crate::store::is_live;

/// Larger values are sent out of memory that was set aside for them, smaller ones are part of what
/// a connection takes. The engine answers no larger ones on the loop.
const LARGE_VALUE: usize = 16 * 1024;

/// What a write takes while it waits, besides key and value.
const WRITE_OVERHEAD: usize = 64;

pub(super) async fn get(event_loop: &EventLoop, query: &str) -> Result<Answer, Problem> {
    let EntityParams { key, quorum } = params::entity(query, event_loop.replication())?;
    let node = &event_loop.node;
    let found = match node.db.try_get(Space::Data, &key) {
        Ok(Lookup::Found(record)) => Ok(Some(record)),
        Ok(Lookup::Absent) => Ok(None),
        Ok(Lookup::WouldBlock) => node.reads.get(&key, node.config.deadline).await,
        Err(error) => Err(ReadError::Store(error)),
    };
    let found = found.map_err(|error| Problem::read(&error, quorum))?;
    let Some(record) = found else { return Ok(problem::not_found()) };
    let view = record.view();
    let now_ms = if view.expiry_ms() == 0 { 0 } else { wall_micros() / 1000 };
    if !is_live(&view, now_ms) {
        return Ok(problem::not_found());
    }
    let value = record.value();
    let body = if value.len() <= LARGE_VALUE {
        Body::Whole(value)
    } else {
        let held = node.bodies.wait(value.len(), node.config.deadline).await;
        let held = held.ok_or_else(|| Problem::overload("too many bytes are being sent"))?;
        Body::large(value, held)
    };
    Ok(Answer {
        status: StatusCode::OK,
        version: Some(view.version()),
        content_type: Some("application/octet-stream"),
        body,
    })
}

pub(super) async fn put(
    event_loop: &EventLoop,
    query: &str,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let EntityParams { key, quorum } = params::entity(query, event_loop.replication())?;
    let node = &event_loop.node;
    let value = upload.receive(node).await?;
    let version = node.clock.issue().map_err(|error| Problem::version(&error, quorum))?;
    let bytes = key.len() + value.len() + WRITE_OVERHEAD;
    let added = event_loop.writes.add(bytes, |batch| batch.put(Space::Data, &key, version, &value));
    drop(value);
    let written = match added {
        Ok(written) => written.await,
        Err(error) => Err(error),
    };
    written.map_err(|error| Problem::write(&error, quorum))?;
    Ok(Answer { version: Some(version), ..Answer::empty(StatusCode::CREATED) })
}

pub(super) async fn delete(event_loop: &EventLoop, query: &str) -> Result<Answer, Problem> {
    let EntityParams { key, quorum } = params::entity(query, event_loop.replication())?;
    let version = event_loop.node.clock.issue();
    let version = version.map_err(|error| Problem::version(&error, quorum))?;
    let bytes = key.len() + WRITE_OVERHEAD;
    let added = event_loop.writes.add(bytes, |batch| batch.delete(Space::Data, &key, version));
    let written = match added {
        Ok(written) => written.await,
        Err(error) => Err(error),
    };
    written.map_err(|error| Problem::write(&error, quorum))?;
    Ok(Answer::empty(StatusCode::ACCEPTED))
}
