//! Certificates and keys in PEM files.

use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use x509_parser::error::X509Error as Malformed;
use x509_parser::nom;

use super::chain::{self, Chain, ChainDefect, ClientCas};
use crate::settings::{self, config::TlsFiles};

/// Maximum size of a file, in bytes. A chain has a few KiB, a bundle of all public CAs 230 KiB.
const MAX_FILE: u64 = 1 << 20;

/// The reason why certificates can't be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{flag} {}: {source}", path.display())]
    File { flag: &'static str, path: PathBuf, source: Box<FileError> },
    #[error("this machine trusts no CA: name one with --ca-file")]
    NoneTrusted,
    #[error("no random bytes: {0}")]
    NoRandom(#[source] rustls::Error),
}

/// An error in the contents of a file.
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
    #[error(
        "the private key is encrypted with a passphrase, which nobody could type when a node \
         restarts: decrypt it (openssl pkey -in FILE -out NEW), and keep others from reading it \
         (chmod 600)"
    )]
    Encrypted,
    #[error(
        "{which} is an X.509 certificate of version {version}, which has no names and which \
         TLS 1.3 clients refuse: have one of version 3 issued, as kvorum cert node does"
    )]
    OldVersion { which: String, version: u32 },
    #[error(
        "its first certificate does not belong to the private key, {which} does: put that one \
         first, then those between it and the CA"
    )]
    Order { which: String },
    #[error(transparent)]
    ChainDefect(#[from] ChainDefect),
    #[error(
        "the certificate is not for {host}, where this node is reached, and the one in use is: \
         have one issued for that host too, or restart the node to use this one"
    )]
    OtherName { host: String },
    #[error(
        "{which} is a CA's (CA:TRUE), which nodes do not accept of a client: have one issued by a \
         CA, as kvorum cert client does"
    )]
    CaAsClient { which: String },
    #[error("it does not fit {flag} {} ({source})", cert.display())]
    Unfit { flag: &'static str, cert: PathBuf, source: rustls::Error },
}

impl FileError {
    /// Returns a function that adds the flag and the path of a file to an error.
    pub(super) fn of(flag: &'static str, path: &Path) -> impl Fn(Self) -> TlsError {
        move |source| TlsError::File { flag, path: path.to_owned(), source: Box::new(source) }
    }
}

/// The parsed contents of the files.
pub(super) struct TlsMaterial {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) client_ca: Option<(RootCertStore, ClientCas)>,
    /// The parsed fields of the chain that clients check.
    pub(super) facts: Chain,
}

/// The raw contents of the files. A later read is compared with them.
#[derive(PartialEq, Eq)]
pub(super) struct RawFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl RawFiles {
    /// Reads all files.
    pub(super) fn read(files: &TlsFiles) -> Result<RawFiles, TlsError> {
        Ok(Self {
            cert: read("--tls-cert", &files.cert)?,
            key: read("--tls-key", &files.key)?,
            client_ca: match &files.client_ca {
                Some(path) => Some(read("--tls-client-ca", path)?),
                None => None,
            },
        })
    }

    /// Parses and checks the contents.
    pub(super) fn parse(&self, files: &TlsFiles) -> Result<TlsMaterial, TlsError> {
        let bad_cert = FileError::of("--tls-cert", &files.cert);
        let chain = certificates(&self.cert).map_err(&bad_cert)?;
        let facts = Chain::of(&chain).map_err(&bad_cert)?;
        let key = private_key(&self.key).map_err(FileError::of("--tls-key", &files.key))?;
        let client_ca = match files.client_ca.as_ref().zip(self.client_ca.as_ref()) {
            Some((path, bytes)) => {
                let read = || Ok((roots(bytes)?, ClientCas::of(&certificates(bytes)?)?));
                Some(read().map_err(FileError::of("--tls-client-ca", path))?)
            }
            None => None,
        };
        if let Some(which) = find_misplaced(&chain, &key) {
            return Err(bad_cert(FileError::Order { which }));
        }
        Ok(TlsMaterial { chain, key, client_ca, facts })
    }
}

pub(super) fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let bytes = settings::read::read(&settings::read::open(path)?, MAX_FILE + 1)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(FileError::TooLong);
        }
        Ok(bytes)
    };
    read().map_err(FileError::of(flag, path))
}

/// Parses all certificates. A file without certificates is an error.
pub(super) fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(FileError::NoCertificate),
        Err(error) => Err(FileError::Pem(error)),
    }
}

/// Parses the certificates of trusted CAs.
pub(super) fn roots(bytes: &[u8]) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(bytes)? {
        roots.add(cert).map_err(FileError::NotACa)?;
    }
    Ok(roots)
}

/// Parses the private key. An encrypted key is an error.
pub(super) fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    let is_mark = |line: &[u8]| {
        line.starts_with(b"-----BEGIN ENCRYPTED") || line.starts_with(b"Proc-Type: 4,ENCRYPTED")
    };
    if bytes.split(|byte| *byte == b'\n').any(is_mark) {
        return Err(FileError::Encrypted);
    }
    PrivateKeyDer::from_pem_slice(bytes).map_err(FileError::NoKey)
}

/// Refuses a client certificate that is a CA's, because nodes refuse it.
pub(super) fn refuse_ca(chain: &[CertificateDer<'_>]) -> Result<(), FileError> {
    let own = chain.first().map(|own| x509_parser::parse_x509_certificate(own));
    match own {
        Some(Ok((_, own))) if own.is_ca() => {
            Err(FileError::CaAsClient { which: chain::certificate_name(0, &own) })
        }
        _ => Ok(()),
    }
}

/// Returns the certificate to which the key belongs; `None` if it is the first certificate, or no
/// certificate.
fn find_misplaced(chain: &[CertificateDer<'_>], key: &PrivateKeyDer<'_>) -> Option<String> {
    let key = any_supported_type(key).ok()?;
    let key = key.public_key()?;
    let is_own = |cert: &CertificateDer<'_>| {
        ParsedCertificate::try_from(cert).is_ok_and(|cert| cert.subject_public_key_info() == key)
    };
    let place = chain.iter().position(is_own).filter(|place| *place > 0)?;
    let (_, cert) = x509_parser::parse_x509_certificate(&chain[place]).ok()?;
    Some(chain::certificate_name(place, &cert))
}
