//! Certificates and keys as files, in PEM.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;
use crate::settings::config::TlsFiles;

/// Bytes of a file at most: a chain has a few KiB, a bundle of all public CAs 230.
const MAX_FILE: u64 = 1 << 20;

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
        let bad_cert = |what: String| TlsError::new("--tls-cert", &files.cert, what);
        let chain = certificates(&self.cert).map_err(bad_cert)?;
        let expires = expiry(&chain[0]).map_err(bad_cert)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| {
            let what = format!("no private key in PEM ({error})");
            TlsError::new("--tls-key", &files.key, what)
        })?;
        let client_ca = match files.client_ca.as_ref().zip(self.client_ca.as_ref()) {
            Some((path, bytes)) => {
                let roots = roots(bytes);
                Some(roots.map_err(|what| TlsError::new("--tls-client-ca", path, what))?)
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
            return Err(io::Error::other("it has more than 1 MiB"));
        }
        Ok(bytes)
    };
    read().map_err(|error: io::Error| TlsError::new(flag, path, error.to_string()))
}

/// All certificates, at least one.
pub(super) fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
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
        roots.add(cert).map_err(|error| format!("a certificate that is not a CA's ({error})"))?;
    }
    Ok(roots)
}

fn expiry(cert: &CertificateDer<'_>) -> Result<u64, String> {
    let parsed = x509_parser::parse_x509_certificate(cert);
    let (_, cert) = parsed.map_err(|error| format!("malformed ({error})"))?;
    Ok(cert.validity().not_after.timestamp().try_into().unwrap_or(0))
}
