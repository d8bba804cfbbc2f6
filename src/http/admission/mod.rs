//! Admission: every request passes the same checks in the same order, and only an admitted request
//! reaches a handler.
//!
//! ```text
//!  head ─▶ host, origin ─▶ sender, rate ─▶ parse ─▶ keys ─▶ slot ─▶ quota ─▶ Admitted ─▶ handler
//!            │ 4xx            │ 401 403 429  │ 400    │ 403    │ 503    │ 507
//!            └────────────────┴──────────────┴────────┴────────┴────────┴─▶ Problem
//! ```
//!
//! A request is parsed once, after its sender is identified. So the errors of the parser tell
//! nothing to senders without a right. Only this module can construct an [`Admitted`], and every
//! handler that uses a query or a key requires an [`Admitted`] as an argument.

pub(crate) mod admitted;

use std::rc::Rc;

use hyper::Method;
use hyper::http::request::Parts;

use super::access::{self, Principal};
use super::action::{ParamLimits, RequestAction};
use super::cors::PageOrigin;
use super::problem::Problem;
use super::routes::{RequestContext, Route};
use super::upload::Upload;
use super::{Answer, Service, conditional, entities, entity, reserve, screen, ui};
use crate::counters::RequestKind;
use crate::http::connection::ConnectionState;
use crate::joining;
use crate::quotas;
use admitted::Admitted;

/// Maximum number of members that a removed node's refusal names: a person needs only one.
const MAX_NAMED: usize = 3;

/// A request's head, with its route, kind and page origin.
pub(super) struct RequestHead<'a> {
    pub(super) head: &'a Parts,
    pub(super) route: Option<Route>,
    pub(super) kind: RequestKind,
    pub(super) page: &'a PageOrigin,
    pub(super) begun: u64,
}

/// The outcome of admission.
pub(super) struct Admission<'a> {
    /// The right under which the request is handled, and which identifies the sender.
    pub(super) right: Principal,
    /// True if the sender may use the route. Only then is an act of administration audited.
    pub(super) is_entitled: bool,
    /// True if the connection is kept open after the answer.
    pub(super) stays_open: bool,
    /// The admitted action; `None` for a CORS preflight, whose answer consists of headers.
    pub(super) action: Result<Option<Admitted<RequestAction<'a>>>, Problem>,
}

/// Admits a request, or refuses it.
pub(super) async fn admit<'a>(
    service: &Service,
    watch: &ConnectionState,
    request_head: &RequestHead<'a>,
) -> Admission<'a> {
    let mut right = Principal::Open;
    let action = identify(service, watch, request_head, &mut right);
    let is_entitled = action.is_ok();
    let action = action.and_then(|conditional| match conditional {
        None => Ok(None),
        Some(conditional) => parse(service, request_head, conditional, &right).map(Some),
    });
    let action = match action {
        Ok(action) => action,
        Err(problem) => {
            let (stays_open, action) =
                (!watch.is_reserve(), Err(mark_undone(request_head.kind, problem)));
            return Admission { right, is_entitled, stays_open, action };
        }
    };
    if watch.has_slot() {
        let action = check_service_and_quota(service, request_head, action);
        return Admission { right, is_entitled, stays_open: true, action };
    }
    let (stays_open, action) = match reserve::admit(service, watch, request_head.route).await {
        Ok(stays_open) => (stays_open, check_service_and_quota(service, request_head, action)),
        Err(problem) => (watch.is_stream() && !watch.is_reserve(), Err(problem)),
    };
    Admission { right, is_entitled, stays_open, action }
}

/// Checks that the request was meant for this node, and identifies its sender. Returns true if the
/// request has a condition or an idempotency key; `None` for a CORS preflight, which needs no
/// right.
fn identify(
    service: &Service,
    watch: &ConnectionState,
    request_head: &RequestHead<'_>,
    right: &mut Principal,
) -> Result<Option<bool>, Problem> {
    let RequestHead { head, route, kind, page, begun } = *request_head;
    let conditional = screen::check_head(&service.names, watch, head, route, kind)?;
    if page.asks() {
        return Ok(None);
    }
    *right = access::admit(service, watch, head, (route, page.has_other_origin()), begun)?;
    Ok(Some(conditional))
}

/// Parses the request, and checks that the right covers its keys.
fn parse<'a>(
    service: &Service,
    request_head: &RequestHead<'a>,
    conditional: bool,
    right: &Principal,
) -> Result<RequestAction<'a>, Problem> {
    let RequestHead { head, route, kind, .. } = *request_head;
    let limits =
        ParamLimits { replication: service.replication(), max_ttl: service.limits().max_ttl };
    let action = RequestAction::of(head, route, kind, conditional, limits)?;
    if let Principal::Token(known) = right {
        access::covers(service, &known.known.token, action.keys())?;
    }
    Ok(action)
}

/// Checks that this node serves data, and that no quota refuses the write.
fn check_service_and_quota<'a>(
    service: &Service,
    request_head: &RequestHead<'_>,
    action: Option<RequestAction<'a>>,
) -> Result<Option<Admitted<RequestAction<'a>>>, Problem> {
    let Some(action) = action else { return Ok(None) };
    check_serves(service, request_head.kind)?;
    if request_head.route.is_some_and(Route::needs_member) && service.requests.is_removed() {
        return Err(Problem::removed_node_with_members(
            service.requests.epoch(),
            &members(service),
        ));
    }
    quotas::routes::admit(service, action.stored_key(), &request_head.head.headers)?;
    Ok(Some(Admitted(action)))
}

/// Refuses data requests if this node is fenced or was removed from the cluster.
fn check_serves(service: &Service, kind: RequestKind) -> Result<(), Problem> {
    if !kind.is_data_request() {
        return Ok(());
    }
    let problem = if service.requests.is_fenced() {
        Problem::fenced_node()
    } else if service.requests.is_removed() {
        Problem::removed_node(service.requests.epoch())
    } else {
        return Ok(());
    };
    Err(mark_undone(kind, problem))
}

/// Returns up to [`MAX_NAMED`] members of the cluster that removed this node, with their URLs.
fn members(service: &Service) -> Vec<String> {
    let requests = &service.requests;
    let at = |id| format!("{} at {}", requests.name(id), requests.url(id));
    requests.others().into_iter().take(MAX_NAMED).map(at).collect()
}

/// Marks the refusal of a write: no handler ran, so the answer states that nothing was done.
fn mark_undone(kind: RequestKind, problem: Problem) -> Problem {
    if kind.is_write() { problem.without_effect() } else { problem }
}

/// Passes an admitted request to its handler.
pub(super) async fn handle(
    service: &Rc<Service>,
    watch: &Rc<ConnectionState>,
    head: &Parts,
    right: &Principal,
    Admitted(action): Admitted<RequestAction<'_>>,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let headers = &head.headers;
    match action {
        RequestAction::Get { params, unless } => {
            entity::get(service, Admitted(params), unless.then_some(headers)).await
        }
        RequestAction::Put(params) => entity::put(service, Admitted(params), upload).await,
        RequestAction::PutIf(params) => {
            conditional::put(service, Admitted(params), headers, upload).await
        }
        RequestAction::Delete(params) => entity::delete(service, Admitted(params)).await,
        RequestAction::DeleteIf(params) => {
            conditional::delete(service, Admitted(params), headers).await
        }
        RequestAction::Add(params) => {
            conditional::add(service, Admitted(params), headers, upload).await
        }
        RequestAction::Range(params) => entities::get(service, watch, Admitted(*params)).await,
        RequestAction::Placement(params) => {
            let answer = ui::key(service, Admitted(params)).await?;
            right.check(service).map(|()| answer)
        }
        RequestAction::Join => joining::routes::post(service, watch, Admitted(head), upload).await,
        RequestAction::Asset(asset) => Ok(asset.answer()),
        RequestAction::Other(handler) => {
            let query = Admitted(head.uri.query().unwrap_or(""));
            let ask = RequestContext { service, watch, head, query, right };
            let answer = handler(ask).await?;
            // A recording takes minutes, so the token is checked again at its end.
            if head.method == Method::GET {
                right.check(service)?;
            }
            Ok(answer)
        }
    }
}
