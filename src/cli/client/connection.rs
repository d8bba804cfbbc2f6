//! One blocking connection to a node, with as much HTTP/1.1 as kvorum answers.
//!
//! No client library: the items of a range are told apart by the boundaries of HTTP chunks, which
//! libraries hide.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::http::etags;
use crate::http::expires::{self, EXPIRES};
use crate::http::receipt::{RECEIPT, Receipt};
use crate::settings::members::authority_of;
use crate::settings::units::Time;
use crate::transport::{Blocking, Certificates};

/// Headers of an answer; kvorum sends at most seven.
const MAX_HEADERS: usize = 32;

/// Bytes of an answer's head: far more than kvorum's, so that it is somebody else's.
const MAX_HEAD: usize = 64 << 10;

/// Longest piece of a body that is taken in one: a long recording of all events.
const MAX_PIECE: u64 = 128 << 20;

/// Bytes that are sent between two looks at the progress bar.
const STEP: usize = 64 << 10;

/// A blocking connection to one node, with the head that every request on it has.
pub(super) struct Connection {
    stream: BufReader<Blocking>,
    /// Header lines of every request, each with its end.
    headers: String,
    patience: Duration,
}

/// What comes before an answer's body.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    /// The version of the value: an `ETag` as kvorum makes them.
    pub(super) version: Option<String>,
    /// When the value expires, in milliseconds since 1970, if it does.
    pub(super) expires_ms: Option<u64>,
    /// Who acknowledged a write, if that was asked for.
    pub(super) receipt: Option<Receipt>,
    length: Option<u64>,
    pub(super) chunked: bool,
}

/// The version that a tag names, if it is one of kvorum's.
pub(super) fn version(tag: &str) -> Option<String> {
    etags::parse(tag.as_bytes()).map(|_| tag.trim_matches('"').to_owned())
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!(
            "unexpected response ({what}): is this a \
        kvorum node?"
        ),
    )
}

impl Connection {
    /// Connects to a node's URL; connecting, and each wait after that, ends after `patience`. The
    /// token goes with every request.
    pub(super) fn open(
        url: &str,
        certificates: &Certificates,
        patience: Duration,
        token: Option<&str>,
    ) -> io::Result<Self> {
        let host = authority_of(url);
        let mut last = io::Error::from(ErrorKind::NotFound);
        for address in host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(patience))?;
                    stream.set_write_timeout(Some(patience))?;
                    let stream = if url.starts_with("https://") {
                        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
                        let secured = certificates.secure(stream, name);
                        secured.map_err(|error| in_words(error, "no TLS handshake", patience))?
                    } else {
                        Blocking::Plain(stream)
                    };
                    let stream = BufReader::with_capacity(64 << 10, stream);
                    let mut headers = format!("Host: {host}\r\n");
                    if let Some(token) = token {
                        headers += &format!("Authorization: Bearer {token}\r\n");
                    }
                    return Ok(Self { stream, headers, patience });
                }
                Err(error) => last = error,
            }
        }
        Err(in_words(last, "no connection", patience))
    }

    /// Sends these header lines, each with its end, from now on.
    pub(super) fn add_header(&mut self, lines: &str) {
        self.headers += lines;
    }

    /// Sends a request, telling `sent` how much of the body is on its way; then the answer's head.
    pub(super) fn request(
        &mut self,
        method: &str,
        target: &str,
        body: Option<&[u8]>,
        mut sent: impl FnMut(usize),
    ) -> io::Result<Head> {
        let length =
            body.map_or(String::new(), |body| format!("Content-Length: {}\r\n", body.len()));
        let headers = &self.headers;
        let head = format!("{method} {target} HTTP/1.1\r\n{headers}{length}\r\n");
        let mut bytes = head.into_bytes();
        let body = body.unwrap_or_default();
        let (first, rest) = body.split_at(body.len().min(STEP));
        bytes.extend_from_slice(first);
        let stream = self.stream.get_mut();
        let mut outcome = stream.write_all(&bytes);
        sent(first.len());
        for step in rest.chunks(STEP) {
            outcome = outcome.and_then(|()| stream.write_all(step));
            sent(step.len());
        }
        // A node that takes no more of a body has said why.
        let head = match self.head() {
            Err(_) if outcome.is_err() => Err(outcome.expect_err("just seen")),
            head => head,
        };
        head.map_err(|error| in_words(error, "connected, but no response", self.patience))
    }

    fn head(&mut self) -> io::Result<Head> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let room = (MAX_HEAD - bytes.len()) as u64;
            if self.stream.by_ref().take(room).read_until(b'\n', &mut bytes)? == 0 {
                return Err(match bytes.len() {
                    MAX_HEAD => malformed("its header does not end"),
                    _ => ErrorKind::UnexpectedEof.into(),
                });
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        answer.parse(&bytes).map_err(|error| malformed(&error.to_string()))?;
        let header = |name: &str| {
            let mut all = answer.headers.iter();
            let found = all.find(|header| header.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(found.value).ok()
        };
        Ok(Head {
            status: answer.code.ok_or_else(|| malformed("it has no status line"))?,
            version: header("etag").and_then(version),
            expires_ms: header(EXPIRES.as_str()).and_then(expires::parse),
            receipt: header(RECEIPT.as_str()).and_then(Receipt::parse),
            length: header("content-length").and_then(|length| length.parse().ok()),
            chunked: header("transfer-encoding") == Some("chunked"),
        })
    }

    /// The whole body.
    pub(super) fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if !head.chunked {
            return self.piece(head.length.ok_or_else(|| malformed("it has no Content-Length"))?);
        }
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk()? {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The next chunk of a chunked body; `None` after the last. An end before that is an error.
    pub(super) fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let length = u64::from_str_radix(&line, 16).map_err(|_| malformed("a chunk's length"))?;
        let chunk = self.piece(length)?;
        match self.line()?.as_str() {
            "" => Ok((length > 0).then_some(chunk)),
            _ => Err(malformed("a chunk is longer than its size line says")),
        }
    }

    fn piece(&mut self, length: u64) -> io::Result<Vec<u8>> {
        if length > MAX_PIECE {
            return Err(malformed(&format!("a chunk of {length} bytes")));
        }
        let mut piece = vec![0; length as usize];
        self.stream.read_exact(&mut piece).map_err(|error| self.stalled(error))?;
        Ok(piece)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(32).read_until(b'\n', &mut line);
        read.map_err(|error| self.stalled(error))?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => String::from_utf8(line.to_vec()).map_err(|_| malformed("a line")),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn stalled(&self, error: io::Error) -> io::Error {
        in_words(error, "the response stalled: no more data", self.patience)
    }
}

/// A timeout of a socket says "resource temporarily unavailable"; this says what was waited for.
fn in_words(error: io::Error, missing: &str, patience: Duration) -> io::Error {
    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return error;
    }
    let waited = Time(patience);
    let words = format!("{missing} within {waited}: the node hangs or is slow");
    io::Error::new(ErrorKind::TimedOut, words)
}
