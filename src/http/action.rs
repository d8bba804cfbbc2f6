//! Parses method, path, query and `Accept` of a request once. Admission and the handler read the
//! same parsed keys. So every key that a handler uses was checked against the token's prefix and
//! the quota.

use hyper::http::request::Parts;

use super::entities::form::Form;
use super::keys::Keys;
use super::params::{
    self, Addition, ConditionalParams, PlacementParams, RangeParams, ReadParams, Replication,
    WriteParams,
};
use super::problem::Problem;
use super::routes::{Handler, KeylessHandler, Route};
use super::ui::Asset;
use crate::counters::RequestKind;
use crate::settings::units::Ttl;

/// A parsed request.
pub(super) enum RequestAction<'a> {
    /// `unless` is true if the request has `If-None-Match`.
    Get {
        params: ReadParams<'a>,
        unless: bool,
    },
    Put(WriteParams<'a>),
    /// `PUT` with a condition, an idempotency key, or both.
    PutIf(ConditionalParams<'a>),
    Delete(WriteParams<'a>),
    /// `DELETE` with a condition, an idempotency key, or both.
    DeleteIf(ConditionalParams<'a>),
    Add(Addition<'a>),
    Range(Box<RangeParams>),
    Placement(PlacementParams<'a>),
    Join,
    Asset(&'static Asset),
    /// A route without keys, whose handler parses the query.
    Other(KeylessHandler),
}

/// Settings against which the parameters are checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParamLimits {
    pub(super) replication: Replication,
    /// Longest permitted time to live.
    pub(super) max_ttl: Ttl,
}

impl<'a> RequestAction<'a> {
    /// Parses a request. `conditional` is true if the request has a condition or an idempotency
    /// key.
    pub(super) fn of(
        head: &'a Parts,
        route: Option<Route>,
        kind: RequestKind,
        conditional: bool,
        limits: ParamLimits,
    ) -> Result<Self, Problem> {
        let query = head.uri.query().unwrap_or("");
        let Some(route) = route else { return Err(Problem::unknown_path(head.uri.path())) };
        let ParamLimits { replication: on, max_ttl } = limits;
        Ok(match (kind, conditional) {
            (RequestKind::Get, unless) => Self::Get { params: params::read(query, on)?, unless },
            (RequestKind::Put, false) => Self::Put(params::put(query, on, max_ttl)?),
            (RequestKind::Put, true) => Self::PutIf(params::conditional_put(query, on, max_ttl)?),
            (RequestKind::Delete, false) => Self::Delete(params::delete(query, on)?),
            (RequestKind::Delete, true) => Self::DeleteIf(params::conditional_delete(query, on)?),
            (RequestKind::Add, _) => Self::Add(params::addition(query, on, max_ttl)?),
            (RequestKind::Range, _) => {
                Self::Range(Box::new(params::entities(query, Form::of(&head.headers), on)?))
            }
            (RequestKind::Admin | RequestKind::AdminPost, _) => match route.handler {
                Handler::Join => Self::Join,
                Handler::Asset(asset) => Self::Asset(asset),
                Handler::Placement => Self::Placement(params::placement(query, on)?),
                Handler::Other(handler) => Self::Other(handler),
                Handler::Entity | Handler::Entities => {
                    unreachable!("these have kinds of their own")
                }
            },
            (RequestKind::Other, _) => return Err(Problem::method(&head.method, route.allowed)),
        })
    }

    /// Returns the keys that the action reads or writes.
    pub(super) fn keys(&self) -> Keys<'_> {
        match self {
            Self::Get { params, .. } => Keys::One(&params.key),
            Self::Put(params) | Self::Delete(params) => Keys::One(&params.key),
            Self::PutIf(params) | Self::DeleteIf(params) => Keys::One(&params.key),
            Self::Add(Addition { params, .. }) => Keys::One(&params.key),
            Self::Placement(params) => Keys::One(&params.key),
            Self::Range(params) => {
                let (start, end) = params.rest();
                Keys::Range { start, end }
            }
            Self::Join | Self::Asset(_) | Self::Other(_) => Keys::None,
        }
    }

    /// Returns the key under which the action stores a value; `None` if the action stores no value.
    pub(super) fn stored_key(&self) -> Option<&[u8]> {
        match self {
            Self::Put(params) => Some(&params.key),
            Self::PutIf(params) | Self::Add(Addition { params, .. }) => Some(&params.key),
            Self::Get { .. }
            | Self::Delete(_)
            | Self::DeleteIf(_)
            | Self::Range(_)
            | Self::Placement(_)
            | Self::Join
            | Self::Asset(_)
            | Self::Other(_) => None,
        }
    }
}
