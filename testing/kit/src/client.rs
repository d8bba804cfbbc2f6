//! The client of workloads and oracles: one connection to a node, requests about keys, and the
//! parts of an answer that oracles check. [`crate::raw`] implements HTTP.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::raw;

/// Timeout of an answer. After the timeout, the outcome of the request counts as unknown.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Pause before the client repeats a request to an overloaded node.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// One connection to a node.
#[derive(Debug)]
pub struct Client {
    raw: raw::Client,
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code of the answer.
    pub status: u16,
    /// Version of the record, from `ETag` without its quotes or from the receipt.
    pub version: Option<String>,
    /// Expiry of the value in milliseconds since 1970, from `Kvorum-Expires`.
    pub expires_ms: Option<u64>,
    /// Body of the answer.
    pub body: Vec<u8>,
    /// True if the node will accept no more requests on this connection.
    pub closes: bool,
}

fn malformed_answer(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("malformed answer: {what:?}"))
}

/// Reads from a node, and repeats the read if the connection breaks. An overloaded node disconnects
/// slow readers, and on a busy machine this process may be slow.
pub fn read_patiently<T>(
    address: SocketAddr,
    mut read: impl FnMut(&mut Client) -> io::Result<T>,
) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match Client::connect(address).and_then(|mut client| read(&mut client)) {
            Err(error) if is_broken(&error) && begun.elapsed() < TIMEOUT => {
                thread::sleep(RETRY_PAUSE)
            }
            result => return result,
        }
    }
}

/// Returns true if the error means that the peer closed the connection.
fn is_broken(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

impl Client {
    /// Connects to a node, with a timeout of 20 s for each operation.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_within(address, TIMEOUT)
    }

    /// Connects to a node; `patience` is the timeout of this and of every later operation.
    pub fn connect_within(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        Ok(Self { raw: raw::Client::try_connect(address, patience)? })
    }

    /// Returns `kept` if the node has not closed its connection, otherwise a new connection.
    pub fn reuse_or_connect(
        kept: Option<Self>,
        address: SocketAddr,
        patience: Duration,
    ) -> io::Result<Self> {
        match kept.filter(Self::is_open) {
            Some(client) => Ok(client),
            None => Self::connect_within(address, patience),
        }
    }

    /// Returns true if the node has not closed the connection. Leaves received bytes unread.
    pub fn is_open(&self) -> bool {
        let stream = &self.raw.stream;
        let mut byte = [0];
        let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut byte));
        let blocking = stream.set_nonblocking(false);
        let open = match looked {
            Ok(length) => length > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        open && blocking.is_ok()
    }

    /// Sends a request without waiting for its answer.
    pub fn send(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<()> {
        self.send_with(method, target, "", body)
    }

    /// Sends a request with `headers`, a string of header lines with their line ends.
    fn send_with(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: &[u8],
    ) -> io::Result<()> {
        let length = match body {
            [] if method != "PUT" => String::new(),
            body => format!("Content-Length: {}\r\n", body.len()),
        };
        let head =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n");
        self.raw.try_send(&[head.as_bytes(), body].concat())
    }

    /// Sends these bytes without any framing.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.raw.try_send(bytes)
    }

    /// Reads one answer.
    pub fn answer(&mut self) -> io::Result<Answer> {
        Answer::of(&self.raw.try_response()?)
    }

    /// Sends a request and reads the answer. After an error the outcome is unknown.
    pub fn request(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<Answer> {
        self.send(method, target, body)?;
        self.answer()
    }

    /// Sends a request with `headers`, a string of header lines with their line ends, and reads the
    /// answer.
    pub fn request_with(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: &[u8],
    ) -> io::Result<Answer> {
        self.send_with(method, target, headers, body)?;
        self.answer()
    }

    /// Sends a `GET` of a key that needs no encoding, and reads the answer.
    pub fn get(&mut self, key: &str) -> io::Result<Answer> {
        self.request("GET", &target(key), b"")
    }

    /// Sends a `GET` of a key that needs no encoding, and reads the answer. Repeats the request for
    /// up to 20 s while the node answers 503 or closes the connection.
    pub fn get_patiently(&mut self, key: &str) -> io::Result<Answer> {
        let (address, begun) = (self.raw.stream.peer_addr()?, Instant::now());
        loop {
            let answer = self.get(key);
            let is_over = begun.elapsed() > TIMEOUT;
            match answer {
                Ok(answer) if answer.status != 503 || is_over => return Ok(answer),
                Err(error) if is_over || !is_broken(&error) => return Err(error),
                Ok(_) => thread::sleep(RETRY_PAUSE),
                Err(_) => {
                    thread::sleep(RETRY_PAUSE);
                    *self = Self::connect(address)?;
                }
            }
        }
    }

    /// Reads all items from `start` on, and passes key and value of each to `item`. Repeats the
    /// request for up to 20 s while the node answers 503. `start` may be followed by further query
    /// parameters.
    pub fn scan(
        &mut self,
        start: &str,
        mut item: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let head = loop {
            self.send("GET", &format!("/v0/entities?start={start}"), b"")?;
            let mut head = self.raw.read_head()?;
            if head.status != 503 || begun.elapsed() > TIMEOUT {
                break head;
            }
            self.raw.try_body(&mut head)?;
            thread::sleep(RETRY_PAUSE);
        };
        if head.status != 200 || head.header("transfer-encoding") != Some("chunked") {
            return Err(malformed_answer(&format!("a range with status {}", head.status)));
        }
        while let Some(chunk) = self.raw.read_chunk()? {
            let (key, value) = split_item(&chunk).ok_or_else(|| malformed_answer("an item"))?;
            item(key, value)?;
        }
        Ok(())
    }
}

impl Answer {
    fn of(response: &raw::Response) -> io::Result<Self> {
        let receipt = response.header("kvorum-receipt");
        let receipt = receipt.and_then(|receipt| receipt.strip_prefix("version=\""));
        let version = match receipt {
            Some(receipt) => receipt.split('"').next().map(str::to_owned),
            None => response.header("etag").map(|tag| tag.trim_matches('"').to_owned()),
        };
        // The header has seconds with three decimals.
        let millis =
            |expires: &str| expires.replace('.', "").parse().map_err(|_| malformed_answer(expires));
        Ok(Self {
            status: response.status,
            version,
            expires_ms: response.header("kvorum-expires").map(millis).transpose()?,
            body: response.body(),
            closes: response.closes(),
        })
    }
}

/// Returns the request target of a key that needs no encoding.
pub fn target(key: &str) -> String {
    format!("/v0/entity?id={key}")
}

/// Splits an item of a range into key and value; `None` if the separator is missing.
pub fn split_item(item: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = item.iter().position(|byte| *byte == b'\n')?;
    Some((&item[..end], &item[end + 1..]))
}
