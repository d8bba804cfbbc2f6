//! TLS messages that never become complete: a node limits the bytes that it buffers for them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use kit::raw::Client;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite,
};

use super::{Certs, metric};
use crate::process::{Node, TIMEOUT, kvorum, wait_until};

/// Announced length of such a message in bytes, less than the length that rustls itself refuses.
const CLAIMED: usize = 60_000;

/// Length in bytes of the part of the message in one record.
const PIECE: usize = 4096;

/// Timeout of the test, less than the 12 s after which a node disconnects a client without
/// progress.
const SOON: Duration = Duration::from_secs(11);

/// Returns a message of type `kind` in pieces, without its end.
fn pieces(kind: u8) -> Vec<Vec<u8>> {
    let [_, high, middle, low] = (CLAIMED as u32).to_be_bytes();
    let message = [&[kind, high, middle, low][..], &[3; CLAIMED - PIECE]].concat();
    message.chunks(PIECE).map(<[u8]>::to_vec).collect()
}

/// Returns the pieces as plaintext TLS records.
fn records(kind: u8) -> Vec<Vec<u8>> {
    let record = |piece: Vec<u8>| {
        let [high, low] = (piece.len() as u16).to_be_bytes();
        [&[22, 3, 1, high, low][..], &piece].concat()
    };
    pieces(kind).into_iter().map(record).collect()
}

/// Sends records; returns true if the peer then closes or resets the connection.
fn is_ended(stream: &mut TcpStream, records: &[Vec<u8>]) -> bool {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The node may close the connection before it has received all records.
    let sent = records.iter().try_for_each(|record| stream.write_all(record));
    let read = sent.and_then(|()| io::copy(stream, &mut io::sink()));
    let ends = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    read.map_or_else(|error| ends.contains(&error.kind()), |_| true)
}

#[test]
fn a_client_that_never_ends_its_hello_is_not_listened_to_for_ever() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let mut stream = TcpStream::connect(node.address).unwrap();
    let begun = Instant::now();
    assert!(is_ended(&mut stream, &records(1)));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    wait_until("the count of the failure", || {
        metric(&mut client, "kvorum_tls_handshakes_failed_total") == 1
    });
}

#[test]
fn an_endless_message_after_the_handshake_closes_the_connection() {
    let certs = Certs::new();
    let node = certs.node(&[]);
    let mut config = (*certs.client(None, &["http/1.1"])).clone();
    config.enable_secret_extraction = true;
    let mut stream = TcpStream::connect(node.address).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    while tls.is_handshaking() || tls.wants_write() {
        tls.complete_io(&mut stream).unwrap();
    }
    let Some(SupportedCipherSuite::Tls13(suite)) = tls.negotiated_cipher_suite() else {
        panic!("TLS 1.3 has such a suite")
    };
    let (first, secrets) = tls.dangerous_extract_secrets().unwrap().tx;
    let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
    | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
    else {
        panic!("these are all")
    };
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    let records: Vec<Vec<u8>> = (first..)
        .zip(pieces(24))
        .map(|(number, piece)| {
            let message = OutboundPlainMessage {
                typ: ContentType::Handshake,
                version: ProtocolVersion::TLSv1_2,
                payload: OutboundChunks::Single(&piece),
            };
            encrypter.encrypt(message, number).unwrap().encode()
        })
        .collect();
    let begun = Instant::now();
    assert!(is_ended(&mut stream, &records));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_long_chain_of_certificates_is_let_in() {
    let certs = Certs::new();
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        // The extension makes the certificate as long as one with an RSA key and signature.
        let long = CustomExtension::from_oid_content(&[2, 999, 1], vec![7; 1200]);
        params.custom_extensions.push(long);
        params
    };
    let authority = |name: &str| {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    };
    let key = KeyPair::generate().unwrap();
    let root = authority("root").self_signed(&key).unwrap();
    fs::write(certs.path("root.pem"), root.pem()).unwrap();
    let mut issuer = Issuer::new(authority("root"), key);
    let mut chain = Vec::new();
    for name in ["one", "two", "three", "four"] {
        let key = KeyPair::generate().unwrap();
        chain.insert(0, authority(name).signed_by(&key, &issuer).unwrap().der().clone());
        issuer = Issuer::new(authority(name), key);
    }
    let mut own = params("client");
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    chain.insert(0, own.signed_by(&key, &issuer).unwrap().der().clone());
    assert!(chain.iter().map(|cert| cert.len()).sum::<usize>() > 7000);

    let node = certs.node(&["--tls-client-ca", &certs.text("root.pem")]);
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = certs.client_with(chain, key);
    let mut client = Client::connect_tls(node.address, &config).unwrap();
    assert_eq!(client.put("/v0/entity?id=long", &[7; 1_000_000]).status, 201);
    assert_eq!(client.get("/v0/entity?id=long").body().len(), 1_000_000);
}

/// Accepts TLS connections from nodes, and answers each with a message that never ends.
fn endless(listener: TcpListener) {
    thread::spawn(move || {
        for came in listener.incoming() {
            let Ok(mut came) = came else { continue };
            thread::spawn(move || {
                let mut hello = [0; 16];
                came.read_exact(&mut hello).is_ok() && is_ended(&mut came, &records(2))
            });
        }
    });
}

#[test]
fn a_node_does_not_listen_for_ever_to_one_that_it_connects_to() {
    let certs = Certs::new();
    fs::write(certs.path("secret"), "a secret of this test").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = listener.local_addr().unwrap();
    endless(listener);
    let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (list, secret) = (format!("a=https://{own},b=https://{theirs}"), certs.text("secret"));
    let mut args = certs.serve();
    args.extend(["--cluster", &list, "--cluster-secret-file", &secret].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let data = tempfile::tempdir().unwrap();
    let mut node = Node::start_at(&own.to_string(), kvorum(), data, &args);
    let mut log = BufReader::new(node.take_stderr());
    let mut said = String::new();
    wait_until("it says why it can't reach the other one", || {
        assert_ne!(log.read_line(&mut said).unwrap(), 0, "{said}");
        said.contains("cannot reach a peer")
    });
    assert!(said.contains("bytes of TLS came with no data"), "{said}");
}
