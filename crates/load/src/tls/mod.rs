//! TLS 1.3 for clients: trusted CAs, client certificates, and a connection's session over a
//! non-blocking socket.
//!
//! ```text
//!  --ca-file, --client-cert, --client-key ─▶ Trust ── a host ─▶ Tls ── a socket ─▶ Session
//! ```
//!
//! A session copies the bytes that it sends and receives twice, and rustls allocates a buffer for
//! each record. A request causes no other allocations.

mod files;
mod problem;

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

pub use files::{Files, FilesError, Trust};

/// TLS configuration for connections to one host.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    files: Arc<Files>,
}

impl Tls {
    /// Starts a connection's session.
    pub(crate) fn begin(&self) -> ClientConnection {
        let begun = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        begun.expect("the configuration has TLS 1.3 and its groups")
    }

    /// Explains a TLS error and how to correct it.
    pub(crate) fn why(&self, error: &io::Error) -> String {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(cause) => problem::describe(cause, &self.name.to_str(), &self.files),
            None if error.kind() == ErrorKind::UnexpectedEof => {
                "the server closed the connection in the handshake: look into its log".to_owned()
            }
            None => error.to_string(),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Two configurations are equal if they share the trusted CAs and the client certificate, and are
/// for the same host.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for Tls {}

/// The TLS state of one connection.
pub(crate) struct Session {
    inner: ClientConnection,
    /// The error that ended the session.
    failed: Option<rustls::Error>,
}

impl Session {
    pub(crate) fn new(tls: &Tls) -> Self {
        Self { inner: tls.begin(), failed: None }
    }

    /// Continues the handshake. Returns true once it is complete.
    pub(crate) fn handshake(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        loop {
            self.flush(socket)?;
            if !self.inner.is_handshaking() {
                return Ok(true);
            }
            match self.inner.read_tls(&mut Socket::new(socket)) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => self.process(socket)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Encrypts part of `bytes`, and writes as much as the socket takes. Returns the number of
    /// encrypted bytes.
    pub(crate) fn write(&mut self, socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        loop {
            taken += self.inner.writer().write(&bytes[taken..])?;
            if !self.flush(socket)? || taken == bytes.len() {
                return Ok(taken);
            }
        }
    }

    /// Writes pending records to the socket. Returns true if none are left.
    fn flush(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        while self.inner.wants_write() {
            match self.inner.write_tls(&mut Socket::new(socket)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns true if all encrypted bytes are written.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.inner.wants_write()
    }

    /// Reads into `buffer`, which must not be empty. Returns the number of bytes, and true if there
    /// may be more. With `ended`, more bytes may follow even if the read does not fill the buffer.
    /// Zero bytes mean that the server has ended the session in order.
    pub(crate) fn read(
        &mut self,
        socket: &OwnedFd,
        buffer: &mut [u8],
        ended: bool,
    ) -> io::Result<(usize, bool)> {
        let mut more = true;
        loop {
            match self.inner.reader().read(buffer) {
                Ok(len) => return Ok((len, more || len == buffer.len())),
                Err(error) if error.kind() != ErrorKind::WouldBlock || !more => return Err(error),
                Err(_) => {}
            }
            let mut socket_read = Socket::new(socket);
            self.inner.read_tls(&mut socket_read)?;
            more = !socket_read.emptied || ended;
            self.process(socket)?;
        }
    }

    fn process(&mut self, socket: &OwnedFd) -> io::Result<()> {
        if let Err(error) = self.inner.process_new_packets() {
            // An alert tells the server the reason, if the server still reads.
            let _ = self.flush(socket);
            self.failed = Some(error.clone());
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Returns the error that ended the session, if TLS caused it.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        let error = self.failed.clone()?;
        Some(io::Error::new(ErrorKind::InvalidData, error))
    }
}

/// Reads and writes of rustls on a non-blocking socket.
struct Socket<'a> {
    fd: &'a OwnedFd,
    /// True once a read has emptied the socket.
    emptied: bool,
}

impl<'a> Socket<'a> {
    fn new(fd: &'a OwnedFd) -> Self {
        Self { fd, emptied: false }
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len();
        let (len, _) = rustix::io::retry_on_intr(|| {
            rustix::net::recv(self.fd, &mut *buffer, RecvFlags::empty())
        })?;
        self.emptied = len < room;
        Ok(len)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = || rustix::net::send(self.fd, bytes, SendFlags::NOSIGNAL);
        Ok(rustix::io::retry_on_intr(sent)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let [one] = slices {
            return self.write(one);
        }
        let sent = || {
            let mut nothing = SendAncillaryBuffer::default();
            rustix::net::sendmsg(self.fd, slices, &mut nothing, SendFlags::NOSIGNAL)
        };
        Ok(rustix::io::retry_on_intr(sent)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
