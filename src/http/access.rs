//! Access control: every route has a scope, and every scope requires a right.
//!
//! ```text
//!  the route's scope ─▶ is a token needed? ─no─▶ answered
//!                              │ yes
//!       Authorization: Bearer ─┴▶ known? ─▶ for this kind, method? ─▶ within its rate?
//!                                   │ 401       │ 403                    │ 429
//!                                     ┌─────────────────────────────────┘
//!                                     ▼ once the query is parsed: does its prefix cover the key?
//!                                                                        │ 403
//! ```
//!
//! Where no token is needed, a token in the request is not checked. Requests from the node's own
//! machine may need no token. Behind a proxy on that machine all clients seem to be local, so the
//! node needs `--require-auth`. Once an admin token exists, local administration needs a token too.

use std::rc::Rc;

use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use protocol::escape;
use protocol::handshake::Channel;
use protocol::layout::{Kinds, Methods, Token, end_of_prefix};

use super::keys::Keys;
use super::params;
use super::problem::Problem;
use super::routes::Route;
use super::service::Service;
use crate::counters::clocks::wall_micros;
use crate::http::connection::ConnectionState;
use crate::peers::proof;
use crate::tokens::lookup::{CachedToken, TokenLookup};
use crate::tokens::status::{KINDS, METHODS, granted_names};

/// Index of the counter of 403 answers among the counters of refused requests.
const FORBIDDEN: usize = 1;

/// Message of a removed node that refuses a token.
const AT_REMOVED: &str = "this node was removed from the cluster and does not hear which tokens \
    are revoked: it accepts none of them, and no other token than the one of its own \
    --admin-token-file. Ask a member of the cluster";

/// Authentication scheme before the token, followed by one or more spaces (RFC 9110, 11.4).
const SCHEME: &[u8] = b"Bearer";

/// The scope of a route: the right that it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Public: the answer reveals nothing about the data or the cluster.
    Public,
    /// Read or write access to the request's keys.
    Data,
    /// Access to the cluster's state, for clients and for other nodes.
    Metrics,
    /// Administration of the cluster.
    Admin,
    /// Administration of this node, by an administrator or by another node.
    NodeAdmin,
    /// Another node, which authenticates in the peer protocol itself.
    Peer,
    /// A request to join. The joining node proves that it knows the cluster's secret. In a cluster
    /// without a secret, the request requires the right of an administrator.
    Join,
}

/// The right by which a request is answered.
#[derive(Debug, Clone)]
pub(super) enum Principal {
    /// The request needed no right.
    Open,
    /// The request came from this machine.
    Loopback,
    /// The token of `--admin-token-file`.
    Admin,
    /// Another node, which sent a valid proof. The text is the proof that the answer carries.
    Node(Rc<str>),
    /// A token of the layout.
    Token(Rc<CachedToken>),
}

impl Principal {
    /// Returns the right's description in the audit log.
    fn text(&self) -> String {
        match self {
            Self::Open => "anybody".to_owned(),
            Self::Loopback => "loopback".to_owned(),
            Self::Admin => "admin token".to_owned(),
            Self::Node(_) => "node".to_owned(),
            Self::Token(known) => token_text(&known.known.token),
        }
    }

    /// Returns the header by which this node proves to the asking node that it belongs to the
    /// cluster. `None` if the principal is not a node.
    pub(super) fn proof(&self) -> Option<HeaderValue> {
        let Self::Node(proof) = self else { return None };
        HeaderValue::from_str(proof).ok()
    }

    /// Returns the token of a `Principal::Token`, otherwise `None`.
    pub(super) fn token(&self) -> Option<&Rc<CachedToken>> {
        if let Self::Token(known) = self { Some(known) } else { None }
    }

    /// Refuses to continue if the right has ended since the admission of the request: its token was
    /// revoked, or has expired.
    #[inline]
    pub(super) fn check(&self, service: &Service) -> Result<(), Problem> {
        let requests = &service.requests;
        match self.token() {
            Some(token) if requests.is_token_valid(token) => Ok(()),
            Some(_) if requests.is_removed() => Err(Problem::removed_node(requests.epoch())),
            Some(_) => Err(Problem::unauthorized(
                "the token was revoked or has expired while this request was sent",
            )),
            None => Ok(()),
        }
    }

    /// Returns the token if the token limits bytes per second.
    pub(super) fn rate_limited_token(&self) -> Option<&Rc<CachedToken>> {
        self.token().filter(|known| known.known.counts_bytes())
    }
}

fn token_text(token: &Token) -> String {
    format!("token {} ({})", token.name, token.id_text())
}

/// Returns the right by which a request is answered, or refuses the request. `by_page` is true if a
/// page of another, permitted origin sent the request.
pub(super) fn admit(
    service: &Service,
    watch: &ConnectionState,
    head: &Parts,
    (route, by_page): (Option<Route>, bool),
    now: u64,
) -> Result<Principal, Problem> {
    if !is_data(route) && params::has_token(head.uri.query().unwrap_or("")) {
        return Err(params::token_in_url());
    }
    let Some(route) = route else { return Ok(Principal::Open) };
    let right = admit_to(service, watch, head, (route, by_page), now);
    if let Err(problem) = &right {
        let place = match problem.status() {
            StatusCode::UNAUTHORIZED => 0,
            StatusCode::FORBIDDEN => FORBIDDEN,
            StatusCode::TOO_MANY_REQUESTS => 2,
            _ => return right,
        };
        service.counters.refused[place].add(1);
    }
    right
}

fn admit_to(
    service: &Service,
    watch: &ConnectionState,
    head: &Parts,
    (route, by_page): (Route, bool),
    now: u64,
) -> Result<Principal, Problem> {
    let kind = match route.scope {
        Scope::Public | Scope::Peer => return Ok(Principal::Open),
        Scope::Join if service.reports.secrets().own().is_some() => return Ok(Principal::Open),
        Scope::Data => Kinds::DATA,
        Scope::Metrics => Kinds::METRICS,
        Scope::Admin | Scope::NodeAdmin | Scope::Join => Kinds::ADMIN,
    };
    let query = head.uri.query().unwrap_or("");
    let requests = &service.requests;
    let is_asked_by_nodes = matches!(route.scope, Scope::Metrics | Scope::NodeAdmin);
    if let Some(right) = node_principal(service, watch, head, is_asked_by_nodes)? {
        return Ok(right);
    }
    // Permission for a page to read and write keys does not make it an administrator.
    let is_local = is_on_this_machine(watch) && !(by_page && kind == Kinds::ADMIN);
    if !requests.access().is_needed(kind, is_local) {
        return Ok(if is_local { Principal::Loopback } else { Principal::Open });
    }
    let Some(given) = bearer(&head.headers) else {
        return Err(without_token(kind, query));
    };
    let remembered = watch.connection().token.take();
    let known = match requests.token(given, remembered.as_deref()) {
        Some(TokenLookup::CachedToken) => remembered,
        Some(TokenLookup::New(known)) => Some(Rc::new(known)),
        None if requests.access().is_admin(given) => return Ok(Principal::Admin),
        // A removed node answers every request for data, with any token, that it serves no data.
        None if requests.is_removed() && kind == Kinds::DATA => {
            return Err(Problem::removed_node(requests.epoch()));
        }
        None if requests.is_removed() => return Err(Problem::unauthorized(AT_REMOVED)),
        None => None,
    };
    let known = known.filter(|known| !requests.has_expired(known)).ok_or_else(|| {
        Problem::unauthorized(
            "the token is unknown here: it was revoked, has expired, or is of another cluster. \
             Whoever administers the cluster makes tokens (kvorum token create)",
        )
    })?;
    watch.connection().token.replace(Some(Rc::clone(&known)));
    if let Err(problem) = allows(&known.known.token, kind, &head.method) {
        if is_admin_act(route, &head.method) {
            audit(watch, head, &token_text(&known.known.token), problem.status());
        }
        return Err(problem);
    }
    let admitted = known.known.admit(now);
    admitted.map_err(|wait| Problem::too_fast(&known.known.token.name, wait))?;
    Ok(Principal::Token(known))
}

/// True if the client's address is a loopback address.
pub(super) fn is_on_this_machine(watch: &ConnectionState) -> bool {
    watch.client.get().is_some_and(|client| client.ip().to_canonical().is_loopback())
}

/// True if the route is for data. The parsers of data routes refuse unknown parameters, so they
/// refuse a token in the query themselves.
fn is_data(route: Option<Route>) -> bool {
    route.is_some_and(|route| route.scope == Scope::Data)
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let token = token.strip_prefix(b" ").filter(|_| scheme.eq_ignore_ascii_case(SCHEME))?;
    let begins = token.iter().position(|byte| *byte != b' ')?;
    Some(&token[begins..])
}

/// Returns the right of another node if the request has a valid proof that was not used before,
/// otherwise `None`. A connection with the nodes' ALPN name shows no client certificate. If clients
/// must show a certificate, every request on the connection needs a proof.
fn node_principal(
    service: &Service,
    watch: &ConnectionState,
    head: &Parts,
    is_asked_by_nodes: bool,
) -> Result<Option<Principal>, Problem> {
    let header = is_asked_by_nodes.then(|| head.headers.get(proof::HEADER)).flatten();
    let security = watch.security.get();
    let proof = header.and_then(|header| proof_of(service, security.channel(), head, header));
    match proof {
        None if security.lacks_certificate() => Err(Problem::forbidden(
            "this node asks clients for a certificate: one that connects as a node connects shows \
             none, and must prove itself by the cluster's secret",
        )),
        proof => Ok(proof.map(|proof| Principal::Node(proof.into()))),
    }
}

fn proof_of(
    service: &Service,
    channel: Option<Channel>,
    head: &Parts,
    header: &HeaderValue,
) -> Option<String> {
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let asked = (service.reports.name(), target);
    let proofs = &service.requests.access().proofs;
    let (secrets, now_ms) = (service.reports.secrets(), wall_micros() / 1000);
    secrets.own()?;
    proofs.take(secrets, channel, asked, header.as_bytes(), now_ms)
}

fn without_token(kind: Kinds, query: &str) -> Problem {
    if params::has_token(query) {
        return params::token_in_url();
    }
    Problem::unauthorized(match kind {
        Kinds::ADMIN => {
            "send a token for admin, or the admin token of this node (--admin-token-file): \
             Authorization: Bearer TOKEN. Without an admin token, admin requests are accepted from \
             loopback too, unless the node was started with --require-auth, but not from pages \
             of --allow-origin"
        }
        _ => {
            "send a token: Authorization: Bearer TOKEN. Whoever administers the cluster makes one \
             (kvorum token create)"
        }
    })
}

/// Refuses kinds and methods that the token does not permit, and names the permitted ones.
fn allows(token: &Token, kind: Kinds, method: &Method) -> Result<(), Problem> {
    let name = &token.name;
    if !token.kinds.has(kind) {
        let [kind, kinds] =
            [kind, token.kinds].map(|kinds| granted_names(&KINDS, |one| kinds.has(one)).join(", "));
        return Err(Problem::forbidden(format!(
            "this is for tokens for {kind}, and token {name:?} is for {kinds}"
        )));
    }
    // No route allows any other method.
    if method_of(method).is_some_and(|method| !token.methods.has(method)) {
        let methods = granted_names(&METHODS, |one| token.methods.has(one)).join(", ");
        return Err(Problem::forbidden(format!("token {name:?} is good for {methods} only")));
    }
    Ok(())
}

/// Refuses keys outside of the token's prefix.
pub(super) fn covers(service: &Service, token: &Token, keys: Keys<'_>) -> Result<(), Problem> {
    if !is_inside(&token.prefix, keys) {
        service.counters.refused[FORBIDDEN].add(1);
        return Err(outside_prefix(token, keys));
    }
    Ok(())
}

/// True if all these keys begin with the prefix.
fn is_inside(prefix: &[u8], keys: Keys<'_>) -> bool {
    match keys {
        Keys::None => true,
        Keys::One(key) => key.starts_with(prefix),
        Keys::Range { start, end } => lies_within(prefix, start, end),
    }
}

fn outside_prefix(token: &Token, keys: Keys<'_>) -> Problem {
    let name = &token.name;
    let prefix = escape(&token.prefix);
    let range = match (keys, end_of_prefix(&token.prefix)) {
        (Keys::Range { .. }, Some(end)) => {
            let end = escape(&end);
            format!(": a range from start={prefix} to end={end} at most, which is prefix={prefix}")
        }
        _ => String::new(),
    };
    Problem::forbidden(format!(
        "token {name:?} is good for keys that begin with \"{prefix}\" only{range}"
    ))
}

fn method_of(method: &Method) -> Option<Methods> {
    match *method {
        Method::GET | Method::HEAD => Some(Methods::GET),
        Method::PUT => Some(Methods::PUT),
        Method::DELETE => Some(Methods::DELETE),
        Method::POST => Some(Methods::POST),
        _ => None,
    }
}

/// True if all keys of a range begin with the prefix.
fn lies_within(prefix: &[u8], start: &[u8], end: Option<&[u8]>) -> bool {
    let after = end_of_prefix(prefix);
    start.starts_with(prefix)
        && after.is_none_or(|after| end.is_some_and(|end| end <= after.as_slice()))
}

/// True if the audit log records the request: a POST of administration, or a profile.
fn is_admin_act(route: Route, method: &Method) -> bool {
    let is_admin = matches!(route.scope, Scope::Admin | Scope::NodeAdmin);
    is_admin && (*method == Method::POST || route.path == "/admin/profile")
}

/// Writes acts of administration to the audit log. Unauthenticated requests are only counted,
/// because logging them could fill the disk.
pub(super) fn log_admin_act(
    watch: &ConnectionState,
    head: &Parts,
    route: Route,
    right: &Principal,
    status: StatusCode,
) {
    if is_admin_act(route, &head.method) {
        audit(watch, head, &right.text(), status);
    }
}

fn audit(watch: &ConnectionState, head: &Parts, who: &str, status: StatusCode) {
    let from = watch.client.get().map(|client| client.to_string()).unwrap_or_default();
    // The query of a refused request may contain any text, even a token.
    let query = head.uri.query().filter(|_| status.is_success());
    let (mark, query) = query.map_or(("", ""), |query| ("?", query));
    let what = format!("{} {}{mark}{query}", head.method, head.uri.path());
    tracing::info!(target: "audit", who, from, what, status = status.as_u16(), "admin request");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::action::{ParamLimits, RequestAction};
    use crate::http::params::Replication;
    use crate::http::routes::{Handler, ROUTES};
    use crate::settings::units::Ttl;

    const ON: ParamLimits =
        ParamLimits { replication: Replication { nodes: 3, replicas: 3 }, max_ttl: Ttl::MOST };

    /// A handler gets exactly the keys that were checked, even if the query has parameters of other
    /// routes.
    #[test]
    fn parameters_of_other_routes_hide_no_key_from_the_prefix_check() {
        let routes: Vec<Route> =
            ROUTES.into_iter().filter(|route| route.scope == Scope::Data).collect();
        assert!(routes.len() >= 3, "entity, entities and the dashboard's key");
        let all = [&params::ADD[..], &params::PUT, &params::RANGE, &params::PLACEMENT].concat();
        let outside: [&[u8]; 7] = [b"1", b"a", b"other", b"user", b"users0", b"usersz", b"z"];
        let reaches = |keys: Keys<'_>, key: &[u8]| match keys {
            Keys::None => true,
            Keys::One(one) => one == key,
            Keys::Range { start, end } => start <= key && end.is_none_or(|end| key < end),
        };
        let mut parsed = 0;
        for route in routes {
            let methods = [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::POST];
            for (method, conditional) in
                methods.iter().flat_map(|method| [(method, false), (method, true)])
            {
                let keys_of = |query: &str, check: &mut dyn FnMut(Keys<'_>)| {
                    let request = hyper::Request::builder().method(method.clone());
                    let request = request.uri(format!("{}?{query}", route.path));
                    let request = request.header("accept", "application/x-ndjson");
                    let (head, ()) = request.body(()).unwrap().into_parts();
                    let kind = route.kind(method);
                    let action = RequestAction::of(&head, Some(route), kind, conditional, ON);
                    if let Ok(action) = action {
                        check(action.keys());
                    }
                };
                let values = ["", "1", "true", "users/a", "other", "id=users/a"];
                let one_more = all
                    .iter()
                    .chain(&["only_here", "%69d", "ID"])
                    .flat_map(|name| values.map(|value| format!("{name}={value}")));
                let needed = if method == Method::POST { "&add=1" } else { "" };
                for more in one_more.chain([String::new()]) {
                    for query in [
                        format!("id=other{needed}&{more}"),
                        format!("{more}&id=other{needed}"),
                        format!("start=a&end=z&{more}"),
                        format!("{more}&start=users/&end=usersz"),
                        format!("{more}&prefix=user"),
                    ] {
                        let query = query.trim_matches('&');
                        keys_of(query, &mut |keys| {
                            parsed += 1;
                            let reached = outside.iter().any(|key| reaches(keys, key));
                            let inside = is_inside(b"users/", keys);
                            assert!(!(inside && reached), "{method} {query}: {keys:?}");
                        });
                    }
                }
                let is_range = matches!(route.handler, Handler::Entities);
                let inside = if is_range {
                    "start=users/a&end=users/b&local=true".to_owned()
                } else {
                    format!("id=users/a{needed}")
                };
                keys_of(&inside, &mut |keys| {
                    assert!(is_inside(b"users/", keys), "{method} {inside}: {keys:?}");
                });
            }
        }
        assert!(parsed > 100, "{parsed} queries were parsed");
    }

    #[test]
    fn a_range_is_inside_a_prefix_if_all_its_keys_are() {
        for (start, end, inside) in [
            ("users/", Some("users0"), true),
            ("users/a", Some("users/b"), true),
            ("users/z", Some("users/a"), true),
            ("users/", Some("users1"), false),
            ("users/", Some("users0a"), false),
            ("users/", None, false),
            ("user", Some("users/a"), false),
            ("", Some("users0"), false),
            ("v", Some("users/a"), false),
        ] {
            let end = end.map(str::as_bytes);
            assert_eq!(lies_within(b"users/", start.as_bytes(), end), inside, "{start} {end:?}");
        }
        assert!(lies_within(b"\xff\xff", b"\xff\xff\x01", None), "nothing is behind these");
        assert!(!lies_within(b"a\xff", b"a\xff", None));
        assert!(lies_within(b"a\xff", b"a\xff", Some(b"b")));
    }
}
