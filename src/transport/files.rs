//! Certificates and keys as files, in PEM.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::TlsError;

/// Bytes of a file at most: a chain has a few KiB, a bundle of all public CAs 230.
const MAX_FILE: u64 = 1 << 20;

/// Where a node's certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    /// The node's certificate, and those between it and its CA.
    pub(crate) cert: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
    /// CAs of clients; `None` = clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
}

/// What is in them.
pub(super) struct Material {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) client_ca: Option<RootCertStore>,
    /// When the node's certificate expires, in seconds since 1970.
    pub(super) expires: u64,
}

/// The files' bytes, to be compared with those of another time.
#[derive(PartialEq, Eq)]
pub(super) struct Raw {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    /// Reads all of them.
    pub(super) fn read(&self) -> Result<Raw, TlsError> {
        Ok(Raw {
            cert: read("--tls-cert", &self.cert)?,
            key: read("--tls-key", &self.key)?,
            client_ca: match &self.client_ca {
                Some(path) => Some(read("--tls-client-ca", path)?),
                None => None,
            },
        })
    }

    /// Makes sense of what was read.
    pub(super) fn parse(&self, raw: &Raw) -> Result<Material, TlsError> {
        let bad_cert = |what: String| TlsError::new("--tls-cert", &self.cert, what);
        let chain = certificates(&raw.cert).map_err(bad_cert)?;
        let expires = expiry(&chain[0]).map_err(bad_cert)?;
        let key = PrivateKeyDer::from_pem_slice(&raw.key).map_err(|error| {
            let what = format!("no private key in PEM ({error})");
            TlsError::new("--tls-key", &self.key, what)
        })?;
        let client_ca = match self.client_ca.as_ref().zip(raw.client_ca.as_ref()) {
            Some((path, bytes)) => {
                let roots = roots(bytes);
                Some(roots.map_err(|what| TlsError::new("--tls-client-ca", path, what))?)
            }
            None => None,
        };
        Ok(Material { chain, key, client_ca, expires })
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other("it has more than 1 MiB"));
        }
        Ok(bytes)
    };
    read().map_err(|error: io::Error| TlsError::new(flag, path, error.to_string()))
}

/// All certificates, at least one.
fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("no certificate in PEM".to_owned()),
        Err(error) => Err(format!("malformed PEM ({error})")),
    }
}

/// The certificates of CAs that are trusted.
pub(super) fn roots(bytes: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(bytes)? {
        roots.add(cert).map_err(|error| format!("a certificate that is no CA's ({error})"))?;
    }
    Ok(roots)
}

fn expiry(cert: &CertificateDer<'_>) -> Result<u64, String> {
    let cert = Certificate::from_der(cert).map_err(|error| format!("malformed ({error})"))?;
    Ok(cert.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
}
