//! `kvorum cert`: creates a private CA and issues certificates from it, for users without a CA.
//!
//! ```text
//!  cert ca     ─▶ ca.pem, for all clients; ca.key, secret: stays where it was made
//!  cert node   ─▶ node.pem, node.key: for the names and addresses in a node's URLs
//!  cert client ─▶ client.pem, client.key: for a node with --tls-client-ca ca.pem
//! ```
//!
//! An existing pair is replaced only by a pair of the same node or client: first the key, then the
//! certificate, each file atomically. A running node loads the two files once they match. No other
//! file is replaced, least of all a CA, because all certificates that the CA issued would become
//! worthless.

mod existing;

use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::ServerName;
use x509_parser::certificate::X509Certificate;
use x509_parser::time::ASN1Time;

use existing::{
    BadCa, ExistingFile, check_ca, check_replaceable, common_name, is_for_node, names_host,
};

use crate::counters::clocks::wall_micros;
use crate::settings::units::Ttl;

/// Backdating of certificates, so that they are valid on machines whose clocks are behind.
const BACKDATING: Duration = Duration::from_secs(3600);

/// The pair of files to make.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Make a CA: ca.pem for clients, ca.key to issue certificates with
    Ca(CaArgs),
    /// Issue a certificate for nodes: --tls-cert, --tls-key
    Node(NodeArgs),
    /// Issue a certificate for a client of nodes with --tls-client-ca
    Client(ClientArgs),
}

/// Arguments of `kvorum cert ca`.
#[derive(Debug, Args)]
pub(crate) struct CaArgs {
    /// Directory for ca.pem and ca.key
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,

    /// Validity of the CA, in s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "3650d")]
    expires: Ttl,
}

/// Arguments of `kvorum cert node`.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Names and IP addresses in the node's URLs; several nodes may share a certificate
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', required = true)]
    host: Vec<String>,

    #[command(flatten)]
    issue: IssueArgs,

    /// File for the certificate; its key goes to the same name with .key instead of .pem [default:
    /// node.pem in --dir]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Arguments of `kvorum cert client`.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// Name of the client, for people to read
    #[arg(long, value_name = "NAME", default_value = "client")]
    name: String,

    #[command(flatten)]
    issue: IssueArgs,

    /// File for the certificate; its key goes to the same name with .key instead of .pem [default:
    /// NAME.pem in --dir]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The CA of a certificate, and the certificate's validity.
#[derive(Debug, Args)]
struct IssueArgs {
    /// Directory with ca.pem and ca.key
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,

    /// Validity of the certificate, in s, m, h or d; it ends no later than the CA's
    #[arg(long, value_name = "TIME", default_value = "365d")]
    expires: Ttl,
}

/// Reason why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertError {
    #[error(
        "{} exists, and stays: a new CA would make all that it issued worthless; name \
         another --dir",
        .0.display()
    )]
    CaExists(PathBuf),
    #[error("{}: {source}: kvorum cert ca --dir {} makes it", path.display(), dir.display())]
    NoCa { path: PathBuf, dir: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Unfit { path: PathBuf, source: rcgen::Error },
    #[error(
        "--host {0:?} is neither a host name nor an IP address: name it as in the nodes' URLs, \
         without scheme, port and brackets. Nothing was made"
    )]
    NoHost(String),
    #[error("--host {hosts}: {source}")]
    Host { hosts: String, source: rcgen::Error },
    #[error("--out {}: its key would be the same file", .0.display())]
    SameFile(PathBuf),
    #[error(
        "--name {0:?} makes no file name for the certificate: name the file with --out. Nothing \
         was made"
    )]
    NoFileName(String),
    #[error("{} {why}. Nothing was made", path.display())]
    BadCa { path: PathBuf, why: BadCa },
    #[error(
        "{} exists, {why}, and stays: name another --out, or move the file away first. Nothing was \
         made",
        path.display()
    )]
    Occupied { path: PathBuf, why: ExistingFile },
    #[error("no key: {0}")]
    NoKey(#[source] rcgen::Error),
    #[error("no certificate: {0}")]
    NoCertificate(#[source] rcgen::Error),
}

/// Runs the command; returns the text to print.
pub(crate) fn run(command: &CertCommand) -> Result<String, CertError> {
    match command {
        CertCommand::Ca(args) => {
            make_ca(&args.dir, args.expires)?;
            let dir = args.dir.display();
            Ok(format!(
                "{dir}/ca.pem is what clients trust: curl --cacert, kvorum --ca-file\n{dir}/ca.key \
                 issues certificates: keep it where nobody else reads it, and off the nodes\n"
            ))
        }
        CertCommand::Node(args) => {
            let out = args.out.clone().unwrap_or_else(|| args.issue.dir.join("node.pem"));
            let issued = issue_node(&args.issue.dir, &args.host, args.issue.expires, &out)?;
            let key = issued.key.display();
            let flags = format!("kvorum serve --tls-cert {} --tls-key {key}\n", out.display());
            Ok(flags + &issued.validity())
        }
        CertCommand::Client(args) => {
            let out = args.out.clone().map_or_else(|| client_file(args), Ok)?;
            let mut params = params(&args.name, args.issue.expires);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let name = &args.name;
            let is_same_owner =
                |old: &X509Certificate<'_>| common_name(old) == *name && !is_for_node(old);
            let issued = issue(&args.issue.dir, params, &out, is_same_owner)?;
            let key = issued.key.display();
            let flags = format!("--client-cert {} --client-key {key}\n", out.display());
            Ok(flags + &issued.validity())
        }
    }
}

/// A certificate that was issued.
pub(super) struct IssuedCert {
    /// File of the certificate's key.
    key: PathBuf,
    until: ASN1Time,
    /// True if the CA's own expiry made the certificate shorter than requested.
    is_cut_short: bool,
}

impl IssuedCert {
    /// Returns a line with the end of the certificate's validity.
    fn validity(&self) -> String {
        let why = match self.is_cut_short {
            true => ", when its CA expires: kvorum cert ca with another --dir makes a new CA",
            false => "",
        };
        format!("valid until {}{why}\n", self.until)
    }
}

/// Returns the default file of a client's certificate.
fn client_file(ClientArgs { name, issue, .. }: &ClientArgs) -> Result<PathBuf, CertError> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if name.is_empty() || name.starts_with(['.', '-']) || !name.bytes().all(is_fit) {
        return Err(CertError::NoFileName(name.clone()));
    }
    Ok(issue.dir.join(format!("{name}.pem")))
}

/// Creates a CA in a directory that has none.
pub(super) fn make_ca(dir: &Path, expires: Ttl) -> Result<(), CertError> {
    let (cert, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    if let Some(file) = [&cert, &key].into_iter().find(|file| file.exists()) {
        return Err(CertError::CaExists(file.clone()));
    }
    // The CA's name is unique: of two CAs with the same name, a client that trusts the first
    // rejects the certificates of the second as forged.
    let number = RandomState::new().hash_one(dir);
    let mut params = params(&format!("kvorum CA {number:016x}"), expires);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let pair = KeyPair::generate().map_err(CertError::NoKey)?;
    let made = params.self_signed(&pair).map_err(CertError::NoCertificate)?;
    fs::create_dir_all(dir).map_err(|source| CertError::File { path: dir.to_owned(), source })?;
    replace(&key, &pair.serialize_pem(), 0o600)?;
    replace(&cert, &made.pem(), 0o644)
}

/// Issues a certificate for a node with these names.
pub(super) fn issue_node(
    dir: &Path,
    hosts: &[String],
    expires: Ttl,
    out: &Path,
) -> Result<IssuedCert, CertError> {
    if let Some(bad) = hosts.iter().find(|host| !is_host(host)) {
        return Err(CertError::NoHost(bad.clone()));
    }
    let first = hosts.first().map_or("node", String::as_str);
    let names = CertificateParams::new(hosts);
    let names = names.map_err(|source| CertError::Host { hosts: hosts.join(","), source })?;
    let mut params = params(first, expires);
    params.subject_alt_names = names.subject_alt_names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    issue(dir, params, out, |old| {
        is_for_node(old) && hosts.iter().any(|host| names_host(old, host))
    })
}

/// Returns true if `host` is an IP address, or a DNS name whose first label may be a wildcard.
fn is_host(host: &str) -> bool {
    ServerName::try_from(host.strip_prefix("*.").unwrap_or(host)).is_ok()
}

fn params(name: &str, expires: Ttl) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = Duration::from_micros(wall_micros());
    params.not_before = epoch + now.saturating_sub(BACKDATING);
    params.not_after = epoch + now + Duration::from_millis(expires.millis());
    params
}

/// Issues a certificate, valid no longer than the CA.
fn issue(
    dir: &Path,
    mut params: CertificateParams,
    out: &Path,
    is_same_owner: impl Fn(&X509Certificate<'_>) -> bool,
) -> Result<IssuedCert, CertError> {
    let (ca, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
    let read = |path: &Path| {
        let (path, dir) = (path.to_owned(), dir.to_owned());
        fs::read_to_string(&path).map_err(|source| CertError::NoCa { path, dir, source })
    };
    let bad = |path: &Path| {
        let path = path.to_owned();
        move |source| CertError::Unfit { path, source }
    };
    let pair = KeyPair::from_pem(&read(&ca_key)?).map_err(bad(&ca_key))?;
    let text = read(&ca)?;
    let ca_until = check_ca(&ca, &text, &pair)?.to_datetime();
    let is_cut_short = ca_until < params.not_after;
    params.not_after = params.not_after.min(ca_until);
    let until = ASN1Time::new(params.not_after);
    let issuer = Issuer::from_ca_cert_pem(&text, pair).map_err(bad(&ca))?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let key = out.with_extension("key");
    if key == out {
        return Err(CertError::SameFile(out.to_owned()));
    }
    check_replaceable(out, &key, is_same_owner)?;
    let pair = KeyPair::generate().map_err(CertError::NoKey)?;
    let made = params.signed_by(&pair, &issuer).map_err(bad(out))?;
    replace(&key, &pair.serialize_pem(), 0o600)?;
    replace(out, &made.pem(), 0o644)?;
    Ok(IssuedCert { key, until, is_cut_short })
}

/// Replaces a file atomically; `mode` has the permissions of the new file.
fn replace(path: &Path, text: &str, mode: u32) -> Result<(), CertError> {
    let new = path.with_added_extension("new");
    let write = || -> io::Result<()> {
        // A file left by an interrupted run may have other permissions.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|source| CertError::File { path: path.to_owned(), source })
}
