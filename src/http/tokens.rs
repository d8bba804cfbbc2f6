//! `/admin/tokens` and `/admin/tokens/revoke`: which tokens there are, a new one, and one less.

use hyper::{Method, StatusCode};

use super::layout::{Changes, refuse_beside_outdated};
use super::problem::Problem;
use super::{Answer, Service, params};
use crate::operations::access::ChangeError;

/// What must not be kept on the way.
const SECRET: &[(&str, &str)] =
    &[("cache-control", "no-store"), ("x-content-type-options", "nosniff")];

pub(super) async fn answer(
    service: &Service,
    method: &Method,
    query: &str,
) -> Result<Answer, Problem> {
    if *method != Method::POST {
        params::none(query)?;
        return Ok(Answer::json(StatusCode::OK, &service.reports.tokens()));
    }
    let wanted = params::token(query)?;
    refuse_beside_outdated(service, Changes::Tokens)?;
    let made = service.reports.create_token(wanted).await.map_err(refused)?;
    Ok(Answer { headers: SECRET, ..Answer::json(StatusCode::CREATED, &made) })
}

pub(super) async fn revoke(service: &Service, query: &str) -> Result<Answer, Problem> {
    let token = params::revoke(query)?;
    refuse_beside_outdated(service, Changes::Tokens)?;
    let revoked = service.reports.revoke_token(&token).await.map_err(refused)?;
    Ok(Answer::json(StatusCode::OK, &revoked))
}

fn refused(error: ChangeError) -> Problem {
    match error {
        ChangeError::Access(error) => Problem::no_token(error.to_string()),
        ChangeError::Random(_) => Problem::overload(&error.to_string()),
        ChangeError::Undecided => Problem::undecided(error.to_string()),
    }
}
