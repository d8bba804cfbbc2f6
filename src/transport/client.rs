//! A command's blocking connection to a node. For `https://` URLs it uses TLS, and checks the
//! node's certificate like a browser.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};

use super::files::{FileError, TlsError, certificates, private_key, read, refuse_ca, roots};
use super::tls::{DOES_NOT_SPEAK_TLS, provider};

/// Which certificates a command trusts, and which one it shows.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Certificates {
    /// Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those
    /// that this machine trusts]
    #[arg(long, env = "KVORUM_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// Certificate to show, in PEM, to nodes that ask for one
    #[arg(long, env = "KVORUM_CLIENT_CERT", value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// Its private key, in PEM
    #[arg(long, env = "KVORUM_CLIENT_KEY", value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// A blocking connection.
#[derive(Debug)]
pub(crate) enum BlockingStream {
    /// A plaintext connection.
    Plain(TcpStream),
    /// A TLS connection, after its handshake.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Certificates {
    /// Trusts the CAs of a file, and shows no client certificate.
    pub(crate) fn new_trusting_ca(ca_file: PathBuf) -> Self {
        Self { ca_file: Some(ca_file), ..Self::default() }
    }

    /// Returns the given flags, each with its file.
    pub(crate) fn flags(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("--ca-file", &self.ca_file),
            ("--client-cert", &self.client_cert),
            ("--client-key", &self.client_key),
        ];
        files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
    }

    /// Performs a TLS handshake on a connection. `host` is the host of the node's URL, without the
    /// port.
    pub(crate) fn secure(&self, mut stream: TcpStream, host: &str) -> io::Result<BlockingStream> {
        let config = self.config().map_err(io::Error::other)?;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| io::Error::other(format!("{host}: {error}")))?;
        let connection = ClientConnection::new(Arc::new(config), name);
        let mut connection = connection.map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(|error| self.explain(error, host))?;
        }
        Ok(BlockingStream::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    fn config(&self) -> Result<ClientConfig, TlsError> {
        let trusted = match &self.ca_file {
            Some(path) => {
                roots(&read("--ca-file", path)?).map_err(FileError::of("--ca-file", path))?
            }
            None => system_roots()?,
        };
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(trusted), provider()).build();
        let path = self.ca_file.as_deref().unwrap_or(Path::new("(none)"));
        let verifier =
            verifier.map_err(FileError::from).map_err(FileError::of("--ca-file", path))?;
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&[&TLS13]).expect("the provider has TLS 1.3");
        let builder = builder.with_webpki_verifier(verifier);
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let bad_cert = FileError::of("--client-cert", cert);
        let chain = certificates(&read("--client-cert", cert)?).map_err(&bad_cert)?;
        refuse_ca(&chain).map_err(bad_cert)?;
        let bad_key = FileError::of("--client-key", key);
        let private = private_key(&read("--client-key", key)?).map_err(&bad_key)?;
        builder.with_client_auth_cert(chain, private).map_err(|source| {
            bad_key(FileError::Unfit { flag: "--client-cert", cert: cert.clone(), source })
        })
    }

    /// Adds the cause and the remedy to the error of a handshake.
    fn explain(&self, error: io::Error, host: &str) -> io::Error {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(cause) = cause else { return error };
        let trusted = match &self.ca_file {
            Some(path) => format!("--ca-file {}", path.display()),
            None => "what this machine trusts (--ca-file names another CA)".to_owned(),
        };
        let words = match cause {
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => {
                format!("its certificate is of a CA that is not in {trusted}")
            }
            rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => {
                "its certificate has expired: replace the file of the node's --tls-cert".to_owned()
            }
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            ) => {
                "its certificate is not valid yet: look at both machines' clocks, and at the file \
                 of the node's --tls-cert"
                    .to_owned()
            }
            rustls::Error::InvalidCertificate(CertificateError::Other(error))
                if error.to_string().contains("CaUsedAsEndEntity") =>
            {
                "its certificate is a CA's (CA:TRUE), and none that a CA issued to it: replace the \
                 file of the node's --tls-cert (kvorum cert node)"
                    .to_owned()
            }
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => format!(
                "its certificate is not for {host}: ask it by a name that it is for, or make one \
                 for that name"
            ),
            rustls::Error::InvalidMessage(_) => DOES_NOT_SPEAK_TLS.to_owned(),
            other => format!("no TLS connection: {other}"),
        };
        io::Error::new(error.kind(), words)
    }
}

/// Returns the CAs that this machine trusts.
fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(TlsError::NoneTrusted);
    }
    Ok(roots)
}

impl Read for BlockingStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buf),
            Self::Tls(stream) => match stream.read(buf) {
                // In TLS 1.3 the client learns only after the handshake that the node refuses its
                // certificate.
                Err(error) => Err(explain_refusal(error)),
                read => read,
            },
        }
    }
}

/// Names the cause of a refused handshake, with the error kind `PermissionDenied`, because the node
/// has read no request.
fn explain_refusal(error: io::Error) -> io::Error {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, UnknownCA, UnsupportedCertificate,
    };
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::AlertReceived(
            alert @ (AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | DecryptError
            | UnknownCA
            | UnsupportedCertificate),
        )) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the node refuses the connection ({alert:?}): it asks clients for a certificate of \
                 its --tls-client-ca (--client-cert, --client-key)"
            ),
        ),
        _ => error,
    }
}

impl Write for BlockingStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
