//! A blocking HTTP/1.1 client with one connection, in plaintext or over TLS. It sends exactly the
//! given bytes, which may be malformed, partial or pipelined, and returns everything that it
//! receives.
//!
//! Functions whose names begin with `try_` return an error if the connection fails or the answer is
//! malformed. Other functions that do not return a `Result` are for tests, and panic.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// Timeout of each operation of a test's connection, far longer than any wait on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(100);

/// A client's connection to a node.
#[derive(Debug)]
pub struct Client {
    /// The socket, for its options and for bytes below TLS.
    pub stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    received: Vec<u8>,
    /// Number of bytes at the start of `received` that were already returned.
    taken: usize,
}

/// A complete answer.
#[derive(Debug)]
pub struct Response {
    /// The version of HTTP, as in `HTTP/1.1`.
    pub version: String,
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The chunks of a chunked body, or any other body in one piece.
    pub chunks: Vec<Vec<u8>>,
}

impl Response {
    /// Returns a header's value, or `None` if the answer lacks the header. Panics if the header
    /// occurs twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let first = found.next();
        assert!(found.next().is_none(), "{name} is there twice");
        first.map(|(_, value)| value.as_str())
    }

    /// Returns the whole body.
    pub fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    /// Returns the problem document of an error answer. Panics if the answer has none.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json: serde_json::Value = serde_json::from_slice(&self.body()).unwrap();
        assert_eq!(json["status"], self.status);
        json
    }

    /// Returns true if the server accepts no further requests on this connection.
    pub fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

fn malformed_answer(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed answer: {what:?}"))
}

fn eof_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the connection ended in {what}"))
}

impl Client {
    /// Connects in plaintext.
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address, TIMEOUT).unwrap()
    }

    /// Connects in plaintext; `patience` is the timeout of this and of every later operation.
    pub fn try_connect(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, tls: None, received: Vec::new(), taken: 0 })
    }

    /// Connects over TLS, and completes the handshake.
    pub fn connect_tls(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let mut client = Self::connect(address);
        let name = ServerName::try_from(address.ip().to_string()).unwrap();
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let tls = client.tls.insert(Box::new(tls));
        while tls.is_handshaking() {
            tls.complete_io(&mut client.stream)?;
        }
        Ok(client)
    }

    /// Returns the TLS session. Panics if the connection is in plaintext.
    pub fn tls(&mut self) -> &mut ClientConnection {
        self.tls.as_mut().unwrap()
    }

    /// Sends these bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes.as_ref()).unwrap();
    }

    /// Sends these bytes as they are.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// Sends a GET and reads the answer.
    pub fn try_get(&mut self, target: &str) -> io::Result<Response> {
        self.try_send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        self.try_response()
    }

    /// Closes the sending half of the connection.
    pub fn finish_sending(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Sends a request with a `Content-Length`, and reads the answer. An empty body has no length,
    /// except with PUT.
    pub fn request(&mut self, method: &str, target: &str, body: &[u8]) -> Response {
        let length = match body {
            [] if method != "PUT" => String::new(),
            body => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n");
        self.send([head.as_bytes(), body].concat());
        if method == "HEAD" { self.head_response() } else { self.response() }
    }

    /// Sends a GET, and reads the answer.
    pub fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, b"")
    }

    /// Sends a PUT, and reads the answer.
    pub fn put(&mut self, target: &str, body: &[u8]) -> Response {
        self.request("PUT", target, body)
    }

    /// Sends a DELETE, and reads the answer.
    pub fn delete(&mut self, target: &str) -> Response {
        self.request("DELETE", target, b"")
    }

    /// Reads an answer.
    pub fn response(&mut self) -> Response {
        self.try_response().unwrap()
    }

    /// Reads the head of an answer that has no body.
    pub fn head_response(&mut self) -> Response {
        self.read_head().unwrap()
    }

    /// Reads an answer.
    pub fn try_response(&mut self) -> io::Result<Response> {
        let mut response = self.read_head()?;
        self.try_body(&mut response)?;
        Ok(response)
    }

    /// Reads the body of an answer whose head has been read.
    pub fn try_body(&mut self, response: &mut Response) -> io::Result<()> {
        if response.status < 200 || matches!(response.status, 204 | 304) {
            return Ok(());
        }
        if response.header("transfer-encoding") == Some("chunked") {
            assert_eq!(response.header("content-length"), None);
            while let Some(chunk) = self.read_chunk()? {
                response.chunks.push(chunk);
            }
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(|_| malformed_answer(length))?;
            let body = self.take(length, "a body")?;
            response.chunks.push(body);
        } else {
            response.chunks.push(self.rest()?);
        }
        Ok(())
    }

    /// Reads the head of an answer, and leaves the body to later calls.
    pub fn read_head(&mut self) -> io::Result<Response> {
        let status_line = self.line("a head")?;
        let parts = status_line.split_once(' ');
        let parts = parts.and_then(|(version, rest)| Some((version, rest.get(..3)?.parse().ok()?)));
        let (version, status) = parts.ok_or_else(|| malformed_answer(&status_line))?;
        let version = version.to_owned();
        let mut headers = Vec::new();
        loop {
            let line = self.line("a head")?;
            let Some((name, value)) = line.split_once(": ") else {
                if !line.is_empty() {
                    return Err(malformed_answer(&line));
                }
                return Ok(Response { version, status, headers, chunks: Vec::new() });
            };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    /// Reads the next chunk of a chunked body; `None` after the last chunk.
    pub fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line("a chunk's head")?;
        let length = usize::from_str_radix(&line, 16).map_err(|_| malformed_answer(&line))?;
        let chunk = self.take(length, "a chunk")?;
        match self.line("a chunk's end")?.as_str() {
            "" => Ok((length > 0).then_some(chunk)),
            line => Err(malformed_answer(line)),
        }
    }

    /// Reads all bytes until the end of the connection.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? {}
        let rest = self.received.split_off(self.taken);
        (self.received, self.taken) = (Vec::new(), 0);
        Ok(rest)
    }

    /// Returns true if the server closes or resets the connection without sending anything more.
    pub fn is_closed(&mut self) -> bool {
        match self.fill() {
            Ok(more) => !more && self.received.len() == self.taken,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    fn line(&mut self, of: &str) -> io::Result<String> {
        loop {
            let left = &self.received[self.taken..];
            if let Some(end) = left.windows(2).position(|pair| pair == b"\r\n") {
                let line = left[..end].to_vec();
                self.taken += end + 2;
                return String::from_utf8(line).map_err(|_| malformed_answer("a line"));
            }
            if !self.fill()? {
                return Err(eof_error(of));
            }
        }
    }

    fn take(&mut self, length: usize, of: &str) -> io::Result<Vec<u8>> {
        while self.received.len() - self.taken < length {
            if !self.fill()? {
                return Err(eof_error(of));
            }
        }
        let taken = self.received[self.taken..self.taken + length].to_vec();
        self.taken += length;
        Ok(taken)
    }

    /// Receives more bytes; returns false at the end of the connection.
    fn fill(&mut self) -> io::Result<bool> {
        let mut piece = [0; 32 << 10];
        let len = loop {
            let read = match &mut self.tls {
                None => self.stream.read(&mut piece),
                Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(&mut piece),
            };
            match read {
                // SIGSTOP and SIGCONT of this process interrupt a read that has a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.received.drain(..std::mem::take(&mut self.taken));
        self.received.extend_from_slice(&piece[..len]);
        Ok(len > 0)
    }
}
