//! `POST /admin/finalize`, with which a client raises the store format of all members, and `POST
//! /admin/store-format`, with which a node raises the store format of another node.

use std::rc::Rc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use protocol::NodeId;

use crate::finalize::status::{self, Finalized, RaiseError, Raised};
use crate::http::admission::admitted::Admitted;
use crate::http::cluster::collect;
use crate::http::others::{FetchError, NodeRequest, ask_each, fetch_json};
use crate::http::problem::Problem;
use crate::http::{Answer, Service, params};
use crate::node::requests::Requests;

/// Path of the request to raise one node's store.
pub(crate) const MEMBER_PATH: &str = "/admin/store-format";

/// Time limit for one node's raise: a few syncs of a busy disk. Together with the collection of all
/// members' status, it is shorter than the time that commands wait for an answer.
const RAISE_TIMEOUT: Duration = Duration::from_secs(6);

/// Maximum length of a node's answer, in bytes.
const MAX_ANSWER: u64 = 4096;

pub(crate) async fn finalize(
    service: &Service,
    query: Admitted<&str>,
    headers: &HeaderMap,
) -> Result<Answer, Problem> {
    params::refuse_parameters(query.into_params())?;
    let format = service.reports.store_formats().newest_store_format;
    let cluster = collect(service).await?;
    let (earlier, unchanged) = status::to_raise(&cluster, format).map_err(|why| {
        Problem::not_finalized(format!("no store was raised to format {format}: {why}"))
    })?;
    let (raised, failed) = raise_all(service, &earlier, format, headers).await;
    if !failed.is_empty() {
        let have = [&unchanged[..], &raised].concat();
        return Err(Problem::half_finalized(status::incomplete(format, &have, &failed)));
    }
    Ok(Answer::json(StatusCode::OK, &Finalized { format, raised, unchanged }))
}

/// Raises the stores of `members`. Returns the names of the members that confirmed the raise, and
/// the other names, each with the reason.
async fn raise_all(
    service: &Service,
    members: &[String],
    format: u32,
    headers: &HeaderMap,
) -> (Vec<String>, Vec<(String, String)>) {
    let requests = &service.requests;
    let (mut raised, mut failed) = (Vec::new(), Vec::new());
    let mut note = |name: String, outcome: Result<(), String>| match outcome {
        Ok(()) => raised.push(name),
        Err(why) => failed.push((name, why)),
    };
    let is_early = |node: &NodeId| members.contains(&requests.name(*node));
    let others = requests.others().into_iter().filter(is_early);
    let ask = |node| {
        let (this, authorization) = (Rc::clone(requests), headers.get(AUTHORIZATION).cloned());
        async move { request_raise(&this, node, format, authorization).await }
    };
    ask_each(others, ask, |node, told| {
        note(requests.name(node), told.map_err(|error| error.to_string()));
    })
    .await;
    // This node's store is raised last. Until then, a repeated request to this node finds the
    // remaining work.
    let own = requests.name(requests.own());
    if members.contains(&own) {
        let outcome = service.reports.raise_format(format).await;
        note(own, outcome.map(drop).map_err(|error| error.to_string()));
    }
    raised.sort_unstable();
    failed.sort_unstable();
    (raised, failed)
}

/// Requests that another node raise its store.
async fn request_raise(
    requests: &Requests,
    node: NodeId,
    format: u32,
    authorization: Option<HeaderValue>,
) -> Result<(), FetchError> {
    let target = format!("{MEMBER_PATH}?format={format}");
    let request = NodeRequest::Post { target: &target, authorization: authorization.as_ref() };
    let Raised { store_format } =
        fetch_json(requests, node, request, (RAISE_TIMEOUT, MAX_ANSWER)).await?;
    if store_format >= format { Ok(()) } else { Err(FetchError::NotRaised(store_format)) }
}

pub(crate) async fn raise(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    let format = super::params::format(query.into_params())?;
    let raised = service.reports.raise_format(format).await;
    let store_format = raised.map_err(|error| match error {
        RaiseError::Refused(_) => Problem::not_finalized(error.to_string()),
        RaiseError::Store(_) => Problem::storage(error.to_string()),
    })?;
    Ok(Answer::json(StatusCode::OK, &Raised { store_format }))
}
