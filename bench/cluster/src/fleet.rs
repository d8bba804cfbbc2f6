//! The measured clusters, except Cassandra's: this module starts, fills and pauses their nodes, and
//! sends requests to them.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_table::Server;
use kit::raw::{Client, Response};
use load::{KeyOrder, Keys, Outcome, Pace, Plan, Requests, Target, Write};

use crate::etcd;
use crate::requests;

/// Number of connections of a closed loop, unless the section has its own number.
pub(crate) const CONNECTIONS: usize = 64;

/// Time limit for a cluster to answer after its start, and after a pause.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Timeout of a single request outside of the load.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Duration of the uncounted load before each measurement, in which nodes connect and elect a
/// leader.
const WARM_UP: Duration = Duration::from_millis(500);

/// Time limit for filling a store.
const FILL_TIMEOUT: Duration = Duration::from_secs(600);

/// `--memory` of a kvorum node: enough for each measurement, and little enough for the nodes of all
/// clusters of a section, which run on one machine.
const MEMORY: &str = "256MiB";

/// Ports of nodes, below the kernel's ephemeral ports. The kernel could give an ephemeral port to a
/// client's connection while the node of that port is down, or connect a client to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The `--sync` of kvorum's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncSetting {
    /// Sync every 100 ms: `interval:100`.
    Interval,
    /// Sync before the answer, as etcd does.
    Always,
}

/// A cluster to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One kvorum node.
    One(SyncSetting),
    /// Three kvorum nodes.
    Three(SyncSetting),
    /// Three etcd nodes.
    Etcd,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One(SyncSetting::Interval) => "one node, interval",
            Self::One(SyncSetting::Always) => "one node, always",
            Self::Three(SyncSetting::Interval) => "three nodes, interval",
            Self::Three(SyncSetting::Always) => "three nodes, always",
            Self::Etcd => "etcd, three nodes",
        })
    }
}

/// The nodes of one cluster.
pub(crate) struct Fleet {
    pub(crate) kind: Kind,
    pub(crate) nodes: Vec<Server>,
}

/// Starts the nodes of all clusters, and assigns their directories and ports.
pub(crate) struct Launcher {
    /// Directory on a real disk; each node has a subdirectory.
    pub(crate) root: PathBuf,
    /// Directory of the `kvorum` binary.
    binaries: PathBuf,
    loops: usize,
    /// Number of nodes started so far, which is part of the names of their logs.
    started: u32,
    /// Port at which the search for a free port continues.
    next_port: u16,
}

impl Launcher {
    /// Creates directories under `root`, and uses the kvorum binary beside this program.
    pub(crate) fn new(root: &Path, loops: usize) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let binaries = own.parent().unwrap_or(Path::new("")).to_owned();
        // The first port depends on the process id, so that concurrent runs rarely try the same
        // port.
        let next_port = PORTS.start + (std::process::id() % u32::from(PORTS.len() as u16)) as u16;
        Ok(Self { root: root.to_owned(), binaries, loops, started: 0, next_port })
    }

    /// Starts a cluster, and waits until all nodes accept writes. The error is the reason why the
    /// cluster can't be started.
    pub(crate) fn start(&mut self, kind: Kind) -> Result<Fleet, String> {
        self.start_with(kind, &[])
    }

    /// Starts a cluster like `start`, with the flags `more` for each node of kvorum.
    pub(crate) fn start_with(&mut self, kind: Kind, more: &[&str]) -> Result<Fleet, String> {
        let count = if matches!(kind, Kind::One(_)) { 1 } else { 3 };
        let addresses: Vec<_> =
            (0..count).map(|_| self.free_address()).collect::<Result<_, _>>()?;
        let nodes = match kind {
            Kind::One(sync) | Kind::Three(sync) => (0..count)
                .map(|own| {
                    let mut command = self.kvorum(sync, &addresses, own)?;
                    command.args(more);
                    self.launch(command, addresses[own])
                })
                .collect::<Result<_, _>>()?,
            Kind::Etcd => {
                let peers: Vec<_> =
                    (0..count).map(|_| self.free_address()).collect::<Result<_, _>>()?;
                (0..count)
                    .map(|own| {
                        let command = self.etcd(&addresses, &peers, own)?;
                        self.launch(command, addresses[own])
                    })
                    .collect::<Result<_, _>>()?
            }
        };
        let fleet = Fleet { kind, nodes };
        fleet.wait_ready()?;
        Ok(fleet)
    }

    fn free_address(&mut self) -> Result<SocketAddr, String> {
        let port = self.free_port(&[Ipv4Addr::LOCALHOST])?;
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Returns a port that is free on all these addresses.
    pub(crate) fn free_port(&mut self, hosts: &[Ipv4Addr]) -> Result<u16, String> {
        for _ in PORTS {
            let port = self.next_port;
            self.next_port = PORTS.start + (port - PORTS.start + 1) % PORTS.len() as u16;
            if hosts.iter().all(|&host| TcpListener::bind((host, port)).is_ok()) {
                return Ok(port);
            }
        }
        Err(format!("no free port within {}..{}", PORTS.start, PORTS.end))
    }

    /// Returns the data directory of a kvorum node.
    pub(crate) fn data(&self, node: SocketAddr) -> PathBuf {
        self.root.join(format!("kvorum-{}", node.port()))
    }

    /// Returns the command of a kvorum node.
    pub(crate) fn kvorum(
        &self,
        sync: SyncSetting,
        addresses: &[SocketAddr],
        own: usize,
    ) -> Result<Command, String> {
        let path = self.binaries.join("kvorum");
        if !path.exists() {
            let shown = path.display();
            return Err(format!("{shown} is missing: run bench/cluster.sh, which builds it"));
        }
        let mut command = Command::new(path);
        let address = addresses[own];
        command.args(["serve", "--listen", &address.to_string(), "--data"]);
        command.arg(self.data(address));
        command.args([
            "--sync",
            if sync == SyncSetting::Interval { "interval:100" } else { "always" },
        ]);
        command.args(["--loops", &self.loops.to_string(), "--memory", MEMORY]);
        if addresses.len() > 1 {
            command.arg("--cluster").arg(member_list(addresses));
        }
        Ok(command)
    }

    fn etcd(
        &self,
        clients: &[SocketAddr],
        peers: &[SocketAddr],
        own: usize,
    ) -> Result<Command, String> {
        let mut command = Command::new(etcd::program()?);
        let (client, peer) = (format!("http://{}", clients[own]), format!("http://{}", peers[own]));
        command.arg("--name").arg(node_name(own)).arg("--data-dir");
        command.arg(self.root.join(format!("etcd-{}", clients[own].port())));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &member_list(peers), "--initial-cluster-state", "new"]);
        command.args(["--logger", "zap", "--log-level", "error"]);
        Ok(command)
    }

    /// Starts a node and waits until it listens.
    pub(crate) fn launch(
        &mut self,
        command: Command,
        address: SocketAddr,
    ) -> Result<Server, String> {
        self.started += 1;
        Server::start(command, address, &self.root.join(format!("log-{}", self.started)))
    }
}

/// Returns the name of a node.
pub(crate) fn node_name(index: usize) -> String {
    format!("n{}", index + 1)
}

/// Formats the nodes as `n1=http://…,n2=http://…`, which both kvorum and etcd expect.
fn member_list(addresses: &[SocketAddr]) -> String {
    let node = |(index, address)| format!("{}=http://{address}", node_name(index));
    addresses.iter().enumerate().map(node).collect::<Vec<_>>().join(",")
}

impl Fleet {
    /// Returns the function that encodes requests for this kind of cluster.
    pub(crate) fn requests(&self) -> Write {
        if self.kind == Kind::Etcd { requests::ETCD } else { requests::DEFAULT }
    }

    /// Returns the addresses of the nodes.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Creates the plan of a closed loop of GETs, to all nodes if `all`, else to the first node.
    pub(crate) fn plan(&self, all: bool, keys: u64, duration: Duration) -> Plan {
        let mut targets = targets(&self.addresses());
        let first = targets.remove(0);
        let mut plan = Plan {
            connections: CONNECTIONS,
            requests: Requests::Custom(self.requests()),
            keys: Keys { order: KeyOrder::Uniform, count: keys, len: 16 },
            duration,
            ..Plan::new(first)
        };
        if all {
            plan.targets.extend(targets);
        }
        plan
    }

    /// Writes all keys, each once. A write that fails is an error.
    pub(crate) fn fill(&self, keys: u64) -> Result<(), String> {
        let mut plan = self.plan(true, keys, FILL_TIMEOUT);
        plan.keys.order = KeyOrder::Sequential;
        let outcome = run(&Plan { limit: keys, put_percent: 100, ..plan })?;
        if outcome.tally.statuses.success() == keys {
            Ok(())
        } else {
            let done = outcome.tally.statuses.success();
            Err(format!("{}: only {done} of {keys} keys could be put:\n{outcome}", self.kind))
        }
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

    /// Resumes the nodes' processes, waits until they accept writes, and runs the uncounted load of
    /// [`WARM_UP`] with the requests of `plan`.
    pub(crate) fn resume(&self, plan: &Plan) -> Result<(), String> {
        self.nodes.iter().for_each(Server::resume);
        self.wait_ready()?;
        let limit = u64::MAX;
        run(&Plan { duration: WARM_UP, limit, pace: Pace::Closed, ..plan.clone() }).map(drop)
    }

    /// Waits until each node accepts a write. Fails after [`READY_LIMIT`].
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + READY_LIMIT;
        for node in &self.nodes {
            let mut request = Vec::new();
            self.requests()(true, 0, &mut request);
            loop {
                let status = send_request(node.address, &request).ok().map(|answer| answer.status);
                match status {
                    Some(200..=299) => break,
                    _ if Instant::now() > deadline => {
                        let answer_status = status.map_or("nothing".to_owned(), |s| s.to_string());
                        return Err(format!("`{}` answers {answer_status} to a write", node.argv));
                    }
                    _ => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        }
        Ok(())
    }
}

/// Converts addresses to targets. Their path is unused, because encoded requests contain a path.
pub(crate) fn targets(nodes: &[SocketAddr]) -> Vec<Target> {
    nodes.iter().map(|&node| Target::new(node, "/")).collect()
}

/// Runs a plan. The error is text, as everywhere in this benchmark.
pub(crate) fn run(plan: &Plan) -> Result<Outcome, String> {
    load::run(plan).map_err(|error| error.to_string())
}

/// Sends an encoded request on a new connection, and returns the response.
pub(crate) fn send_request(address: SocketAddr, request: &[u8]) -> io::Result<Response> {
    let mut client = Client::try_connect(address, ANSWER_LIMIT)?;
    client.try_send(request)?;
    client.try_response()
}
