//! The HTTP interface: parsing of requests, and the form of answers.
//!
//! ```text
//!  request ─▶ route ─▶ admission ─▶ (body) ─▶ entity · entities · admin · ui ─▶ Answer ─▶ response
//!                └──────────┴──────────┴──────────────┴─ Problem ──────────────┘
//! ```
//!
//! `admission` parses the request with `action` and `params`, checks it, and passes it to its
//! handler. The handlers `entity` and `entities` call
//! [`Requests`](crate::node::requests::Requests). The first checks are in `screen`, `origin`,
//! `cors`, `access` and `reserve`. `openapi` compares routes, parameters and problems with the
//! documented interface.

mod accept;
mod access;
mod action;
mod admin;
pub(crate) mod admission;
mod body;
mod caching;
pub(crate) mod cluster;
mod condition;
mod conditional;
pub(crate) mod connection;
mod cors;
mod entities;
mod entity;
pub(crate) mod etags;
pub(crate) mod expires;
pub(crate) mod fence;
pub(crate) mod frames;
pub(crate) mod http2;
mod keys;
pub(crate) mod not_serving;
#[cfg(test)]
mod openapi;
mod origin;
pub(crate) mod others;
pub(crate) mod params;
mod peer;
pub(crate) mod percent;
pub(crate) mod problem;
mod profile;
pub(crate) mod receipt;
mod reserve;
mod root;
mod routes;
mod screen;
mod service;
mod ui;
pub(crate) mod upload;

use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use protocol::Tag;
use serde::Serialize;
use server::link::PEER_PROTOCOL;

use access::Principal;
use admission::{Admission, RequestHead};
pub(crate) use body::Body;
use caching::Headers;
pub(crate) use cluster::MAX_CONCURRENT_STATUS;
use cors::PageOrigin;
use expires::EXPIRES;
pub(crate) use origin::OwnNames;
pub(crate) use params::MAX_LIMIT;
use problem::Problem;
use receipt::RECEIPT;
use routes::Route;
pub(crate) use service::Service;
pub(crate) use ui::MAX_STREAMS;
use upload::Upload;
pub(crate) use upload::beginning_bytes;

use crate::counters::{RequestKind, clocks};
use crate::http::connection::{AnswerMemory, ConnectionState};
use crate::settings::memory::LONG_RECORD;

/// Longest key in bytes.
const MAX_KEY_LEN: usize = 1024;

/// Longest request head in bytes. hyper answers a longer head with 431.
pub(crate) const MAX_HEAD_LEN: usize = 16 * 1024;

/// The answer to a request, before its conversion to an HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    tag: Option<Tag>,
    receipt: Option<Box<HeaderValue>>,
    /// Expiry of the value, in milliseconds since 1970; 0 = never, or no value.
    expiry_ms: u64,
    content_type: Option<&'static str>,
    /// A header that few answers have. Boxed, so that other answers stay small.
    extra_header: Option<Box<(HeaderName, HeaderValue)>>,
    /// Further headers of the response.
    headers: Headers,
    body: Body,
}

impl Answer {
    fn empty(status: StatusCode) -> Self {
        let (tag, receipt, content_type, extra_header) = (None, None, None, None);
        let (expiry_ms, headers, body) = (0, &[], Body::Empty);
        Self { status, tag, receipt, expiry_ms, content_type, extra_header, headers, body }
    }

    fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        let content_type = Some("text/plain; charset=utf-8");
        let text: Bytes = text.into();
        let body = Body::Whole(text.into());
        Self { content_type, headers: &caching::FRESH, body, ..Self::empty(status) }
    }

    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Self {
        let json = serde_json::to_vec(value).expect("strings and numbers always serialize");
        Self { content_type: Some("application/json"), ..Self::text(status, json) }
    }

    /// Sets the extra header of the answer.
    pub(crate) fn with_extra_header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { extra_header: Some(Box::new((name, value))), ..self }
    }
}

/// Header by which a member of the cluster proves itself to a joining node.
pub(crate) const JOIN_PROOF: HeaderName = HeaderName::from_static(crate::joining::message::HEADER);

/// Header by which this node proves itself to another node, in the answer to its request.
const NODE_PROOF: HeaderName = HeaderName::from_static(crate::peers::proof::HEADER);

/// Answers one request.
pub(crate) async fn answer(
    service: Rc<Service>,
    watch: Rc<ConnectionState>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let begun = clocks::mono_nanos();
    watch.begin_request();
    let (mut head, body) = request.into_parts();
    let route = Route::of(head.uri.path());
    let kind = route.map_or(RequestKind::Other, |route| route.kind(&head.method));
    let page = PageOrigin::of(&service.names, &head, route);
    let asked = RequestHead { head: &head, route, kind, page: &page, begun };
    let Admission { right, is_entitled, stays_open, action } =
        admission::admit(&service, &watch, &asked).await;
    let mut upload = Upload::new(body, &watch, &right);
    // The node does not read the bodies that pages of foreign origins send.
    let understood = !matches!(&action, Err(problem)
        if problem.is_not_implemented() || problem.is_foreign() && upload.has_more());
    let result = match action {
        Ok(Some(action)) => {
            admission::handle(&service, &watch, &head, &right, action, &mut upload).await
        }
        Ok(None) => Ok(Answer::empty(StatusCode::NO_CONTENT)),
        Err(problem) => Err(problem),
    };
    let is_fully_read = understood && upload.skip(&head.headers).await;
    let received = upload.received_bytes();
    if !is_fully_read && watch.is_stream() {
        watch.keep_unread_body(upload.into_unread_body());
    }
    if let Some(route) = route.filter(|_| is_entitled && !page.asks()) {
        let status = result.as_ref().map_or_else(Problem::status, |answer| answer.status);
        access::log_admin_act(&watch, &head, route, &right, status);
    }
    // The request's header map serves the response, after it is cleared. hyper reuses the map for
    // the next request, so a connection allocates it once.
    head.headers.clear();
    // While the node stops, the answer announces the connection's end, so the client sends its next
    // request elsewhere. A silent close could meet a request that is already on its way.
    let stays_open = stays_open && !service.reports.is_stopping();
    let connection = match head.version {
        Version::HTTP_2 => AfterAnswer::Streams,
        _ if is_fully_read && stays_open => AfterAnswer::Stays,
        _ => AfterAnswer::Ends,
    };
    if connection == AfterAnswer::Streams && !stays_open {
        watch.leave();
    }
    let mut response = respond(&service, &mut head.headers, result, connection);
    page.add_to(response.headers_mut());
    if let Some(proof) = right.proof() {
        response.headers_mut().insert(NODE_PROOF, proof);
    }
    meter(&right, (&head.method, received), response.body_mut());
    if head.method == Method::HEAD
        && matches!(response.body(), Body::Whole(body) if body.is_empty())
    {
        // hyper can't distinguish an empty body from a missing body.
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    watch.set_answer_memory(match response.body() {
        Body::Whole(value) if value.len() > LONG_RECORD => Some(AnswerMemory::Value),
        Body::Items(_) => Some(AnswerMemory::Range),
        _ => None,
    });
    service.counters.count_answer(kind, response.status(), clocks::mono_nanos() - begun);
    watch.end_request(is_fully_read);
    Ok(response)
}

/// The state of the connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterAnswer {
    Stays,
    /// The connection ends, and the answer announces the end.
    Ends,
    /// An HTTP/2 connection, whose end is announced by GOAWAY, never by a header.
    Streams,
}

/// Charges received and sent bytes to the token's rate. A range is charged while it is sent, and
/// ends when its token does.
fn meter(right: &Principal, (method, came): (&Method, u64), body: &mut Body) {
    if let (Body::Items(items), Some(token)) = (&mut *body, right.token()) {
        items.bind_token(Rc::clone(token));
    }
    let Some(token) = right.rate_limited_token() else { return };
    let sent = match body {
        Body::Whole(bytes) if *method != Method::HEAD => bytes.len() as u64,
        _ => 0,
    };
    token.known.charge(clocks::mono_nanos(), came + sent);
}

/// Builds the response, and moves the headers into it.
fn respond(
    service: &Service,
    headers: &mut HeaderMap,
    result: Result<Answer, Problem>,
    connection: AfterAnswer,
) -> Response<Body> {
    let answer = match result {
        Ok(answer) => answer,
        Err(problem) => {
            if let Some(seconds) = problem.retry_after() {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            if problem.wants_token() {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            if problem.wants_upgrade() && connection != AfterAnswer::Streams {
                headers.insert(UPGRADE, HeaderValue::from_static(PEER_PROTOCOL));
            }
            if let Some(allow) = problem.allow() {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            if problem.refuses_coding() {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            problem.into_answer()
        }
    };
    if let Some(tag) = answer.tag {
        headers.insert(ETAG, service.etags.of(tag));
    }
    if let Some(receipt) = answer.receipt {
        headers.insert(RECEIPT, *receipt);
    }
    if answer.expiry_ms != 0 {
        headers.insert(EXPIRES, expires::of(answer.expiry_ms));
    }
    if let Some((name, value)) = answer.extra_header.map(|extra_header| *extra_header) {
        headers.insert(name, value);
    }
    if let Some(content_type) = answer.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    for (name, value) in answer.headers {
        headers.insert(name, value.clone());
    }
    if answer.status == StatusCode::SWITCHING_PROTOCOLS {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(PEER_PROTOCOL));
    } else if connection == AfterAnswer::Ends {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let mut response = Response::new(answer.body);
    *response.status_mut() = answer.status;
    std::mem::swap(response.headers_mut(), headers);
    response
}
