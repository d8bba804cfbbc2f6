//! Authentication of page requests between nodes by the cluster's secret, because a node has no
//! token. Nodes do not verify TLS certificates, so over TLS the answering node proves itself too.
//!
//! ```text
//!  ¶ is a line break
//!  GET /v0/status ¶ X-Kvorum-Node: NONCE TIME PROOF ─▶ TIME must be now, NONCE must be new; PROOF
//!             covers TIME, NONCE, the page, the asked node's name, and the TLS connection
//!  200 ¶ X-Kvorum-Node: PROOF ◀─ PROOF covers NONCE and the TLS connection
//! ```
//!
//! A replayed request is refused: the asked node remembers each NONCE for as long as it would
//! accept the request's TIME.

use std::collections::VecDeque;
use std::io;

use parking_lot::Mutex;
use protocol::handshake::{Channel, Nonce, Secret, Secrets};

use super::greet::nonce;
use crate::joining::message::{hex, unhex};

/// Header with the proof.
pub(crate) const HEADER: &str = "x-kvorum-node";

/// Maximum difference between the clocks of two nodes, in milliseconds. If a clock is further off,
/// the links of its peers report it, and an operator must correct it.
pub(crate) const WINDOW_MS: u64 = 60_000;

/// Maximum number of remembered proofs. A dashboard and `kvorum status` in a loop cause fewer, even
/// in a cluster of hundreds of nodes.
const MAX_SEEN: usize = 16_384;

const ASKS: &[u8] = b"kvorum-ask/1";
const ANSWERS: &[u8] = b"kvorum-ask/1 answer";

/// The accepted proofs, each with its time of arrival in milliseconds since 1970, and its nonce.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<VecDeque<(u64, Nonce)>>);

/// The proof of a page request, and the state that verifies the answer's proof.
#[derive(Debug)]
pub(crate) struct PageProof {
    /// Value of the header [`HEADER`].
    pub(crate) header: String,
    nonce: Nonce,
    secret: Secret,
    channel: Option<Channel>,
}

impl PageProof {
    /// Creates the proof of a request for `target` to the node `name`.
    pub(crate) fn new(
        secret: Secret,
        channel: Option<Channel>,
        (name, target): (&str, &str),
        now_ms: u64,
    ) -> io::Result<Self> {
        let nonce = nonce()?;
        let time = now_ms.to_le_bytes();
        let proof = secret.prove(ASKS, &parts(&nonce, &time, name, target, channel.as_ref()));
        let header = format!("{} {now_ms} {}", hex(&nonce), hex(&proof));
        Ok(Self { header, nonce, secret, channel })
    }

    /// Returns true if `header` proves that a node of the cluster answered. Without TLS it always
    /// returns true, because an attacker in the middle could change the page even if the answer had
    /// a proof.
    pub(crate) fn is_answered(&self, header: Option<&str>) -> bool {
        let Some(channel) = &self.channel else { return true };
        let proof = header.and_then(unhex).unwrap_or_default();
        self.secret.is_proven(ANSWERS, &[&self.nonce, channel], &proof)
    }
}

fn parts<'a>(
    nonce: &'a Nonce,
    time: &'a [u8; 8],
    name: &'a str,
    target: &'a str,
    channel: Option<&'a Channel>,
) -> [&'a [u8]; 5] {
    [nonce, time, name.as_bytes(), target.as_bytes(), channel.map_or(&[], |channel| channel)]
}

impl Proofs {
    /// Verifies the proof of a request to node `name` for `target`. Returns the header of the
    /// answer; `None` if the proof is invalid. A proof is valid once.
    pub(crate) fn take(
        &self,
        secrets: &Secrets,
        channel: Option<Channel>,
        (name, target): (&str, &str),
        header: &[u8],
        now_ms: u64,
    ) -> Option<String> {
        let (nonce, time_ms, proof) = read(header)?;
        let time = time_ms.to_le_bytes();
        let parts = parts(&nonce, &time, name, target, channel.as_ref());
        if time_ms.abs_diff(now_ms) > WINDOW_MS {
            return None;
        }
        let secret = secrets.find(|secret| secret.is_proven(ASKS, &parts, &proof))?;
        let mut seen = self.0.lock();
        // The time in a proof differs by at most one window from its arrival. If the arrival is
        // more than two windows from now, the proof's time is outside the window, so its nonce can
        // be forgotten. If this clock was ahead at the arrival, the arrival may be later than now.
        while seen.front().is_some_and(|(came_ms, _)| came_ms.abs_diff(now_ms) > 2 * WINDOW_MS) {
            seen.pop_front();
        }
        if seen.len() >= MAX_SEEN || seen.iter().any(|(_, other)| *other == nonce) {
            return None;
        }
        seen.push_back((now_ms, nonce));
        let channel: &[u8] = channel.as_ref().map_or(&[], |channel| channel);
        Some(hex(&secret.prove(ANSWERS, &[&nonce, channel])))
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

    fn secrets(text: &str) -> Secrets {
        Secrets::new(Secret::new(text.into()), None)
    }

    #[test]
    fn a_proof_is_accepted_once_by_one_node_for_one_page_in_time() {
        let [ours, other] = ["open sesame, please", "another secret!!"].map(secrets);
        let asked = ("b", "/v0/status");
        let channel = Some([7; 32]);
        let asks = |now| PageProof::new(ours.own().unwrap(), channel, asked, now).unwrap();
        let header = asks(NOW).header;
        let take = |proofs: &Proofs, secrets, channel, asked, now| {
            proofs.take(secrets, channel, asked, header.as_bytes(), now).is_some()
        };
        for (secrets, channel, asked, now) in [
            (&other, channel, asked, NOW),
            (&ours, None, asked, NOW),
            (&ours, Some([8; 32]), asked, NOW),
            (&ours, channel, ("a", "/v0/status"), NOW),
            (&ours, channel, ("b", "/ui/events?local=true"), NOW),
            (&ours, channel, asked, NOW + WINDOW_MS + 1),
            (&ours, channel, asked, NOW - WINDOW_MS - 1),
        ] {
            assert!(!take(&Proofs::default(), secrets, channel, asked, now), "{asked:?} {now}");
        }
        let proofs = Proofs::default();
        assert!(take(&proofs, &ours, channel, asked, NOW + WINDOW_MS));
        for later in [NOW + WINDOW_MS, NOW, NOW - WINDOW_MS] {
            assert!(!take(&proofs, &ours, channel, asked, later), "it was used");
        }
        let late = NOW + 4 * WINDOW_MS;
        let another = asks(late).header;
        assert!(proofs.take(&ours, channel, asked, another.as_bytes(), late).is_some());
        assert_eq!(proofs.0.lock().len(), 1, "what is too old is forgotten");
        let (right, again) = (NOW + WINDOW_MS, asks(NOW + WINDOW_MS).header);
        assert!(proofs.take(&ours, channel, asked, again.as_bytes(), right).is_some());
        assert_eq!(proofs.0.lock().len(), 1, "and what came while the clock was ahead");
        for bad in ["", "a b c", &header[..header.len() - 2], &(header.clone() + " 1")] {
            let taken = Proofs::default().take(&ours, channel, asked, bad.as_bytes(), NOW);
            assert!(taken.is_none(), "{bad}");
        }
    }

    #[test]
    fn over_tls_the_answering_node_proves_that_it_knows_the_secret() {
        let ours = secrets("open sesame, please");
        let asked = ("b", "/v0/status");
        let asks = |channel| PageProof::new(ours.own().unwrap(), channel, asked, NOW).unwrap();
        let answer = |asks: &PageProof, channel| {
            Proofs::default().take(&ours, channel, asked, asks.header.as_bytes(), NOW).unwrap()
        };
        let channel = Some([7; 32]);
        let (one, other) = (asks(channel), asks(channel));
        assert!(one.is_answered(Some(&answer(&one, channel))));
        assert!(!one.is_answered(Some(&answer(&other, channel))), "it answers something else");
        for bad in [None, Some(""), Some("07"), Some("no digits")] {
            assert!(!one.is_answered(bad), "{bad:?}");
        }
        assert!(asks(None).is_answered(None), "in clear");
    }
}
