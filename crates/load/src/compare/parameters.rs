//! Parameters that differ between two sides. Each of these parameters may be the cause of a
//! difference in the figures.

use std::collections::BTreeMap;

use crate::record::Run;
use crate::saved::LoadedRun;

/// Parts of the names of server properties that change at every start.
const ALWAYS_NEW: [&str; 5] = ["pid", "uptime", "started", "incarnation", "time"];

/// Server properties that are not settings: the current contents, and the address, which is also
/// among the plan's targets.
const NOT_SETTINGS: [&str; 4] = ["keys", "disk_bytes", "memory_bytes", "url"];

/// A parameter with different values on the two sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) name: String,
    pub(crate) a: String,
    pub(crate) b: String,
}

/// Returns the parameters that differ. A parameter that varies within a side is listed with all its
/// values.
pub(crate) fn differences(a: &[LoadedRun], b: &[LoadedRun]) -> Vec<Difference> {
    let sides = [a, b].map(|side| side.iter().map(parameters).collect::<Vec<_>>());
    let mut names: Vec<String> =
        sides.iter().flatten().flat_map(|one| one.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let of = |side: &[BTreeMap<String, String>], name: &str| {
        let mut values: Vec<_> =
            side.iter().map(|one| one.get(name).cloned().unwrap_or_default()).collect();
        values.sort();
        values.dedup();
        values.join(" or ")
    };
    let mut found = Vec::new();
    for name in names {
        let (a, b) = (of(&sides[0], &name), of(&sides[1], &name));
        if a != b {
            found.push(Difference { name, a, b });
        }
    }
    found
}

/// Returns the first difference between the runs of a side, or `None` if the runs are repeats.
pub(crate) fn difference_within(side: &[LoadedRun]) -> Option<String> {
    let all: Vec<_> = side.iter().map(repeat_parameters).collect();
    let (first, others) = all.split_first()?;
    let other = others.iter().position(|other| other != first)? + 1;
    let names = || first.keys().chain(all[other].keys());
    let name = names().find(|name| all[other].get(*name) != first.get(*name))?;
    let shown = |at: usize| {
        let value = all[at].get(name).filter(|value| !value.is_empty());
        format!("{} in {}", value.map_or("–", String::as_str), side[at].name)
    };
    Some(format!("{name} is {}, but {}", shown(0), shown(other)))
}

/// Returns the parameters that must be equal in all repeats. Among a server's properties, this is
/// only the version, because the others may change at a restart.
fn repeat_parameters(saved: &LoadedRun) -> BTreeMap<String, String> {
    let mut all = parameters(saved);
    all.retain(|name, _| !name.starts_with("server ") || name.ends_with(": version"));
    all
}

fn parameters(saved: &LoadedRun) -> BTreeMap<String, String> {
    let run = &saved.run;
    let (plan, machine) = (&run.plan, &run.machine);
    let rate = plan.rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
    let mut all = BTreeMap::from(
        [
            ("tool", run.tool.clone()),
            ("plan: targets", plan.targets.join(" ")),
            ("plan: threads", plan.threads.to_string()),
            ("plan: connections", plan.connections.to_string()),
            ("plan: rate", rate),
            ("plan: closed loop", plan.closed.to_string()),
            ("plan: arrival", plan.arrival.clone()),
            ("plan: warm-up in s", plan.warmup_s.to_string()),
            ("plan: duration in s", plan.duration_s.to_string()),
            ("plan: requests", plan.requests.clone()),
            ("recorded meanwhile", run.profiled_events()),
            ("machine: host", machine.host.clone()),
            ("machine: processor", machine.cpu.clone()),
            ("machine: processors", machine.cpus.to_string()),
            ("machine: memory", machine.memory.to_string()),
            ("machine: kernel", machine.kernel.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let script = saved.script.as_ref().map(|text| script_summary(text));
    all.insert("script".to_owned(), script.unwrap_or_default());
    servers(run, &mut all);
    all
}

/// Adds the servers' settings under each server's position, because a server's port may change from
/// run to run.
fn servers(run: &Run, all: &mut BTreeMap<String, String>) {
    all.insert("servers".to_owned(), run.servers.len().to_string());
    for (place, server) in run.servers.iter().enumerate() {
        for (name, value) in &server.about {
            let new = ALWAYS_NEW.iter().any(|new| name.contains(new));
            if !new && !NOT_SETTINGS.contains(&name.as_str()) {
                all.insert(format!("server {}: {name}", place + 1), value.clone());
            }
        }
    }
}

/// Summarises a script in one line: its length and checksum, which are enough to distinguish two
/// scripts.
fn script_summary(text: &str) -> String {
    // Fletcher's checksum reveals any accidental change of a script, and nobody forges a script
    // here.
    let (mut a, mut b) = (0_u64, 0_u64);
    for byte in text.bytes() {
        a = (a + u64::from(byte)) % 65_535;
        b = (b + a) % 65_535;
    }
    format!("{} lines, checksum {:08x}", text.lines().count(), b << 16 | a)
}
