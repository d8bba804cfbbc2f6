//! Explains TLS errors, and how to correct them.

use rustls::{AlertDescription, CertificateError, Error};

use super::Files;

/// Explains `error` on a connection to `host`.
pub(super) fn describe(error: &Error, host: &str, files: &Files) -> String {
    match error {
        Error::InvalidCertificate(wrong) => certificate(wrong, host, files),
        Error::AlertReceived(alert) => explain_refusal(*alert, files),
        Error::InvalidMessage(_) => {
            "the server does not speak TLS: say http:// if it is to be in clear".to_owned()
        }
        Error::PeerIncompatible(what) => {
            format!("the server has no TLS 1.3 that this program knows ({what:?})")
        }
        other => other.to_string(),
    }
}

/// Explains the rejection of the server's certificate.
fn certificate(wrong: &CertificateError, host: &str, files: &Files) -> String {
    match wrong {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired: replace it there (kvorum: the file of \
             --tls-cert), or set this machine's clock"
                .to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: set the clock of this machine, or of the \
             one that made it"
                .to_owned()
        }
        CertificateError::NotValidForName => {
            format!("the server's certificate is not for {host}: use a name that it has")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names = if presented.is_empty() { "none".into() } else { presented.join(", ") };
            format!(
                "the server's certificate is not for {host} but for {names}: use one of these in \
                 the URL, or give the server a certificate for {host}"
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => match &files.ca {
            Some(file) => format!(
                "no CA of --ca-file {} made the server's certificate: name the file of the CA \
                 that did",
                file.display()
            ),
            None => "no CA that this machine trusts made the server's certificate: say --ca-file \
                     FILE with the CA that did"
                .to_owned(),
        },
        CertificateError::Other(_) if files.ca.is_some() => format!(
            "the server's certificate is not taken ({wrong}): if it is a CA's own, have the CA \
             make one for the server"
        ),
        other => format!("the server's certificate is not taken: {other}"),
    }
}

/// Explains a connection that the server explain_refusal.
fn explain_refusal(alert: AlertDescription, files: &Files) -> String {
    let shown = files.client.as_ref().map(|(cert, _)| cert.display());
    match (alert, shown) {
        (AlertDescription::CertificateRequired, _) => {
            "the server asks for a certificate: say --client-cert FILE and --client-key FILE"
                .to_owned()
        }
        (AlertDescription::ProtocolVersion, _) => "the server has no TLS 1.3".to_owned(),
        (AlertDescription::NoApplicationProtocol, _) => {
            "the server does not speak HTTP/1.1 over TLS".to_owned()
        }
        (AlertDescription::CertificateExpired, Some(cert)) => {
            format!("the server refuses --client-cert {cert}, which has expired: have a new one")
        }
        (
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied,
            Some(cert),
        ) => format!(
            "the server refuses --client-cert {cert} ({alert:?}): show one of a CA that it takes \
             (kvorum: --tls-client-ca)"
        ),
        (alert, _) => format!("the server ended the handshake: {alert:?}"),
    }
}
