//! Errors in certificates and keys. Each is reported with the file's name and the remedy: at the
//! start, by `--check`, and after files change while the node runs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, SystemTime};

use kit::raw::Client;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Certs, metric};
use crate::process::{Node, run, wait_until};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the parameters of a certificate for these hosts, valid between two times, both in
/// seconds from now.
fn params(name: &str, hosts: &[&str], from: i64, until: i64) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    let at = |seconds: i64| epoch + Duration::from_secs((now + seconds) as u64);
    params.not_before = at(from);
    params.not_after = at(until);
    params
}

const fn days(days: i64) -> i64 {
    days * DAY.as_secs() as i64
}

/// Returns the parameters of a certificate that is valid for 127.0.0.1.
fn good() -> CertificateParams {
    params("good", &["127.0.0.1", "localhost"], days(-1), days(30))
}

/// Issues a certificate from the CA; returns the certificate and its key in PEM.
fn issue(certs: &Certs, params: &CertificateParams) -> (String, String) {
    let key = KeyPair::from_pem(&fs::read_to_string(certs.path("ca.key")).unwrap()).unwrap();
    let ca = fs::read_to_string(certs.path("ca.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&ca, key).unwrap();
    let pair = KeyPair::generate().unwrap();
    (params.signed_by(&pair, &issuer).unwrap().pem(), pair.serialize_pem())
}

/// Replaces a node's certificate and key files, the key first.
fn place(certs: &Certs, (cert, key): &(String, String)) {
    for (name, text) in [("node.key", key), ("node.pem", cert)] {
        fs::write(certs.path("new"), text).unwrap();
        fs::rename(certs.path("new"), certs.path(name)).unwrap();
    }
}

fn ca(name: &str, from: i64, until: i64) -> CertificateParams {
    let mut ca = params(name, &[], from, until);
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca
}

/// Returns pairs of certificate and key that a node does not accept, each with a part of the error
/// message.
fn bad(certs: &Certs) -> Vec<((String, String), &'static str)> {
    let made = |params: &CertificateParams| issue(certs, params);
    let here = &["127.0.0.1"][..];
    let mut client = good();
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let (own, key) = made(&good());
    let behind = |params: CertificateParams| (format!("{own}{}", made(&params).0), key.clone());
    let (from, until) = (days(-9), days(-1));
    // Makes an intermediate certificate, and a certificate that it signs. If given, `shown`
    // replaces the intermediate certificate in the file.
    let below = |sub: CertificateParams, shown: Option<CertificateParams>| {
        let pair = KeyPair::generate().unwrap();
        let signed = |params: &CertificateParams, pair: &KeyPair| {
            let ca_key = fs::read_to_string(certs.path("ca.key")).unwrap();
            let ca = fs::read_to_string(certs.path("ca.pem")).unwrap();
            let issuer = Issuer::from_ca_cert_pem(&ca, KeyPair::from_pem(&ca_key).unwrap());
            params.signed_by(pair, &issuer.unwrap()).unwrap().pem()
        };
        let other = KeyPair::generate().unwrap();
        let shown = match &shown {
            Some(shown) => signed(shown, &other),
            None => signed(&sub, &pair),
        };
        let own = KeyPair::generate().unwrap();
        let issuer = Issuer::new(sub, pair);
        let cert = good().signed_by(&own, &issuer).unwrap().pem();
        (format!("{cert}{shown}"), own.serialize_pem())
    };
    let sub = || ca("Sub CA", days(-1), days(9));
    let no_ca = || params("Sub CA", &[], days(-1), days(9));
    let mut for_clients = sub();
    for_clients.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let mut for_signing = sub();
    for_signing.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    vec![
        (below(sub(), Some(sub())), "(CN=Sub CA) names itself the issuer of the certificate, and"),
        (below(sub(), Some(no_ca())), "(CN=Sub CA) is no CA's (no CA:TRUE), so what it has signed"),
        (below(for_clients, None), "(CN=Sub CA) is for other purposes (its extendedKeyUsage)"),
        (below(for_signing, None), "must not sign certificates (its keyUsage has no keyCertSign)"),
        (made(&params("over", here, from, until)), "the certificate (CN=over) expired on"),
        (made(&params("early", here, days(1), days(2))), "(CN=early) is not valid before"),
        (behind(ca("Old CA", from, until)), "certificate 2 of the file (CN=Old CA) expired on"),
        (behind(ca("New CA", days(1), days(2))), "(CN=New CA) is not valid before"),
        (made(&params("bare", &[], days(-1), days(9))), "(CN=bare) names no host"),
        (made(&client), "is not for servers"),
        (
            (format!("{}{own}", fs::read_to_string(certs.path("ca.pem")).unwrap()), key.clone()),
            "certificate 2 of the file (CN=good) does: put that one first",
        ),
        (
            (own.clone(), key.replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE")),
            "openssl pkey -in",
        ),
    ]
}

/// A node checks its files only once a second, so several nodes test the bad files in parallel.
#[test]
fn a_running_node_takes_up_nothing_that_no_client_accepts() {
    const NODES: usize = 4;
    thread::scope(|scope| {
        for first in 0..NODES {
            scope.spawn(move || takes_up_none_of(first, NODES));
        }
    });
}

/// Gives a running node each `step`-th bad pair of files, beginning with number `first`; asserts
/// that the node uses none of them.
fn takes_up_none_of(first: usize, step: usize) {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let config = certs.client(None, &[]);
    let mut client = Client::connect_tls(node.address, &config).unwrap();
    let failed = "kvorum_tls_reload_failed";
    let mut said = Vec::new();
    let elsewhere = issue(&certs, &params("far", &["far.example"], days(-1), days(9)));
    let other = (elsewhere, "the certificate is not for 127.0.0.1, where this node is reached");
    for (files, words) in bad(&certs).into_iter().chain([other]).skip(first).step_by(step) {
        place(&certs, &files);
        wait_until(words, || metric(&mut client, failed) == 1);
        let mut new =
            Client::connect_tls(node.address, &config).expect("the last good pair is used");
        assert_eq!(new.get("/healthz").status, 200, "{words}");
        said.push(words);
        place(&certs, &issue(&certs, &good()));
        wait_until("it is mended", || metric(&mut client, failed) == 0);
    }
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    for words in said {
        assert!(log.contains(words), "{words:?} is not in {log}");
    }
}

#[test]
fn a_client_ca_that_is_out_of_date_or_none_is_refused() {
    let certs = Certs::new();
    let cas = |params: &CertificateParams| issue(&certs, params).0;
    let file = certs.path("clients.pem");
    let good_ca = cas(&ca("Clients", days(-1), days(9)));
    fs::write(&file, &good_ca).unwrap();
    let bad = [
        (cas(&ca("Old", days(-9), days(-1))), "certificate 1 of the file (CN=Old) expired on"),
        (cas(&ca("New", days(1), days(2))), "(CN=New) is not valid before"),
        (cas(&params("none", &[], days(-1), days(9))), "(CN=none) is no CA's (no CA:TRUE)"),
    ];
    for (text, words) in &bad {
        fs::write(&file, text).unwrap();
        let (is_content, said) = check(&certs, &["--tls-client-ca", file.to_str().unwrap()]);
        assert!(!is_content && said.contains(words), "{words}: {said}");
    }
    // One valid CA in the file is enough.
    fs::write(&file, format!("{}{good_ca}", bad[0].0)).unwrap();
    let (is_content, said) = check(&certs, &["--tls-client-ca", file.to_str().unwrap()]);
    assert!(is_content, "{said}");
}

#[test]
fn a_certificate_is_taken_up_once_it_is_valid() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    let before = metric(&mut client, "kvorum_tls_reloads_total");
    place(&certs, &issue(&certs, &params("soon", &["127.0.0.1"], 8, days(9))));
    wait_until("it is refused", || metric(&mut client, "kvorum_tls_reload_failed") == 1);
    wait_until("it is used", || metric(&mut client, "kvorum_tls_reloads_total") > before);
    assert_eq!(metric(&mut client, "kvorum_tls_reload_failed"), 0);
}

/// Runs `serve --check` with the present files; returns true if the check passes, and its output.
fn check(certs: &Certs, more: &[&str]) -> (bool, String) {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("data");
    let serve = ["serve", "--check", "--data", data.to_str().unwrap()].map(str::to_owned);
    let args = [&serve[..], &certs.serve()[..]].concat();
    let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let output = run(&args);
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn check_refuses_what_clients_refuse_and_warns_of_what_they_may() {
    let certs = Certs::new();
    for (files, words) in bad(&certs) {
        place(&certs, &files);
        let (content, said) = check(&certs, &[]);
        assert!(!content && said.contains(words) && said.lines().count() == 1, "{words}: {said}");
        assert!(said.contains("--tls-"), "the file's flag: {said}");
    }
    place(&certs, &issue(&certs, &good()));
    assert!(!check(&certs, &[]).1.contains("(CN=good)"), "nothing to warn of");
    let (content, said) = check(&certs, &["--advertise", "https://db.example:8080"]);
    assert!(content && said.contains("(CN=good) is not for db.example"), "{said}");
    let (own, key) = issue(&certs, &good());
    let (another, _) = issue(&certs, &params("another", &["127.0.0.1"], days(-1), days(30)));
    place(&certs, &(own + &another, key));
    let (content, said) = check(&certs, &[]);
    assert!(content && said.contains("is not the issuer of any other"), "{said}");
    // A self-signed certificate that is also a CA, such as `openssl req -x509` makes.
    let mut own = good();
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = KeyPair::generate().unwrap();
    let own = (own.self_signed(&pair).unwrap().pem(), pair.serialize_pem());
    place(&certs, &own);
    let (content, said) = check(&certs, &[]);
    assert!(content && said.contains("is a CA's (CA:TRUE)"), "{said}");
    let (cert, key) = (certs.text("node.pem"), certs.text("node.key"));
    let shown = ["--client-cert", &cert, "--client-key", &key];
    let node = Certs::new().node(&[]);
    let url = format!("https://{}", node.address);
    let refused = run(&[&["get", "k", "--url", &url, "--ca-file", &cert], &shown[..]].concat());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("which nodes do not accept of a client"), "{said}");
}

/// Nobody writes into the pipe. A node that waited for it could neither load other files any more,
/// nor stop.
#[test]
fn a_pipe_in_place_of_a_file_is_not_waited_for() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    let mut failed = || metric(&mut client, "kvorum_tls_reload_failed");
    fs::remove_file(certs.path("node.pem")).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, certs.path("node.pem"), FileType::Fifo, mode, 0).unwrap();
    wait_until("the pipe is looked at", || failed() == 1);
    assert!(!check(&certs, &[]).0, "a pipe that brings nothing is no certificate");
    fs::remove_file(certs.path("node.pem")).unwrap();
    place(&certs, &issue(&certs, &good()));
    wait_until("the next file is taken up", || failed() == 0);
    node.stop();
}

/// The log must report each error of the files in turn, because each needs another remedy.
#[test]
fn each_error_of_files_that_can_not_be_loaded_is_logged_once() {
    let certs = Certs::new();
    let mut node = certs.node(&[]);
    let mut lines = BufReader::new(node.take_stderr()).lines().map(Result::unwrap);
    let mut errors = || lines.find(|line| line.contains("the new TLS certificate")).unwrap();
    fs::remove_file(certs.path("node.pem")).unwrap();
    let said = errors();
    assert!(said.contains("node.pem") && said.contains("No such file"), "{said}");
    fs::create_dir(certs.path("node.pem")).unwrap();
    let said = errors();
    assert!(said.contains("node.pem") && said.contains("Is a directory"), "{said}");
}

#[test]
fn a_certificate_is_issued_for_what_clients_can_ask_for() {
    let certs = Certs::new();
    let dir = certs.path("").to_string_lossy().into_owned();
    let out = certs.path("issued.pem").to_string_lossy().into_owned();
    let issued = |host| run(&["cert", "node", "--dir", &dir, "--out", &out, "--host", host]);
    for host in ["http://x", "a.example:8080", "[::1]", "bad host", "", "a,,b"] {
        let output = issued(host);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("without scheme"), "{host}: {said}");
    }
    let good = issued("*.example.com,::1,127.0.0.1,a.example");
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
}

/// The node must start, because other nodes need its replicas, and they do not verify its
/// certificate.
#[test]
fn a_node_starts_with_an_expired_certificate_and_says_so() {
    let certs = Certs::new();
    place(&certs, &issue(&certs, &params("over", &["127.0.0.1"], days(-9), days(-1))));
    let node = certs.node(&[]);
    let refused = Client::connect_tls(node.address, &certs.client(None, &[]));
    assert!(refused.is_err(), "clients refuse it");
    let mut plain = Client::connect(node.address);
    assert_eq!(plain.get("/healthz").status, 400, "it serves, by TLS");
    // The node loads a valid file without a restart.
    place(&certs, &issue(&certs, &good()));
    let config = certs.client(None, &[]);
    wait_until("it is mended", || Client::connect_tls(node.address, &config).is_ok());
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    assert!(log.contains("clients refuse this node until this is mended"), "{log}");
    assert!(log.contains("(CN=over) expired on"), "{log}");
}

#[test]
fn that_a_certificate_expires_soon_does_not_hide_that_it_has_expired() {
    let certs = Certs::new();
    place(&certs, &issue(&certs, &params("brief", &["127.0.0.1"], days(-1), 8)));
    let mut node = certs.node(&[]);
    let log = BufReader::new(node.take_stderr());
    let mut lines = log.lines().map(Result::unwrap);
    let soon = lines.find(|line| line.contains("(CN=brief) expires soon"));
    assert!(soon.is_some());
    let over = lines.find(|line| line.contains("(CN=brief) has expired"));
    assert!(over.is_some_and(|line| line.contains("ERROR")));
}

#[test]
fn the_first_of_a_files_certificates_to_expire_is_the_one_that_is_told() {
    let certs = Certs::new();
    let (own, key) = issue(&certs, &params("long", &["127.0.0.1"], days(-1), days(300)));
    // With the extra hour, ten whole days remain, however long the test takes.
    let (other, _) = issue(&certs, &ca("Brief CA", days(-1), days(10) + 3600));
    place(&certs, &(format!("{own}{other}"), key));
    let node: Node = certs.node(&[]);
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    let told = metric(&mut client, "kvorum_tls_certificate_expiry_timestamp_seconds");
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(told > now && told < now + 11 * DAY.as_secs(), "{told}");
    assert!(check(&certs, &[]).1.contains("good for 10 days"), "{}", check(&certs, &[]).1);
}
