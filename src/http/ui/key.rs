//! `/ui/key`: the record of a key on each of its replicas. This node asks each replica directly,
//! with the same read that a coordinator sends. The answer shows all records, without a comparison
//! or repair.

use std::rc::Rc;

use bytes::Bytes;
use hyper::StatusCode;
use protocol::{
    Class, Clock, FailureKind, Kind, NodeId, Rank, Record, RecordOutline, Reply, Request, Tag,
    Topology, has_expired,
};
use serde::Serialize;
use tokio::task::spawn_local;

use crate::counters::clocks::wall_micros;
use crate::http::Service;
use crate::http::admission::admitted::Admitted;
use crate::http::params::PlacementParams;
use crate::http::problem::Problem;
use crate::http::{Answer, Body, caching};
use crate::node::requests::Requests;
use crate::settings::memory::LONG_RECORD;

/// The placement of a key.
#[derive(Debug, Serialize)]
struct Placement {
    /// The key; invalid UTF-8 is replaced.
    key: String,
    partition: u16,
    /// The key's replicas, in the key's order of preference.
    replicas: Vec<Replica>,
    /// The value of the newest record; left out if that record is a tombstone, expired or long.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<ShownKey>,
}

/// Maximum number of shown bytes of a value. `kvorum get` returns the whole value.
const SHOWN_BYTES: usize = 2048;

/// The beginning of a value.
#[derive(Debug, Serialize)]
struct ShownKey {
    /// The bytes, as text if they are UTF-8, otherwise as hex digits.
    #[serde(flatten)]
    begin: ShownBytes,
    /// Number of shown bytes of the value.
    bytes: usize,
}

/// The notation of a value's bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ShownBytes {
    Text(String),
    Hex(String),
}

impl ShownKey {
    fn of(value: &[u8]) -> Self {
        let begin = &value[..value.len().min(SHOWN_BYTES)];
        match std::str::from_utf8(begin) {
            Ok(text) => Self { begin: ShownBytes::Text(text.to_owned()), bytes: text.len() },
            // The last character may be cut off in the middle.
            Err(error) if error.error_len().is_none() && begin.len() < value.len() => {
                let (text, _) = begin.split_at(error.valid_up_to());
                let text = String::from_utf8_lossy(text).into_owned();
                Self { bytes: text.len(), begin: ShownBytes::Text(text) }
            }
            Err(_) => {
                let hex = begin.iter().map(|byte| format!("{byte:02x}")).collect();
                Self { begin: ShownBytes::Hex(hex), bytes: begin.len() }
            }
        }
    }
}

/// Bytes of a record besides its value, in the format of this version.
const RECORD_BYTES: usize = 24;

/// One replica and its answer.
#[derive(Debug, Serialize)]
struct Replica {
    node: String,
    url: String,
    /// State of the key on the replica: `value`, `tombstone`, `superseded`, `absent`; or the reason
    /// for a missing answer: `unreachable`, `busy`, `failed`.
    holds: &'static str,
    /// True if the replica is authoritative: it certainly holds every record that it acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    authoritative: Option<bool>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    record: Option<RecordFacts>,
}

/// The shown fields of a record.
#[derive(Debug, Serialize)]
struct RecordFacts {
    /// Version, the beginning of the `ETag`. The record with the greatest version is the newest.
    version: String,
    /// The value's `ETag`; left out if there is no value, or if the record is long and made by a
    /// conditional write.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// Ballot of the last conditional write on the base version. Among records of one version the
    /// record with the greatest ballot is the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    ballot: Option<String>,
    /// Number of conditional writes since the base version; left out if the record is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u32>,
    /// Time of the write, in milliseconds since 1970.
    timestamp_ms: u64,
    /// Name of the node that issued the version; empty if it is not a member of this cluster.
    origin: String,
    value_bytes: usize,
    /// Expiry of the value, in milliseconds since 1970; left out if the value never expires, or if
    /// the record is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
    /// True if the value has expired according to this node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    expired: Option<bool>,
    /// Number of copies that the write requested; 0 = the cluster's default.
    copies: u8,
}

pub(in crate::http) async fn get(
    service: &Rc<Service>,
    request: Admitted<PlacementParams<'_>>,
) -> Result<Answer, Problem> {
    let PlacementParams { key, copies } = request.into_params();
    let key = Bytes::from(key.into_owned());
    let requests = &service.requests;
    let view = requests.view();
    let topology = &view.topology;
    let partition = topology.partition_of(&key);
    let mut order = Vec::new();
    topology.replicas(partition, copies, &mut order);
    let asked: Vec<_> = order
        .into_iter()
        .map(|replica| {
            let (this, request) =
                (Rc::clone(requests), Request::Read { key: key.clone(), most: LONG_RECORD as u32 });
            (replica, spawn_local(async move { this.call(replica, Class::Client, request).await }))
        })
        .collect();
    let mut replicas = Vec::with_capacity(asked.len());
    let mut newest: Option<(Rank, Option<Record>)> = None;
    for (replica, answer) in asked {
        // If the task panicked, the panic was already printed.
        let answer = answer.await.unwrap_or(Err(FailureKind::Failed));
        let found = match &answer {
            Ok(Reply::Found { record, .. }) if Requests::is_intact_for_key(&key, record) => {
                Some((record.rank(), Some(record.clone())))
            }
            Ok(Reply::Long { outline, .. }) => Some((outline.rank, None)),
            _ => None,
        };
        newest = newest.into_iter().chain(found).max_by_key(|(rank, _)| *rank);
        replicas.push(describe_replica(service, topology, replica, &key, answer));
    }
    let newest = newest.and_then(|(_, record)| record);
    let value = newest.filter(|record| Requests::expiry_of_value(record).is_some());
    let value = value.map(|record| ShownKey::of(&record.value()));
    let key = String::from_utf8_lossy(&key).into_owned();
    let placement = Placement { key, partition, replicas, value };
    let json = serde_json::to_vec(&placement).expect("strings and numbers always serialize");
    let body = Body::Whole(Bytes::from(json).into());
    let content_type = Some("application/json");
    Ok(Answer { content_type, headers: &caching::FRESH, body, ..Answer::empty(StatusCode::OK) })
}

fn describe_replica(
    service: &Service,
    topology: &Topology,
    replica: NodeId,
    key: &[u8],
    answer: Result<Reply, FailureKind>,
) -> Replica {
    let requests = &service.requests;
    let etag = |tag| service.etags.of(tag).to_str().ok().map(str::to_owned);
    let (holds, authoritative, record) = match answer {
        Ok(Reply::Found { record, authoritative }) if Requests::is_intact_for_key(key, &record) => {
            let value_bytes = Requests::value_bytes(&record);
            let step = (record.ballot() > 0).then(|| record.op_history().step);
            let expires_ms = Some(record.expiry_ms()).filter(|at| *at != 0);
            let expired = expires_ms.map(|at| has_expired(at, wall_micros()));
            let facts = record_facts(topology, &record.outline(), value_bytes);
            let tag = Some(Tag::of(&record));
            let tag = tag.filter(|_| record.kind() == Kind::Value).and_then(etag);
            let facts = RecordFacts { etag: tag, step, expires_ms, expired, ..facts };
            (kind_text(record.kind()), Some(authoritative), Some(facts))
        }
        Ok(Reply::Long { outline, authoritative }) => {
            let value_bytes = (outline.bytes as usize).saturating_sub(RECORD_BYTES);
            let Rank { version, ballot, kind: held, .. } = outline.rank;
            let tag = Some(Tag { version, last: None });
            let tag = tag.filter(|_| ballot == 0 && held == Kind::Value).and_then(etag);
            let facts = RecordFacts { etag: tag, ..record_facts(topology, &outline, value_bytes) };
            (kind_text(outline.rank.kind), Some(authoritative), Some(facts))
        }
        Ok(Reply::Absent { authoritative }) => ("absent", Some(authoritative), None),
        Ok(Reply::Busy) | Err(FailureKind::Busy) => ("busy", None, None),
        Err(FailureKind::TooFew) => ("unreachable", None, None),
        Ok(_) | Err(_) => ("failed", None, None),
    };
    let (node, url) = (requests.name(replica), requests.url(replica));
    Replica { node, url, holds, authoritative, record }
}

fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Value => "value",
        Kind::Tombstone => "tombstone",
        Kind::Superseded => "superseded",
    }
}

fn record_facts(topology: &Topology, outline: &RecordOutline, value_bytes: usize) -> RecordFacts {
    let version = outline.rank.version;
    let names = topology.ids().map(|id| &topology.member(id).name);
    let mut origin = names.filter(|name| protocol::origin_of(name) == version.origin);
    RecordFacts {
        version: version.to_string(),
        etag: None,
        ballot: (outline.rank.ballot > 0).then(|| format!("{:016x}", outline.rank.ballot)),
        step: None,
        timestamp_ms: Clock::micros(outline.rank.write_time()) / 1000,
        origin: origin.next().cloned().unwrap_or_default(),
        value_bytes,
        expires_ms: None,
        expired: None,
        copies: outline.copies,
    }
}
