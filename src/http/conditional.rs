//! Conditional writes of one value: with `If-Match` or `If-None-Match`, and additions.

use cluster::{Change, Condition, Conditional, Done, Impossible, Tag};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use node::link::Room;

use super::admission::admitted::Admitted;
use super::entity::{self, shared_key};
use super::params::{Addition, ConditionalParams};
use super::problem::Problem;
use super::receipt::Wanted;
use super::upload::{Upload, Value};
use super::{Answer, Service, condition, fence, quotas};
use crate::counters::RequestKind;
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
    let value = upload.receive_twice(service).await?;
    let passed = entity::pass(service, upload, value.len(), params.quorum).await?;
    let value = match value {
        Value::Whole(bytes, None) => bytes,
        Value::Whole(bytes, Some(held)) => held.keep(bytes),
        Value::Gathered { bytes, held } => held.keep(bytes.into()),
    };
    let done = change(service, params, (condition, Change::Put(value)), id).await;
    drop(passed);
    let Changed { tag, expiry_ms, receipt, fence, .. } = done?;
    let created = Answer::empty(StatusCode::CREATED);
    Ok(Answer { tag: Some(tag), receipt, expiry_ms, rare: fence::header(fence), ..created })
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
    let Changed { receipt, .. } = done?;
    Ok(Answer { receipt, ..Answer::empty(StatusCode::ACCEPTED) })
}

/// `POST …&add=N`: the value is a decimal number, and becomes greater by N.
pub(super) async fn add(
    service: &Service,
    request: Admitted<Addition<'_>>,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    let Addition { params, number } = request.into_params();
    let id = condition::id(headers, &params.key)?;
    let done = change(service, params, (Condition::Any, Change::Add(number)), id).await;
    let Changed { tag, sum, expiry_ms, receipt, fence } = done?;
    let sum = sum.expect("an addition that was done has a sum");
    let text = Answer::text(StatusCode::OK, sum.to_string());
    Ok(Answer { tag: Some(tag), receipt, expiry_ms, rare: fence::header(fence), ..text })
}

/// A change that was made.
struct Changed {
    /// The state after it.
    tag: Tag,
    /// What an addition came to.
    sum: Option<i64>,
    /// When the value expires that it left; 0 = never, or the key does not tell any more.
    expiry_ms: u64,
    receipt: Option<Box<HeaderValue>>,
    /// Its fence; 0 = none is told.
    fence: u64,
}

async fn change(
    service: &Service,
    params: ConditionalParams<'_>,
    (condition, change): (Condition, Change),
    id: Option<u64>,
) -> Result<Changed, Problem> {
    let ConditionalParams { key, quorum, asked, receipt, ttl } = params;
    // As the client asked for it, at whatever time.
    let ttl_ms = ttl.map_or(0, Ttl::millis);
    let digest_of = |_| cluster::digest_of_request(&condition, &change, ttl_ms);
    let digest = id.map_or(0, digest_of);
    // Where there is no room, nothing more is done, and what was done is answered as then.
    let stores = id.is_some() && change != Change::Delete;
    let full = stores.then(|| service.requests.quotas().full(&key)).flatten();
    let condition = if full.is_some() { Condition::OneOf(Vec::new()) } else { condition };
    let key = shared_key(key);
    let expiry_ms = service.requests.expiry_ms(ttl);
    let conditional = Conditional { condition, change, expiry_ms, digest };
    let wanted = receipt.then(|| Wanted::conditional(&key, quorum));
    let (done, acks) = match service.requests.change(key, conditional, asked, id).await {
        cluster::Answer::Done(done, acks) => (done, acks),
        cluster::Answer::Failed(failed) => return Err(entity::refused(service, failed)),
        cluster::Answer::Found(_) | cluster::Answer::Written(..) => {
            unreachable!("neither was asked for")
        }
    };
    match done {
        Done::Changed { tag, result: sum, expiry_ms: stored, fence } => {
            let receipt = wanted.map(|wanted| wanted.header(service, tag, acks));
            // What was sent again may have been done with another one.
            let expiry_ms = if stored == 0 && id.is_none() { expiry_ms } else { stored };
            Ok(Changed { tag, sum, expiry_ms, receipt, fence })
        }
        Done::Unmet { current } => {
            Err(full.map_or_else(|| Problem::unmet(current), |full| quotas::refuse(&full)))
        }
        Done::Impossible(Impossible::NotANumber) => Err(Problem::not_a_number()),
        Done::Impossible(Impossible::Overflow) => Err(Problem::overflow()),
        Done::Forgotten => Err(Problem::forgotten()),
        Done::Reused => Err(Problem::reused()),
    }
}
