//! Full and resumed handshakes per second of kvorum and nginx, with the same certificate, cipher
//! and key exchange group. The client does not verify the certificate, because the verification
//! needs more CPU time than the server's whole part of a handshake. A handshake ends when the
//! client has received a session ticket.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench_table::{Server, Spread, Table, ratio};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme,
};

use crate::{Bench, order};

const SECTION: &str = "handshakes";

/// Number of concurrent handshakes, enough to keep a server busy while some of them wait.
const THREADS: usize = 16;

/// Read timeout of a connection.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of sessions that a thread keeps for one server.
const SESSIONS: usize = 8;

const NAMES: [&str; 4] = ["nginx, full", "kvorum, full", "nginx, resumed", "kvorum, resumed"];

pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let nginx = bench.place.nginx()?;
    let mut kvorum = bench.place.nodes(1, true, &[])?;
    let servers = [nginx, kvorum.remove(0)];
    servers.iter().for_each(Server::pause);
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut per_core: [Vec<f64>; 4] = Default::default();
    let mut shares: [Vec<f64>; 4] = Default::default();
    for repeat in 0..bench.repeats {
        for index in order(NAMES.len(), repeat) {
            let server = &servers[index % 2];
            server.resume();
            let before = server.cpu();
            let (count, seconds) = run_handshakes(server.address, index >= 2, bench.seconds)?;
            let cpu = server.cpu() - before;
            server.pause();
            rates[index].push(count / seconds);
            per_core[index].push(count / cpu);
            shares[index].push(cpu / seconds * 100.0);
            bench.report.figure(SECTION, NAMES[index], repeat, "per_s", count / seconds);
            bench.report.figure(SECTION, NAMES[index], repeat, "per_cpu_s", count / cpu);
        }
    }
    bench.report.say(&format!(
        "## Handshakes\n\nTLS 1.3, TLS_AES_128_GCM_SHA256, X25519, ECDSA P-256, {THREADS} at once, \
         each on a connection of its own. Per core: for each second of the server's CPU time."
    ));
    let mut table = Table::new(&["", "per core, × nginx", "per core", "per s", "server CPU %"]);
    for (index, name) in NAMES.iter().enumerate() {
        let shown = |values: &[f64]| Spread::of(values).map(|spread| spread.to_string());
        table.row(vec![
            Some((*name).to_owned()),
            ratio(&per_core[index], &per_core[index / 2 * 2]).map(|spread| spread.to_string()),
            shown(&per_core[index]),
            shown(&rates[index]),
            shown(&shares[index]),
        ]);
    }
    bench.report.say(&table.to_string());
    Ok(())
}

/// Makes handshakes for `seconds`. Returns their number, and the actual duration in seconds.
fn run_handshakes(address: SocketAddr, resumed: bool, seconds: u64) -> Result<(f64, f64), String> {
    let (count, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let ended = std::thread::scope(|scope| {
        let work = || -> io::Result<()> {
            let config = config(resumed);
            // The first handshake yields the session that the next one resumes.
            handshake(&config, address)?;
            while !stop.load(Ordering::Relaxed) {
                let kind = handshake(&config, address)?;
                let is_expected_kind = (kind == HandshakeKind::Resumed) == resumed;
                let counted = if is_expected_kind { &count } else { &wrong };
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect::<io::Result<Vec<()>>>()
    });
    ended.map_err(|error| format!("a handshake with {address}: {error}"))?;
    let (count, wrong) = (count.into_inner(), wrong.into_inner());
    if wrong * 100 > count {
        return Err(format!("{wrong} handshakes with {address} were not as asked, {count} were"));
    }
    Ok((count as f64, begun.elapsed().as_secs_f64()))
}

fn handshake(config: &Arc<ClientConfig>, address: SocketAddr) -> io::Result<HandshakeKind> {
    let name = ServerName::from(address.ip());
    let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    // A reset closes the connection without TIME_WAIT, so that its port is free again at once.
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    while session.wants_write() {
        session.write_tls(&mut socket)?;
    }
    while session.tls13_tickets_received() == 0 {
        if session.read_tls(&mut socket)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        session.process_new_packets().map_err(io::Error::other)?;
    }
    session.handshake_kind().ok_or_else(|| io::Error::other("the handshake has no kind"))
}

fn config(resumed: bool) -> Arc<ClientConfig> {
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_protocol_versions(&[&TLS13]).expect("the provider has TLS 1.3");
    let builder =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = match resumed {
        true => Resumption::in_memory_sessions(SESSIONS),
        false => Resumption::disabled(),
    };
    Arc::new(config)
}

/// A verifier that accepts any certificate and any signature, because only the server is measured.
#[derive(Debug)]
struct AcceptAnyCertificate;

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
