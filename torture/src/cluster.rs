//! Several nodes of one cluster, each a process that can be broken by itself.

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
use crate::ledger::{Ledger, Process};
use crate::net::Net;
use crate::node::{Launch, Node};
use crate::{Failure, Setup, ports};

/// How long the cluster may take to serve after its start, or to agree after a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(20);

/// Files of a node's own, and what is in the second: the token for its admin routes.
const SECRET: &str = "secret";
const TOKEN: &str = "token";
pub(crate) const ADMIN_TOKEN: &str = "a token of the test's own";

/// What a node holds: values by key.
pub type Dump = BTreeMap<String, Vec<u8>>;

/// Between two tries of a plan that adds a node which has not asked yet.
const PLAN_AGAIN: Duration = Duration::from_millis(100);

/// A cluster. Dropping it kills its processes.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Option<Node>>,
    /// How each is started.
    pub launches: Vec<Launch>,
    addresses: Vec<SocketAddr>,
    dir: TempDir,
}

/// What became equal, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct Agreement {
    /// Number of keys.
    pub keys: usize,
    /// How long it took until all replicas held the same by themselves.
    pub took: Duration,
    /// Keys that had to be read with all replicas asked, for that they agreed. (A write that was
    /// acknowledged by enough while its coordinator was killed has no hint.)
    pub read: usize,
}

impl Cluster {
    /// Starts `count` nodes with these flags, in `net` if there is one, and waits until they are a
    /// cluster.
    pub fn start(
        setup: &Setup,
        count: usize,
        net: Option<&Net>,
        args: &[&str],
    ) -> Result<Self, Failure> {
        let mut cluster = Self::plan(setup, count, net, args)?;
        (0..count).try_for_each(|node| cluster.start_node(node))?;
        cluster.until_ready()?;
        Ok(cluster)
    }

    /// The same without starting anything.
    pub fn plan(
        setup: &Setup,
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
            let mut launch = setup.launch(&home, &home, &[&["--cluster", &list], args].concat());
            launch.listen = addresses[node];
            if let Some(net) = net {
                launch.wrapper = net.wrapper(node);
                // Any address but loopback wants these, and TLS, which clients here do not speak.
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

    /// Where everything of it is kept.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A node's data directory.
    pub fn data(&self, node: usize) -> &PathBuf {
        &self.launches[node].data
    }

    /// Where all nodes listen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where all nodes but one listen.
    pub fn others(&self, than: usize) -> Vec<SocketAddr> {
        let mut others = self.addresses.clone();
        others.remove(than);
        others
    }

    /// A node that runs.
    pub fn node(&self, node: usize) -> Result<&Node, Failure> {
        let down = || Failure::Environment(format!("node {} does not run", node + 1));
        self.nodes[node].as_ref().ok_or_else(down)
    }

    /// Starts a node that does not run.
    pub fn start_node(&mut self, node: usize) -> Result<(), Failure> {
        self.nodes[node] = Some(self.launches[node].start()?);
        Ok(())
    }

    /// Kills a node, as by `kill -9`.
    pub fn kill(&mut self, node: usize) -> Result<(), Failure> {
        self.nodes[node].take().map_or(Ok(()), Node::kill)
    }

    /// SIGTERM; it must end well.
    pub fn stop(&mut self, node: usize) -> Result<(), Failure> {
        let Some(running) = self.nodes[node].take() else { return Ok(()) };
        let status = running.stop()?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Broken(format!("after SIGTERM node {} ended with {status}", node + 1)))
    }

    /// Whether a node runs: one that has ended by itself does not.
    pub fn is_running(&mut self, node: usize) -> Result<bool, Failure> {
        let ended = self.nodes[node].as_mut().map(Node::has_ended).transpose()?;
        if ended == Some(true) {
            self.nodes[node] = None;
        }
        Ok(ended == Some(false))
    }

    /// Waits until every node, as coordinator, reaches all the others, and all are authoritative
    /// for what they do not hold.
    pub fn until_ready(&self) -> Result<(), Failure> {
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
                if begun.elapsed() > PATIENCE {
                    let last =
                        answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
                    return Err(Failure::Broken(format!(
                        "{address} is not a cluster yet: {last:?}"
                    )));
                }
                thread::sleep(AGAIN);
            }
        }
        Ok(())
    }

    /// What a node says of itself and of the others, in JSON.
    pub fn status(&self, node: usize) -> Result<String, Failure> {
        let answer = self.node(node)?.client()?.request("GET", "/v0/status", b"")?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// What a node holds itself.
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

    /// The same, item by item: key, value.
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

    /// Oracle C, for clusters where every node holds every key: waits until all hold the same. What
    /// does not within `by_itself` is read with every replica asked, which must bring it about.
    pub fn agree(&self, by_itself: Duration) -> Result<Agreement, Failure> {
        let begun = Instant::now();
        let mut read = 0;
        loop {
            let dumps: Vec<_> =
                (0..self.nodes.len()).map(|node| self.dump(node)).collect::<Result<_, _>>()?;
            let differing = differing(&dumps);
            let took = begun.elapsed();
            if differing.is_empty() {
                return Ok(Agreement { keys: dumps[0].len(), took, read });
            }
            if read > 0 && took > by_itself + PATIENCE {
                let sample: Vec<_> = differing.iter().take(5).collect();
                return Err(Failure::Broken(format!(
                    "{} keys still differ between replicas, as {sample:?}",
                    differing.len()
                )));
            }
            if took > by_itself {
                read = read.max(differing.len());
                self.read_from_all(&differing)?;
            }
            thread::sleep(AGAIN * 5);
        }
    }

    /// Oracle C as it is now; how many keys there are.
    pub fn is_equal(&self) -> Result<usize, Failure> {
        let nodes = 0..self.nodes.len();
        let dumps: Vec<_> = nodes.map(|node| self.dump(node)).collect::<Result<_, _>>()?;
        let differing = differing(&dumps);
        match differing.first() {
            None => Ok(dumps[0].len()),
            Some(key) => {
                let count = differing.len();
                Err(Failure::Broken(format!("{count} keys differ between replicas, as {key}")))
            }
        }
    }

    fn read_from_all(&self, keys: &[String]) -> Result<(), Failure> {
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

    /// Oracles A and F: what every node, as coordinator, finds over the whole cluster, with the
    /// default quorum, by range and by key. What was unknown may still come: hints outlive faults,
    /// so that two reads need not find the same.
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
            let found = crate::read_all(node)?;
            keys = ledger.check(&found, Process::Same).map_err(asked)?.keys;
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

/// Keys that not all hold, or not with the same value.
fn differing(dumps: &[Dump]) -> Vec<String> {
    let mut keys: Vec<_> = dumps.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &&&String| dumps.iter().any(|dump| dump.get(**key) != dumps[0].get(**key));
    keys.iter().filter(differs).map(|key| (*key).clone()).collect()
}

impl Cluster {
    /// `kvorum cluster …` at a node.
    pub fn command<S: AsRef<str>>(
        &self,
        setup: &Setup,
        node: usize,
        args: &[S],
    ) -> Result<Output, Failure> {
        let url = format!("http://{}", self.addresses[node]);
        let mut command = Command::new(&setup.binary);
        command.arg("cluster").args(args.iter().map(AsRef::as_ref));
        Ok(command.args(["--url", &url]).output()?)
    }

    /// The same; what it printed, if it could do it.
    pub fn output<S: AsRef<str>>(
        &self,
        setup: &Setup,
        node: usize,
        args: &[S],
    ) -> Result<Vec<u8>, Failure> {
        let output = self.command(setup, node, args)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
        Err(Failure::Broken(format!("kvorum cluster {}: {said}", args.join(" "))))
    }

    /// A plan at a node, once those that it adds have asked for a place.
    pub fn planned<S: AsRef<str>>(
        &self,
        setup: &Setup,
        node: usize,
        change: &[S],
        patience: Duration,
    ) -> Result<Value, Failure> {
        let args: Vec<&str> =
            ["plan", "--json"].into_iter().chain(change.iter().map(AsRef::as_ref)).collect();
        let begun = Instant::now();
        loop {
            match self.output(setup, node, &args) {
                Ok(output) => return Ok(serde_json::from_slice(&output).unwrap_or_default()),
                Err(failure) if begun.elapsed() > patience => return Err(failure),
                Err(_) => thread::sleep(PLAN_AGAIN),
            }
        }
    }

    /// How a node is started that asks for a place, with its directory in `home`.
    pub fn joiner(
        &self,
        setup: &Setup,
        name: &str,
        home: &Path,
        more: &[&str],
    ) -> Result<Launch, Failure> {
        let urls = self.addresses.iter().map(|at| format!("http://{at}"));
        let urls = urls.collect::<Vec<_>>().join(",");
        let listen = ports::addresses(1)[0];
        let args = ["--join", &urls, "--name", name, "--sync", "always"];
        let args = [&args, more].concat();
        Ok(Launch { listen, ..setup.launch(home, self.dir(), &args) })
    }
}
