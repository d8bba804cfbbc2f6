//! `/admin/repair`: `POST` requests a repair round, `GET` reports the progress of rounds.

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
        let full = params::repair(query.into_params())?;
        let number = service.reports.repair(full).ok_or_else(|| {
            let why = "this node is alone: there are no replicas to compare with";
            Problem::bad_request(why.to_owned())
        })?;
        Answer::json(StatusCode::ACCEPTED, &json!({ "number": number }))
    } else {
        params::refuse_parameters(query.into_params())?;
        Answer::json(StatusCode::OK, &service.reports.repairs())
    })
}
