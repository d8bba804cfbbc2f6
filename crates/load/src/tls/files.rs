//! Whom clients trust and what they show, out of files in PEM.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use super::Tls;

/// Bytes of a file at most: a bundle of all public CAs has 230 KiB.
const MAX_FILE: u64 = 1 << 20;

/// What is spoken over TLS.
const PROTOCOL: &[u8] = b"http/1.1";

/// Where certificates are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// CAs of servers, `--ca-file`; without, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// What servers that ask for a certificate are shown, `--client-cert` and `--client-key`.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// What is in them, for any host.
#[derive(Debug, Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
    files: Arc<Files>,
}

impl Trust {
    /// Reads the files.
    pub fn load(files: Files) -> Result<Self, String> {
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
                let wrong = |why: String| format!("--client-key {}: {why}", key.display());
                let bytes = read(key).map_err(|error| wrong(error.to_string()))?;
                let parsed = PrivateKeyDer::from_pem_slice(&bytes)
                    .map_err(|error| wrong(format!("no private key in PEM ({error})")))?;
                let unfit = |error: rustls::Error| {
                    let cert = cert.display();
                    wrong(format!("it does not fit --client-cert {cert} ({error})"))
                };
                builder.with_client_auth_cert(chain, parsed).map_err(unfit)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { config: Arc::new(config), files: Arc::new(files) })
    }

    /// For connections to this host: a name or an address, without port.
    pub fn host(&self, host: &str) -> Result<Tls, String> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("{host} is not a name that a certificate can have"))?;
        Ok(Tls { config: Arc::clone(&self.config), name, files: Arc::clone(&self.files) })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    Ok(bytes)
}

/// All certificates, at least one.
fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: String| format!("{flag} {}: {why}", path.display());
    let bytes = read(path).map_err(|error| wrong(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong("no certificate in PEM".to_owned())),
        Err(error) => Err(wrong(format!("malformed PEM ({error})"))),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in certificates("--ca-file", path)? {
        let added = roots.add(cert);
        added.map_err(|error| {
            format!("--ca-file {}: a certificate that is not a CA's ({error})", path.display())
        })?;
    }
    Ok(roots)
}

fn roots_of_the_system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Old CAs among them may have what nobody takes any more.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!(
            "this machine has no CAs that https:// could go by{why}: say --ca-file FILE, or \
             install them (apt-get install ca-certificates)"
        ));
    }
    Ok(roots)
}
