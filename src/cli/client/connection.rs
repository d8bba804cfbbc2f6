//! A blocking connection to a node, with the subset of HTTP/1.1 that kvorum and proxies use.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::is_refused_handshake;
use crate::http::etags;
use crate::http::expires::{self, EXPIRES};
use crate::http::receipt::{RECEIPT, Receipt};
use crate::settings::members::authority_of;
use crate::settings::units::Time;
use crate::transport::{BlockingStream, Certificates};

/// Limit on the number of an answer's headers; kvorum sends at most seven.
const MAX_HEADERS: usize = 32;

/// Limit on the bytes of an answer's head, far above those of kvorum: a longer head comes from
/// another program.
const MAX_HEAD: usize = 64 << 10;

/// Limit on the bytes of a body that is read whole; the longest is a profile that lists all events.
const MAX_BODY: u64 = 128 << 20;

/// Limit on the bytes of a line in a chunked body: a chunk's size with extensions, or a trailer.
const MAX_LINE: u64 = 8 << 10;

/// Bytes sent between two updates of the progress bar, 64 KiB.
const STEP: usize = 64 << 10;

/// A blocking connection to one node, with the headers common to its requests.
pub(super) struct ClientConnection {
    stream: BufReader<BlockingStream>,
    /// Header lines of every request, with line ends.
    headers: String,
    patience: Duration,
}

/// The status and the known headers of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    /// The value's version, from an `ETag` in kvorum's format.
    pub(super) version: Option<String>,
    /// Time at which the value expires, in milliseconds since 1970; `None` = never.
    pub(super) expires_ms: Option<u64>,
    /// Replicas that acknowledged a write, if requested.
    pub(super) receipt: Option<Receipt>,
    pub(super) content_type: Option<String>,
    /// True if the peer closes the connection after the body.
    pub(super) closes: bool,
    length: Length,
}

/// Framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// A fixed number of bytes.
    Bytes(u64),
    /// Chunks, each with its length.
    Chunked,
    /// The end of the connection.
    Connection,
}

/// A body with any framing, read as it arrives. A premature end is an error, unless the end of the
/// connection marks the end of the body.
pub(super) struct ResponseBody<'a> {
    connection: &'a mut ClientConnection,
    length: Length,
    /// Bytes left of the body, or of the current chunk.
    left: u64,
    has_begun: bool,
    has_ended: bool,
}

impl Read for ResponseBody<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && self.length == Length::Chunked && !self.has_ended {
            self.next_chunk()?;
        }
        if self.has_ended || into.is_empty() || self.left == 0 {
            return Ok(0);
        }
        let most = usize::try_from(self.left).map_or(into.len(), |left| left.min(into.len()));
        let read = self.connection.stream.read(&mut into[..most]);
        let read = read.map_err(|error| self.connection.stall_error(error))?;
        if read == 0 {
            self.has_ended = true;
            let is_whole = self.length == Length::Connection;
            return if is_whole { Ok(0) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        if self.length != Length::Connection {
            self.left -= read as u64;
        }
        Ok(read)
    }
}

impl ResponseBody<'_> {
    /// Reads up to the content of the next chunk. After the last chunk, reads past the trailers.
    fn next_chunk(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_begun, true) && !self.connection.line()?.is_empty() {
            return Err(unexpected_response("a chunk is longer than its size line says"));
        }
        let line = self.connection.line()?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let is_hex = !size.is_empty() && size.bytes().all(|digit| digit.is_ascii_hexdigit());
        let size = u64::from_str_radix(size, 16).ok().filter(|_| is_hex);
        self.left = size.ok_or_else(|| unexpected_response("a chunk's length"))?;
        if self.left == 0 {
            for _ in 0..MAX_HEADERS {
                if self.connection.line()?.is_empty() {
                    self.has_ended = true;
                    return Ok(());
                }
            }
            return Err(unexpected_response("its trailer does not end"));
        }
        Ok(())
    }
}

/// Returns the version in an entity tag; `None` if the tag does not have kvorum's format.
pub(super) fn version(tag: &str) -> Option<String> {
    etags::parse(tag.as_bytes()).map(|_| tag.trim_matches('"').to_owned())
}

pub(super) fn unexpected_response(what: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!(
            "unexpected response ({what}): is this a \
        kvorum node?"
        ),
    )
}

impl ClientConnection {
    /// Connects to a node's URL. Connecting and each later wait take at most `patience` each.
    /// Every request carries the token.
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
                        secured.map_err(|error| {
                            describe_timeout(error, "no TLS handshake", patience)
                        })?
                    } else {
                        BlockingStream::Plain(stream)
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
        Err(describe_timeout(last, "no connection", patience))
    }

    /// Adds header lines, with line ends, to all further requests.
    pub(super) fn add_header(&mut self, lines: &str) {
        self.headers += lines;
    }

    /// Sends a request and returns the answer's head. Calls `sent` with the number of the body's
    /// bytes sent in each step.
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
        // After a failure to send the body, the node's answer is the better error: the node may
        // have stopped reading because it refuses the request or the connection.
        let head = match self.final_head() {
            Err(error) if outcome.is_err() && !is_refused_handshake(&error) => {
                Err(outcome.expect_err("just seen"))
            }
            head => head,
        };
        head.map_err(|error| describe_timeout(error, "connected, but no response", self.patience))
    }

    /// Reads the head of the final response, behind the interim ones (RFC 9110, section 15.2) that
    /// a proxy may send.
    fn final_head(&mut self) -> io::Result<Head> {
        loop {
            let head = self.head()?;
            if !matches!(head.status, 100 | 102..=199) {
                return Ok(head);
            }
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let room = (MAX_HEAD - bytes.len()) as u64;
            if self.stream.by_ref().take(room).read_until(b'\n', &mut bytes)? == 0 {
                return Err(match bytes.len() {
                    MAX_HEAD => unexpected_response("its header does not end"),
                    _ => ErrorKind::UnexpectedEof.into(),
                });
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        answer.parse(&bytes).map_err(|error| unexpected_response(&error.to_string()))?;
        let header = |name: &str| {
            let mut all = answer.headers.iter();
            let found = all.find(|header| header.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(found.value).ok()
        };
        let is = |name: &str, wanted: &str| {
            let has = |value: &str| value.trim().eq_ignore_ascii_case(wanted);
            header(name).is_some_and(|value| value.split(',').any(has))
        };
        // The command requests no content coding and has no decoder. Coded bytes would be printed
        // as if they were the value.
        if let Some(coding) = header("content-encoding").filter(|coding| *coding != "identity") {
            return Err(unexpected_response(&format!(
                "its Content-Encoding is {coding}, by a proxy: nodes send values as they are"
            )));
        }
        let length = match header("content-length") {
            _ if is("transfer-encoding", "chunked") => Length::Chunked,
            Some(length) => Length::Bytes(
                length.parse().map_err(|_| unexpected_response("its Content-Length"))?,
            ),
            None => Length::Connection,
        };
        let is_old = answer.version == Some(0) && !is("connection", "keep-alive");
        Ok(Head {
            status: answer.code.ok_or_else(|| unexpected_response("it has no status line"))?,
            version: header("etag").and_then(version),
            expires_ms: header(EXPIRES.as_str()).and_then(expires::parse),
            receipt: header(RECEIPT.as_str()).and_then(Receipt::parse),
            content_type: header("content-type").map(str::to_owned),
            closes: is_old || is("connection", "close") || length == Length::Connection,
            length,
        })
    }

    /// Returns the body as a stream.
    pub(super) fn stream(&mut self, head: &Head) -> ResponseBody<'_> {
        let length = head.length;
        let left = match length {
            Length::Bytes(bytes) => bytes,
            Length::Chunked => 0,
            Length::Connection => u64::MAX,
        };
        ResponseBody { connection: self, length, left, has_begun: false, has_ended: false }
    }

    /// Reads the whole body, up to [`MAX_BODY`] bytes.
    pub(super) fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if head.length == Length::Connection {
            return Err(unexpected_response("it has no Content-Length"));
        }
        let mut body = Vec::new();
        self.stream(head).take(MAX_BODY + 1).read_to_end(&mut body)?;
        if body.len() as u64 > MAX_BODY {
            return Err(unexpected_response(&format!("a body of more than {MAX_BODY} bytes")));
        }
        Ok(body)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        read.map_err(|error| self.stall_error(error))?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => {
                String::from_utf8(line.to_vec()).map_err(|_| unexpected_response("a line"))
            }
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn stall_error(&self, error: io::Error) -> io::Error {
        describe_timeout(error, "the response stalled: no more data", self.patience)
    }
}

/// Replaces "resource temporarily unavailable", the text of a socket's timeout, by a description of
/// the timeout.
fn describe_timeout(error: io::Error, missing: &str, patience: Duration) -> io::Error {
    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return error;
    }
    let waited = Time(patience);
    let words = format!("{missing} within {waited}: the node hangs or is slow");
    io::Error::new(ErrorKind::TimedOut, words)
}
