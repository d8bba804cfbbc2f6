//! Status and changes of quotas: the JSON of `/admin/quotas`, which omits limits that are not set,
//! and stored bytes that are not counted yet.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::layout::Quota;
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::operations::access::{ChangeError, change};
use crate::quotas::counts::{CountedQuota, QuotaState};

/// A quota and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaStatus {
    /// Prefix of the quota's keys, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// Prefix in Base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_base64: Option<String>,
    /// Soft limit in bytes, above which metrics and alerts warn; missing = no soft limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) soft_bytes: Option<u64>,
    /// Hard limit in bytes. Once it is reached, writes are refused; missing = no hard limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hard_bytes: Option<u64>,
    /// Estimated number of stored bytes; missing = the node has not counted them yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stored_bytes: Option<u64>,
    /// Number of writes that this node has refused since its start.
    pub(crate) refused_writes: u64,
    /// State of the quota: `unknown`, `below`, `above-soft` or `full`.
    pub(crate) state: String,
}

/// All quotas of the cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QuotaList {
    /// Epoch of the layout that has the quotas.
    pub(crate) epoch: u64,
    /// The quotas, sorted by prefix.
    pub(crate) quotas: Vec<QuotaStatus>,
}

impl QuotaStatus {
    fn of(quota: &Quota, counted: Option<&CountedQuota>) -> Self {
        let any = |number: u64| Some(number).filter(|number| *number > 0);
        let (prefix, prefix_base64) = match String::from_utf8(quota.prefix.clone()) {
            Ok(text) => (Some(text), None),
            Err(bytes) => (None, Some(STANDARD.encode(bytes.as_bytes()))),
        };
        let state = match counted.map_or(QuotaState::Unknown, CountedQuota::state) {
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
            stored_bytes: counted.and_then(CountedQuota::stored_bytes),
            refused_writes: counted.map_or(0, CountedQuota::refused_writes),
            state: state.to_owned(),
        }
    }
}

/// Returns the quotas of the layout in force, with their usage.
pub(crate) fn list(node: &Node) -> QuotaList {
    let layout = node.shared.membership.layouts.active_layout();
    node.quotas.adopt_layout(&node.shared);
    let all = node.quotas.all();
    let quotas = all.iter().map(|counted| QuotaStatus::of(&counted.quota, Some(counted)));
    QuotaList { epoch: layout.epoch, quotas: quotas.collect() }
}

/// Sets a quota, which replaces any other quota of the same prefix.
pub(crate) async fn set(node: &Node, quota: Quota) -> Result<QuotaStatus, ChangeError> {
    change(node, |access| match access.quotas.contains(&quota) {
        true => Ok(None),
        false => access.with_quota(quota.clone()).map(Some),
    })
    .await?;
    node.quotas.adopt_layout(&node.shared);
    Ok(QuotaStatus::of(&quota, None))
}

/// Removes the quota of a prefix.
pub(crate) async fn remove(node: &Node, prefix: &[u8]) -> Result<QuotaStatus, ChangeError> {
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
    node.quotas.adopt_layout(&node.shared);
    Ok(QuotaStatus::of(&removed.expect("what is unknown was refused"), None))
}
