//! `/admin/quotas` and `/admin/quotas/remove`: list, set and remove quotas. Also checks writes
//! against the quotas.

use hyper::{HeaderMap, Method, StatusCode};

use crate::http::admission::admitted::Admitted;
use crate::http::problem::Problem;
use crate::http::{Answer, Service, params};
use crate::operations::access::ChangeError;
use crate::quotas::counts::CountedQuota;

/// Refuses a write that stores a value under a prefix whose quota is full. `stores` is the key of
/// the write, or `None` if the request stores no value. A write with an idempotency key is
/// admitted, because it may have been done before the quota was full. Its handler checks that
/// first, then the quota.
pub(crate) fn admit(
    service: &Service,
    stores: Option<&[u8]>,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let Some(key) = stores else { return Ok(()) };
    if !service.requests.quotas().are_any() || headers.contains_key("idempotency-key") {
        return Ok(());
    }
    let full = service.requests.quotas().full(key);
    full.map_or(Ok(()), |full| Err(refuse(&full)))
}

/// Counts a write that this quota refuses, and returns the answer to the write.
pub(crate) fn refuse(full: &CountedQuota) -> Problem {
    full.count_refusal();
    let stored = full.stored_bytes().unwrap_or(full.quota.hard);
    Problem::quota_reached(&full.quota.prefix, stored, full.quota.hard)
}

pub(crate) async fn answer(
    service: &Service,
    method: &Method,
    query: Admitted<&str>,
) -> Result<Answer, Problem> {
    if *method != Method::POST {
        params::refuse_parameters(query.into_params())?;
        return Ok(Answer::json(StatusCode::OK, &service.reports.quotas()));
    }
    let quota = super::params::quota(query.into_params())?;
    let set = service.reports.set_quota(quota).await.map_err(to_problem)?;
    Ok(Answer::json(StatusCode::OK, &set))
}

pub(crate) async fn remove(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    let prefix = super::params::quota_to_remove(query.into_params())?;
    let removed = service.reports.remove_quota(&prefix).await.map_err(to_problem)?;
    Ok(Answer::json(StatusCode::OK, &removed))
}

fn to_problem(error: ChangeError) -> Problem {
    Problem::change_failed(error, Problem::quota_change_refused)
}
