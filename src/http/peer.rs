//! `GET /v0/peer`: another node, or somebody who says so, asks to go on in the nodes' own protocol.

use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING, UPGRADE};
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};

use super::Answer;
use super::problem::Problem;
use crate::http::connection::Watch;

/// Where that is asked for.
pub(crate) const PEER_PATH: &str = "/v0/peer";

/// The protocol: see `docs/peer-protocol.md`.
pub(crate) const PEER_PROTOCOL: &str = "kvorum-peer/1";

/// Grants it. Who it is it must prove there, before anything is done for it.
pub(super) fn upgrade(watch: &Watch, head: &Parts) -> Result<Answer, Problem> {
    let asked = has(head, CONNECTION, "upgrade") && has(head, UPGRADE, PEER_PROTOCOL);
    if !asked || head.version != Version::HTTP_11 {
        return Err(Problem::upgrade(PEER_PROTOCOL));
    }
    // Its bytes and those of the other protocol could be taken for each other.
    if head.headers.contains_key(CONTENT_LENGTH) || head.headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::bad_request(format!("{PEER_PATH} accepts no body")));
    }
    watch.upgrade();
    Ok(Answer::empty(StatusCode::SWITCHING_PROTOCOLS))
}

/// Whether this word is in a header that is a list.
fn has(head: &Parts, name: HeaderName, word: &str) -> bool {
    let values = head.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}
