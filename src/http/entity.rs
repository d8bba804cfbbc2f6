//! `/v0/entity`: reads and writes of one value.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use protocol::{FailureKind, Quorum, Tag};
use server::link::MessageReservation;

use super::admission::admitted::Admitted;
use super::body::Content;
use super::params::{ReadParams, WriteParams};
use super::problem::{self, Problem};
use super::receipt::ReceiptRequest;
use super::upload::Upload;
use super::{Answer, Body, Service, caching, condition};
use crate::counters::clocks;
use crate::node::requests::Requests;
use crate::node::write_window::WritePermit;
use crate::settings::memory::{LONG_RECORD, longest_wait};

const TOO_MANY_READ: &str = "the memory for large values in responses is in use";

const TOO_MANY: &str = "too many large writes are in progress";

/// Reads a value. `unless` has the request's headers if they include `If-None-Match`.
pub(super) async fn get(
    service: &Service,
    request: Admitted<ReadParams<'_>>,
    unless: Option<&HeaderMap>,
) -> Result<Answer, Problem> {
    let ReadParams { key, quorum, asked } = request.into_params();
    let answer = match service.requests.get_alone(&key, asked) {
        Some(answer) => answer,
        None => {
            let key = shared_key(key);
            let room = service.requests.reserve_for_read(&key).await;
            let room = room.map_err(|_| Problem::overload(TOO_MANY_READ).votes(quorum))?;
            service.requests.get(key, asked, room).await
        }
    };
    let record = match answer {
        protocol::Answer::Found(Some(record)) => record,
        protocol::Answer::Found(None) => return Ok(problem::not_found()),
        protocol::Answer::Failed(failed) => return Err(quorum_problem(service, failed)),
        protocol::Answer::Written(..) | protocol::Answer::Done(..) => {
            unreachable!("a read writes nothing")
        }
    };
    let Some(expiry_ms) = Requests::expiry_of_value(&record) else {
        return Ok(problem::not_found());
    };
    let tag = Tag::of(&record);
    if let Some(headers) = unless
        && condition::lists(headers, &service.etags.of(tag))?
    {
        let tag = Some(tag);
        let headers = &caching::UNCHANGED;
        return Ok(Answer { tag, expiry_ms, headers, ..Answer::empty(StatusCode::NOT_MODIFIED) });
    }
    // The reservation of a long value lasts until its last byte is sent: see `settings::memory`.
    let body = Body::Whole(Content::of(record));
    Ok(Answer {
        status: StatusCode::OK,
        tag: Some(tag),
        receipt: None,
        expiry_ms,
        content_type: None,
        extra_header: None,
        headers: &caching::VALUE,
        body,
    })
}

pub(super) async fn put(
    service: &Service,
    request: Admitted<WriteParams<'_>>,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let params = request.into_params();
    let quorum = params.quorum;
    let value = upload.receive(service).await?;
    let write_permit = wait_for_permit(service, upload, value.len(), quorum).await?;
    let expiry_ms = service.requests.expiry_ms(params.ttl);
    let mut record = record(service, &params, Some((&value, expiry_ms))).await?;
    // The record owns the value now. So the reservation of the value's memory passes to the record,
    // until all replicas have received it.
    if let Some(held) = value.into_reservation() {
        record = record.relocate(|bytes| held.keep(bytes));
    }
    let (tag, receipt) = write(service, params, record).await?;
    drop(write_permit);
    Ok(Answer { tag: Some(tag), receipt, expiry_ms, ..Answer::empty(StatusCode::CREATED) })
}

/// Waits for a permit to write a long value; `None` for a short value, which needs no permit.
/// Nothing is sent to replicas before the permit is granted, so a refusal has no effect on the key.
pub(super) async fn wait_for_permit<'a>(
    service: &'a Service,
    upload: &Upload<'_>,
    bytes: usize,
    quorum: Quorum,
) -> Result<Option<WritePermit<'a>>, Problem> {
    if bytes <= LONG_RECORD {
        return Ok(None);
    }
    let most = longest_wait(service.limits().deadline);
    let max_wait = most.saturating_sub(upload.memory_wait());
    let pass = service.requests.admit_write(bytes, max_wait).await;
    let pass = pass.ok_or_else(|| Problem::overload(TOO_MANY).without_effect().votes(quorum))?;
    upload.check(service)?;
    Ok(Some(pass))
}

pub(super) async fn delete(
    service: &Service,
    request: Admitted<WriteParams<'_>>,
) -> Result<Answer, Problem> {
    let params = request.into_params();
    let record = record(service, &params, None).await?;
    let (_, receipt) = write(service, params, record).await?;
    Ok(Answer { receipt, ..Answer::empty(StatusCode::ACCEPTED) })
}

/// Builds a record with a new version. `value` is the new value and its expiry; `None` for a
/// deletion.
async fn record(
    service: &Service,
    params: &WriteParams<'_>,
    value: Option<(&[u8], u64)>,
) -> Result<protocol::Record, Problem> {
    let WriteParams { key, quorum, copies, .. } = params;
    let version = service.requests.version().await;
    let version = version.map_err(|why| Problem::version(&why, *quorum))?;
    Ok(Requests::record(key, version, *copies, value))
}

/// Writes a record. Returns its final tag, and a receipt if the request asks for a receipt.
async fn write(
    service: &Service,
    params: WriteParams<'_>,
    record: protocol::Record,
) -> Result<(Tag, Option<Box<HeaderValue>>), Problem> {
    let WriteParams { key, quorum, asked, receipt, .. } = params;
    let key = shared_key(key);
    let wanted = receipt.then(|| ReceiptRequest::plain(service, &key, quorum));
    match service.requests.write(key, record, asked).await {
        protocol::Answer::Written(version, acks) => {
            let tag = Tag { version, last: None };
            Ok((tag, wanted.map(|wanted| wanted.header(service, tag, acks))))
        }
        protocol::Answer::Failed(failed) => Err(quorum_problem(service, failed)),
        protocol::Answer::Found(_) | protocol::Answer::Done(..) => {
            unreachable!("it is a write without a condition")
        }
    }
}

/// Builds the error answer of a request that too few replicas completed.
pub(super) fn quorum_problem(service: &Service, mut failed: protocol::RequestFailure) -> Problem {
    if failed.failure == FailureKind::Busy
        && failed.is_write
        && let Some(why) = service.requests.store_failure()
    {
        // Without its store a node issues no versions, so every retry of the client would fail.
        (failed.failure, failed.detail) = (FailureKind::Failed, Some(why));
    }
    let took = clocks::mono_micros().saturating_sub(failed.since);
    let name = |node| service.requests.name(node);
    Problem::from_failure(failed, name, Duration::from_micros(took))
}

pub(super) fn shared_key(key: Cow<'_, [u8]>) -> Bytes {
    match key {
        Cow::Borrowed(key) => Bytes::copy_from_slice(key),
        Cow::Owned(key) => key.into(),
    }
}
