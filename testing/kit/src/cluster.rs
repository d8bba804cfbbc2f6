//! A cluster of several node processes, each of which can be stopped, killed and replaced
//! separately.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Client, read_patiently};
use crate::faults::net::Net;
use crate::node::{Launch, Node};
use crate::oracle::ledger::{Ledger, ProcessState};
use crate::oracle::reads::read_all;
use crate::{Failure, ports};

/// Timeout for the cluster to serve after a start, or for its replicas to become equal after a
/// fault.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Files in each node's directory with the cluster secret and the token for the admin routes.
const SECRET: &str = "secret";
const TOKEN: &str = "token";

/// The token for the admin routes of a cluster that runs in a [`Net`].
pub const ADMIN_TOKEN: &str = "a token of the test's own";

/// Records of a node: value by key.
pub type Dump = BTreeMap<String, Vec<u8>>;

/// Pause between two attempts to plan the addition of a node that has not asked to join yet.
const PLAN_AGAIN: Duration = Duration::from_millis(100);

/// A cluster. Dropping it kills its processes.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Option<Node>>,
    /// Launch parameters of each node.
    pub launches: Vec<Launch>,
    addresses: Vec<SocketAddr>,
    dir: TempDir,
}

/// The outcome of waiting until all replicas are equal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Agreement {
    /// Number of keys.
    pub keys: usize,
    /// Time until all replicas were equal.
    pub took: Duration,
    /// Number of keys that became equal only by a read from all replicas. Such keys are normal: if
    /// a coordinator is killed after enough replicas have acknowledged its write, no hint exists
    /// for the other replicas.
    pub read: usize,
}

impl Cluster {
    /// Starts `count` nodes with the flags `args`, in the network `net` if given, and waits until
    /// they form a cluster.
    pub fn start(
        binary: &Path,
        count: usize,
        net: Option<&Net>,
        args: &[&str],
    ) -> Result<Self, Failure> {
        let mut cluster = Self::plan(binary, count, net, args)?;
        (0..count).try_for_each(|node| cluster.start_node(node))?;
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Prepares a cluster without starting any node.
    pub fn plan(
        binary: &Path,
        count: usize,
        net: Option<&Net>,
        args: &[&str],
    ) -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let addresses = match net {
            Some(net) => (0..count).map(|node| net.address(node)).collect(),
            None => ports::addresses(count as u16),
        };
        let urls = addresses.iter().enumerate();
        let list: Vec<_> =
            urls.map(|(node, address)| format!("n{}=http://{address}", node + 1)).collect();
        let list = list.join(",");
        let launches = (0..count).map(|node| {
            let home = dir.path().join(format!("n{}", node + 1));
            let mut launch =
                Launch::new(binary, &home, &home, &[&["--cluster", &list], args].concat());
            launch.listen = addresses[node];
            if let Some(net) = net {
                launch.wrapper = net.wrapper(node);
                // A node that listens on another address than loopback requires these flags, and
                // either TLS or `--insecure`. The clients of this crate have no TLS.
                launch.args.push("--insecure".to_owned());
                for (flag, file) in
                    [("--cluster-secret-file", SECRET), ("--admin-token-file", TOKEN)]
                {
                    launch.args.extend([flag.to_owned(), home.join(file).display().to_string()]);
                }
            }
            launch
        });
        let launches: Vec<Launch> = launches.collect();
        for launch in &launches {
            let home = launch.log.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(home)?;
            fs::write(home.join(SECRET), "a secret of the test's own, 32 bytes and more\n")?;
            fs::write(home.join(TOKEN), ADMIN_TOKEN)?;
        }
        let nodes = (0..count).map(|_| None).collect();
        Ok(Self { nodes, launches, addresses, dir })
    }

    /// Returns the parent directory of all the cluster's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a node's data directory.
    pub fn data(&self, node: usize) -> &PathBuf {
        &self.launches[node].data
    }

    /// Returns the addresses of all nodes.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses of all nodes except `than`.
    pub fn others(&self, than: usize) -> Vec<SocketAddr> {
        let mut others = self.addresses.clone();
        others.remove(than);
        others
    }

    /// Returns a running node.
    pub fn node(&self, node: usize) -> Result<&Node, Failure> {
        let down = || Failure::Environment(format!("node {} does not run", node + 1));
        self.nodes[node].as_ref().ok_or_else(down)
    }

    /// Starts a node that is not running.
    pub fn start_node(&mut self, node: usize) -> Result<(), Failure> {
        self.nodes[node] = Some(self.launches[node].start()?);
        Ok(())
    }

    /// Kills a node, as by `kill -9`.
    pub fn kill(&mut self, node: usize) -> Result<(), Failure> {
        self.nodes[node].take().map_or(Ok(()), Node::kill)
    }

    /// Stops a node by SIGTERM. The node's exit code must be 0.
    pub fn stop(&mut self, node: usize) -> Result<(), Failure> {
        let Some(running) = self.nodes[node].take() else { return Ok(()) };
        let status = running.stop()?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Broken(format!("after SIGTERM node {} ended with {status}", node + 1)))
    }

    /// Returns true if a node is running, and false if it was stopped or has exited.
    pub fn is_running(&mut self, node: usize) -> Result<bool, Failure> {
        let ended = self.nodes[node].as_mut().map(Node::has_ended).transpose()?;
        if ended == Some(true) {
            self.nodes[node] = None;
        }
        Ok(ended == Some(false))
    }

    /// Waits until a read of a missing key through each node is answered with 404, which needs the
    /// authoritative replies of all nodes.
    pub fn wait_until_ready(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let everybody = format!("&ack={0}&from={0}", self.nodes.len());
        let target = format!("/v0/entity?id=nobody-writes-this{everybody}");
        for address in &self.addresses {
            loop {
                let answer = Client::connect(*address)
                    .and_then(|mut client| client.request("GET", &target, b""));
                if answer.as_ref().is_ok_and(|answer| answer.status == 404) {
                    break;
                }
                if begun.elapsed() > TIMEOUT {
                    let last =
                        answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
                    return Err(Failure::Broken(format!(
                        "{address} is not a cluster yet: {last:?}"
                    )));
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Returns the JSON of a node's `/v0/status`.
    pub fn status(&self, node: usize) -> Result<String, Failure> {
        let answer = self.node(node)?.client()?.request("GET", "/v0/status", b"")?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Returns the records that a node stores.
    pub fn dump(&self, node: usize) -> Result<Dump, Failure> {
        Ok(read_patiently(self.addresses[node], |client| {
            let mut found = Dump::new();
            client.scan("%01&local=true", |key, value| {
                found.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
                Ok(())
            })?;
            Ok(found)
        })?)
    }

    /// Passes each record that a node stores to `item`, as key and value.
    pub fn scan_local(
        &self,
        node: usize,
        mut item: impl FnMut(&str, &[u8]),
    ) -> Result<(), Failure> {
        Client::connect(self.addresses[node])?.scan("%01&local=true", |key, value| {
            item(&String::from_utf8_lossy(key), value);
            Ok(())
        })?;
        Ok(())
    }

    /// Waits until all nodes hold the same records, where every node replicates every key. After
    /// `by_itself`, reads the keys that still differ from all replicas; the reads must make them
    /// equal within a minute.
    pub fn wait_until_equal(&self, by_itself: Duration) -> Result<Agreement, Failure> {
        let begun = Instant::now();
        let mut read = 0;
        loop {
            let dumps: Vec<_> =
                (0..self.nodes.len()).map(|node| self.dump(node)).collect::<Result<_, _>>()?;
            let differing = differing_keys(&dumps);
            let took = begun.elapsed();
            if differing.is_empty() {
                return Ok(Agreement { keys: dumps[0].len(), took, read });
            }
            if read > 0 && took > by_itself + TIMEOUT {
                let sample: Vec<_> = differing.iter().take(5).collect();
                return Err(Failure::Broken(format!(
                    "{} keys still differ between replicas, as {sample:?}",
                    differing.len()
                )));
            }
            if took > by_itself {
                read = read.max(differing.len());
                self.read_keys_from_all_nodes(&differing)?;
            }
            thread::sleep(POLL_INTERVAL * 5);
        }
    }

    /// Checks that all nodes hold the same records now. Returns the number of keys.
    pub fn check_equal(&self) -> Result<usize, Failure> {
        let nodes = 0..self.nodes.len();
        let dumps: Vec<_> = nodes.map(|node| self.dump(node)).collect::<Result<_, _>>()?;
        let differing = differing_keys(&dumps);
        match differing.first() {
            None => Ok(dumps[0].len()),
            Some(key) => {
                let count = differing.len();
                Err(Failure::Broken(format!("{count} keys differ between replicas, as {key}")))
            }
        }
    }

    fn read_keys_from_all_nodes(&self, keys: &[String]) -> Result<(), Failure> {
        let mut client = Client::connect(self.addresses[0])?;
        let everybody = format!("&ack={0}&from={0}", self.nodes.len());
        for key in keys {
            let answer = client.get_patiently(&format!("{key}{everybody}"))?;
            if !matches!(answer.status, 200 | 404) {
                return Err(Failure::Broken(format!(
                    "GET {key} from all answers {} after the fault: {}",
                    answer.status,
                    String::from_utf8_lossy(&answer.body)
                )));
            }
        }
        Ok(())
    }

    /// Checks that no acknowledged write is lost and that no value is invented. Reads all keys
    /// through every running node, with the default quorum, by range and by key, and compares the
    /// values with the ledger. Two reads of a key may differ, because a write with an unknown
    /// outcome may still arrive as a hint. Returns the number of keys.
    pub fn check(&self, ledger: &Ledger) -> Result<usize, Failure> {
        let mut keys = 0;
        for (place, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let asked = |failure| match failure {
                Failure::Broken(what) => {
                    Failure::Broken(format!("asked at node {}: {what}", place + 1))
                }
                other => other,
            };
            let found = read_all(node)?;
            keys = ledger.check(&found, ProcessState::Same).map_err(asked)?.keys;
            self.check_gets(node, ledger).map_err(asked)?;
        }
        Ok(keys)
    }

    fn check_gets(&self, node: &Node, ledger: &Ledger) -> Result<(), Failure> {
        let mut client = node.client()?;
        for key in ledger.keys() {
            let answer = client.get_patiently(&key)?;
            match answer.status {
                200 => ledger.check_read(&key, Some(&answer.body))?,
                404 => ledger.check_read(&key, None)?,
                status => {
                    let body = String::from_utf8_lossy(&answer.body).into_owned();
                    return Err(Failure::Broken(format!("GET {key} answers {status}: {body}")));
                }
            }
        }
        Ok(())
    }
}

/// Returns the keys whose value differs between nodes or is missing on some.
fn differing_keys(dumps: &[Dump]) -> Vec<String> {
    let mut keys: Vec<_> = dumps.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &&&String| dumps.iter().any(|dump| dump.get(**key) != dumps[0].get(**key));
    keys.iter().filter(differs).map(|key| (*key).clone()).collect()
}

impl Cluster {
    /// Runs `kvorum cluster` with `args` against a node.
    pub fn command<S: AsRef<str>>(
        &self,
        binary: &Path,
        node: usize,
        args: &[S],
    ) -> Result<Output, Failure> {
        let url = format!("http://{}", self.addresses[node]);
        let mut command = Command::new(binary);
        command.arg("cluster").args(args.iter().map(AsRef::as_ref));
        Ok(command.args(["--url", &url]).output()?)
    }

    /// Runs `kvorum cluster` with `args` against a node. Returns the command's stdout, or an error
    /// if the command failed.
    pub fn output<S: AsRef<str>>(
        &self,
        binary: &Path,
        node: usize,
        args: &[S],
    ) -> Result<Vec<u8>, Failure> {
        let output = self.command(binary, node, args)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
        Err(Failure::Broken(format!("kvorum cluster {}: {said}", args.join(" "))))
    }

    /// Makes a plan at a node. Repeats the attempt for up to `patience`, because the nodes that the
    /// plan adds may not have asked to join yet.
    pub fn make_plan<S: AsRef<str>>(
        &self,
        binary: &Path,
        node: usize,
        change: &[S],
        patience: Duration,
    ) -> Result<Value, Failure> {
        let args: Vec<&str> =
            ["plan", "--json"].into_iter().chain(change.iter().map(AsRef::as_ref)).collect();
        let begun = Instant::now();
        loop {
            match self.output(binary, node, &args) {
                Ok(output) => return Ok(serde_json::from_slice(&output).unwrap_or_default()),
                Err(failure) if begun.elapsed() > patience => return Err(failure),
                Err(_) => thread::sleep(PLAN_AGAIN),
            }
        }
    }

    /// Returns the launch parameters of a node that joins this cluster, with its directory in
    /// `home`.
    pub fn joiner(
        &self,
        binary: &Path,
        name: &str,
        home: &Path,
        more: &[&str],
    ) -> Result<Launch, Failure> {
        let urls = self.addresses.iter().map(|at| format!("http://{at}"));
        let urls = urls.collect::<Vec<_>>().join(",");
        let listen = ports::addresses(1)[0];
        let args = ["--join", &urls, "--name", name, "--sync", "always"];
        let args = [&args, more].concat();
        Ok(Launch { listen, ..Launch::new(binary, home, self.dir(), &args) })
    }
}
