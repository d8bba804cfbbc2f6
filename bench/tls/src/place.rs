//! Certificates, and the start of servers on one CPU.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_table::{Server, find, free_address};
use load::Target;
use load::server::{Endpoint, fetch};
use load::tls::{Files, Tls, Trust};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// The CPU of servers.
pub(crate) const SERVER_CPU: usize = 0;

/// The CPU of clients.
pub(crate) const CLIENT_CPU: usize = 1;

/// Time limit for nodes to serve.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Starts servers with certificates of a common CA, each in a directory of its own.
pub(crate) struct Launcher {
    root: PathBuf,
    /// Number of servers started so far, which is the name of the last server's directory.
    started: u32,
    /// Configuration of clients, which trust the CA.
    pub(crate) tls: Tls,
}

impl Launcher {
    /// Creates a CA and its certificates under `root`.
    pub(crate) fn new(root: &Path) -> Result<Self, String> {
        let tls = certificates(root).map_err(|error| format!("certificates: {error}"))?;
        let root = root.to_owned();
        let trust = Trust::load(Files { ca: Some(tls), client: None })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            root,
            started: 0,
            tls: trust.host("127.0.0.1").map_err(|error| error.to_string())?,
        })
    }

    fn dir(&mut self) -> Result<PathBuf, String> {
        self.started += 1;
        let dir = self.root.join(self.started.to_string());
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(dir)
    }

    /// Starts a cluster of `count` nodes with the flags `more`, and with TLS if `secure`. Waits
    /// until all nodes serve.
    pub(crate) fn nodes(
        &mut self,
        count: usize,
        secure: bool,
        more: &[&str],
    ) -> Result<Vec<Server>, String> {
        let addresses: Vec<SocketAddr> = (0..count)
            .map(|_| free_address().map_err(|error| format!("no free port: {error}")))
            .collect::<Result<_, _>>()?;
        let scheme = if secure { "https" } else { "http" };
        let listed: Vec<String> = (1..)
            .zip(&addresses)
            .map(|(number, address)| format!("n{number}={scheme}://{address}"))
            .collect();
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let program = own.with_file_name("kvorum");
        let mut nodes = Vec::new();
        for address in addresses {
            let dir = self.dir()?;
            let mut command = pinned_command(SERVER_CPU, &program);
            command.args(["serve", "--listen", &address.to_string(), "--loops", "1", "--data"]);
            command.arg(dir.join("data")).args(more);
            if secure {
                command.arg("--tls-cert").arg(self.root.join("cert.pem"));
                command.arg("--tls-key").arg(self.root.join("key.pem"));
            }
            if count > 1 {
                command.arg("--cluster").arg(listed.join(","));
            }
            nodes.push(Server::start(command, address, &dir.join("log"))?);
        }
        for node in &nodes {
            let deadline = Instant::now() + READY_LIMIT;
            while let Err(error) = fetch(self.endpoint(node, secure), "/readyz", READY_LIMIT) {
                if Instant::now() > deadline {
                    return Err(format!("`{}` is not ready: {error}", node.argv));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(nodes)
    }

    /// Starts nginx with the same certificate.
    pub(crate) fn nginx(&mut self) -> Result<Server, String> {
        let dir = self.dir()?;
        let address = free_address().map_err(|error| format!("no free port: {error}"))?;
        let config = dir.join("nginx.conf");
        let text = nginx_config(&self.root, address);
        fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
        let mut command = pinned_command(SERVER_CPU, &find("nginx", "nginx-light")?);
        command.arg("-p").arg(&dir).arg("-c").arg(&config);
        Server::start(command, address, &dir.join("log"))
    }

    fn endpoint(&self, server: &Server, secure: bool) -> Endpoint {
        let tls = secure.then(|| self.tls.clone());
        Endpoint { tls, ..server.address.into() }
    }

    /// Returns the target of requests to a node: a URL with a placeholder for the key.
    pub(crate) fn target(&self, server: &Server, secure: bool) -> Target {
        let tls = secure.then(|| self.tls.clone());
        Target { tls, ..Target::new(server.address, "/v0/entity?id={key}") }
    }
}

/// Pins this thread, and the threads that it starts from now on, to a CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<(), String> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus)
        .map_err(|error| format!("can't run on CPU {cpu}: {error}"))
}

fn pinned_command(cpu: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.to_string()).arg(program);
    command
}

/// Creates a CA, and in the same directory the servers' `cert.pem` and `key.pem`. Returns the path
/// of the CA's certificate.
fn certificates(dir: &Path) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = dir.join("ca.pem");
    fs::write(&ca, params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
    fs::write(dir.join("cert.pem"), cert.pem())?;
    fs::write(dir.join("key.pem"), key.serialize_pem())?;
    Ok(ca)
}

/// Returns a configuration of one process without a log. It resumes TLS sessions by tickets, as
/// kvorum does.
fn nginx_config(root: &Path, address: SocketAddr) -> String {
    let root = root.display();
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid nginx.pid;\n\
         error_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n\
         \x20 client_body_temp_path body;\n  proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n\
         \x20 uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;\n\
         \x20 server {{\n    listen {address} ssl reuseport;\n\
         \x20   ssl_certificate {root}/cert.pem;\n    ssl_certificate_key {root}/key.pem;\n\
         \x20   ssl_protocols TLSv1.3;\n    ssl_session_cache off;\n    ssl_session_tickets on;\n\
         \x20   location / {{ default_type text/plain; return 200 'ok'; }}\n  }}\n}}\n"
    )
}
