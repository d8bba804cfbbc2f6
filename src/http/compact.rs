//! `/admin/compact`: `POST` asks for a compaction of the whole store, `GET` tells how far it is.

use bytes::Bytes;
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
    let (status, json) = if *method == Method::POST {
        params::none(query)?;
        let number = service.reports.compact();
        let who = watch.client.get().map_or("somebody".to_owned(), |client| client.to_string());
        tracing::info!(who, number, "compaction requested");
        (StatusCode::ACCEPTED, serde_json::to_vec(&json!({ "number": number })))
    } else {
        (StatusCode::OK, serde_json::to_vec(&service.reports.compactions()))
    };
    let json = Bytes::from(json.expect("strings and numbers always serialize"));
    Ok(Answer { content_type: Some("application/json"), ..Answer::text(status, json) })
}
