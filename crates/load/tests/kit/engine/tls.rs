//! Tests of the generator with TLS. The generator must send and count as in plain text, and report
//! certificate errors in time.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use load::server::{Endpoint, fetch};
use load::tls::{Files, Tls, Trust};
use load::{Outcome, Pace, Plan, Target};
use rcgen::{CertificateParams, Issuer, KeyPair, date_time_ymd};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use tempfile::TempDir;

use super::server::{Answer, Server};

/// A CA, and the files of its certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert: CertificateDer<'static>,
    dir: TempDir,
}

/// A certificate and its key.
struct Pair {
    cert: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    files: (PathBuf, PathBuf),
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), cert.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), cert: cert.der().clone(), dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Creates a certificate for `name`, valid until the end of the year `until`.
    fn pair(&self, name: &str, until: i32) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = (self.dir.path().join("cert.pem"), self.dir.path().join("key.pem"));
        fs::write(&files.0, cert.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Pair { cert: cert.der().clone(), key, files }
    }

    fn trust(&self) -> Files {
        Files { ca: Some(self.file()), client: None }
    }
}

/// Configures a server with this certificate. With `clients`, the server requires client
/// certificates of this CA.
fn config(pair: Pair, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
    let builder = match clients {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            roots.add(ca.cert.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(vec![pair.cert], pair.key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn tls(files: Files) -> Tls {
    Trust::load(files).unwrap().host("127.0.0.1").unwrap()
}

/// Returns a plan of 300 requests in a closed loop on four connections.
fn plan(server: &Server, tls: Tls) -> Plan {
    let target = Target { tls: Some(tls), ..Target::new(server.address(), "/{key}") };
    Plan {
        connections: 4,
        threads: 2,
        duration: Duration::from_secs(30),
        limit: 300,
        ..Plan::new(target)
    }
}

fn run(plan: &Plan) -> Outcome {
    let outcome = load::run(plan).expect("the run takes place");
    assert_eq!((outcome.planned, outcome.answer_count()), (300, 300), "{outcome}");
    assert_eq!(outcome.tally.errors.count_lost() + outcome.tally.errors.connect, 0, "{outcome}");
    assert_eq!(outcome.tally.garbage.all(), 0, "{outcome}");
    outcome
}

#[test]
fn values_of_all_lengths_come_back_over_tls() {
    let ca = Authority::new();
    // Less than a record, several records, and more than rustls buffers.
    for value_len in [64, 50_000, 300_000] {
        let server =
            Server::start_tls(config(ca.pair("127.0.0.1", 2100), None), |_| Answer::new_stored());
        let mut plan = plan(&server, tls(ca.trust()));
        plan.put_percent = 50;
        plan.keys.count = 20;
        plan.value_len = value_len;
        plan.verify = true;
        let outcome = run(&plan);
        assert_eq!(outcome.tally.wrong_values, 0, "{outcome}");
        assert_eq!(server.connections(), 4);
    }
}

#[test]
fn an_open_loop_over_tls_counts_from_the_intended_start() {
    let ca = Authority::new();
    // Each answer takes longer than the plan allows, so all answers except the first on each
    // connection are late.
    let slow = |_| Answer { delay: Duration::from_millis(40), ..Answer::value(b"x") };
    let server = Server::start_tls(config(ca.pair("127.0.0.1", 2100), None), slow);
    let plan = Plan {
        pace: Pace::Open(200.0),
        limit: u64::MAX,
        duration: Duration::from_millis(500),
        drain: Duration::from_secs(20),
        ..plan(&server, tls(ca.trust()))
    };
    let outcome = load::run(&plan).unwrap();
    assert_eq!((outcome.planned, outcome.answer_count()), (100, 100), "{outcome}");
    assert!(
        outcome.all_methods().intended.max() > 2 * outcome.all_methods().written.min(),
        "{outcome}"
    );
}

#[test]
fn a_connection_closed_after_each_answer_is_reopened_with_tls() {
    let ca = Authority::new();
    let close = |_| Answer { close: true, ..Answer::value(b"x") };
    let server = Server::start_tls(config(ca.pair("127.0.0.1", 2100), None), close);
    run(&plan(&server, tls(ca.trust())));
    assert!(server.connections() >= 300);
}

#[test]
fn a_client_sends_its_certificate_on_request() {
    let (ca, clients) = (Authority::new(), Authority::new());
    let server = Server::start_tls(config(ca.pair("127.0.0.1", 2100), Some(&clients)), |_| {
        Answer::value(b"told")
    });
    let shown = Files { client: Some(clients.pair("client", 2100).files), ..ca.trust() };
    run(&plan(&server, tls(shown.clone())));
    let endpoint = Endpoint { tls: Some(tls(shown)), ..server.address().into() };
    assert_eq!(fetch(&endpoint, "/metrics", Duration::from_secs(10)).unwrap(), "told");
}

#[test]
fn tls_errors_explain_the_correction() {
    let (ca, other) = (Authority::new(), Authority::new());
    let good = |clients| config(ca.pair("127.0.0.1", 2100), clients);
    let wrong_client = Files { client: Some(other.pair("client", 2100).files), ..ca.trust() };
    let untrusted = Files { ca: Some(other.file()), client: None };
    let named = format!("no CA of --ca-file {} made", other.file().display());
    let refused = format!("refuses --client-cert {}", other.dir.path().join("cert.pem").display());
    for (config, files, says) in [
        (good(None), untrusted, &*named),
        (config(ca.pair("127.0.0.1", 2001), None), ca.trust(), "certificate has expired: replace"),
        (config(ca.pair("kv.example", 2100), None), ca.trust(), "not for 127.0.0.1 but for"),
        (good(Some(&ca)), ca.trust(), "say --client-cert FILE and --client-key FILE"),
        (good(Some(&ca)), wrong_client, &*refused),
    ] {
        let begun = Instant::now();
        let server = Server::start_tls(config, |_| Answer::value(b"x"));
        let error = load::run(&plan(&server, tls(files.clone()))).unwrap_err().to_string();
        assert!(error.contains(says) && error.ends_with("no request was answered"), "{error}");
        assert!(server.requests().is_empty());
        let endpoint = Endpoint { tls: Some(tls(files)), ..server.address().into() };
        let error = fetch(&endpoint, "/x", Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("https://127.0.0.1:"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "it is said at once");
    }
    // To a plain-text server, the handshake is an invalid request, which the server rejects.
    let server = Server::start(|_| Answer::verbatim(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let error = load::run(&plan(&server, tls(ca.trust()))).unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
}

#[test]
fn unusable_tls_files_are_named() {
    let ca = Authority::new();
    let (cert, key) = ca.pair("client", 2100).files;
    let missing = ca.dir.path().join("missing.pem");
    let of = |client| Files { client: Some(client), ..ca.trust() };
    for (files, says) in [
        (Files { ca: Some(missing.clone()), client: None }, "--ca-file"),
        (Files { ca: Some(key.clone()), client: None }, "no certificate in PEM"),
        (of((missing, key.clone())), "--client-cert"),
        (of((cert.clone(), cert.clone())), "no private key in PEM"),
        (of((ca.file(), key)), "it does not fit --client-cert"),
    ] {
        let error = Trust::load(files).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
