//! Conditional writes of one value: with `If-Match` or `If-None-Match`, and additions.

use cluster::{Change, Condition, Conditional, Done, Impossible};
use hyper::{HeaderMap, StatusCode};
use node::link::Room;

use super::entity::{self, shared_key};
use super::params::{self, ConditionalParams};
use super::problem::Problem;
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
    let conditional = Conditional { condition, change: Change::Put(value) };
    let done = change(service, params, conditional, id).await;
    drop(passed);
    let (tag, _) = changed(done?)?;
    Ok(Answer { tag: Some(tag), ..Answer::empty(StatusCode::CREATED) })
}

pub(super) async fn delete(
    service: &Service,
    query: &str,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    let params = params::conditional(query, service.replication())?;
    let (condition, id) = (condition::of(headers, Kind::Delete)?, condition::id(headers)?);
    let conditional = Conditional { condition, change: Change::Delete };
    changed(change(service, params, conditional, id).await?)?;
    Ok(Answer::empty(StatusCode::ACCEPTED))
}

/// `POST …&add=N`: the value is a decimal number, and becomes greater by N.
pub(super) async fn add(
    service: &Service,
    query: &str,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    let (params, number) = params::addition(query, service.replication())?;
    let id = condition::id(headers)?;
    let conditional = Conditional { condition: Condition::Any, change: Change::Add(number) };
    let (tag, sum) = changed(change(service, params, conditional, id).await?)?;
    let sum = sum.expect("an addition that was done has a sum");
    Ok(Answer { tag: Some(tag), ..Answer::text(StatusCode::OK, sum.to_string()) })
}

async fn change(
    service: &Service,
    params: ConditionalParams<'_>,
    conditional: Conditional,
    id: Option<u64>,
) -> Result<Done, Problem> {
    let ConditionalParams { key, quorum } = params;
    match service.requests.change(shared_key(key), conditional, quorum, id).await {
        cluster::Answer::Done(done) => Ok(done),
        cluster::Answer::Failed(failed) => Err(entity::refused(service, failed)),
        cluster::Answer::Found(_) | cluster::Answer::Written(_) => {
            unreachable!("neither was asked for")
        }
    }
}

/// The state after a change, and what an addition came to.
fn changed(done: Done) -> Result<(cluster::Tag, Option<i64>), Problem> {
    match done {
        Done::Changed { tag, result } => Ok((tag, result)),
        Done::Unmet { current } => Err(Problem::unmet(current)),
        Done::Impossible(Impossible::NotANumber) => {
            let what = "the value is not a decimal number of 64 bits, such as 12 or -3";
            Err(Problem::conflict("not-a-number", "Not a number", what))
        }
        Done::Impossible(Impossible::Overflow) => {
            let what = "the sum does not fit into 64 bits (-9223372036854775808 to \
                9223372036854775807)";
            Err(Problem::conflict("overflow", "Sum out of range", what))
        }
        Done::Forgotten => Err(Problem::forgotten()),
    }
}
