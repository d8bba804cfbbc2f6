//! The measured Cassandra cluster: three nodes, each a JVM with an address of its own. A section
//! measures Cassandra only if the environment variable `CASSANDRA` names the directory in which
//! `bench/cluster/cassandra/build.sh` installed Cassandra.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_table::{Server, find};

use crate::cql::{Client, LoopResults, StatementKind};
use crate::fleet::Launcher;

/// Addresses of the nodes. They differ, because Cassandra nodes share their ports and identify one
/// another by address alone.
const HOSTS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// Tokens of the nodes, which split the ring into thirds. Without them, nodes would choose random
/// tokens. All nodes are replicas of every key.
const TOKENS: [i64; 3] = [i64::MIN, -3_074_457_345_618_258_603, 3_074_457_345_618_258_602];

/// Time limit until all nodes serve after a pause, or until a node reports others as up or down.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Number of keys that are written to check that all nodes serve, enough for each node to
/// coordinate the writes of some of them.
const PROBES: u64 = 30;

/// Minimum duration of the uncounted load before the first measurement, in which the JVM compiles
/// frequently executed code. The load continues until at least [`FIRST_STATEMENTS`] have run, but
/// no longer than [`FIRST_LIMIT`].
const FIRST_WARM_UP: Duration = Duration::from_secs(30);
const FIRST_STATEMENTS: u64 = 50_000;
const FIRST_LIMIT: Duration = Duration::from_secs(240);

/// Number of clients in the first warm-up.
const WARM_UP_CLIENTS: usize = 16;

/// Duration of the uncounted load before each measurement, in which nodes catch up on the work that
/// their pause delayed.
pub(crate) const WARM_UP: Duration = Duration::from_secs(3);

/// Returns the directory of Cassandra, or `None` if Cassandra is not to be measured.
pub(crate) fn place() -> Option<PathBuf> {
    std::env::var_os("CASSANDRA").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns Cassandra's version, parsed from the name of its library. A missing library is an error.
pub(crate) fn version(place: &Path) -> Result<String, String> {
    let lib = place.join("lib");
    let shown = lib.display();
    let files = fs::read_dir(&lib).map_err(|error| format!("{shown}: {error}"))?;
    let names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    let mut versions = names.filter_map(|name| version_of(&name).map(str::to_owned));
    versions.next().ok_or_else(|| format!("{shown} holds no Cassandra"))
}

fn version_of(name: &str) -> Option<&str> {
    name.strip_prefix("cassandra-all-")?.strip_suffix(".jar")
}

/// A cluster of three Cassandra nodes.
pub(crate) struct Cassandra {
    nodes: Vec<Server>,
    /// The `nodetool` command for the first node.
    nodetool: Vec<OsString>,
    keys: u64,
    /// Number of statements in the load before the first measurement, and the duration of that
    /// load.
    pub(crate) warm_up_load: (u64, Duration),
}

impl Cassandra {
    /// Starts three nodes one after another.
    pub(crate) fn start(bench: &mut Launcher, at: &Path, keys: u64) -> Result<Self, String> {
        let [peers, clients, jmx] =
            [bench.free_port(&HOSTS)?, bench.free_port(&HOSTS)?, bench.free_port(&HOSTS)?];
        let ports = Ports { peers, clients, jmx };
        let mut nodes = Vec::new();
        for (own, host) in HOSTS.into_iter().enumerate() {
            let command = command(&bench.root, at, &ports, own)?;
            let address = SocketAddr::from((host, ports.clients));
            nodes.push(bench.launch(command, address)?);
        }
        let nodetool = nodetool(&bench.root, at, &ports)?;
        Ok(Self { nodes, nodetool, keys, warm_up_load: (0, Duration::ZERO) })
    }

    /// Starts three nodes, writes all keys, warms up the JVMs, and pauses the nodes.
    pub(crate) fn start_warmed(bench: &mut Launcher, at: &Path, keys: u64) -> Result<Self, String> {
        let mut cassandra = Self::start(bench, at, keys)?;
        let client = Client::connect(&cassandra.addresses(), WARM_UP_CLIENTS)?;
        client.fill(keys)?;
        let (done, took) = &mut cassandra.warm_up_load;
        while *took < FIRST_WARM_UP || (*done < FIRST_STATEMENTS && *took < FIRST_LIMIT) {
            let results = client.run(StatementKind::Equal, keys, WARM_UP)?;
            *done += results.latency.len();
            *took += results.took;
        }
        cassandra.pause();
        Ok(cassandra)
    }

    /// Resumes the nodes, runs a closed loop of `clients` clients, and pauses the nodes again.
    /// Returns the results, and the CPU time of the nodes during the loop, in seconds.
    pub(crate) fn measure(
        &self,
        statement_kind: StatementKind,
        clients: usize,
        duration: Duration,
    ) -> Result<(LoopResults, f64), String> {
        self.resume();
        let client = self.connect_when_ready(clients)?;
        client.run(statement_kind, self.keys, WARM_UP)?;
        let cpu = self.cpu();
        let results = client.run(statement_kind, self.keys, duration)?;
        let cpu = self.cpu() - cpu;
        self.pause();
        Ok((results, cpu))
    }

    /// Makes the first node repair the whole keyspace, and waits for the end of the repair.
    pub(crate) fn repair(&self) -> Result<(), String> {
        self.nodetool(&["repair", "-full", "bench"]).map(drop)
    }

    /// Pauses the last node, and waits until the first node reports it as down.
    pub(crate) fn pause_last(&self) -> Result<(), String> {
        self.nodes[HOSTS.len() - 1].pause();
        self.wait_until_up(HOSTS.len() - 1)
    }

    /// Resumes all nodes, and waits until the first node reports all as up.
    pub(crate) fn resume_and_wait(&self) -> Result<(), String> {
        self.resume();
        self.wait_until_up(HOSTS.len())
    }

    fn wait_until_up(&self, nodes: usize) -> Result<(), String> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let nodetool_output = self.nodetool(&["status"])?;
            if nodetool_output.lines().filter(|line| line.starts_with("UN ")).count() == nodes {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("not {nodes} nodes of Cassandra are up:\n{nodetool_output}"));
            }
        }
    }

    /// Runs `nodetool` at the lowest priority, because the start of its JVM needs a second of CPU
    /// time. Returns its stdout. An exit code other than 0 is an error.
    fn nodetool(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).args(&self.nodetool).args(words);
        let output = command.output().map_err(|error| format!("nodetool: {error}"))?;
        let nodetool_output = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(nodetool_output);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("nodetool {}: {nodetool_output}{errors}", words.join(" ")))
    }

    /// Connects a client with `clients` tasks as soon as all nodes serve. Fails after
    /// [`READY_LIMIT`].
    fn connect_when_ready(&self, clients: usize) -> Result<Client, String> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let client = Client::connect(&self.addresses(), clients);
            let client = client.and_then(|client| client.check_writable(PROBES).map(|()| client));
            match client {
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                client => return client,
            }
        }
    }

    /// Returns the command line of the first node.
    pub(crate) fn argv(&self) -> &str {
        &self.nodes[0].argv
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Returns the CPU time of all nodes so far, in seconds.
    pub(crate) fn cpu(&self) -> f64 {
        self.nodes.iter().map(Server::cpu).sum()
    }

    /// Returns the number of bytes that all nodes have read from files so far.
    pub(crate) fn bytes_read(&self) -> f64 {
        self.nodes.iter().map(|node| node.bytes_read() as f64).sum()
    }

    /// Suspends the nodes' processes (SIGSTOP) while other clusters are measured.
    pub(crate) fn pause(&self) {
        self.nodes.iter().for_each(Server::pause);
    }

    /// Resumes the nodes' processes.
    fn resume(&self) {
        self.nodes.iter().for_each(Server::resume);
    }
}

struct Ports {
    peers: u16,
    clients: u16,
    /// Port for `nodetool`, on the first node only.
    jmx: u16,
}

/// Returns the data directory of a node.
fn directory(root: &Path, ports: &Ports, own: usize) -> PathBuf {
    root.join(format!("cassandra-{}-{own}", ports.clients))
}

/// Returns the `java` command with which Cassandra's `nodetool` script administers the first node.
fn nodetool(root: &Path, at: &Path, ports: &Ports) -> Result<Vec<OsString>, String> {
    let (dir, at) = (directory(root, ports, 0), at.display());
    let words = [
        format!("@{at}/conf/modules.options"),
        "-Xmx128m".to_owned(),
        format!("-Dlogback.configurationFile={at}/conf/logback.xml"),
        format!("-Dcassandra.storagedir={}", dir.display()),
        format!("-Duser.home={}", dir.display()),
        "-cp".to_owned(),
        format!("{at}/lib/*"),
        "org.apache.cassandra.tools.NodeTool".to_owned(),
        "-p".to_owned(),
        ports.jmx.to_string(),
    ];
    let program = find("java", "openjdk-17-jre-headless")?.into_os_string();
    Ok([program].into_iter().chain(words.map(OsString::from)).collect())
}

/// Creates the directory of a node and its settings. Returns the command that starts the node.
fn command(root: &Path, at: &Path, ports: &Ports, own: usize) -> Result<Command, String> {
    let dir = directory(root, ports, own);
    let settings = dir.join("cassandra.yaml");
    let shared = at.join("conf/cassandra.yaml");
    let text = fs::read_to_string(&shared);
    let text = text.map_err(|error| format!("{}: {error}", shared.display()))?;
    fs::create_dir_all(dir.join("tmp"))
        .and_then(|()| fs::write(&settings, text + &own_settings(&dir, ports, own)))
        .map_err(|error| format!("{}: {error}", settings.display()))?;
    let at = at.display();
    let mut command = Command::new(find("java", "openjdk-17-jre-headless")?);
    command.args(["jvm", "modules"].map(|name| format!("@{at}/conf/{name}.options")));
    command.arg(format!("-Dlogback.configurationFile={at}/conf/logback.xml"));
    command.arg(format!("-Dcassandra.config=file://{}", settings.display()));
    command.arg(format!("-Dcassandra.storagedir={}", dir.display()));
    command.arg(format!("-Djava.io.tmpdir={}/tmp", dir.display()));
    if own == 0 {
        command.arg(format!("-Dcassandra.jmx.local.port={}", ports.jmx));
    }
    // The agent measures the size of objects in memory. Cassandra's own start script has it too.
    command.arg(format!("-javaagent:{at}/lib/jamm-0.4.0.jar"));
    command.args(["-cp", &format!("{at}/lib/*"), "org.apache.cassandra.service.CassandraDaemon"]);
    Ok(command)
}

/// Returns the settings that differ between nodes, to be appended to the settings that all nodes
/// share.
fn own_settings(dir: &Path, ports: &Ports, own: usize) -> String {
    let (host, first, dir) = (HOSTS[own], HOSTS[0], dir.display());
    let Ports { peers, clients, .. } = ports;
    let mut text = format!(
        "initial_token: \"{}\"\nlisten_address: {host}\nrpc_address: {host}\n\
         storage_port: {peers}\nnative_transport_port: {clients}\nseed_provider:\n  \
         - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n    \
         parameters: [seeds: \"{first}:{peers}\"]\ndata_file_directories: [\"{dir}/data\"]\n",
        TOKENS[own]
    );
    for (name, part) in [
        ("commitlog_directory", "commitlog"),
        ("saved_caches_directory", "caches"),
        ("hints_directory", "hints"),
        ("cdc_raw_directory", "cdc"),
    ] {
        writeln!(text, "{name}: \"{dir}/{part}\"").expect("a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_a_library_file_name_is_cassandras_version() {
        assert_eq!(version_of("cassandra-all-5.0.9.jar"), Some("5.0.9"));
        assert_eq!(version_of("cassandra-driver-core-3.12.1-shaded.jar"), None);
    }

    #[test]
    fn nodes_differ_in_address_token_and_directory_and_have_the_same_seed() {
        let ports = Ports { peers: 21_000, clients: 21_001, jmx: 21_002 };
        let text = own_settings(Path::new("/data/2"), &ports, 1);
        for line in [
            "initial_token: \"-3074457345618258603\"",
            "listen_address: 127.0.0.2",
            "storage_port: 21000",
            "native_transport_port: 21001",
            "    parameters: [seeds: \"127.0.0.1:21000\"]",
            "commitlog_directory: \"/data/2/commitlog\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
