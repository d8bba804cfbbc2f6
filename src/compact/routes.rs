//! `/admin/compact`: `POST` requests a compaction of the whole store, `GET` reports its progress.

use hyper::{Method, StatusCode};
use serde_json::json;

use crate::http::admission::admitted::Admitted;
use crate::http::problem::Problem;
use crate::http::{Answer, Service, params};

pub(crate) fn answer(
    service: &Service,
    method: &Method,
    query: Admitted<&str>,
) -> Result<Answer, Problem> {
    Ok(if *method == Method::POST {
        params::refuse_parameters(query.into_params())?;
        let number = service.reports.compact();
        Answer::json(StatusCode::ACCEPTED, &json!({ "number": number }))
    } else {
        params::refuse_parameters(query.into_params())?;
        Answer::json(StatusCode::OK, &service.reports.compactions())
    })
}
