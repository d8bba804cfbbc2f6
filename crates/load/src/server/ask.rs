//! A single `GET` to a server, and its answer as text.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustls::StreamOwned;

use crate::reply::Reply;
use crate::tls::Tls;
use crate::url;

/// Size of a read in bytes.
const READ_LEN: usize = 16 << 10;

/// A server that answers queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the server.
    pub address: SocketAddr,
    /// Name of the server: `HOST[:PORT]`.
    pub host: String,
    /// TLS settings, if the server uses TLS.
    pub tls: Option<Tls>,
    /// `Authorization` header (RFC 9110, 11.6.2), if any: `Bearer TOKEN`.
    pub authorization: Option<String>,
}

impl Endpoint {
    /// Returns the URL of a path on the server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", url::origin(self.tls.is_some(), &self.host))
    }
}

/// Creates the endpoint of an address without TLS and without a token.
impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self { address, host: address.to_string(), tls: None, authorization: None }
    }
}

impl From<&Self> for Endpoint {
    fn from(endpoint: &Self) -> Self {
        endpoint.clone()
    }
}

/// The reason why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{}", tls.why(source))]
    Tls { tls: Tls, source: io::Error },
    #[error(transparent)]
    Io(io::Error),
}

/// Sends `GET path`. Returns the status and body of the answer, which may have at most `max_len`
/// bytes. `limit` applies to the connect, and again to the request and its answer.
pub(crate) fn ask(
    endpoint: &Endpoint,
    path: &str,
    limit: Duration,
    max_len: usize,
) -> Result<(u16, String), AskError> {
    let host = &endpoint.host;
    let auth = endpoint.authorization.as_ref();
    let auth = auth.map(|auth| format!("Authorization: {auth}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{auth}Connection: close\r\n\r\n");
    let answer = || {
        let stream = TcpStream::connect_timeout(&endpoint.address, limit)?;
        let socket = DeadlineStream { stream, deadline: Instant::now() + limit };
        match &endpoint.tls {
            Some(tls) => exchange(StreamOwned::new(tls.begin(), socket), &request, max_len),
            None => exchange(socket, &request, max_len),
        }
    };
    answer().map_err(|source: io::Error| match (&endpoint.tls, source.kind()) {
        (_, ErrorKind::WouldBlock | ErrorKind::TimedOut) => AskError::Late(limit),
        (Some(tls), _) => AskError::Tls { tls: tls.clone(), source },
        (None, _) => AskError::Io(source),
    })
}

/// Sends `request` and reads the whole answer.
fn exchange(
    mut stream: impl Read + Write,
    request: &str,
    max_len: usize,
) -> io::Result<(u16, String)> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut reply = Reply::new(true);
    let mut buffer = [0; READ_LEN];
    while !reply.is_done() {
        let len = match stream.read(&mut buffer) {
            Ok(0) if reply.end_of_stream() => break,
            Ok(0) => return Err(io::Error::other("the answer ends before its end")),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let fed = reply.feed(&buffer[..len]);
        fed.map_err(|_| io::Error::other("its answer is not HTTP/1.1"))?;
        if reply.body().len() > max_len {
            return Err(io::Error::other(format!("its answer has more than {max_len} bytes")));
        }
    }
    Ok((reply.status(), String::from_utf8_lossy(reply.body()).into_owned()))
}

/// A socket with one deadline for all reads and writes.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Instant,
}

impl DeadlineStream {
    fn time_left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            time_left => Ok(Some(time_left)),
        }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
