//! `/admin/compact`: `POST` asks for a compaction of the whole store, `GET` tells how far it is.

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
        params::none(query)?;
        let number = service.reports.compact();
        let who = watch.client.get().map_or("somebody".to_owned(), |client| client.to_string());
        tracing::info!(who, number, "compaction requested");
        Answer::json(StatusCode::ACCEPTED, &json!({ "number": number }))
    } else {
        Answer::json(StatusCode::OK, &service.reports.compactions())
    })
}
