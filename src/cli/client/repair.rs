//! `kvorum repair`: asks a node for a repair round over the whole cluster, and shows the result.

use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration};

use super::admin::{AdminClient, EACH_LINE, FIRST_LINE, duration_text, show, task_number_json};
use super::status::{clock_problems, problems};
use super::{CommandFailure, RepairArgs, print_done};
use crate::operations::status::{Cluster, Row};
use crate::repair::status::{Repair, Round, UnrepairedKeys};

/// Runs the command.
pub(crate) fn repair(args: &RepairArgs) -> Result<(), CommandFailure> {
    let url = &args.ask.url;
    let mut client = AdminClient::new(&args.ask)?;
    let number = client.ask(&format!("/admin/repair?full={}", args.full))?;
    if !args.wait && args.ask.json {
        return print_done(
            &task_number_json(number),
            format_args!("repair round {number} was requested"),
        );
    }
    if !args.wait {
        return print_done(
            &format!(
                "repair round {number} was requested at {url}; kvorum repair --wait{} shows its \
                 end\n",
                args.ask.flags()
            ),
            format_args!("repair round {number} was requested"),
        );
    }
    let (mut look_at, mut hindrances) = (Instant::now() + FIRST_LINE, String::new());
    let round = client.wait("/admin/repair", |client, repair: Repair, bar| {
        if let Some(last) = repair.last.filter(|last| last.number >= number) {
            return Some(last);
        }
        if Instant::now() >= look_at {
            let cluster = client.try_get("/v0/cluster");
            hindrances = cluster.map_or_else(String::new, |cluster| cluster_problems(&cluster));
            look_at = Instant::now() + EACH_LINE;
        }
        let (far, of, message) = progress(repair.current.as_ref(), number);
        show(bar, far, of, message + &hindrances);
        None
    })?;
    if args.ask.json {
        let json = serde_json::to_string(&round).expect("strings and numbers always serialize");
        print_done(&(json + "\n"), "the repair round has ended")?;
    } else {
        print_done(&summary(&round, &args.ask.flags()), "the repair round has ended")?;
    }
    if round.equal { Ok(()) } else { Err(CommandFailure::No) }
}

/// Returns a round's progress in records, the total if known, and a description. `round` is the
/// round that runs now, and `number` is the requested round.
fn progress(round: Option<&Round>, number: u64) -> (u64, Option<u64>, String) {
    let Some(round) = round else {
        let what = "waiting until this node is a member, no keys move, and the last writes have \
                    reached their replicas";
        return (0, None, what.to_owned());
    };
    if round.number < number {
        return (0, None, "waiting for the end of the round before this one".to_owned());
    }
    if round.records == 0 && round.bytes_read == 0 {
        return (0, None, "waiting until all nodes take part, or are left out".to_owned());
    }
    let (records, differing) = (HumanCount(round.records), HumanCount(round.differing));
    let repaired = HumanCount(round.repaired);
    let message = format!("{records} records compared; {differing} differ, {repaired} repaired");
    (round.records, round.of_records.filter(|of| *of > 0), message)
}

/// Describes the problems of the cluster's nodes, which may delay a round.
fn cluster_problems(cluster: &Cluster) -> String {
    let of_nodes = cluster.nodes.iter().flat_map(|row| problems(row, &cluster.asked));
    let clocks = clock_problems(&cluster.nodes);
    of_nodes.chain(clocks).map(|line| format!("; {line}")).collect()
}

/// Describes in one line the repair round that ended last, of all rounds that these nodes report;
/// `None` if they report no ended round. `flags` are the connection's flags for printed commands.
pub(super) fn last_round(nodes: &[Row], now_ms: u64, flags: &str) -> Option<String> {
    let rounds = nodes.iter().filter_map(|row| Some((row, row.status.as_ref()?.repair.as_ref()?)));
    let lasts = rounds.filter_map(|(row, repair)| Some((row, repair.last.as_ref()?)));
    let (row, round) = lasts.max_by_key(|(_, round)| ended_ms(round))?;
    let ago = Duration::from_millis(now_ms.saturating_sub(ended_ms(round)));
    let (ago, name) = (HumanDuration(ago), &row.name);
    Some(match (round.equal, &round.unproven) {
        (true, None) => format!("all replicas held the same {ago} ago: repair round of {name}"),
        (true, Some(why)) => format!(
            "all replicas held the same {ago} ago (repair round of {name}), but deleted keys stay \
             on disk: {why}"
        ),
        (false, _) => format!(
            "not all replicas are known to hold the same since the repair round of {name} {ago} \
             ago: {}; kvorum repair --wait{flags} runs another one",
            reasons(round).join("; ")
        ),
    })
}

fn ended_ms(round: &Round) -> u64 {
    round.began_ms + round.took_ms.unwrap_or(0)
}

/// Returns the reasons why not all replicas are known to be equal after a round.
fn reasons(round: &Round) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(why) = &round.stopped {
        reasons.push(format!("it ended early: {why}"));
    }
    if !round.absent.is_empty() {
        reasons.push(format!("not compared with {}", round.absent.join(", ")));
    }
    if round.failed > 0 {
        reasons.push(format!("{} keys not made equal", HumanCount(round.failed)));
        reasons.extend(round.unrepaired.iter().map(unrepaired_text));
    }
    if round.damaged > round.healed {
        let left = HumanCount(round.damaged - round.healed);
        reasons.push(format!("{left} damaged ranges of keys not healed"));
    }
    reasons
}

/// Describes the keys that could not be made equal because of one node.
fn unrepaired_text(UnrepairedKeys { node, keys, why }: &UnrepairedKeys) -> String {
    let plural = if *keys == 1 { "" } else { "s" };
    format!("{node}: {} key{plural} not made equal: {why}", HumanCount(*keys))
}

/// Describes the result of a round in a few lines.
fn summary(round: &Round, flags: &str) -> String {
    let kind = if round.full { "full" } else { "incremental" };
    let mut text = format!(
        "{kind} round of {} over {} records of the node asked; {} read on all nodes\n",
        duration_text(round.took_ms),
        HumanCount(round.records),
        HumanBytes(round.bytes_read)
    );
    text += &match round.differing {
        0 => "keys: none differed\n".to_owned(),
        differing => format!(
            "keys: {} differed, {} of them equal now\n",
            HumanCount(differing),
            HumanCount(round.repaired)
        ),
    };
    if round.failed > 0 {
        text += &format!("keys not made equal: {}\n", HumanCount(round.failed));
    }
    for unrepaired in &round.unrepaired {
        text += &format!("{}\n", unrepaired_text(unrepaired));
    }
    if round.damaged > 0 {
        text += &format!(
            "damaged ranges of keys: {} found, {} healed\n",
            HumanCount(round.damaged),
            HumanCount(round.healed)
        );
    }
    for range in &round.unhealed {
        let last = range.last.as_deref().unwrap_or("the last key");
        text += &format!("{}: {} to {last}: {}\n", range.node, range.first, range.why);
    }
    if !round.absent.is_empty() {
        text += &format!("not compared with: {}\n", round.absent.join(", "));
    }
    if let Some(why) = &round.stopped {
        text += &format!("ended early: {why}\n");
    }
    if round.proven {
        text += &format!(
            "deleted keys may be purged: compactions do that, kvorum compact --wait{flags} at \
             once\n"
        );
    } else if let Some(why) = &round.unproven {
        text += &format!("deleted keys stay on disk: {why}\n");
    }
    text += match round.equal {
        true => "all replicas hold the same\n",
        false => {
            "not all replicas are known to be equal: deleted keys stay on disk until a round with \
             all nodes ends equal\n"
        }
    };
    text
}
