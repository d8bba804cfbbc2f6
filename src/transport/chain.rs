//! Checks of a node's certificates, the same as clients make: dates, names, and permitted uses.
//!
//! In a file, the node's own certificate precedes the intermediate certificates up to the CA. Nodes
//! do not check each other's certificates ([`super::tls`]), so these checks only show whether
//! clients accept the node.

use std::time::Duration;

use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

use super::files::FileError;

/// The reason why clients refuse a certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChainDefect {
    #[error(
        "{which} expired on {when}: have a new one issued, or, if it is one that clients do not \
         need, take it out of the file"
    )]
    Expired { which: String, when: ASN1Time },
    #[error(
        "{which} is not valid before {when}: wait until then, or set the clock if this machine's \
         is behind"
    )]
    Early { which: String, when: ASN1Time },
    #[error(
        "{which} names no host (it has no subjectAltName, and clients do not look at its CN): have \
         one issued for the hosts in the nodes' URLs, as kvorum cert node --host does"
    )]
    Nameless { which: String },
    #[error(
        "{which} is not for servers (its extendedKeyUsage has no serverAuth): have one issued that \
         is, as kvorum cert node does"
    )]
    NotForServers { which: String },
    #[error(
        "{which} names itself the issuer of the certificate, and did not sign it ({why}): put the \
         intermediate certificate of the CA that issued it there"
    )]
    Unsigned { which: String, why: rustls::Error },
    #[error("{which} {why}, so what it has signed is not accepted")]
    SignsNothing { which: String, why: &'static str },
}

/// The certificates of a file, with the parsed fields that clients check.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// The node's own certificate, then the other certificates of the file.
    links: Vec<ChainCert>,
    has_names: bool,
    is_for_servers: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ChainCert {
    /// Name of the certificate in messages.
    which: String,
    from: ASN1Time,
    until: ASN1Time,
    is_ca: bool,
    /// The reason why certificates signed by this one are refused; `None` if it may sign.
    signs_nothing: Option<&'static str>,
}

impl ChainCert {
    fn of(number: usize, cert: &X509Certificate<'_>, of_servers: bool) -> Self {
        let (from, until) = (cert.validity().not_before, cert.validity().not_after);
        let (which, signs_nothing) =
            (certificate_name(number, cert), signs_nothing(cert, of_servers));
        Self { which, from, until, is_ca: cert.is_ca(), signs_nothing }
    }

    /// Checks that the certificate is valid at `now`, in seconds since 1970.
    fn check_dates(&self, now: u64) -> Result<(), ChainDefect> {
        let (which, now) = (self.which.clone(), now as i64);
        if self.until.timestamp() < now {
            return Err(ChainDefect::Expired { which, when: self.until });
        }
        if self.from.timestamp() > now {
            return Err(ChainDefect::Early { which, when: self.from });
        }
        Ok(())
    }
}

/// The CAs of clients' certificates, with the parsed fields that a node checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientCas(Vec<ChainCert>);

impl ClientCas {
    pub(super) fn of(certs: &[CertificateDer<'_>]) -> Result<Self, FileError> {
        let mut links = Vec::with_capacity(certs.len());
        for (number, cert) in certs.iter().enumerate() {
            let parsed = x509_parser::parse_x509_certificate(cert);
            let (_, cert) = parsed.map_err(FileError::Certificate)?;
            links.push(ChainCert {
                which: in_file(number, &cert),
                ..ChainCert::of(number, &cert, false)
            });
        }
        if let Some(ChainCert { which, signs_nothing: Some(why), .. }) =
            links.iter().find(|link| link.signs_nothing.is_some())
        {
            return Err(ChainDefect::SignsNothing { which: which.clone(), why }.into());
        }
        Ok(Self(links))
    }

    /// Checks that at least one CA is valid at `now`, in seconds since 1970. If none is, returns
    /// the error of the first CA.
    pub(super) fn check(&self, now: u64) -> Result<(), ChainDefect> {
        let mut checked = self.0.iter().map(|link| link.check_dates(now));
        let first = checked.next().unwrap_or(Ok(()));
        first.or_else(|why| if checked.any(|other| other.is_ok()) { Ok(()) } else { Err(why) })
    }
}

impl Chain {
    /// Parses the certificates. A certificate that TLS libraries can't use is an error.
    pub(super) fn of(certs: &[CertificateDer<'_>]) -> Result<Self, FileError> {
        let mut links = Vec::with_capacity(certs.len());
        let (mut has_names, mut is_for_servers) = (false, true);
        for (number, cert) in certs.iter().enumerate() {
            let parsed = x509_parser::parse_x509_certificate(cert);
            let (_, cert) = parsed.map_err(FileError::Certificate)?;
            let which = certificate_name(number, &cert);
            if cert.version() != X509Version::V3 {
                return Err(FileError::OldVersion { which, version: cert.version().0 + 1 });
            }
            if number == 0 {
                has_names = matches!(cert.subject_alternative_name(), Ok(Some(names))
                    if !names.value.general_names.is_empty());
                is_for_servers = cert
                    .extended_key_usage()
                    .ok()
                    .flatten()
                    .is_none_or(|usage| usage.value.server_auth || usage.value.any);
            }
            links.push(ChainCert::of(number, &cert, true));
        }
        Ok(Self { links, has_names, is_for_servers })
    }

    /// Returns the earliest expiry of the certificates, in seconds since 1970. After it clients
    /// refuse the chain.
    pub(super) fn expires(&self) -> u64 {
        let ends = self.links.iter().map(|link| link.until.timestamp());
        ends.min().and_then(|end| end.try_into().ok()).unwrap_or(0)
    }

    /// Returns the name of the certificate that expires first.
    pub(super) fn expires_first(&self) -> &str {
        let first = self.links.iter().min_by_key(|link| link.until.timestamp());
        first.map_or("", |link| &link.which)
    }

    /// Checks that clients accept the certificates at `now`, in seconds since 1970. A node does not
    /// know which CAs its clients trust, so it can't check the CA.
    pub(super) fn check(&self, certs: &[CertificateDer<'_>], now: u64) -> Result<(), ChainDefect> {
        self.links.iter().try_for_each(|link| link.check_dates(now))?;
        let which = || self.links.first().map_or(String::new(), |own| own.which.clone());
        if !self.has_names {
            return Err(ChainDefect::Nameless { which: which() });
        }
        if !self.is_for_servers {
            return Err(ChainDefect::NotForServers { which: which() });
        }
        self.check_signature(certs, now)
    }

    /// Checks the issuer's certificate if the file has it. The issuer must have signed the node's
    /// own certificate, and must be permitted to sign. The file need not have the issuer's
    /// certificate, because the issuer may be the CA that clients trust.
    fn check_signature(&self, certs: &[CertificateDer<'_>], now: u64) -> Result<(), ChainDefect> {
        let Some((own, others)) = certs.split_first() else { return Ok(()) };
        let mut refused = None;
        for (signer, link) in others.iter().zip(self.links.iter().skip(1)) {
            if !is_issuer(signer, own) {
                continue;
            }
            let which = link.which.clone();
            match (verify_signed_by(own, signer, now), link.signs_nothing) {
                (Ok(()), None) => return Ok(()),
                (_, Some(why)) => refused = Some(ChainDefect::SignsNothing { which, why }),
                (Err(why), None) => refused = Some(ChainDefect::Unsigned { which, why }),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Returns warnings about settings that are suspicious, but may be intended.
    pub(super) fn warnings(&self, certs: &[CertificateDer<'_>], host: Option<&str>) -> Vec<String> {
        let mut doubts = Vec::new();
        let Some(own) = self.links.first() else { return doubts };
        if own.is_ca {
            doubts.push(format!(
                "{} is a CA's (CA:TRUE), which some clients do not accept of a server, kvorum's \
                 own commands among them: have one issued by a CA, as kvorum cert node does",
                own.which
            ));
        }
        for (link, _) in
            self.links.iter().zip(certs).skip(1).filter(|(_, it)| !is_needed(it, certs))
        {
            doubts.push(format!(
                "{} is not the issuer of any other certificate in the file: clients do not need \
                 it, and if it was to be the intermediate certificate of the node's own, it is \
                 another CA's",
                link.which
            ));
        }
        if let Some(host) = host.filter(|host| self.has_names && !is_for(certs, host)) {
            doubts.push(format!(
                "{} is not for {host}, where this node is reached as far as it knows: clients that \
                 ask there refuse it",
                own.which
            ));
        }
        doubts
    }
}

/// True if `own` names the subject of `signer` as its issuer.
fn is_issuer(signer: &CertificateDer<'_>, own: &CertificateDer<'_>) -> bool {
    let parse = x509_parser::parse_x509_certificate;
    match (parse(signer), parse(own)) {
        (Ok((_, signer)), Ok((_, own))) => signer.subject() == own.issuer(),
        _ => false,
    }
}

/// True if another certificate of the file names this one as its issuer.
fn is_needed(cert: &CertificateDer<'_>, certs: &[CertificateDer<'_>]) -> bool {
    certs.iter().any(|other| other != cert && is_issuer(cert, other))
}

/// Checks that `signer` signed `own`, and that its constraints permit the signature.
fn verify_signed_by(
    own: &CertificateDer<'_>,
    signer: &CertificateDer<'_>,
    now: u64,
) -> Result<(), rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(signer.clone().into_owned())?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    let algorithms = default_provider().signature_verification_algorithms.all;
    let own = ParsedCertificate::try_from(own)?;
    verify_server_cert_signed_by_trust_anchor(&own, &roots, &[], now, algorithms)
}

/// Returns the reason why certificates signed by this one are refused, as certificates of servers
/// if `of_servers`, otherwise of clients. `None` if they are accepted.
fn signs_nothing(cert: &X509Certificate<'_>, of_servers: bool) -> Option<&'static str> {
    let usage = cert.key_usage().ok().flatten();
    let purpose = cert.extended_key_usage().ok().flatten();
    let is_unknown = |parsed: &ParsedExtension<'_>| {
        matches!(parsed, ParsedExtension::UnsupportedExtension { .. })
    };
    let is_strange = |extension: &x509_parser::extensions::X509Extension<'_>| {
        extension.critical && is_unknown(extension.parsed_extension())
    };
    if !cert.is_ca() && cert.version() == X509Version::V3 {
        Some("is no CA's (no CA:TRUE)")
    } else if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        Some("must not sign certificates (its keyUsage has no keyCertSign)")
    } else if purpose.is_some_and(|purpose| {
        let usage = purpose.value;
        !(usage.any || if of_servers { usage.server_auth } else { usage.client_auth })
    }) {
        Some("is for other purposes (its extendedKeyUsage)")
    } else if cert.extensions().iter().any(is_strange) {
        Some("has a critical extension that clients do not know")
    } else {
        None
    }
}

/// True if the chain's first certificate is for `host`.
pub(super) fn is_for(certs: &[CertificateDer<'_>], host: &str) -> bool {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
    let (Ok(name), Some(own)) = (name, certs.first()) else { return false };
    ParsedCertificate::try_from(own).is_ok_and(|own| verify_server_name(&own, &name).is_ok())
}

/// Returns the name of a certificate in messages, for a file in which no certificate is the node's
/// own.
fn in_file(number: usize, cert: &X509Certificate<'_>) -> String {
    format!("certificate {} of the file ({})", number + 1, cert.subject())
}

/// Returns the name of a certificate in messages. The first certificate is the node's own.
pub(super) fn certificate_name(number: usize, cert: &X509Certificate<'_>) -> String {
    let subject = cert.subject().to_string();
    let subject = if subject.is_empty() { String::new() } else { format!(" ({subject})") };
    if number == 0 {
        format!("the certificate{subject}")
    } else {
        format!("certificate {} of the file{subject}", number + 1)
    }
}
