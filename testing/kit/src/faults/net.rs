//! A private network for a cluster. Its links can be cut (also in one direction only), made lossy,
//! and made slow. Needs root.
//!
//! ```text
//!   kvorum-PID-N-hub:  bridge 10.213.7.254 ── the clients
//!        │          │          │
//!     .7.1:8080  .7.2:8080  .7.3:8080      one node in each namespace kvorum-PID-N-1, -2, -3,
//!                                          in which nft drops the packets of cut links
//! ```
//!
//! The network is isolated from the machine's network. The hub is a network namespace too; the
//! thread that injects the faults enters it.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Failure;
use crate::faults::run;

/// Port of the nodes.
const PORT: u16 = 8080;

/// Directory in which the system keeps the named namespaces.
const NAMES: &str = "/run/netns";

/// Prefix of the namespaces' names, followed by the ID of the process that made the namespace.
const PREFIX: &str = "kvorum-";

/// Number of this process's next network, which makes the network's name unique.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network of namespaces, removed when dropped.
#[derive(Debug)]
pub struct Net {
    name: String,
    nodes: usize,
}

fn ip(args: &[&str]) -> Result<(), Failure> {
    run("ip", args)
}

/// Removes namespaces whose processes were killed and so did not remove them.
fn sweep() {
    for entry in std::fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

impl Net {
    /// Creates a network for `nodes` nodes.
    pub fn new(nodes: usize) -> Result<Self, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Skipped("network namespaces need root".to_owned()));
        }
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let net = Self { name: format!("{PREFIX}{}-{number}", std::process::id()), nodes };
        let hub = net.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "hub", "type", "bridge"])?;
        ip(&["-n", &hub, "addr", "add", "10.213.7.254/24", "dev", "hub"])?;
        ip(&["-n", &hub, "link", "set", "hub", "up"])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        for node in 0..nodes {
            let (space, port) = (net.space(node), format!("p{node}"));
            let address = format!("{}/24", net.host(node));
            ip(&["netns", "add", &space])?;
            ip(&[
                "-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth", "netns",
                &space,
            ])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "hub", "up"])?;
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth"])?;
            ip(&["-n", &space, "link", "set", "eth", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            net.nft(node, "add table inet kvorum")?;
            let hook = "{ type filter hook input priority 0; }";
            net.nft(node, &format!("add chain inet kvorum in {hook}"))?;
        }
        Ok(net)
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn space(&self, node: usize) -> String {
        format!("{}-{}", self.name, node + 1)
    }

    fn host(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, 7, node as u8 + 1)
    }

    /// Returns the address of a node.
    pub fn address(&self, node: usize) -> SocketAddr {
        SocketAddr::from((self.host(node), PORT))
    }

    /// Returns the wrapper that runs a node in its namespace. `ip netns exec` would also copy all
    /// mounts, and a disk that a concurrent test unmounts would stay mounted in the copy.
    pub fn wrapper(&self, node: usize) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={NAMES}/{}", self.space(node))]
    }

    /// Runs `play` on a thread in the hub's namespace. Threads and processes that `play` starts are
    /// in the namespace too.
    pub fn inside<T: Send>(
        &self,
        play: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let hub = File::open(Path::new(NAMES).join(self.hub()))?;
        thread::scope(|scope| {
            let player = scope.spawn(move || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(hub.as_fd(), kind).map_err(std::io::Error::from)?;
                play()
            });
            player.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn nft(&self, node: usize, rule: &str) -> Result<(), Failure> {
        let wrapper = self.wrapper(node);
        run(&wrapper[0], &[&wrapper[1], "nft", rule])
    }

    /// Drops all packets from `from` to `to` from now on.
    pub fn cut(&self, from: usize, to: usize) -> Result<(), Failure> {
        self.nft(to, &format!("add rule inet kvorum in ip saddr {} drop", self.host(from)))
    }

    /// Cuts the link between two nodes in both directions.
    pub fn cut_both_ways(&self, one: usize, other: usize) -> Result<(), Failure> {
        self.cut(one, other)?;
        self.cut(other, one)
    }

    /// Cuts one node off from all other nodes. Clients still reach the node.
    pub fn isolate(&self, node: usize) -> Result<(), Failure> {
        (0..self.nodes)
            .filter(|other| *other != node)
            .try_for_each(|other| self.cut_both_ways(node, other))
    }

    /// Drops `percent` percent of the packets between any two nodes.
    pub fn drop_packets(&self, percent: u32) -> Result<(), Failure> {
        let nodes = format!("{}-{}", self.host(0), self.host(self.nodes - 1));
        (0..self.nodes).try_for_each(|node| {
            let chance = format!("numgen random mod 100 < {percent}");
            self.nft(node, &format!("add rule inet kvorum in ip saddr {nodes} {chance} drop"))
        })
    }

    /// Limits the rate at which a node sends packets, in units of `tc`, as in `1mbit`.
    pub fn slow_down(&self, node: usize, rate: &str) -> Result<(), Failure> {
        let space = self.space(node);
        let limit = ["rate", rate, "burst", "16kb", "latency", "400ms"];
        let args = ["-n", &space, "qdisc", "replace", "dev", "eth", "root", "tbf"];
        run("tc", &[&args[..], &limit].concat())
    }

    /// Restores all links to full speed without loss.
    pub fn heal(&self) -> Result<(), Failure> {
        for node in 0..self.nodes {
            self.nft(node, "flush chain inet kvorum in")?;
            // The deletion fails on links that have no rate limit.
            let _ = run("tc", &["-n", &self.space(node), "qdisc", "del", "dev", "eth", "root"]);
        }
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // The removal fails only for namespaces that were not created.
        for node in 0..self.nodes {
            let _ = ip(&["netns", "del", &self.space(node)]);
        }
        let _ = ip(&["netns", "del", &self.hub()]);
    }
}
