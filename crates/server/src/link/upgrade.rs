//! Start of a connection to another node: an HTTP request to upgrade to the nodes' own protocol, so
//! that both protocols share one port.

/// Path of the upgrade request.
pub const PEER_PATH: &str = "/v0/peer";

/// Protocol named in the upgrade request.
pub const PEER_PROTOCOL: &str = "kvorum-peer/1";

/// Longest answer to the upgrade request, in bytes.
const ANSWER_MAX: usize = 4096;

/// Characters quoted from an unexpected status line.
const QUOTED: usize = 80;

/// The other side is not a kvorum node. Contains the beginning of its answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unexpected response {0:?} instead of HTTP/1.1 101: is this a kvorum node?")]
pub struct NotPeer(pub String);

/// The answer to an upgrade request, as far as received.
#[derive(Debug, Default)]
pub struct Upgrade {
    answer: Vec<u8>,
}

impl Upgrade {
    /// Returns the upgrade request for the node at `authority`.
    pub fn request(authority: &str) -> String {
        format!(
            "GET {PEER_PATH} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\n\
             Upgrade: {PEER_PROTOCOL}\r\n\r\n"
        )
    }

    /// Adds received bytes. Once the answer is complete, returns the bytes that follow it; `None` =
    /// the answer is incomplete.
    pub fn receive(&mut self, input: &[u8]) -> Result<Option<Vec<u8>>, NotPeer> {
        self.answer.extend_from_slice(input);
        let Some(end) = self.answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            let endless = self.answer.len() >= ANSWER_MAX;
            return if endless {
                Err(NotPeer("a response header without end".to_owned()))
            } else {
                Ok(None)
            };
        };
        if !self.answer.starts_with(b"HTTP/1.1 101 ") {
            let line = String::from_utf8_lossy(&self.answer);
            let line = line.lines().next().unwrap_or("").chars();
            return Err(NotPeer(line.take(QUOTED).collect()));
        }
        Ok(Some(self.answer.split_off(end + 4)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_accepted_however_it_is_split() {
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nhello";
        for at in 0..answer.len() {
            let mut upgrade = Upgrade::default();
            let first = upgrade.receive(&answer[..at]).unwrap();
            let rest = match first {
                Some(rest) => [&rest, &answer[at..]].concat(),
                None => upgrade.receive(&answer[at..]).unwrap().unwrap(),
            };
            assert_eq!(rest, b"hello", "split at {at}");
        }
    }

    #[test]
    fn a_server_that_is_not_a_node_is_detected_by_its_first_bytes() {
        let refused = |answer: &[u8]| Upgrade::default().receive(answer).unwrap_err().0;
        assert_eq!(refused(b"HTTP/1.1 404 Not Found\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(refused(&[b'x'; 5000]), "a response header without end");
        assert_eq!(refused(&[&[b'y'; 500][..], b"\r\n\r\n"].concat()).len(), QUOTED);
    }
}
