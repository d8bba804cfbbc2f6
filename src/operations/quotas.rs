//! Quotas as a node tells of them and has them changed: the JSON of `/admin/quotas`. A limit that
//! there is not is left out, and so is what was not counted yet.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cluster::layout::Quota;
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::node::quotas::{Counted, QuotaState};
use crate::operations::access::{ChangeError, change};

/// A quota, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaStatus {
    /// What its keys begin with, if that is UTF-8 …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// … or if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_base64: Option<String>,
    /// Above so many bytes it is warned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) soft_bytes: Option<u64>,
    /// From so many bytes on writes are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hard_bytes: Option<u64>,
    /// About so many are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stored_bytes: Option<u64>,
    /// Writes that this node has refused since it was started.
    pub(crate) refused_writes: u64,
    /// `unknown`, `below`, `above-soft`, `full`.
    pub(crate) state: String,
}

/// All quotas of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QuotaList {
    /// The epoch of the layout that has them.
    pub(crate) epoch: u64,
    /// The quotas, sorted by prefix.
    pub(crate) quotas: Vec<QuotaStatus>,
}

impl QuotaStatus {
    fn of(quota: &Quota, counted: Option<&Counted>) -> Self {
        let any = |number: u64| Some(number).filter(|number| *number > 0);
        let (prefix, prefix_base64) = match String::from_utf8(quota.prefix.clone()) {
            Ok(text) => (Some(text), None),
            Err(bytes) => (None, Some(STANDARD.encode(bytes.as_bytes()))),
        };
        let state = match counted.map_or(QuotaState::Unknown, Counted::state) {
            QuotaState::Unknown => "unknown",
            QuotaState::Below => "below",
            QuotaState::AboveSoft => "above-soft",
            QuotaState::Full => "full",
        };
        Self {
            prefix,
            prefix_base64,
            soft_bytes: any(quota.soft),
            hard_bytes: any(quota.hard),
            stored_bytes: counted.and_then(Counted::stored),
            refused_writes: counted.map_or(0, Counted::refused),
            state: state.to_owned(),
        }
    }
}

/// All quotas that the node knows.
pub(super) fn list(node: &Node) -> QuotaList {
    let layout = node.shared.membership.layouts.entered();
    node.quotas.renew(&node.shared);
    let all = node.quotas.all();
    let quotas = all.iter().map(|counted| QuotaStatus::of(&counted.quota, Some(counted)));
    QuotaList { epoch: layout.epoch, quotas: quotas.collect() }
}

/// Has a quota set, instead of another one of the same prefix.
pub(super) async fn set(node: &Node, quota: Quota) -> Result<QuotaStatus, ChangeError> {
    change(node, |access| match access.quotas.contains(&quota) {
        true => Ok(None),
        false => access.with_quota(quota.clone()).map(Some),
    })
    .await?;
    node.quotas.renew(&node.shared);
    Ok(QuotaStatus::of(&quota, None))
}

/// Has the quota of a prefix removed.
pub(super) async fn remove(node: &Node, prefix: &[u8]) -> Result<QuotaStatus, ChangeError> {
    let mut removed: Option<Quota> = None;
    change(node, |access| {
        match access.quotas.iter().find(|quota| quota.prefix == prefix) {
            None if removed.is_some() => return Ok(None),
            Some(quota) => removed = Some(quota.clone()),
            None => {}
        }
        access.without_quota(prefix).map(Some)
    })
    .await?;
    node.quotas.renew(&node.shared);
    Ok(QuotaStatus::of(&removed.expect("what is unknown was refused"), None))
}
