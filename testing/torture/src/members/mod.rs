//! Row 21 of docs/results/reliability.md: nodes join, leave and are replaced while clients send
//! requests at a fixed rate; a client repeats a failed request once, at the next node. First the
//! cluster grows from 3 to 5 nodes, shrinks to 3 again and replaces one node, at a share of the
//! maximum rate. Then a node of each role is killed at each stage of a change. No repeated request
//! may fail again, and no acknowledged write may be lost.

mod full;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::node::{Launch, Node};
use kit::oracle::ledger::{Ledger, ProcessState};
use kit::oracle::reads::check;
use kit::workload::curve;
use kit::workload::prober::{ProbeFigures, ProbeParams, Prober};
use kit::workload::writers::outcome_of;
use serde_json::Value;

use crate::Setup;
use crate::restart::restarts::check_all_succeeded;
pub use full::run as run_full;

/// Number of the cluster's initial nodes, which receive all requests.
const NODES: usize = 3;

/// Share of the maximum rate of five nodes that clients send while nodes join and leave. The nodes
/// share the machine with the clients, so five nodes serve fewer requests than three.
const LOAD: f64 = 0.6;

/// Number of clients, both for the measurement of the maximum rate and for the load.
const CLIENTS: usize = 32;

/// Duration of the measurement of the maximum rate, long enough to include compactions.
const MEASURED_FOR: Duration = Duration::from_secs(30);

/// Length in bytes of the values that move; large, so that a stage takes some time.
const VALUE_LEN: usize = 100_000;

/// The node that plans and applies all changes, and stays a member.
const COORDINATOR: usize = 1;

/// Timeout of a change, and pause between two polls.
const TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time for which a killed node is down.
const DOWN: Duration = Duration::from_secs(1);

/// Role of the node that is killed.
#[derive(Debug, Clone, Copy)]
enum Role {
    /// The first member of the council, which drives the change.
    Driver,
    /// The node that joins or leaves.
    Mover,
    /// A node that stays a member.
    Stayer,
}

const ROLES: [Role; 3] = [Role::Driver, Role::Mover, Role::Stayer];
const STAGES: [&str; 3] = ["prepare", "read old", "read new"];

/// A node that has joined during the row.
struct JoinedNode {
    name: String,
    launch: Launch,
    node: Option<Node>,
}

struct MembersRow<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    joined: Vec<JoinedNode>,
    names: usize,
    ledger: Arc<Ledger>,
    /// Bytes that new replicas have received, and bytes that the plans had predicted.
    taken: u64,
    planned: u64,
}

/// Runs the row. The part with kills has `rounds` repetitions.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let cluster = Cluster::start(&setup.binary, NODES, None, &["--sync", "always"])?;
    let (joined, ledger) = (Vec::new(), Arc::new(Ledger::default()));
    let mut row = MembersRow { setup, cluster, joined, names: NODES, ledger, taken: 0, planned: 0 };
    row.fill(setup.size(2_000, 100))?;
    let measured = row.measure_changes()?;
    let killed = row.kill_during_changes()?;
    Ok(format!("{measured}; {killed}"))
}

impl MembersRow<'_> {
    fn fill(&self, values: usize) -> Result<(), Failure> {
        let mut client = self.cluster.node(0)?.client()?;
        for number in 0..values {
            let key = format!("fill-{number}");
            let (ticket, value) = self.ledger.put(&key, VALUE_LEN);
            let answer = client.request("PUT", &target(&key), &value);
            self.ledger.end(ticket, outcome_of(&answer));
            if let status @ 300.. = answer?.status {
                return Err(Failure::Broken(format!("a write is answered {status}")));
            }
        }
        Ok(())
    }

    /// Grows and shrinks the cluster and replaces a node, without other faults.
    fn measure_changes(&mut self) -> Result<String, Failure> {
        let calm = Duration::from_secs(self.setup.size(10, 1));
        let pace = self.pace()?;
        let (to, seed) = (self.cluster.addresses(), self.setup.seed);
        let prober = Prober::start(to, &self.ledger, pace, seed)?;
        thread::sleep(calm);
        let mut spans = Vec::new();
        let mut resident = Vec::new();
        let changes: [&[(usize, &[usize])]; 3] =
            [&[(2, &[])], &[(0, &[0, 1])], &[(1, &[]), (1, &[0])]];
        for change in changes {
            let begun = prober.elapsed();
            for (join, leave) in change {
                self.change(*join, leave, None)?;
            }
            spans.push((begun, prober.elapsed()));
            thread::sleep(calm);
            let now = self.resident()?;
            resident.resize(prober.elapsed().as_secs() as usize, now);
        }
        let seen = prober.stop()?;
        check_all_succeeded(&seen)?;
        self.check()?;
        let p99 = |spans: &[(Duration, Duration)]| seen.percentile_in(99.0, spans);
        let (before, during) = (p99(&[(Duration::ZERO, calm)]), p99(&spans));
        if let Some(dir) = &self.setup.curves {
            keep(dir, &seen, pace, &spans, &resident)?;
        }
        let seconds: Vec<_> = spans
            .iter()
            .map(|(from, to)| format!("{:.0} s", (*to - *from).as_secs_f64()))
            .collect();
        Ok(format!(
            "3 → 5, 5 → 3, one in and one replaced in {} at {:.0} requests/s: {} requests, {} \
             tried twice, 0 failed; p99 {:.1} ms meanwhile, {:.1} ms before ({:.2} ×); {} MiB \
             taken, {:.3} × what plans said",
            seconds.join(", "),
            pace.rate(),
            seen.requests,
            seen.retried,
            during.as_secs_f64() * 1e3,
            before.as_secs_f64() * 1e3,
            during.as_secs_f64() / before.as_secs_f64().max(1e-9),
            self.taken >> 20,
            self.taken as f64 / self.planned.max(1) as f64,
        ))
    }

    /// Measures the maximum rate of five nodes. Returns parameters with a share of this rate.
    fn pace(&mut self) -> Result<ProbeParams, Failure> {
        if self.setup.quick {
            return Ok(ProbeParams::USUAL);
        }
        self.change(2, &[], None)?;
        let (to, seed) = (self.cluster.addresses(), self.setup.seed ^ 1);
        let greedy = ProbeParams { clients: CLIENTS, every: Duration::ZERO, ..ProbeParams::USUAL };
        let prober = Prober::start(to, &self.ledger, greedy, seed)?;
        thread::sleep(MEASURED_FOR);
        let lasts = prober.elapsed();
        let seen = prober.stop()?;
        check_all_succeeded(&seen)?;
        self.change(0, &[0, 1], None)?;
        (self.taken, self.planned) = (0, 0);
        let rate = LOAD * seen.requests as f64 / lasts.as_secs_f64();
        Ok(ProbeParams { every: Duration::from_secs_f64(CLIENTS as f64 / rate), ..greedy })
    }

    /// For each stage and role, replaces a node, and kills the node with that role at that stage.
    fn kill_during_changes(&mut self) -> Result<String, Failure> {
        let (to, seed) = (self.cluster.addresses(), !self.setup.seed);
        let prober = Prober::start(to, &self.ledger, ProbeParams::USUAL, seed)?;
        let (mut kills, mut missed) = (0, 0);
        let each = STAGES.iter().flat_map(|stage| ROLES.map(|role| (*stage, role)));
        let each: Vec<_> = each.collect();
        let each = if self.setup.quick { &each[3..6] } else { &each[..] };
        for _ in 0..self.setup.rounds {
            for kill in each {
                // The node that joined in the last change leaves in this one, so that over time
                // both joining and leaving nodes are killed.
                let leaves: &[usize] = if self.joined.is_empty() { &[] } else { &[0] };
                let was_there = self.change(1, leaves, Some(*kill))?;
                kills += usize::from(was_there);
                missed += usize::from(!was_there);
            }
        }
        let seen = prober.stop()?;
        check_all_succeeded(&seen)?;
        self.check()?;
        Ok(format!(
            "{kills} kills at a stage ({missed} stages were over before): {} requests, {} tried \
             twice, 0 failed, longest gap {} ms, 0 lost",
            seen.requests,
            seen.retried,
            seen.longest_gap.as_millis()
        ))
    }

    /// Adds `join` nodes, and removes the joined nodes with the indexes `leave`, in one change.
    /// Returns true if a node was killed.
    fn change(
        &mut self,
        join: usize,
        leave: &[usize],
        kill: Option<(&str, Role)>,
    ) -> Result<bool, Failure> {
        let mut args = Vec::new();
        let mut starting = Vec::new();
        for _ in 0..join {
            self.names += 1;
            let name = format!("n{}", self.names);
            args.extend(["--add".to_owned(), name.clone()]);
            let launch = self.joins(&name)?;
            let starts = launch.clone();
            starting.push((name, launch, thread::spawn(move || starts.start())));
        }
        for place in leave {
            args.extend(["--remove".to_owned(), self.joined[*place].name.clone()]);
        }
        let plan = self.plan(&args)?;
        self.command(&["apply", plan["plan"].as_str().unwrap_or_default()])?;
        let planned = plan["base_epoch"].as_u64().unwrap_or(0) + 1;
        let mut killed = false;
        if let Some((stage, role)) = kill {
            killed = self.wait_for_stage(stage, planned)?;
            if killed {
                // The joining node may not have started yet.
                if let Some((name, launch, starts)) = starting.pop() {
                    self.starts(name, launch, starts)?;
                }
                self.strike(role)?;
            }
        }
        for (name, launch, starts) in starting {
            self.starts(name, launch, starts)?;
        }
        self.wait_until_settled(planned + 3)?;
        self.planned += plan["moved_bytes"].as_u64().unwrap_or(0);
        for place in leave.iter().rev() {
            let gone = self.joined.remove(*place);
            if let Some(node) = gone.node {
                node.stop()?;
            }
        }
        Ok(killed)
    }

    fn joins(&self, name: &str) -> Result<Launch, Failure> {
        let home = self.cluster.dir().join(name);
        fs::create_dir_all(&home)?;
        self.cluster.joiner(&self.setup.binary, name, &home, &[])
    }

    fn starts(
        &mut self,
        name: String,
        launch: Launch,
        starts: thread::JoinHandle<Result<Node, Failure>>,
    ) -> Result<(), Failure> {
        let node = starts.join();
        let node = node.map_err(|_| Failure::Environment("a start panicked".to_owned()))??;
        self.joined.push(JoinedNode { name, launch, node: Some(node) });
        Ok(())
    }

    /// Makes a plan at node [`COORDINATOR`], after the nodes that the plan adds have asked to join.
    fn plan(&self, change: &[String]) -> Result<Value, Failure> {
        self.cluster.make_plan(&self.setup.binary, COORDINATOR, change, TIMEOUT)
    }

    /// Runs `kvorum cluster` with `args` at node [`COORDINATOR`].
    fn command(&self, args: &[&str]) -> Result<Vec<u8>, Failure> {
        self.cluster.output(&self.setup.binary, COORDINATOR, args)
    }

    fn layout(&self, node: usize) -> Option<Value> {
        let mut client = Client::connect(self.cluster.addresses()[node]).ok()?;
        let answer = client.request("GET", "/admin/layout", b"").ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// Waits for a stage. Returns false if the stage is already over.
    fn wait_for_stage(&self, stage: &str, planned: u64) -> Result<bool, Failure> {
        let begun = Instant::now();
        let last = planned + 3;
        while begun.elapsed() < TIMEOUT {
            let Some(layout) = self.layout(1) else { continue };
            if layout["stage"] == stage {
                return Ok(true);
            }
            if layout["epoch"].as_u64().is_some_and(|epoch| epoch >= last) {
                return Ok(false);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(Failure::Broken(format!("no node came to the stage {stage}")))
    }

    fn strike(&mut self, role: Role) -> Result<(), Failure> {
        if matches!(role, Role::Mover)
            && let Some(joined) = self.joined.last_mut()
            && let Some(node) = joined.node.take()
        {
            node.kill()?;
            thread::sleep(DOWN);
            joined.node = Some(joined.launch.start()?);
            return Ok(());
        }
        let node = if matches!(role, Role::Driver) { 0 } else { 2 };
        self.cluster.kill(node)?;
        thread::sleep(DOWN);
        self.cluster.start_node(node)
    }

    /// Waits until all initial nodes use the layout `epoch` or a later one, and no keys move.
    fn wait_until_settled(&mut self, epoch: u64) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut taken = BTreeMap::new();
        loop {
            let all: Vec<_> = (0..NODES).map(|node| self.layout(node)).collect();
            let moves = all.iter().flatten().filter_map(|layout| layout["moves"].as_array());
            for of_node in moves.flatten() {
                let name = of_node["node"].as_str().unwrap_or_default().to_owned();
                let bytes: &mut u64 = taken.entry(name).or_default();
                *bytes = (*bytes).max(of_node["bytes"].as_u64().unwrap_or(0));
            }
            let is_there = |layout: &Option<Value>| {
                layout.as_ref().is_some_and(|layout| {
                    layout["stage"] == "settled" && layout["epoch"].as_u64() >= Some(epoch)
                })
            };
            if all.iter().all(is_there) {
                self.taken += taken.values().sum::<u64>();
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                return Err(Failure::Broken(format!(
                    "the change does not end in {} s: {all:?}",
                    TIMEOUT.as_secs()
                )));
            }
            thread::sleep(POLL_INTERVAL * 5);
        }
    }

    fn resident(&self) -> Result<u64, Failure> {
        let all = (0..NODES).map(|node| Ok(self.cluster.node(node)?.resident()?.0));
        Ok(all.collect::<Result<Vec<u64>, Failure>>()?.into_iter().max().unwrap_or(0))
    }

    /// Checks at every node, including the joined nodes, that no acknowledged write is lost.
    fn check(&self) -> Result<(), Failure> {
        self.cluster.check(&self.ledger)?;
        for node in self.joined.iter().filter_map(|joined| joined.node.as_ref()) {
            check(node, &self.ledger, ProcessState::Same)?;
        }
        Ok(())
    }
}

fn keep(
    dir: &Path,
    seen: &ProbeFigures,
    pace: ProbeParams,
    spans: &[(Duration, Duration)],
    resident: &[u64],
) -> Result<(), Failure> {
    fs::create_dir_all(dir)?;
    let seconds = seen.seconds(resident);
    let over: Vec<_> = spans
        .iter()
        .map(|(from, to)| (from.as_secs() as usize, to.as_secs() as usize + 1))
        .collect();
    let offered = pace.rate();
    let title = "members: 3 → 5, 5 → 3, one joins and one is replaced (shaded)";
    fs::write(dir.join("members.csv"), curve::csv(&seconds))?;
    Ok(fs::write(dir.join("members.svg"), curve::svg(title, &seconds, offered, &over))?)
}
