//! Certificates and keys as files, in PEM.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::VerifierBuilderError;
use x509_parser::error::X509Error as Malformed;
use x509_parser::nom;

use crate::settings::config::TlsFiles;

/// Bytes of a file at most: a chain has a few KiB, a bundle of all public CAs 230.
const MAX_FILE: u64 = 1 << 20;

/// Why there are no certificates to go by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{flag} {}: {source}", path.display())]
    File { flag: &'static str, path: PathBuf, source: Box<FileError> },
    #[error("this machine trusts no CA: name one with --ca-file")]
    NoneTrusted,
    #[error("no random bytes: {0}")]
    NoRandom(#[source] rustls::Error),
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it has more than 1 MiB")]
    TooLong,
    #[error("no certificate in PEM")]
    NoCertificate,
    #[error("malformed PEM ({0})")]
    Pem(#[source] pem::Error),
    #[error("malformed ({0})")]
    Certificate(#[source] nom::Err<Malformed>),
    #[error("a certificate that is not a CA's ({0})")]
    NotACa(#[source] rustls::Error),
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
    #[error("no private key in PEM ({0})")]
    NoKey(#[source] pem::Error),
    #[error("it does not fit {flag} {} ({source})", cert.display())]
    Unfit { flag: &'static str, cert: PathBuf, source: rustls::Error },
}

impl FileError {
    /// The same of the file that a flag names.
    pub(super) fn of(flag: &'static str, path: &Path) -> impl Fn(Self) -> TlsError {
        move |source| TlsError::File { flag, path: path.to_owned(), source: Box::new(source) }
    }
}

/// What is in them.
pub(super) struct Material {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) client_ca: Option<RootCertStore>,
    /// When the node's certificate expires, in seconds since 1970.
    pub(super) expires: u64,
}

/// Their bytes, to be compared with those of another time.
#[derive(PartialEq, Eq)]
pub(super) struct Raw {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Raw {
    /// Reads all files.
    pub(super) fn read(files: &TlsFiles) -> Result<Raw, TlsError> {
        Ok(Self {
            cert: read("--tls-cert", &files.cert)?,
            key: read("--tls-key", &files.key)?,
            client_ca: match &files.client_ca {
                Some(path) => Some(read("--tls-client-ca", path)?),
                None => None,
            },
        })
    }

    /// Makes sense of what was read.
    pub(super) fn parse(&self, files: &TlsFiles) -> Result<Material, TlsError> {
        let bad_cert = FileError::of("--tls-cert", &files.cert);
        let chain = certificates(&self.cert).map_err(&bad_cert)?;
        let expires = expiry(&chain[0]).map_err(bad_cert)?;
        let key = private_key(&self.key).map_err(FileError::of("--tls-key", &files.key))?;
        let client_ca = match files.client_ca.as_ref().zip(self.client_ca.as_ref()) {
            Some((path, bytes)) => {
                Some(roots(bytes).map_err(FileError::of("--tls-client-ca", path))?)
            }
            None => None,
        };
        Ok(Material { chain, key, client_ca, expires })
    }
}

pub(super) fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(FileError::TooLong);
        }
        Ok(bytes)
    };
    read().map_err(FileError::of(flag, path))
}

/// All certificates, at least one.
pub(super) fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(FileError::NoCertificate),
        Err(error) => Err(FileError::Pem(error)),
    }
}

/// The certificates of CAs that are trusted.
pub(super) fn roots(bytes: &[u8]) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(bytes)? {
        roots.add(cert).map_err(FileError::NotACa)?;
    }
    Ok(roots)
}

/// The private key.
pub(super) fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(FileError::NoKey)
}

fn expiry(cert: &CertificateDer<'_>) -> Result<u64, FileError> {
    let parsed = x509_parser::parse_x509_certificate(cert);
    let (_, cert) = parsed.map_err(FileError::Certificate)?;
    Ok(cert.validity().not_after.timestamp().try_into().unwrap_or(0))
}
