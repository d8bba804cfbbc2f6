//! `/admin/repair`: `POST` asks for a round of repair, `GET` tells how far rounds are.

use hyper::{HeaderMap, Method, StatusCode};
use serde_json::json;

use super::problem::Problem;
use super::{Answer, Service, access, params};
use crate::http::connection::Watch;

pub(super) fn answer(
    service: &Service,
    watch: &Watch,
    method: &Method,
    headers: &HeaderMap,
    query: &str,
) -> Result<Answer, Problem> {
    access::admit(service.limits(), watch, headers)?;
    Ok(if *method == Method::POST {
        let full = params::repair(query)?;
        let number = service.reports.repair(full).ok_or_else(|| {
            let why = "this node is alone: there are no replicas to compare with";
            Problem::bad_request(why.to_owned())
        })?;
        let who = watch.client.get().map_or("somebody".to_owned(), |client| client.to_string());
        tracing::info!(who, number, full, "repair round requested");
        Answer::json(StatusCode::ACCEPTED, &json!({ "number": number }))
    } else {
        Answer::json(StatusCode::OK, &service.reports.repairs())
    })
}
