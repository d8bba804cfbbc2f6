//! Trusted CAs and client certificates, read from PEM files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use super::Tls;

/// Maximum size of a file in bytes. A bundle of all public CAs has 230 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Protocol announced by ALPN.
const PROTOCOL: &[u8] = b"http/1.1";

/// Paths of certificates and keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// File with the CAs of servers (`--ca-file`). With `None`, the system's CAs are trusted.
    pub ca: Option<PathBuf>,
    /// Certificate and key of the client, `--client-cert` and `--client-key`, for servers that
    /// require them.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The reason why the files can't be used, or why the system's CAs can't replace them.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file can't be read.
    #[error("{flag} {}: {source}", path.display())]
    Unreadable {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is longer than 1 MiB.
    #[error("{flag} {}: it has more than 1 MiB", path.display())]
    TooLong {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// A file contains no certificate.
    #[error("{flag} {}: no certificate in PEM", path.display())]
    NoCertificate {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("{flag} {}: malformed PEM ({source})", path.display())]
    Malformed {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The parse error.
        source: pem::Error,
    },
    /// The key file contains no key.
    #[error("--client-key {}: no private key in PEM ({source})", path.display())]
    NoKey {
        /// Path of the file.
        path: PathBuf,
        /// The parse error.
        source: pem::Error,
    },
    /// The key belongs to another certificate.
    #[error(
        "--client-key {}: it does not fit --client-cert {} ({source})",
        key.display(),
        cert.display()
    )]
    Unfit {
        /// Path of the key.
        key: PathBuf,
        /// Path of the certificate.
        cert: PathBuf,
        /// The mismatch of key and certificate.
        source: rustls::Error,
    },
    /// A certificate can't be used as a CA.
    #[error("--ca-file {}: a certificate that is not a CA's ({source})", path.display())]
    NotCa {
        /// Path of the certificate.
        path: PathBuf,
        /// The error of the certificate.
        source: rustls::Error,
    },
    /// The system has no CAs. The error, if any, is the cause.
    #[error(
        "this machine has no CAs that https:// could go by{}: say --ca-file FILE, or install them \
         (apt-get install ca-certificates)",
        .0.as_ref().map(|error| format!(" ({error})")).unwrap_or_default()
    )]
    NoCas(Option<rustls_native_certs::Error>),
    /// A host name that no certificate can have.
    #[error("{0} is not a name that a certificate can have")]
    Name(String),
}

/// The contents of the files, which apply to any host.
#[derive(Debug, Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
    files: Arc<Files>,
}

impl Trust {
    /// Reads the files.
    pub fn load(files: Files) -> Result<Self, FilesError> {
        let roots = match &files.ca {
            Some(path) => roots(path)?,
            None => roots_of_the_system()?,
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&TLS13]).expect("the provider has TLS 1.3");
        let builder = builder.with_root_certificates(roots);
        let mut config = match &files.client {
            Some((cert, key)) => {
                let chain = certificates("--client-cert", cert)?;
                let parsed = PrivateKeyDer::from_pem_slice(&read("--client-key", key)?)
                    .map_err(|source| FilesError::NoKey { path: key.clone(), source })?;
                let (key, cert) = (key.clone(), cert.clone());
                let unfit = |source| FilesError::Unfit { key, cert, source };
                builder.with_client_auth_cert(chain, parsed).map_err(unfit)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { config: Arc::new(config), files: Arc::new(files) })
    }

    /// Returns the configuration for a host, which is a name or an address without port.
    pub fn host(&self, host: &str) -> Result<Tls, FilesError> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| FilesError::Name(host.to_owned()))?;
        Ok(Tls { config: Arc::clone(&self.config), name, files: Arc::clone(&self.files) })
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, FilesError> {
    let failed = |source| FilesError::Unreadable { flag, path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(FilesError::TooLong { flag, path: path.to_owned() });
    }
    Ok(bytes)
}

/// Reads all certificates of a file. Returns an error if there is none.
fn certificates(
    flag: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, FilesError> {
    let bytes = read(flag, path)?;
    let path = path.to_owned();
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(FilesError::NoCertificate { flag, path }),
        Err(source) => Err(FilesError::Malformed { flag, path, source }),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, FilesError> {
    let mut roots = RootCertStore::empty();
    for cert in certificates("--ca-file", path)? {
        let added = roots.add(cert);
        added.map_err(|source| FilesError::NotCa { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

fn roots_of_the_system() -> Result<RootCertStore, FilesError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // The system's store may have old CAs in a form that is no longer accepted.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(FilesError::NoCas(found.errors.into_iter().next()));
    }
    Ok(roots)
}
