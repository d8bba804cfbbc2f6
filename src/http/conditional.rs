//! Conditional writes of one value: with `If-Match` or `If-None-Match`, and additions.

use cluster::{Change, Condition, Conditional, Done, Impossible, Tag};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use node::link::Room;

use super::entity::{self, shared_key};
use super::params::{self, ConditionalParams};
use super::problem::Problem;
use super::receipt::Wanted;
use super::upload::{Upload, Value};
use super::{Answer, Service, condition};
use crate::counters::Kind;

pub(super) async fn put(
    service: &Service,
    query: &str,
    headers: &HeaderMap,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let params = params::conditional(query, service.replication())?;
    let (condition, id) = (condition::of(headers, Kind::Put)?, condition::id(headers)?);
    let value = upload.receive(service.limits()).await?;
    let passed = entity::pass(service, upload, value.len(), params.quorum).await?;
    let value = match value {
        Value::Whole(bytes, None) => bytes,
        Value::Whole(bytes, Some(held)) => held.keep(bytes),
        Value::Gathered { bytes, held } => held.keep(bytes.into()),
    };
    let conditional = Conditional { condition, change: Change::Put(value), expiry_ms: 0 };
    let done = change(service, params, conditional, id).await;
    drop(passed);
    let Changed { tag, receipt, .. } = done?;
    Ok(Answer { tag: Some(tag), receipt, ..Answer::empty(StatusCode::CREATED) })
}

pub(super) async fn delete(
    service: &Service,
    query: &str,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    let params = params::conditional(query, service.replication())?;
    let (condition, id) = (condition::of(headers, Kind::Delete)?, condition::id(headers)?);
    let conditional = Conditional { condition, change: Change::Delete, expiry_ms: 0 };
    let Changed { receipt, .. } = change(service, params, conditional, id).await?;
    Ok(Answer { receipt, ..Answer::empty(StatusCode::ACCEPTED) })
}

/// `POST …&add=N`: the value is a decimal number, and becomes greater by N.
pub(super) async fn add(
    service: &Service,
    query: &str,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    let (params, number) = params::addition(query, service.replication())?;
    let id = condition::id(headers)?;
    let conditional =
        Conditional { condition: Condition::Any, change: Change::Add(number), expiry_ms: 0 };
    let Changed { tag, sum, receipt } = change(service, params, conditional, id).await?;
    let sum = sum.expect("an addition that was done has a sum");
    Ok(Answer { tag: Some(tag), receipt, ..Answer::text(StatusCode::OK, sum.to_string()) })
}

/// A change that was made.
struct Changed {
    /// The state after it.
    tag: Tag,
    /// What an addition came to.
    sum: Option<i64>,
    receipt: Option<Box<HeaderValue>>,
}

async fn change(
    service: &Service,
    params: ConditionalParams<'_>,
    conditional: Conditional,
    id: Option<u64>,
) -> Result<Changed, Problem> {
    let ConditionalParams { key, quorum, receipt } = params;
    let key = shared_key(key);
    let wanted = receipt.then(|| Wanted::conditional(&key, quorum));
    let (done, acks) = match service.requests.change(key, conditional, quorum, id).await {
        cluster::Answer::Done(done, acks) => (done, acks),
        cluster::Answer::Failed(failed) => return Err(entity::refused(service, failed)),
        cluster::Answer::Found(_) | cluster::Answer::Written(..) => {
            unreachable!("neither was asked for")
        }
    };
    match done {
        Done::Changed { tag, result: sum, .. } => {
            let receipt = wanted.map(|wanted| wanted.header(service, tag, acks));
            Ok(Changed { tag, sum, receipt })
        }
        Done::Unmet { current } => Err(Problem::unmet(current)),
        Done::Impossible(Impossible::NotANumber) => Err(Problem::not_a_number()),
        Done::Impossible(Impossible::Overflow) => Err(Problem::overflow()),
        Done::Forgotten => Err(Problem::forgotten()),
    }
}
