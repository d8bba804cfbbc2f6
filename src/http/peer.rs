//! `GET /v0/peer`: the upgrade to the peer protocol. The client may be another node or an impostor.

use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING, UPGRADE};
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};
use server::link::{PEER_PATH, PEER_PROTOCOL};

use super::Answer;
use super::problem::Problem;
use crate::http::connection::ConnectionState;

/// Grants the upgrade. The client must authenticate in the peer protocol before this node does
/// anything else for it.
pub(super) fn upgrade(watch: &ConnectionState, head: &Parts) -> Result<Answer, Problem> {
    let asked = has(head, CONNECTION, "upgrade") && has(head, UPGRADE, PEER_PROTOCOL);
    if !asked || head.version != Version::HTTP_11 {
        return Err(Problem::upgrade(PEER_PROTOCOL));
    }
    // A body's bytes could be confused with bytes of the peer protocol.
    if head.headers.contains_key(CONTENT_LENGTH) || head.headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::bad_request(format!("{PEER_PATH} accepts no body")));
    }
    watch.upgrade();
    Ok(Answer::empty(StatusCode::SWITCHING_PROTOCOLS))
}

/// True if a header with a list of words contains `word`, in any case.
fn has(head: &Parts, name: HeaderName, word: &str) -> bool {
    let values = head.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}
