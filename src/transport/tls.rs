//! TLS 1.3: a node's server configuration, and its connections to other nodes.
//!
//! Nodes do not verify each other's certificates, but authenticate on the connection by the
//! cluster's secret, with a proof that covers the connection's exporter secret
//! ([`Channel`](protocol::handshake::Channel)). A certificate would add nothing to the proof.
//! Without its verification, an expired certificate can't separate nodes.
//!
//! Clients verify certificates. While a node runs, files that clients would refuse
//! ([`super::chain`]) do not replace the loaded files. At its start a node has no loaded files, so
//! it serves with the given files, and logs their errors. The other nodes rely on its replicas even
//! if clients refuse its certificate.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use super::Stream;
use super::bounded::Bounded;
use super::chain::{Chain, ClientCas, is_for};
use super::files::{FileError, RawFiles, TlsError, TlsMaterial};
use crate::counters::clocks::wall_micros;
use crate::settings::config::TlsFiles;

/// ALPN name of the peer protocol.
const PEER: &[u8] = b"kvorum-peer";

/// ALPN names for clients. The first is preferred.
const CLIENTS: [&[u8]; 2] = [HTTP2, b"http/1.1"];

/// ALPN name of HTTP/2.
pub(super) const HTTP2: &[u8] = b"h2";

/// The first byte of a TLS record with a handshake (RFC 8446, 5.1). HTTP requests never begin with
/// it.
const HANDSHAKE: u8 = 22;

/// Limit on the bytes of records that wait for a client's socket, about one record. A client that
/// does not read its answers uses no more. The default limit of rustls, 64 KiB, exceeds a
/// connection's share of the memory plan.
const MAX_UNSENT: usize = 16 << 10;

/// Time before a certificate's expiry from which a warning is logged once a day, and shown by
/// `kvorum status`.
pub(crate) const WARN_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);
const WARN_EVERY: u64 = 24 * 3600;

/// A node's current certificates.
pub(crate) struct Tls {
    files: TlsFiles,
    served: ArcSwap<ServedConfig>,
    last: Mutex<LastRead>,
    is_bad: AtomicBool,
    reloads: AtomicU64,
    /// Times of the last log lines, in seconds since 1970: about a certificate that expires soon,
    /// and about an expired certificate.
    expiry_warned_at: AtomicU64,
    expired_logged_at: AtomicU64,
}

/// The files as last read, even if they are not used, and the error last logged about them.
struct LastRead {
    raw: Option<RawFiles>,
    said: Option<String>,
}

/// The configuration built from usable files.
struct ServedConfig {
    clients: Arc<ServerConfig>,
    peers: Arc<ServerConfig>,
    certs: Vec<CertificateDer<'static>>,
    facts: Chain,
    client_cas: Option<ClientCas>,
}

/// An accepted connection, distinguished by its protocol.
pub(crate) enum AcceptedStream {
    /// A connection of a client.
    Client(Stream),
    /// A connection that announced the peer protocol, and is not authenticated yet.
    Peer(Stream),
    /// A connection in plaintext.
    InClear(TcpStream),
}

impl Tls {
    /// Loads the files. Files that can't be used are an error. Files that can be used, but that
    /// clients refuse, such as an expired certificate, are logged and used: other nodes do not
    /// verify certificates, and need this node's replicas. For such files [`check`](Self::check)
    /// returns an error.
    pub(crate) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let raw = RawFiles::read(&files)?;
        let served = ServedConfig::of(&files, raw.parse(&files)?)?;
        let this = Self {
            files,
            served: ArcSwap::from_pointee(served),
            last: Mutex::new(LastRead { raw: Some(raw), said: None }),
            is_bad: AtomicBool::new(false),
            reloads: AtomicU64::new(0),
            expiry_warned_at: AtomicU64::new(0),
            expired_logged_at: AtomicU64::new(0),
        };
        if let Err(error) = this.check() {
            tracing::error!("clients refuse this node until this is mended: {error}");
        }
        for doubt in this.warnings() {
            tracing::warn!("{doubt}");
        }
        this.warn_of_expiry();
        Ok(this)
    }

    /// Checks that clients accept the served certificates, as far as the node can tell.
    pub(crate) fn check(&self) -> Result<(), TlsError> {
        let served = self.served.load();
        let checked = served.facts.check(&served.certs, seconds());
        checked.map_err(FileError::from).map_err(FileError::of("--tls-cert", &self.files.cert))?;
        self.check_client_cas(served.client_cas.as_ref())
    }

    fn check_client_cas(&self, cas: Option<&ClientCas>) -> Result<(), TlsError> {
        let Some((cas, path)) = cas.zip(self.files.client_ca.as_ref()) else { return Ok(()) };
        let checked = cas.check(seconds()).map_err(FileError::from);
        checked.map_err(FileError::of("--tls-client-ca", path))
    }

    /// Returns warnings about the served certificates. The certificates may still be as intended.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let served = self.served.load();
        let doubts = served.facts.warnings(&served.certs, self.files.host.as_deref());
        let path = self.files.cert.display();
        doubts.into_iter().map(|doubt| format!("--tls-cert {path}: {doubt}")).collect()
    }

    /// Reloads the files if they have changed. New connections use usable files; otherwise the last
    /// usable files stay in use. Certificate and key are separate files, so during their
    /// replacement they don't match for a moment.
    pub(crate) fn reload_if_changed(&self) {
        self.warn_of_expiry();
        let mut last = self.last.lock();
        let mut is_known = false;
        let (raw, parsed) = match RawFiles::read(&self.files) {
            Ok(raw) if last.raw.as_ref() == Some(&raw) && !self.has_bad_files() => return,
            Ok(raw) => {
                // Refused files may be usable now, for example a certificate that was not valid
                // yet.
                is_known = last.raw.as_ref() == Some(&raw);
                let parsed = raw.parse(&self.files);
                (Some(raw), parsed)
            }
            Err(error) => (None, Err(error)),
        };
        let accepted = parsed.and_then(|material| self.accept_files(material));
        match accepted {
            Ok(served) => {
                let days = days_until(served.facts.expires());
                self.served.store(Arc::new(served));
                self.is_bad.store(false, Ordering::Relaxed);
                last.said = None;
                self.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(days, "TLS certificate reloaded; `days` are left until it expires");
                for doubt in self.warnings() {
                    tracing::warn!("{doubt}");
                }
            }
            Err(error) => {
                self.is_bad.store(true, Ordering::Relaxed);
                // A failure is logged once, not at each check, and again if other files fail in the
                // same way.
                let error = Some(error.to_string());
                if last.said != error || raw.is_some() && !is_known {
                    tracing::error!(
                        "the new TLS certificate is not used, the last good one stays: {}",
                        error.as_deref().unwrap_or_default()
                    );
                }
                last.said = error;
            }
        }
        last.raw = raw;
    }

    /// Builds the configuration of new files. New certificates, and new CAs of clients, must pass
    /// the checks. Certificates in use are not checked again.
    fn accept_files(&self, material: TlsMaterial) -> Result<ServedConfig, TlsError> {
        let used = self.served.load();
        let bad = FileError::of("--tls-cert", &self.files.cert);
        if material.chain != used.certs {
            let checked = material.facts.check(&material.chain, seconds());
            checked.map_err(FileError::from).map_err(&bad)?;
            let host = self.files.host.as_deref().filter(|host| is_for(&used.certs, host));
            if let Some(host) = host.filter(|host| !is_for(&material.chain, host)) {
                return Err(bad(FileError::OtherName { host: host.to_owned() }));
            }
        }
        let client_cas = material.client_ca.as_ref().map(|(_, cas)| cas);
        if client_cas != used.client_cas.as_ref() {
            self.check_client_cas(client_cas)?;
        }
        ServedConfig::of(&self.files, material)
    }

    fn warn_of_expiry(&self) {
        let (now, expires) = (seconds(), self.expires());
        if expires > now + WARN_BEFORE.as_secs() {
            return;
        }
        let said = if expires <= now { &self.expired_logged_at } else { &self.expiry_warned_at };
        if now < said.load(Ordering::Relaxed) + WARN_EVERY {
            return;
        }
        said.store(now, Ordering::Relaxed);
        let served = self.served.load();
        let (which, days) = (served.facts.expires_first(), days_until(expires));
        let cert = self.files.cert.display();
        if expires <= now {
            tracing::error!(%cert, "TLS: {which} has expired, and clients refuse it: replace it");
        } else {
            tracing::warn!(%cert, days, "TLS: {which} expires soon: replace it");
        }
    }

    /// Returns the earliest expiry of the certificates in use, in seconds since 1970.
    pub(crate) fn expires(&self) -> u64 {
        self.served.load().facts.expires()
    }

    /// Returns the whole days until the earliest expiry; negative after it.
    pub(crate) fn days_left(&self) -> i64 {
        days_until(self.expires())
    }

    /// True if the current files can't be used.
    pub(crate) fn has_bad_files(&self) -> bool {
        self.is_bad.load(Ordering::Relaxed)
    }

    /// Returns the number of reloads of changed files.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// True if this node requires certificates of clients.
    pub(crate) fn asks_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Accepts a connection. If it begins with a TLS record, completes the TLS handshake.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<AcceptedStream> {
        self.accept_by(stream, |served| Arc::clone(&served.clients)).await
    }

    /// Like [`Tls::accept`], for a node that does not support HTTP/2 yet.
    pub(crate) async fn accept_http1(&self, stream: TcpStream) -> io::Result<AcceptedStream> {
        let http1 = |served: &ServedConfig| {
            let mut config = ServerConfig::clone(&served.clients);
            config.alpn_protocols.retain(|name| name != HTTP2);
            Arc::new(config)
        };
        self.accept_by(stream, http1).await
    }

    async fn accept_by(
        &self,
        stream: TcpStream,
        clients: impl FnOnce(&ServedConfig) -> Arc<ServerConfig>,
    ) -> io::Result<AcceptedStream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first != [HANDSHAKE] {
            return Ok(AcceptedStream::InClear(stream));
        }
        let start = LazyConfigAcceptor::new(Acceptor::default(), Bounded::new(stream)).await?;
        let served = self.served.load_full();
        let is_peer =
            start.client_hello().alpn().is_some_and(|mut names| names.any(|name| name == PEER));
        let config = if is_peer { Arc::clone(&served.peers) } else { clients(&served) };
        let bound = |session: &mut ServerConnection| {
            // The peer connections limit their messages themselves.
            if !is_peer {
                session.set_buffer_limit(Some(MAX_UNSENT));
            }
        };
        let stream = start.into_stream_with(config, bound).await?;
        let stream = Stream::new_tls(stream.into());
        Ok(if is_peer { AcceptedStream::Peer(stream) } else { AcceptedStream::Client(stream) })
    }
}

impl ServedConfig {
    fn of(files: &TlsFiles, material: TlsMaterial) -> Result<Self, TlsError> {
        let TlsMaterial { chain, key, client_ca, facts } = material;
        let versions = || {
            let builder = ServerConfig::builder_with_provider(provider());
            builder.with_protocol_versions(&[&TLS13]).expect("the provider has TLS 1.3")
        };
        let unfit = |source: rustls::Error| {
            let unfit = FileError::Unfit { flag: "--tls-cert", cert: files.cert.clone(), source };
            FileError::of("--tls-key", &files.key)(unfit)
        };
        let peers = versions().with_no_client_auth();
        let mut peers = peers.with_single_cert(chain.clone(), key.clone_key()).map_err(unfit)?;
        peers.alpn_protocols = vec![PEER.to_vec()];
        let clients = match (&client_ca, &files.client_ca) {
            (Some((roots, _)), Some(path)) => {
                let roots = Arc::new(roots.clone());
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(FileError::from);
                let bad = FileError::of("--tls-client-ca", path);
                versions().with_client_cert_verifier(verifier.map_err(bad)?)
            }
            _ => versions().with_no_client_auth(),
        };
        let mut clients = clients.with_single_cert(chain.clone(), key).map_err(unfit)?;
        clients.alpn_protocols = CLIENTS.map(<[u8]>::to_vec).to_vec();
        if files.client_ca.is_some() {
            // A client that resumes a session shows no certificate, so its expiry would stay
            // undetected.
            clients.session_storage = Arc::new(NoServerSessionStorage {});
            clients.send_tls13_tickets = 0;
        }
        let client_cas = client_ca.map(|(_, cas)| cas);
        for config in [&mut clients, &mut peers] {
            // Each certificate gets new ticket keys, so clients admitted before must authenticate
            // again.
            config.ticketer = aws_lc_rs::Ticketer::new().map_err(TlsError::NoRandom)?;
        }
        Ok(Self {
            clients: Arc::new(clients),
            peers: Arc::new(peers),
            certs: chain,
            facts,
            client_cas,
        })
    }
}

/// Performs the TLS handshake of a connection to another node. `host` is the host of its URL,
/// without the port.
pub(crate) async fn connect(stream: TcpStream, host: &str) -> io::Result<Stream> {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
    let name = name.map_err(|error| io::Error::other(format!("{host}: {error}")))?;
    let stream = CONNECTOR.connect(name, Bounded::new(stream)).await;
    Ok(Stream::new_tls(stream.map_err(name_plaintext)?.into()))
}

/// Returns the error of a failed handshake, with its own text if the other end uses plaintext.
fn name_plaintext(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if matches!(cause, Some(rustls::Error::InvalidMessage(_))) {
        return io::Error::new(error.kind(), DOES_NOT_SPEAK_TLS);
    }
    error
}

/// The error of a TLS handshake with an end that uses plaintext.
pub(super) const DOES_NOT_SPEAK_TLS: &str =
    "it does not speak TLS: use http:// instead of https://";

static CONNECTOR: LazyLock<TlsConnector> = LazyLock::new(|| {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13]).expect("the provider has TLS 1.3");
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![PEER.to_vec()];
    TlsConnector::from(Arc::new(config))
});

/// Returns the provider of cryptography that all connections share.
pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

/// Accepts any certificate whose private key the other end has. Nodes authenticate by the cluster's
/// secret instead (see the module header).
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn seconds() -> u64 {
    wall_micros() / 1_000_000
}

/// Returns the whole days until `expires`; negative after it.
fn days_until(expires: u64) -> i64 {
    (expires as i64 - seconds() as i64).div_euclid(24 * 3600)
}
