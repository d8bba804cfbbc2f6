//! TLS on the node's port, with certificates from `kvorum cert`: admission of clients, messages to
//! refused clients, and replacement of the files.

mod between;
mod files;
mod handshakes;
mod issued;
mod mixed;
mod nodes;
mod restore;
mod story;
mod unfinished;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{fs, thread};

use kit::raw::Client;
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tempfile::TempDir;

use crate::process::{Node, kvorum, pause_between_requests, run, wait_until};
use crate::tokens::{routes, scope};

/// A directory with a CA and the certificates that it issued.
pub(crate) struct Certs(TempDir);

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

impl Certs {
    pub(crate) fn new() -> Self {
        let certs = Self(tempfile::tempdir().unwrap());
        certs.make(&["ca"]);
        certs.make(&["node", "--host", "127.0.0.1,localhost"]);
        certs
    }

    /// Runs `kvorum cert` with `args` in the directory; it must succeed.
    pub(crate) fn make(&self, args: &[&str]) {
        let dir = self.0.path().to_str().unwrap();
        let output = run(&[&["cert"], args, &["--dir", dir]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn serve(&self) -> Vec<String> {
        let flags = [("--tls-cert", "node.pem"), ("--tls-key", "node.key")];
        flags.iter().flat_map(|(flag, file)| [(*flag).to_owned(), self.text(file)]).collect()
    }

    pub(crate) fn node(&self, args: &[&str]) -> Node {
        let own = self.serve();
        let all: Vec<&str> = own.iter().map(String::as_str).chain(args.iter().copied()).collect();
        Node::start(&all)
    }

    /// Begins a client configuration that trusts the CA.
    fn client_config_builder(&self) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        builder.with_webpki_verifier(verifier.build().unwrap())
    }

    /// Returns a client configuration that trusts the CA, and shows the certificates in `chain`.
    fn client_with(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Arc<ClientConfig> {
        Arc::new(self.client_config_builder().with_client_auth_cert(chain, key).unwrap())
    }

    /// Returns a client configuration that trusts the CA, shows the certificate `shows` if given,
    /// and offers the protocols `alpn`.
    pub(crate) fn client(&self, shows: Option<&str>, alpn: &[&str]) -> Arc<ClientConfig> {
        let mut config = match shows {
            None => self.client_config_builder().with_no_client_auth(),
            Some(name) => {
                let cert =
                    CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                self.client_config_builder().with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// Returns the value of a metric without labels.
fn metric(client: &mut Client, name: &str) -> u64 {
    let text = String::from_utf8(client.get("/metrics").body()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    line.parse().unwrap()
}

#[test]
fn requests_are_answered_by_tls_and_what_comes_in_clear_is_told_how() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    let value: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
    assert_eq!(client.put("/v0/entity?id=long", &value).status, 201);
    assert_eq!(client.put("/v0/entity?id=short", b"v").status, 201);
    assert_eq!(client.get("/v0/entity?id=long").body(), value);
    assert_eq!(client.get("/v0/entities?start=a").chunks.len(), 2);
    assert_eq!(metric(&mut client, "kvorum_tls_handshakes_total"), 1);

    for request in ["GET /v0/entity?id=short", "PUT /v0/entity?id=short", "GET /healthz"] {
        let mut plain = Client::connect(node.address);
        plain.send(format!("{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"));
        let refused = plain.response();
        assert_eq!(refused.status, 400, "{request}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("https://"), "{request}");
    }
    assert_eq!(client.get("/v0/entity?id=short").body(), b"v", "nothing was done in clear");
}

#[test]
fn a_client_without_tls_1_3_is_refused_with_an_alert() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    // A ClientHello of TLS 1.2, without extensions (RFC 5246, 7.4.1.2).
    let mut hello = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(crate::process::TIMEOUT)).unwrap();
    stream.write_all(&hello).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.first(), Some(&21), "an alert, and nothing else: {answer:?}");
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    wait_until("the count of the refusal", || {
        metric(&mut client, "kvorum_tls_handshakes_failed_total") == 1
    });
    // A TLS client on a plaintext port is refused too.
    let plain = Node::start(&[]);
    assert!(Client::connect_tls(plain.address, &certs.client(None, &[])).is_err());
    assert_eq!(plain.client().get("/healthz").status, 200);
}

#[test]
fn clients_show_a_certificate_where_one_is_asked_for() {
    let certs = Certs::new();
    certs.make(&["client"]);
    let strangers = Certs::new();
    strangers.make(&["client"]);
    fs::copy(strangers.path("client.pem"), certs.path("stranger.pem")).unwrap();
    fs::copy(strangers.path("client.key"), certs.path("stranger.key")).unwrap();
    let ca = certs.text("ca.pem");
    let node = certs.node(&["--tls-client-ca", &ca]);
    let ask = |shows, alpn: &[&str], target: &str| {
        let mut client = Client::connect_tls(node.address, &certs.client(shows, alpn))?;
        client.try_get(target).map(|answer| answer.status)
    };
    assert_eq!(ask(Some("client"), &["http/1.1"], "/v0/entities?start=a").unwrap(), 200);
    for shows in [None, Some("stranger"), Some("node")] {
        assert!(ask(shows, &["http/1.1"], "/healthz").is_err(), "{shows:?}");
        assert!(ask(shows, &[], "/healthz").is_err(), "{shows:?}");
    }
    // A connection with the nodes' ALPN needs no certificate, but serves only requests that need no
    // authentication of clients, and the upgrade to the peer protocol.
    for target in
        ["/v0/entity?id=k", "/v0/entities?start=a", "/v0/status", "/metrics", "/admin/layout"]
    {
        assert_eq!(ask(None, &["kvorum-peer"], target).unwrap(), 403, "{target}");
    }
    let mut peer =
        Client::connect_tls(node.address, &certs.client(None, &["kvorum-peer"])).unwrap();
    peer.send(crate::peers::UPGRADE);
    assert_eq!(peer.read_head().unwrap().status, 101);

    let url = format!("https://{}", node.address);
    let get = |more: &[&str]| run(&[&["scan", "--url", &url, "--ca-file", &ca], more].concat());
    let (cert, key) = (certs.text("client.pem"), certs.text("client.key"));
    assert!(get(&["--client-cert", &cert, "--client-key", &key]).status.success());
    let refused = String::from_utf8(get(&[]).stderr).unwrap();
    assert!(refused.contains("--client-cert"), "{refused}");
    // The node has not read the request, so the outcome of the write is known.
    for words in [&["put", "k", "v"][..], &["put", "k", "v", "--json"], &["compact"]] {
        let refused = run(&[words, &["--url", &url, "--ca-file", &ca]].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("--client-cert") && !said.contains("unknown"), "{said}");
    }
}

/// Tests docs/design/security.md, *Not protected*: which requests a connection with the nodes' ALPN
/// serves without a certificate. A token must not permit more.
#[test]
fn a_client_with_the_node_alpn_and_no_certificate_reaches_public_routes_only() {
    let certs = Certs::new();
    nodes::write(&certs.path("secret"), "a secret of this test");
    nodes::write(&certs.path("token"), "an admin token of this test");
    let [ca, secret, token] = ["ca.pem", "secret", "token"].map(|name| certs.text(name));
    let asks = ["--tls-client-ca", &ca, "--cluster-secret-file", &secret];
    let node = certs.node(&[&asks[..], &["--admin-token-file", &token]].concat());
    let config = certs.client(None, &["kvorum-peer"]);
    let ask = |method: &str, target: &str| {
        let mut client = Client::connect_tls(node.address, &config).unwrap();
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer an admin token \
             of this test\r\nContent-Length: 0\r\n\r\n"
        ));
        client.response().status
    };
    for target in ["/healthz", "/readyz", "/ui"] {
        assert_eq!(ask("GET", target), 200, "{target}");
    }
    let mut asked = 0;
    // HEAD is omitted: the answer has the length of a body that does not follow, for which this
    // client would wait.
    for (method, path) in routes().into_iter().filter(|(method, _)| method != "HEAD") {
        if scope(&path).0 != "public" {
            asked += 1;
            assert_eq!(ask(&method, &path), 403, "{method} {path}");
        }
    }
    assert!(asked > 20, "{asked}");
}

#[test]
fn certificates_are_replaced_under_load_and_bad_ones_are_not_used() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let config = certs.client(None, &[]);
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut client = Client::connect_tls(node.address, &config).unwrap();
    let expiry = "kvorum_tls_certificate_expiry_timestamp_seconds";
    let reloads = "kvorum_tls_reloads_total";
    let first = metric(&mut client, expiry);
    thread::scope(|scope| {
        // One client keeps its connection, and another one opens a new connection for each request.
        scope.spawn(|| {
            let mut kept = Client::connect_tls(node.address, &config).unwrap();
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(kept.put("/v0/entity?id=k", b"v").status, 201);
                pause_between_requests();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut new = Client::connect_tls(node.address, &config).unwrap();
                assert_eq!(new.get("/healthz").status, 200);
                asked.fetch_add(1, Ordering::Relaxed);
                pause_between_requests();
            }
        });
        let good = fs::read(certs.path("node.pem")).unwrap();
        for bad in [&b"no certificate"[..], b"", &good[..good.len() / 2]] {
            fs::write(certs.path("node.pem"), bad).unwrap();
            wait_until("a bad file is seen", || {
                metric(&mut client, "kvorum_tls_reload_failed") == 1
            });
            let before = asked.load(Ordering::Relaxed);
            wait_until("new connections", || asked.load(Ordering::Relaxed) > before + 3);
            fs::write(certs.path("node.pem"), &good).unwrap();
            wait_until("it is mended", || metric(&mut client, "kvorum_tls_reload_failed") == 0);
        }
        let before = metric(&mut client, reloads);
        certs.make(&["node", "--host", "127.0.0.1", "--expires", "90d"]);
        wait_until("the new one is used", || metric(&mut client, reloads) > before);
        let before = asked.load(Ordering::Relaxed);
        wait_until("new connections", || asked.load(Ordering::Relaxed) > before + 3);
        stop.store(true, Ordering::Relaxed);
    });
    let second = metric(&mut client, expiry);
    assert!(second < first, "it is good for 90 days instead of 365: {second} {first}");
    let mut new = Client::connect_tls(node.address, &config).unwrap();
    let shown = new.tls().peer_certificates().unwrap()[0].clone();
    assert_eq!(shown, CertificateDer::from_pem_file(certs.path("node.pem")).unwrap());
}

#[test]
fn commands_say_what_is_wrong_with_a_certificate() {
    let certs = Certs::new();
    let other = Certs::new();
    let node = certs.node(&[]);
    let said = |url: &str, ca: &str| {
        let output = run(&["get", "k", "--url", url, "--ca-file", ca]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let (port, ca) = (node.address.port(), certs.text("ca.pem"));
    let unknown = said(&format!("https://127.0.0.1:{port}"), &other.text("ca.pem"));
    assert!(unknown.contains("CA that is not in --ca-file"), "{unknown}");
    let elsewhere = Certs::new();
    for file in ["node.pem", "node.key"] {
        fs::remove_file(elsewhere.path(file)).unwrap();
    }
    elsewhere.make(&["node", "--host", "127.0.0.2,db.example"]);
    let other_name = elsewhere.node(&[]);
    let name = said(&format!("https://{}", other_name.address), &elsewhere.text("ca.pem"));
    assert!(name.contains("not for 127.0.0.1"), "{name}");
    let none = said(&format!("https://127.0.0.1:{port}"), "/nowhere/ca.pem");
    assert!(none.contains("--ca-file /nowhere/ca.pem"), "{none}");
    let clear = said(&format!("http://127.0.0.1:{port}"), &ca);
    assert!(clear.contains("use https://"), "{clear}");
    let plain = Node::start(&[]);
    let tls = said(&format!("https://{}", plain.address), &ca);
    assert!(tls.contains("does not speak TLS"), "{tls}");
    assert!(run(&["cert", "ca", "--dir", &certs.text("")]).stderr.ends_with(b"another --dir\n"));
}

#[test]
fn settings_of_tls_must_fit_and_check_says_what_is_open() {
    let certs = Certs::new();
    let [cert, key, ca] = ["node.pem", "node.key", "ca.pem"].map(|name| certs.text(name));
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let start = |args: &[&str]| {
        let output = run(&[&["serve", "--data", data, "--check"], args].concat());
        assert!(matches!(output.status.code(), Some(0 | 2)), "{args:?}: {:?}", output.status);
        let said = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    for (args, named) in [
        (&["--tls-cert", &cert][..], "--tls-key"),
        (&["--tls-key", &key], "--tls-cert"),
        (&["--tls-client-ca", &ca], "--tls-cert"),
        (&["--tls-cert", &cert, "--tls-key", "/nowhere"], "--tls-key /nowhere"),
        (&["--tls-cert", &key, "--tls-key", &key], "no certificate in PEM"),
        (&["--tls-cert", &ca, "--tls-key", &key], "does not fit"),
        (&["--listen", "0.0.0.0:0"], "--insecure"),
    ] {
        let (started, said) = start(args);
        assert!(!started && said.contains(named) && said.lines().count() == 1, "{args:?} {said}");
    }
    let (_, said) = start(&[]);
    assert!(said.contains("anybody on this machine"), "{said}");
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--listen", "0.0.0.0:0"];
    let (_, said) = start(&tls);
    assert!(said.contains("from elsewhere, who has a token"), "{said}");
    let (_, said) = start(&[&tls[..], &["--tls-client-ca", &ca, "--require-auth"]].concat());
    assert!(said.contains("must show a certificate") && !said.contains("anybody on"), "{said}");
    let (_, said) = start(&["--listen", "0.0.0.0:0", "--insecure"]);
    assert!(said.contains("ANYBODY") && said.contains("INSECURE"), "{said}");
    let loud = Node::start_at("0.0.0.0:0", kvorum(), tempfile::tempdir().unwrap(), &["--insecure"]);
    loud.signal(rustix::process::Signal::TERM);
    assert!(loud.wait().1.contains("INSECURE"));
}
