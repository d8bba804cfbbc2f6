//! `/admin/tokens` and `/admin/tokens/revoke`: lists, creates and revokes tokens.

use hyper::{Method, StatusCode};

use crate::http::admission::admitted::Admitted;
use crate::http::problem::Problem;
use crate::http::{Answer, Service, params};
use crate::operations::access::ChangeError;

pub(crate) async fn answer(
    service: &Service,
    method: &Method,
    query: Admitted<&str>,
) -> Result<Answer, Problem> {
    if *method != Method::POST {
        params::refuse_parameters(query.into_params())?;
        return Ok(Answer::json(StatusCode::OK, &service.reports.tokens()));
    }
    let wanted = super::params::token(query.into_params())?;
    let made = service.reports.create_token(wanted).await.map_err(to_problem)?;
    Ok(Answer::json(StatusCode::CREATED, &made))
}

pub(crate) async fn revoke(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    let token = super::params::revoke(query.into_params())?;
    let revoked = service.reports.revoke_token(&token).await.map_err(to_problem)?;
    Ok(Answer::json(StatusCode::OK, &revoked))
}

fn to_problem(error: ChangeError) -> Problem {
    Problem::change_failed(error, Problem::token_change_refused)
}
