//! Handshakes that never complete, and certificates that must not be accepted.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::raw::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ClientConfig;

use super::{Certs, metric};
use crate::process::{pause_between_requests, run, wait_until};

/// Number of handshakes that the test starts, if the limit on this process's descriptors permits
/// them.
const BEGUN: usize = 10_000;

/// Number of descriptors reserved for the other tests of this process.
const OTHERS: u64 = 2000;

/// Timeout of a request of a connected client meanwhile. On an idle machine a request takes
/// milliseconds; if a client had to wait until the node aborts a handshake, it would take longer
/// than this timeout.
const SOON: Duration = Duration::from_secs(11);

fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let most = limit.maximum.unwrap_or(u64::MAX).saturating_sub(OTHERS);
    BEGUN.min(usize::try_from(most).unwrap())
}

#[test]
fn unfinished_handshakes_block_no_other_client() {
    let certs = Certs::new();
    let node = certs.node(&["--connections", "64"]);
    let config = certs.client(None, &[]);
    let before = node.resident();
    let ended = AtomicBool::new(false);
    let mut kept = Client::connect_tls(node.address, &config).unwrap();
    assert_eq!(kept.get("/v0/entity?id=k").status, 404);
    thread::scope(|scope| {
        // Starts far more handshakes than there are slots. A third of the clients is silent, a
        // third stops in the middle of a ClientHello, and a third in the middle of a ClientHello of
        // the maximum length.
        let strangers = scope.spawn(|| {
            let long = [&[22, 3, 1, 64, 0, 1, 0, 255, 250][..], &[3; 8000]].concat();
            let begun: Vec<TcpStream> = (0..raise_descriptor_limit())
                .map(|number| {
                    let mut stream = TcpStream::connect(node.address).unwrap();
                    // Sending may fail, because the node closes early connections in favor of later
                    // ones.
                    let _ = match number % 3 {
                        0 => Ok(()),
                        1 => stream.write_all(&[22, 3, 1, 2, 0, 1]),
                        _ => stream.write_all(&long),
                    };
                    stream
                })
                .collect();
            ended.store(true, Ordering::Relaxed);
            begun
        });
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let asked = Instant::now();
                assert_eq!(kept.get("/v0/entity?id=k").status, 404);
                assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
                pause_between_requests();
            }
        });
        let mut served = 0;
        while !ended.load(Ordering::Relaxed) || served < 20 {
            wait_until("a client is served", || {
                let mut client = Client::connect_tls(node.address, &config).ok();
                let asked = client.as_mut().map(|client| client.try_get("/v0/entity?id=k"));
                asked.is_some_and(|answer| answer.is_ok_and(|answer| answer.status == 404))
            });
            served += 1;
            pause_between_requests();
        }
        assert!(node.resident() < before + (32 << 20), "{} {before}", node.resident());
        drop(strangers.join().unwrap());
    });
    let mut client = Client::connect_tls(node.address, &config).unwrap();
    assert!(metric(&mut client, "kvorum_tls_handshakes_total") > 20);
}

#[test]
fn expired_and_self_signed_certificates_are_refused() {
    let certs = Certs::new();
    certs.make(&["node", "--host", "127.0.0.1", "--expires", "1s"]);
    let expired = certs.node(&[]);
    let ca = certs.text("ca.pem");
    let said = |at: &crate::process::Node| {
        let url = format!("https://{}", at.address);
        let output = run(&["get", "k", "--url", &url, "--ca-file", &ca]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    wait_until("it expires", || said(&expired).0 == Some(2));
    let (_, why) = said(&expired);
    assert!(why.contains("has expired") && why.contains("--tls-cert"), "{why}");

    // The certificate of a CA is not accepted as a node's certificate, even by a client that trusts
    // the CA.
    let of_itself = ["ca.pem", "ca.key"].map(|name| certs.text(name));
    let [cert, key] = of_itself.each_ref().map(String::as_str);
    let node = crate::process::Node::start(&["--tls-cert", cert, "--tls-key", key]);
    let (code, why) = said(&node);
    assert_eq!(code, Some(2), "{why}");
}

/// In a resumed TLS session the client shows no certificate. The node must refuse the session after
/// the certificate has expired.
#[test]
fn an_expired_certificate_of_a_client_is_refused_although_it_was_good() {
    let certs = Certs::new();
    let node = certs.node(&["--tls-client-ca", &certs.text("ca.pem")]);
    certs.make(&["client", "--expires", "6s"]);
    let ask = |config: &Arc<ClientConfig>| {
        Client::connect_tls(node.address, config)?.try_get("/healthz").map(|answer| answer.status)
    };
    let resumed = certs.client(Some("client"), &[]);
    assert_eq!(ask(&resumed).unwrap(), 200);
    wait_until("it expires", || ask(&certs.client(Some("client"), &[])).is_err());
    assert!(ask(&resumed).is_err(), "its session is good for longer than its certificate");
    certs.make(&["client"]);
    assert_eq!(ask(&certs.client(Some("client"), &[])).unwrap(), 200);
}
