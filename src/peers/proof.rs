//! How a node that asks another one for a page shows that it is one of the cluster's: by the
//! secret, for it has no token.
//!
//! ```text
//!  GET /v0/status ¶ X-Kvorum-Node: NONCE TIME PROOF ─▶ TIME is now, NONCE is new; PROOF:
//!                                      over both, the page, and the name of who is asked
//! ```
//!
//! What was recorded is good for nothing: the node that it was meant for has seen the nonce, and
//! remembers it for as long as the time is taken for now.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use cluster::handshake::{Nonce, Secret};

use super::greet::nonce;
use super::join::{hex, unhex};

/// The header.
pub(crate) const HEADER: &str = "x-kvorum-node";

/// How far the other node's clock may be off, in milliseconds: one that is further off is asked
/// about by its peers' links, and corrected.
const WINDOW_MS: u64 = 60_000;

/// Proofs that are remembered: more than a dashboard and `status` in a loop make of hundreds of
/// nodes.
const MAX_SEEN: usize = 16_384;

const LABEL: &[u8] = b"kvorum-ask/1";

/// Proofs that were used.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<VecDeque<(u64, Nonce)>>);

/// What the header says when the node of that name is asked for `target`.
pub(crate) fn of(secret: &Secret, name: &str, target: &str, now_ms: u64) -> io::Result<String> {
    let nonce = nonce()?;
    let proof = secret.prove(LABEL, &parts(&nonce, &now_ms.to_le_bytes(), name, target));
    Ok(format!("{} {now_ms} {}", hex(&nonce), hex(&proof)))
}

fn parts<'a>(nonce: &'a Nonce, time: &'a [u8; 8], name: &'a str, target: &'a str) -> [&'a [u8]; 4] {
    [nonce, time, name.as_bytes(), target.as_bytes()]
}

impl Proofs {
    /// Whether who asks the node `name` for `target` knows the secret. The same header is taken
    /// once.
    pub(crate) fn take(
        &self,
        secret: &Secret,
        (name, target): (&str, &str),
        header: &[u8],
        now_ms: u64,
    ) -> bool {
        let Some((nonce, time_ms, proof)) = read(header) else { return false };
        let time = time_ms.to_le_bytes();
        let parts = parts(&nonce, &time, name, target);
        if time_ms.abs_diff(now_ms) > WINDOW_MS || !secret.is_proven(LABEL, &parts, &proof) {
            return false;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Each is remembered from when it came, and was made at most a window later.
        while seen.front().is_some_and(|(came_ms, _)| came_ms + 2 * WINDOW_MS < now_ms) {
            seen.pop_front();
        }
        let is_new = seen.len() < MAX_SEEN && seen.iter().all(|(_, other)| *other != nonce);
        if is_new {
            seen.push_back((now_ms, nonce));
        }
        is_new
    }
}

fn read(header: &[u8]) -> Option<(Nonce, u64, Vec<u8>)> {
    let mut words = std::str::from_utf8(header).ok()?.split(' ');
    let nonce = unhex(words.next()?)?.try_into().ok()?;
    let time_ms = words.next()?.parse().ok()?;
    let proof = unhex(words.next()?)?;
    words.next().is_none().then_some((nonce, time_ms, proof))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    #[test]
    fn a_proof_is_good_once_for_one_page_of_one_node_at_its_time() {
        let [secret, other] =
            ["open sesame, please", "another secret!!"].map(|text| Secret::new(text.into()));
        let header = of(&secret, "b", "/v0/status", NOW).unwrap();
        let take = |proofs: &Proofs, secret, asked, now| {
            proofs.take(secret, asked, header.as_bytes(), now)
        };
        let asked = ("b", "/v0/status");
        for (secret, asked, now) in [
            (&other, asked, NOW),
            (&secret, ("a", "/v0/status"), NOW),
            (&secret, ("b", "/ui/events?local=true"), NOW),
            (&secret, asked, NOW + WINDOW_MS + 1),
            (&secret, asked, NOW - WINDOW_MS - 1),
        ] {
            assert!(!take(&Proofs::default(), secret, asked, now), "{asked:?} {now}");
        }
        let proofs = Proofs::default();
        assert!(take(&proofs, &secret, asked, NOW + WINDOW_MS));
        for later in [NOW + WINDOW_MS, NOW, NOW - WINDOW_MS] {
            assert!(!take(&proofs, &secret, asked, later), "it was used");
        }
        let another = of(&secret, "b", "/v0/status", NOW + 4 * WINDOW_MS).unwrap();
        assert!(proofs.take(&secret, asked, another.as_bytes(), NOW + 4 * WINDOW_MS));
        assert_eq!(proofs.0.lock().unwrap().len(), 1, "what is too old is forgotten");
        for bad in ["", "a b c", &header[..header.len() - 2], &(header.clone() + " 1")] {
            assert!(!Proofs::default().take(&secret, asked, bad.as_bytes(), NOW), "{bad}");
        }
    }
}
