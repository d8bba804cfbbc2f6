//! An HTTP client that sends exactly the bytes it is given.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::process::PATIENCE;

/// Pauses between two requests of a client that runs until it is stopped. Without pauses the client
/// would keep a CPU busy.
pub(crate) fn between_turns() {
    thread::sleep(Duration::from_millis(2));
}

/// A client's connection to a node.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    received: Vec<u8>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) version: String,
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    /// The chunks of a chunked body, or any other body in one piece.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let first = found.next();
        assert!(found.next().is_none(), "{name} is there twice");
        first.map(|(_, value)| value.as_str())
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json: serde_json::Value = serde_json::from_slice(&self.body()).unwrap();
        assert_eq!(json["status"], self.status);
        json
    }

    pub(crate) fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

fn ended(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the connection ended in {what}"))
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, tls: None, received: Vec::new() }
    }

    /// Connects by TLS.
    pub(crate) fn secured(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let mut client = Self::connect(address);
        let name = ServerName::try_from(address.ip().to_string()).unwrap();
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let tls = client.tls.insert(Box::new(tls));
        while tls.is_handshaking() {
            tls.complete_io(&mut client.stream)?;
        }
        Ok(client)
    }

    /// Returns the TLS session.
    pub(crate) fn tls(&mut self) -> &mut ClientConnection {
        self.tls.as_mut().unwrap()
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes.as_ref()).unwrap();
    }

    fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// Sends a GET; an error of the connection is returned.
    pub(crate) fn try_get(&mut self, target: &str) -> io::Result<Response> {
        self.try_send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        self.try_response()
    }

    pub(crate) fn finish_sending(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Sends a request with a body of known length (none for an empty GET, HEAD or DELETE).
    pub(crate) fn request(&mut self, method: &str, target: &str, body: &[u8]) -> Response {
        let length = match body {
            [] if method != "PUT" => String::new(),
            body => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n");
        self.send([head.as_bytes(), body].concat());
        if method == "HEAD" { self.head_response() } else { self.response() }
    }

    pub(crate) fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, b"")
    }

    pub(crate) fn put(&mut self, target: &str, body: &[u8]) -> Response {
        self.request("PUT", target, body)
    }

    pub(crate) fn delete(&mut self, target: &str) -> Response {
        self.request("DELETE", target, b"")
    }

    pub(crate) fn response(&mut self) -> Response {
        self.try_response().unwrap()
    }

    /// Reads the head of an answer that has no body.
    pub(crate) fn head_response(&mut self) -> Response {
        self.read_head().unwrap()
    }

    pub(crate) fn try_response(&mut self) -> io::Result<Response> {
        let mut response = self.read_head()?;
        if response.status < 200 {
            return Ok(response);
        }
        if response.header("transfer-encoding") == Some("chunked") {
            assert_eq!(response.header("content-length"), None);
            while let Some(chunk) = self.read_chunk()? {
                response.chunks.push(chunk);
            }
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().unwrap();
            let body = self.take(length, "a body")?;
            response.chunks.push(body);
        } else {
            response.chunks.push(self.rest()?);
        }
        Ok(response)
    }

    pub(crate) fn read_head(&mut self) -> io::Result<Response> {
        let status_line = self.line("a head")?;
        let (version, status) = status_line.split_once(' ').unwrap();
        let (version, status) = (version.to_owned(), status[..3].parse().unwrap());
        let mut headers = Vec::new();
        loop {
            let line = self.line("a head")?;
            let Some((name, value)) = line.split_once(": ") else {
                assert!(line.is_empty(), "{line:?}");
                return Ok(Response { version, status, headers, chunks: Vec::new() });
            };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    /// Reads the next chunk of a chunked body; `None` after the last.
    pub(crate) fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let length = usize::from_str_radix(&self.line("a chunk's head")?, 16).unwrap();
        let chunk = self.take(length, "a chunk")?;
        assert_eq!(self.line("a chunk's end")?, "");
        Ok((length > 0).then_some(chunk))
    }

    /// Reads everything up to the end of the connection.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? {}
        Ok(std::mem::take(&mut self.received))
    }

    /// True if the server closes or resets the connection without sending anything more.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.fill() {
            Ok(more) => !more && self.received.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    fn line(&mut self, of: &str) -> io::Result<String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.received.drain(..end + 2).collect::<Vec<_>>();
                return Ok(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            if !self.fill()? {
                return Err(ended(of));
            }
        }
    }

    fn take(&mut self, length: usize, of: &str) -> io::Result<Vec<u8>> {
        while self.received.len() < length {
            if !self.fill()? {
                return Err(ended(of));
            }
        }
        Ok(self.received.drain(..length).collect())
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
                // A stop and continuation of this process interrupts a read that has a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.received.extend_from_slice(&piece[..len]);
        Ok(len > 0)
    }
}
