//! An attacker between two nodes who can change every byte. Nodes do not verify certificates, but
//! their proofs are bound to the TLS connection, and so detect the attack.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme,
};

use super::{Certs, provider};
use crate::process::{Node, kvorum, wait_until};

const PEER: &[u8] = b"kvorum-peer";

/// A verifier that accepts any certificate, as nodes do.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The attacker's method: to terminate TLS on both sides, or only to forward bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Reads,
    PassesOn,
}

/// Intercepts connections to `listener`, and forwards each to `to`, until the process exits.
fn intercept(listener: TcpListener, to: SocketAddr, certs: &Certs, what: Between) {
    let cert = CertificateDer::from_pem_file(certs.path("node.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(certs.path("node.key")).unwrap();
    let server = ServerConfig::builder_with_provider(provider());
    let server = server.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut server = server.with_no_client_auth().with_single_cert(vec![cert], key).unwrap();
    server.alpn_protocols = vec![PEER.to_vec()];
    let client = ClientConfig::builder_with_provider(provider());
    let client = client.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let client = client.dangerous().with_custom_certificate_verifier(Arc::new(Any));
    let mut client = client.with_no_client_auth();
    client.alpn_protocols = vec![PEER.to_vec()];
    let (server, client) = (Arc::new(server), Arc::new(client));
    thread::spawn(move || {
        for came in listener.incoming() {
            let (Ok(came), Ok(went)) = (came, TcpStream::connect(to)) else { continue };
            let (server, client) = (Arc::clone(&server), Arc::clone(&client));
            thread::spawn(move || match what {
                Between::PassesOn => drop(copy_both(came, went)),
                Between::Reads => drop(read_both(came, went, server, client)),
            });
        }
    });
}

fn copy_both(mut came: TcpStream, mut went: TcpStream) -> io::Result<()> {
    let (mut back_from, mut back_to) = (went.try_clone()?, came.try_clone()?);
    thread::spawn(move || io::copy(&mut back_from, &mut back_to));
    io::copy(&mut came, &mut went).map(drop)
}

/// Forwards plaintext between two TLS connections in both directions.
fn read_both(
    mut came: TcpStream,
    mut went: TcpStream,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
) -> io::Result<()> {
    let mut near = ServerConnection::new(server).map_err(io::Error::other)?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut far = ClientConnection::new(client, name).map_err(io::Error::other)?;
    while near.is_handshaking() {
        near.complete_io(&mut came)?;
    }
    while far.is_handshaking() {
        far.complete_io(&mut went)?;
    }
    came.set_read_timeout(Some(Duration::from_millis(2)))?;
    went.set_read_timeout(Some(Duration::from_millis(2)))?;
    let mut piece = [0; 4096];
    loop {
        let mut one = rustls::Stream::new(&mut near, &mut came);
        let mut other = rustls::Stream::new(&mut far, &mut went);
        for back in [false, true] {
            let read = if back { other.read(&mut piece) } else { one.read(&mut piece) };
            match read {
                Ok(0) => return Ok(()),
                Ok(len) if back => one.write_all(&piece[..len])?,
                Ok(len) => other.write_all(&piece[..len])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Starts nodes a and b, which connect to each other through the attacker.
fn through(what: Between) -> (Node, Node) {
    let (certs, theirs) = (Certs::new(), Certs::new());
    fs::write(certs.path("secret"), "a secret of this test").unwrap();
    let listeners = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let at = ports.each_ref().map(|port| port.local_addr().unwrap());
    let between = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let list = format!("a=https://{},b=https://{}", between[0], between[1]);
    drop(ports);
    for (listener, to) in listeners.into_iter().zip(at) {
        intercept(listener, to, &theirs, what);
    }
    let node = |number: usize| {
        let own = format!("https://{}", between[number]);
        let (mut args, secret) = (certs.serve(), certs.text("secret"));
        args.extend(["--cluster", &list, "--advertise", &own].map(str::to_owned));
        args.extend(["--cluster-secret-file".to_owned(), secret]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let data = tempfile::tempdir().unwrap();
        Node::start_at(&at[number].to_string(), kvorum(), data, &args)
    };
    (node(0), node(1))
}

#[test]
fn an_attacker_in_the_middle_is_detected() {
    let (a, b) = through(Between::Reads);
    let (mut a, _b) = (a, b);
    let mut log = io::BufReader::new(a.take_stderr());
    let mut said = String::new();
    wait_until("the proofs do not fit", || {
        let read = io::BufRead::read_line(&mut log, &mut said).unwrap();
        assert_ne!(read, 0, "{said}");
        said.contains("different cluster secrets")
    });
    assert!(!said.contains("connected to a peer"), "{said}");
}

#[test]
fn a_proxy_that_only_forwards_bytes_is_tolerated() {
    let (mut a, _b) = through(Between::PassesOn);
    let mut log = io::BufReader::new(a.take_stderr());
    let mut said = String::new();
    wait_until("the nodes meet", || {
        let read = io::BufRead::read_line(&mut log, &mut said).unwrap();
        assert_ne!(read, 0, "{said}");
        said.contains("connected to a peer")
    });
}
