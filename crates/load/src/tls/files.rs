//! Whom clients trust and what they show, out of files in PEM.

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

/// Why files are of no use, or there is nothing in place of them.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file can't be read.
    #[error("{flag} {}: {source}", path.display())]
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// Which file it is.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is longer than any bundle of CAs.
    #[error("{flag} {}: it has more than 1 MiB", path.display())]
    TooLong {
        /// The flag that names it.
        flag: &'static str,
        /// Which file it is.
        path: PathBuf,
    },
    /// A file is of something else.
    #[error("{flag} {}: no certificate in PEM", path.display())]
    NoCertificate {
        /// The flag that names it.
        flag: &'static str,
        /// Which file it is.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("{flag} {}: malformed PEM ({source})", path.display())]
    Malformed {
        /// The flag that names it.
        flag: &'static str,
        /// Which file it is.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The file of the key has none.
    #[error("--client-key {}: no private key in PEM ({source})", path.display())]
    NoKey {
        /// Which file it is.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The key is another certificate's.
    #[error(
        "--client-key {}: it does not fit --client-cert {} ({source})",
        key.display(),
        cert.display()
    )]
    Unfit {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
        /// Why it does not fit.
        source: rustls::Error,
    },
    /// Nobody can be trusted by a certificate.
    #[error("--ca-file {}: a certificate that is not a CA's ({source})", path.display())]
    NotCa {
        /// The file that it is in.
        path: PathBuf,
        /// Why it is not.
        source: rustls::Error,
    },
    /// The system trusts nobody; why, if it says.
    #[error(
        "this machine has no CAs that https:// could go by{}: say --ca-file FILE, or install them \
         (apt-get install ca-certificates)",
        .0.as_ref().map(|error| format!(" ({error})")).unwrap_or_default()
    )]
    NoCas(Option<rustls_native_certs::Error>),
    /// No certificate is of such a host.
    #[error("{0} is not a name that a certificate can have")]
    Name(String),
}

/// What is in them, for any host.
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

    /// For connections to this host: a name or an address, without port.
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

/// All certificates, at least one.
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
    // Old CAs among them may have what nobody takes any more.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(FilesError::NoCas(found.errors.into_iter().next()));
    }
    Ok(roots)
}
