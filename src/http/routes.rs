//! The table of routes: each path with its methods, the required right, the required slot, and its
//! handler. A new route needs an entry here, and a handler.

use std::pin::Pin;
use std::rc::Rc;

use hyper::Method;
use hyper::http::request::Parts;
use server::link::PEER_PATH;

use super::access::{Principal, Scope};
use super::admission::admitted::Admitted;
use super::problem::Problem;
use super::ui::{self, Asset};
use super::{Answer, Service, admin, cluster, peer, profile, root};
use crate::counters::RequestKind;
use crate::http::connection::ConnectionState;
use crate::{compact, finalize, layout, quotas, repair, tokens};

/// A resource, by its path.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) path: &'static str,
    /// The allowed methods, as the header `Allow` lists them.
    pub(super) allowed: &'static str,
    /// The right that the route requires.
    pub(super) scope: Scope,
    pub(super) slot: SlotNeed,
    pub(super) handler: Handler,
}

/// The kind of slot that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotNeed {
    /// The request needs a client slot.
    Client,
    /// The request needs no slot. If all slots are taken, the connection is closed after the
    /// answer.
    Spare,
    /// The answer is long-lived. Without a client slot the request is served only while half of the
    /// reserve is free.
    LongLived,
}

/// The handler of a route.
#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// One value: `entity.rs`.
    Entity,
    /// A range: `entities/mod.rs`.
    Entities,
    /// A file of the dashboard.
    Asset(&'static Asset),
    /// A node that asks to join the cluster.
    Join,
    /// The replicas of a key: `ui/key.rs`.
    Placement,
    /// Any other route, all without keys: a function.
    Other(KeylessHandler),
}

/// The handler of a route without keys.
pub(super) type KeylessHandler = for<'a> fn(RequestContext<'a>) -> AnswerFuture<'a>;

/// The future of an answer.
type AnswerFuture<'a> = Pin<Box<dyn Future<Output = Result<Answer, Problem>> + 'a>>;

/// The input of a handler of a route without keys.
pub(super) struct RequestContext<'a> {
    pub(super) service: &'a Rc<Service>,
    pub(super) watch: &'a Rc<ConnectionState>,
    pub(super) head: &'a Parts,
    /// The query, which the handler parses.
    pub(super) query: Admitted<&'a str>,
    /// The right by which the request is answered.
    pub(super) right: &'a Principal,
}

const ONLY_GET: &str = "GET";
pub(super) const GET_AND_HEAD: &str = "GET, HEAD";
pub(super) const ROOT_METHODS: &str = "GET, HEAD, OPTIONS";
const GET_AND_POST: &str = "GET, POST";
const ONLY_POST: &str = "POST";

/// All routes, the most requested paths first. The dashboard's files are in [`ui`].
pub(super) const ROUTES: [Route; 25] = [
    Route {
        path: "/v0/entity",
        allowed: "GET, HEAD, PUT, DELETE, POST",
        scope: Scope::Data,
        slot: SlotNeed::Client,
        handler: Handler::Entity,
    },
    Route {
        path: "/v0/entities",
        allowed: ONLY_GET,
        scope: Scope::Data,
        slot: SlotNeed::Client,
        handler: Handler::Entities,
    },
    slotless_route("/", ROOT_METHODS, Scope::Public, |ask| {
        Box::pin(async move { Ok(root::answer(ask.head)) })
    }),
    slotless_route("/healthz", GET_AND_HEAD, Scope::Public, |_| {
        Box::pin(async move { Ok(admin::health()) })
    }),
    slotless_route("/readyz", GET_AND_HEAD, Scope::Public, |ask| {
        Box::pin(async move { Ok(admin::ready(&ask.service.reports)) })
    }),
    slotless_route("/metrics", GET_AND_HEAD, Scope::Metrics, |ask| {
        Box::pin(async move { Ok(admin::metrics(&ask.service.reports, &ask.head.headers)) })
    }),
    slotless_route("/v0/status", GET_AND_HEAD, Scope::Metrics, |ask| {
        Box::pin(async move { Ok(admin::status(&ask.service.reports)) })
    }),
    slotless_route("/v0/cluster", GET_AND_HEAD, Scope::Metrics, |ask| {
        Box::pin(cluster::get(ask.service))
    }),
    slotless_route(PEER_PATH, ONLY_GET, Scope::Peer, |ask| {
        Box::pin(async move { peer::upgrade(ask.watch, ask.head) })
    }),
    slotless_route("/admin/profile", ONLY_GET, Scope::Admin, |ask| {
        Box::pin(profile::get(ask.service, ask.watch, ask.query))
    }),
    slotless_route("/admin/repair", GET_AND_POST, Scope::Admin, |ask| {
        Box::pin(async move { repair::routes::answer(ask.service, &ask.head.method, ask.query) })
    }),
    slotless_route("/admin/compact", GET_AND_POST, Scope::Admin, |ask| {
        Box::pin(async move { compact::routes::answer(ask.service, &ask.head.method, ask.query) })
    }),
    slotless_route("/admin/layout", ONLY_GET, Scope::Admin, |ask| {
        Box::pin(async move { layout::routes::get(ask.service, ask.query) })
    }),
    slotless_route("/admin/layout/plan", ONLY_POST, Scope::Admin, |ask| {
        Box::pin(layout::routes::plan(ask.service, ask.query))
    }),
    slotless_route("/admin/layout/apply", ONLY_POST, Scope::Admin, |ask| {
        Box::pin(layout::routes::apply(ask.service, ask.query))
    }),
    slotless_route("/admin/layout/abort", ONLY_POST, Scope::Admin, |ask| {
        Box::pin(layout::routes::abort(ask.service, ask.query))
    }),
    slotless_route("/admin/finalize", ONLY_POST, Scope::Admin, |ask| {
        Box::pin(finalize::routes::finalize(ask.service, ask.query, &ask.head.headers))
    }),
    slotless_route(finalize::routes::MEMBER_PATH, ONLY_POST, Scope::NodeAdmin, |ask| {
        Box::pin(finalize::routes::raise(ask.service, ask.query))
    }),
    Route {
        path: "/admin/join",
        allowed: ONLY_POST,
        scope: Scope::Join,
        slot: SlotNeed::Spare,
        handler: Handler::Join,
    },
    slotless_route("/admin/tokens", GET_AND_POST, Scope::Admin, |ask| {
        Box::pin(tokens::routes::answer(ask.service, &ask.head.method, ask.query))
    }),
    slotless_route("/admin/tokens/revoke", ONLY_POST, Scope::Admin, |ask| {
        Box::pin(tokens::routes::revoke(ask.service, ask.query))
    }),
    slotless_route("/admin/quotas", GET_AND_POST, Scope::Admin, |ask| {
        Box::pin(quotas::routes::answer(ask.service, &ask.head.method, ask.query))
    }),
    slotless_route("/admin/quotas/remove", ONLY_POST, Scope::Admin, |ask| {
        Box::pin(quotas::routes::remove(ask.service, ask.query))
    }),
    Route {
        path: "/ui/key",
        allowed: GET_AND_HEAD,
        scope: Scope::Data,
        slot: SlotNeed::Spare,
        handler: Handler::Placement,
    },
    Route {
        slot: SlotNeed::LongLived,
        ..slotless_route("/ui/events", ONLY_GET, Scope::Metrics, |ask| {
            Box::pin(async move { ui::events(ask.service, ask.watch, ask.query, ask.right) })
        })
    },
];

const fn slotless_route(
    path: &'static str,
    allowed: &'static str,
    scope: Scope,
    handler: KeylessHandler,
) -> Route {
    Route { path, allowed, scope, slot: SlotNeed::Spare, handler: Handler::Other(handler) }
}

impl Route {
    pub(super) fn of(path: &str) -> Option<Self> {
        let asset = |asset: &'static Asset| Self {
            path: asset.path(),
            allowed: GET_AND_HEAD,
            scope: Scope::Public,
            slot: SlotNeed::Spare,
            handler: Handler::Asset(asset),
        };
        let known = ROUTES.iter().find(|route| route.path == path).copied();
        known.or_else(|| Asset::at(path).map(asset))
    }

    /// True if only a member can answer. A removed node neither learns nor can request decisions of
    /// the metadata quorum.
    pub(super) fn needs_member(self) -> bool {
        let of_council = ["/admin/layout/", "/admin/tokens", "/admin/quotas", "/admin/finalize"];
        of_council.iter().any(|path| self.path.starts_with(path))
    }

    /// Returns the kind under which a request is counted: [`RequestKind::Other`] if the method is
    /// not allowed.
    pub(super) fn kind(self, method: &Method) -> RequestKind {
        match (self.handler, method) {
            (Handler::Entity, &Method::GET | &Method::HEAD) => RequestKind::Get,
            (Handler::Entity, &Method::PUT) => RequestKind::Put,
            (Handler::Entity, &Method::DELETE) => RequestKind::Delete,
            (Handler::Entity, &Method::POST) => RequestKind::Add,
            (Handler::Entities, &Method::GET) => RequestKind::Range,
            (Handler::Entity | Handler::Entities, _) => RequestKind::Other,
            (_, &Method::GET) if self.allowed != ONLY_POST => RequestKind::Admin,
            (_, &Method::HEAD) if [GET_AND_HEAD, ROOT_METHODS].contains(&self.allowed) => {
                RequestKind::Admin
            }
            (_, &Method::OPTIONS) if self.allowed == ROOT_METHODS => RequestKind::Admin,
            (_, &Method::POST) if [GET_AND_POST, ONLY_POST].contains(&self.allowed) => {
                RequestKind::AdminPost
            }
            _ => RequestKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_takes_the_methods_that_it_names() {
        for route in ROUTES {
            let methods = [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::POST];
            for method in methods.into_iter().chain([Method::OPTIONS]) {
                let named = route.allowed.split(", ").any(|name| name == method.as_str());
                let taken = route.kind(&method) != RequestKind::Other;
                assert_eq!(taken, named, "{method} {}", route.path);
            }
        }
    }

    #[test]
    fn few_routes_need_no_token() {
        let open =
            |route: &&Route| [Scope::Public, Scope::Peer, Scope::Join].contains(&route.scope);
        let open: Vec<_> = ROUTES.iter().filter(open).map(|route| route.path).collect();
        assert_eq!(open, ["/", "/healthz", "/readyz", PEER_PATH, "/admin/join"]);
        for route in ROUTES {
            let is_admin = matches!(route.scope, Scope::Admin | Scope::NodeAdmin | Scope::Join);
            assert_eq!(is_admin, route.path.starts_with("/admin/"), "{}", route.path);
        }
        assert!(Route::of("/ui").is_some_and(|page| page.scope == Scope::Public));
    }

    #[test]
    fn a_removed_node_shows_its_layout_and_itself() {
        let asked = ROUTES.iter().filter(|route| {
            [Scope::Admin, Scope::Metrics].contains(&route.scope) && !route.needs_member()
        });
        let paths: Vec<_> = asked.map(|route| route.path).collect();
        let own = ["/metrics", "/v0/status", "/v0/cluster", "/admin/profile", "/admin/repair"];
        let more = ["/admin/compact", "/admin/layout", "/ui/events"];
        assert_eq!(paths, [&own[..], &more].concat());
    }

    #[test]
    fn paths_are_found() {
        assert!(Route::of("/v0/entity").is_some_and(|route| route.slot == SlotNeed::Client));
        assert!(
            Route::of("/ui").is_some_and(|route| route.kind(&Method::HEAD) == RequestKind::Admin)
        );
        assert!(Route::of("/ui/events").is_some_and(|route| route.slot == SlotNeed::LongLived));
        assert!(Route::of("/v0/entity/").is_none() && Route::of("").is_none());
    }
}
