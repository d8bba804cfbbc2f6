//! Checks of existing files for `kvorum cert`: a CA must be able to issue certificates, and a
//! certificate and its key may only be replaced by those of the same node or client.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;

use super::CertError;
use crate::counters::clocks::wall_micros;

/// Reason why `kvorum cert` issues no certificate from the CA in `ca.pem` and `ca.key`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadCa {
    #[error(
        "is no CA (no CA:TRUE), so nobody accepts what it issues: restore the CA, or name its --dir"
    )]
    NoCa,
    #[error(
        "expired on {0}, so nobody accepts what it issues: make a new CA with kvorum cert ca and \
         another --dir, and give its ca.pem to all clients"
    )]
    Expired(ASN1Time),
    #[error(
        "is not valid before {0}, so nobody accepts what it issues: wait until then, or set the \
         clock if this machine's is behind"
    )]
    Early(ASN1Time),
    #[error("does not belong to ca.key beside it: restore the two files of one CA")]
    OtherKey,
}

/// Reason why an existing file is not replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExistingFile {
    #[error("holds no certificate")]
    NoCertificate,
    #[error("is a CA (a new certificate there would make all that it issued worthless)")]
    Ca,
    #[error("is a certificate for {0}")]
    Other(String),
    #[error("is not the key of {} (another certificate's may be lost)", .0.display())]
    Key(PathBuf),
}

pub(super) fn is_for_node(cert: &X509Certificate<'_>) -> bool {
    matches!(cert.extended_key_usage(), Ok(Some(usage)) if usage.value.server_auth)
}

pub(super) fn names_host(cert: &X509Certificate<'_>, host: &str) -> bool {
    let host = host.parse::<IpAddr>().map_or(host.to_owned(), |address| address.to_string());
    hosts_of(cert).iter().any(|name| name.eq_ignore_ascii_case(&host))
}

/// Returns the host names and IP addresses for which a certificate is valid.
fn hosts_of(cert: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = cert.subject_alternative_name() else { return Vec::new() };
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
                (Ok(four), _) => Some(IpAddr::from(four).to_string()),
                (_, Ok(sixteen)) => Some(IpAddr::from(sixteen).to_string()),
                _ => None,
            }
        }
        _ => None,
    };
    names.value.general_names.iter().filter_map(host).collect()
}

pub(super) fn common_name(cert: &X509Certificate<'_>) -> String {
    let name = cert.subject().iter_common_name().next();
    name.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned()
}

/// Returns an error unless the certificate `out` and its `key` may be replaced. An existing
/// certificate must satisfy `is_same_owner`, which tests for the same node or client.
/// An existing key must belong to the existing certificate.
pub(super) fn check_replaceable(
    out: &Path,
    key: &Path,
    is_same_owner: impl Fn(&X509Certificate<'_>) -> bool,
) -> Result<(), CertError> {
    let occupied = |path: &Path, why| Err(CertError::Occupied { path: path.to_owned(), why });
    let mut public = None;
    if let Some(text) = read_if_any(out)? {
        let Ok(der) = CertificateDer::from_pem_slice(&text) else {
            return occupied(out, ExistingFile::NoCertificate);
        };
        let Ok((_, old)) = x509_parser::parse_x509_certificate(&der) else {
            return occupied(out, ExistingFile::NoCertificate);
        };
        if old.is_ca() {
            return occupied(out, ExistingFile::Ca);
        }
        if !is_same_owner(&old) {
            let hosts = hosts_of(&old).join(", ");
            let whose = if hosts.is_empty() { format!("{:?}", common_name(&old)) } else { hosts };
            return occupied(out, ExistingFile::Other(whose));
        }
        public = Some(old.public_key().raw.to_vec());
    }
    if let Some(text) = read_if_any(key)? {
        let pair = str::from_utf8(&text).ok().and_then(|text| KeyPair::from_pem(text).ok());
        if pair.is_none_or(|pair| public != Some(pair.subject_public_key_info())) {
            return occupied(key, ExistingFile::Key(out.to_owned()));
        }
    }
    Ok(())
}

fn read_if_any(path: &Path) -> Result<Option<Vec<u8>>, CertError> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CertError::File { path: path.to_owned(), source }),
    }
}

/// Checks that a CA matches its key, and that clients accept its certificates now. Returns the time
/// at which the CA expires.
pub(super) fn check_ca(path: &Path, text: &str, pair: &KeyPair) -> Result<ASN1Time, CertError> {
    let bad = |why| CertError::BadCa { path: path.to_owned(), why };
    let der = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| bad(BadCa::NoCa))?;
    let parsed = x509_parser::parse_x509_certificate(&der);
    let (_, ca) = parsed.map_err(|_| bad(BadCa::NoCa))?;
    let now = (wall_micros() / 1_000_000) as i64;
    let dates = ca.validity();
    if !ca.is_ca() {
        Err(bad(BadCa::NoCa))
    } else if ca.public_key().raw != pair.subject_public_key_info() {
        Err(bad(BadCa::OtherKey))
    } else if dates.not_after.timestamp() <= now {
        Err(bad(BadCa::Expired(dates.not_after)))
    } else if dates.not_before.timestamp() > now {
        Err(bad(BadCa::Early(dates.not_before)))
    } else {
        Ok(dates.not_after)
    }
}
