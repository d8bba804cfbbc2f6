//! Conditional writes of one value: with `If-Match` or `If-None-Match`, and additions.

use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use protocol::{Change, Condition, Conditional, Done, Impossible, Tag};
use server::link::MessageReservation;

use super::admission::admitted::Admitted;
use super::entity::{self, shared_key};
use super::params::{Addition, ConditionalParams};
use super::problem::Problem;
use super::receipt::ReceiptRequest;
use super::upload::{Upload, Value};
use super::{Answer, Service, condition, fence};
use crate::counters::RequestKind;
use crate::quotas::routes as quotas;
use crate::settings::units::Ttl;

pub(super) async fn put(
    service: &Service,
    request: Admitted<ConditionalParams<'_>>,
    headers: &HeaderMap,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let params = request.into_params();
    let (condition, id) =
        (condition::of(headers, RequestKind::Put)?, condition::id(headers, &params.key)?);
    let value = upload.receive_for_two_copies(service).await?;
    let write_permit = entity::wait_for_permit(service, upload, value.len(), params.quorum).await?;
    let value = match value {
        Value::Whole(bytes, None) => bytes,
        Value::Whole(bytes, Some(held)) => held.keep(bytes),
        Value::Gathered { bytes, held } => held.keep(bytes.into()),
    };
    let done = change(service, params, (condition, Change::Put(value)), id).await;
    drop(write_permit);
    let done = done.map_err(|problem| condition::explain_weak_tags(headers, problem));
    let CompletedChange { tag, expiry_ms, receipt, fence, .. } = done?;
    let created = Answer::empty(StatusCode::CREATED);
    Ok(Answer { tag: Some(tag), receipt, expiry_ms, extra_header: fence::header(fence), ..created })
}

pub(super) async fn delete(
    service: &Service,
    request: Admitted<ConditionalParams<'_>>,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    let params = request.into_params();
    let (condition, id) =
        (condition::of(headers, RequestKind::Delete)?, condition::id(headers, &params.key)?);
    let done = change(service, params, (condition, Change::Delete), id).await;
    let done = done.map_err(|problem| condition::explain_weak_tags(headers, problem));
    let CompletedChange { receipt, .. } = done?;
    Ok(Answer { receipt, ..Answer::empty(StatusCode::ACCEPTED) })
}

/// Adds `number` to the value, which must be a decimal number: `POST …&add=N`.
pub(super) async fn add(
    service: &Service,
    request: Admitted<Addition<'_>>,
    headers: &HeaderMap,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let Addition { params, number } = request.into_params();
    if !upload.is_empty(service).await? {
        return Err(Problem::addition_with_body());
    }
    let id = condition::id(headers, &params.key)?;
    let done = change(service, params, (Condition::Any, Change::Add(number)), id).await;
    let CompletedChange { tag, sum, expiry_ms, receipt, fence } = done?;
    let sum = sum.expect("an addition that was done has a sum");
    let text = Answer::text(StatusCode::OK, sum.to_string());
    Ok(Answer { tag: Some(tag), receipt, expiry_ms, extra_header: fence::header(fence), ..text })
}

/// A completed change.
struct CompletedChange {
    /// The tag of the key's new state.
    tag: Tag,
    /// The sum, if the change is an addition.
    sum: Option<i64>,
    /// Expiry of the new value in milliseconds since 1970; 0 = never. Also 0 if the write was
    /// repeated, and its record no longer has the expiry.
    expiry_ms: u64,
    receipt: Option<Box<HeaderValue>>,
    /// Fencing token of the change; 0 = the answer has no token.
    fence: u64,
}

async fn change(
    service: &Service,
    params: ConditionalParams<'_>,
    (condition, change): (Condition, Change),
    id: Option<u64>,
) -> Result<CompletedChange, Problem> {
    let ConditionalParams { key, quorum, asked, receipt, ttl } = params;
    // The digest covers the client's time to live instead of the expiry, because the expiry depends
    // on the time of the request.
    let ttl_ms = ttl.map_or(0, Ttl::millis);
    let digest_of = |_| protocol::digest_of_request(&condition, &change, ttl_ms);
    let digest = id.map_or(0, digest_of);
    // With a full quota, no condition is true: a new change is refused, and a repetition of a
    // completed change still gets the original answer.
    let stores = id.is_some() && change != Change::Delete;
    let full = stores.then(|| service.requests.quotas().full(&key)).flatten();
    let condition = if full.is_some() { Condition::OneOf(Vec::new()) } else { condition };
    let key = shared_key(key);
    let expiry_ms = service.requests.expiry_ms(ttl);
    let conditional = Conditional { condition, change, expiry_ms, digest };
    let wanted = receipt.then(|| ReceiptRequest::conditional(&key, quorum));
    let (done, acks) = match service.requests.change(key, conditional, asked, id).await {
        protocol::Answer::Done(done, acks) => (done, acks),
        protocol::Answer::Failed(failed) => return Err(entity::quorum_problem(service, failed)),
        protocol::Answer::Found(_) | protocol::Answer::Written(..) => {
            unreachable!("neither was asked for")
        }
    };
    match done {
        Done::Changed { tag, result: sum, expiry_ms: stored, fence } => {
            let receipt = wanted.map(|wanted| wanted.header(service, tag, acks));
            // An idempotent request may have completed earlier, with another expiry.
            let expiry_ms = if stored == 0 && id.is_none() { expiry_ms } else { stored };
            Ok(CompletedChange { tag, sum, expiry_ms, receipt, fence })
        }
        Done::Unmet { current } => {
            Err(full
                .map_or_else(|| Problem::condition_failed(current), |full| quotas::refuse(&full)))
        }
        Done::Impossible(Impossible::NotANumber) => Err(Problem::not_a_number()),
        Done::Impossible(Impossible::Overflow) => Err(Problem::overflow()),
        Done::Forgotten => Err(Problem::idempotency_unknown()),
        Done::Reused => Err(Problem::idempotency_key_reused()),
    }
}
