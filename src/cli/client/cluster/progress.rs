//! Progress of a membership change, for commands that wait for its end.
//!
//! ```text
//!   GET /admin/layout ─┬─▶ on a terminal: a bar
//!                      └─▶ to a file or a pipe: one line per stage, and every ten seconds a line
//!   GET /v0/cluster ──────▶   with the nodes that the change waits for
//! ```

use std::cell::Cell;
use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar};

use super::ChangeFailure;
use crate::cli::client::admin::{AdminClient, show};
use crate::cli::client::status::{OTHER_CLUSTER, lost_votes, problems};
use crate::cli::client::{CommandFailure, fail};
use crate::layout::status::{ChangeProgress, LayoutStage, LayoutStatus, MoveStatus, WaitStatus};
use crate::operations::status::{Cluster, Row};
use crate::operations::stderr;

/// Timeout of `apply --wait` for the council's decision, equal to the time for which a node keeps
/// asking the council.
pub(super) const TIMEOUT: Duration = Duration::from_secs(70);

/// Timeout of `apply --wait` until all members use the final layout: many times as long as the
/// members need.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between two queries of the members' epochs.
const EPOCH_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Number of layouts that follow the plan's own layout in a change that moves keys.
const LAYOUTS: u64 = 3;

/// Interval of the progress lines that name the nodes for which a stage waits.
const WAIT_REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Waits until a plan is carried out; returns the epoch of the final layout.
pub(in crate::cli::client) fn wait_for_plan(
    client: &mut AdminClient<'_>,
    plan: &str,
) -> Result<u64, CommandFailure> {
    let until = Instant::now() + TIMEOUT;
    // The node reports only the last requested change, and an abort replaces the plan there. So the
    // closure remembers the plan's epoch.
    let planned = Cell::new(None);
    let ended = wait(client, |layout| {
        let change = layout.change.as_ref().filter(|change| change.plan == plan);
        planned.set(change.map(|change| change.epoch).or(planned.get()));
        let is_settled = layout.stage == LayoutStage::Settled;
        match planned.get() {
            Some(planned) if change.is_none() && is_settled && layout.epoch < planned + LAYOUTS => {
                Some(Err(ChangeFailure::Aborted))
            }
            _ => plan_outcome(layout, plan, Instant::now() > until),
        }
    })?;
    let epoch = ended.map_err(|why| {
        fail(why.text_with_command(&client.flags()));
        CommandFailure::No
    })?;
    wait_for_epoch(client, epoch);
    Ok(epoch)
}

/// Waits until every member that answers is in epoch `epoch`, so that the next command finds the
/// members in agreement. The change is already complete, so a failed query ends the wait without an
/// error.
fn wait_for_epoch(client: &mut AdminClient<'_>, epoch: u64) {
    let until = Instant::now() + ADOPTION_TIMEOUT;
    let is_behind = |row: &Row| row.status.as_ref().is_some_and(|status| status.epoch < epoch);
    while Instant::now() < until
        && let Some(cluster) = client.try_get::<Cluster>("/v0/cluster")
        && cluster.nodes.iter().any(is_behind)
    {
        thread::sleep(EPOCH_POLL_INTERVAL);
    }
}

/// Waits until no keys move.
pub(in crate::cli::client) fn wait_until_settled(
    client: &mut AdminClient<'_>,
) -> Result<(), CommandFailure> {
    wait(client, |layout| (layout.stage == LayoutStage::Settled).then_some(()))
}

/// Polls the layout until `ended` returns a result, and shows the progress meanwhile.
fn wait<End>(
    client: &mut AdminClient<'_>,
    ended: impl Fn(&LayoutStatus) -> Option<End>,
) -> Result<End, CommandFailure> {
    let mut log = Log { stage: LayoutStage::Settled, said: Instant::now() };
    client.wait("/admin/layout", |client, layout: LayoutStatus, bar| {
        if let Some(end) = ended(&layout) {
            return Some(Ok(end));
        }
        if bar.is_hidden() {
            return log.report(client, &layout).err().map(Err);
        }
        show_moves(bar, &layout);
        None
    })?
}

/// Returns the outcome of a plan: the epoch of the final layout, or the reason of the failure.
/// `None` while the outcome is open. `is_late` is true after the timeout for the council's
/// decision.
fn plan_outcome(
    layout: &LayoutStatus,
    plan: &str,
    is_late: bool,
) -> Option<Result<u64, ChangeFailure>> {
    let change = layout.change.as_ref().filter(|change| change.plan == plan);
    let progress = change.map(|change| (change.epoch, &change.progress));
    let no_majority = || ChangeFailure::NoMajority {
        council: layout.council.clone(),
        without_vote: change.map(|change| change.without_vote.clone()).unwrap_or_default(),
    };
    let (epoch, is_settled) = (layout.epoch, layout.stage == LayoutStage::Settled);
    match progress {
        Some((_, ChangeProgress::Overtaken)) => Some(Err(ChangeFailure::Overtaken)),
        Some((_, ChangeProgress::GivenUp)) => Some(Err(no_majority())),
        // A change that moves keys takes four layouts; the first one is the plan's layout.
        Some((planned, _)) if epoch >= planned && !is_settled => None,
        Some((planned, _)) if is_settled && change.is_some_and(|c| c.moves) && epoch > planned => {
            // A layout that only changes the tokens does not count as one of the four.
            let aborted = epoch < planned + LAYOUTS || change.is_some_and(|change| change.undone);
            Some(if aborted { Err(ChangeFailure::Aborted) } else { Ok(epoch) })
        }
        Some((planned, ChangeProgress::Done)) if epoch >= planned => Some(Ok(epoch)),
        _ if is_late => Some(Err(no_majority())),
        _ => change.and_then(|_| ChangeFailure::from_missing_votes(layout)).map(Err),
    }
}

/// The stage and the time of the last progress line.
struct Log {
    stage: LayoutStage,
    said: Instant,
}

impl Log {
    /// Prints a new stage at once, and the awaited nodes and problems at intervals. Problems wait
    /// for the interval because joining nodes are down at first.
    fn report(
        &mut self,
        client: &mut AdminClient<'_>,
        layout: &LayoutStatus,
    ) -> Result<(), CommandFailure> {
        let LayoutStatus { epoch, stage, .. } = layout;
        if self.stage != *stage {
            stderr::say(format_args!("epoch {epoch}, {stage}: {}", stage_text(stage)));
            *self = Self { stage: stage.clone(), said: Instant::now() };
        }
        if self.said.elapsed() < WAIT_REPORT_INTERVAL {
            return Ok(());
        }
        let cluster: Cluster = client.request("GET", "/v0/cluster", 200)?;
        let state = holdups_text(layout, &cluster, &client.flags());
        let state = state.unwrap_or_else(|| "asking the council".to_owned());
        let flags = client.flags();
        let problems = cluster.nodes.iter().flat_map(|row| problems(row, &cluster.asked));
        let problems = problems.chain(lost_votes(&cluster, &flags));
        let problems: String = problems.map(|line| format!("; {line}")).collect();
        stderr::say(format_args!("epoch {epoch}, {state}{problems}"));
        self.said = Instant::now();
        Ok(())
    }
}

/// Describes the nodes that delay a change: nodes that are down, including leaving nodes, and nodes
/// whose transfer is not complete. `None` if no change is under way, or if the asked node was
/// removed. `flags` are the connection's flags for printed commands.
pub(super) fn holdups_text(
    layout: &LayoutStatus,
    cluster: &Cluster,
    flags: &str,
) -> Option<String> {
    let stage = &layout.stage;
    // A removed node has no current information about the other nodes.
    if *stage == LayoutStage::Settled || cluster.nodes.iter().any(|row| row.not_asked) {
        return None;
    }
    let names = |is_one: fn(&&Row) -> bool| -> Vec<&str> {
        cluster.nodes.iter().filter(is_one).map(|row| row.name.as_str()).collect()
    };
    let strange = names(|row| row.other_cluster_id.is_some());
    let down = names(|row| row.status.is_none() && row.other_cluster_id.is_none());
    let is_known = !layout.moves.is_empty() && *stage != LayoutStage::ReadNew;
    let slow = awaited_nodes(layout)
        .into_iter()
        .filter(|name| is_known && !down.contains(name) && !strange.contains(name));
    let slow = slow.map(|name| format!("{name}{}", transfer_progress(layout, name)));
    let strange = strange.iter().map(|name| format!("{name} ({OTHER_CLUSTER})"));
    let waits = slow.chain(down.iter().map(|name| format!("{name} (down)"))).chain(strange);
    let waits: Vec<String> = waits.collect();
    let mut text = format!("{stage}: {}: ", stage_text(stage));
    text += &match waits.is_empty() {
        true => "goes on".to_owned(),
        false => format!("not yet {}", waits.join(", ")),
    };
    if !down.is_empty() && *stage != LayoutStage::ReadNew {
        text += &format!(
            "; if one is gone for good: kvorum cluster abort{flags}, and plan again: with \
             --remove-dead for a member, without a node that was to join"
        );
    }
    if *stage == LayoutStage::ReadOld {
        text += &waits_for_clocks(layout, flags);
    }
    Some(text)
}

/// Describes each node that waits because the records of another node have timestamps ahead of its
/// clock, and the remedies.
fn waits_for_clocks(layout: &LayoutStatus, flags: &str) -> String {
    let mut text = String::new();
    for MoveStatus { node, waits, has_all, .. } in &layout.moves {
        let Some(WaitStatus { source, until_ms }) = waits.as_ref().filter(|_| !has_all) else {
            continue;
        };
        let until = UNIX_EPOCH + Duration::from_millis(*until_ms);
        let left = until.duration_since(SystemTime::now()).unwrap_or_default();
        let _ = write!(
            text,
            "; {source} holds records with timestamps ahead of {node}'s clock, which are not to be \
             lost: the change waits {} for them. If {node}'s clock is behind, correct it. If \
             {source}'s was ahead and is correct now, stop {source}, run kvorum repair-clock on \
             its directory and start it. Or go back: kvorum cluster abort{flags}",
            HumanDuration(left)
        );
    }
    text
}

/// Describes the progress of a node that does not have all its new records yet; empty in stages
/// other than `ReadOld`.
fn transfer_progress(layout: &LayoutStatus, name: &str) -> String {
    let of = |status: &&MoveStatus| status.node == name && layout.stage == LayoutStage::ReadOld;
    layout.moves.iter().find(of).map_or(String::new(), |status| {
        let (records, bytes) = (HumanCount(status.records), HumanBytes(status.bytes));
        let (done, of) = (status.sources, status.of_sources);
        format!(" (took {records} records, {bytes}; all of {done} of {of} nodes)")
    })
}

/// Describes the condition that a stage waits for.
fn stage_text(stage: &LayoutStage) -> &'static str {
    match stage {
        LayoutStage::Settled => "asking the council",
        LayoutStage::Prepare => {
            "waiting until all nodes are up and have dropped what earlier changes left"
        }
        LayoutStage::ReadOld => "keys move; waiting until all nodes hold what moves to them",
        LayoutStage::ReadNew => {
            "reads use the new replicas; waiting for a majority of the previous members to confirm"
        }
        LayoutStage::Other(_) => "a stage that only a later release of kvorum can describe",
    }
}

/// Returns the nodes that a stage waits for, as far as the asked node knows.
fn awaited_nodes(layout: &LayoutStatus) -> Vec<&str> {
    let has_all =
        |name: &str| layout.moves.iter().any(|status| status.node == name && status.has_all);
    let names = layout.nodes.iter().map(|node| node.name.as_str());
    names.filter(|name| !has_all(name)).collect()
}

/// Shows a change's progress on a terminal.
fn show_moves(bar: &ProgressBar, layout: &LayoutStatus) {
    let sum = |of: fn(&MoveStatus) -> u64| layout.moves.iter().map(of).sum::<u64>();
    let (done, of) = (sum(|status| status.sources.into()), sum(|status| status.of_sources.into()));
    show(bar, done, Some(of).filter(|of| *of > 0), moves_text(layout));
}

fn moves_text(layout: &LayoutStatus) -> String {
    let sum = |of: fn(&MoveStatus) -> u64| layout.moves.iter().map(of).sum::<u64>();
    let mut message = match &layout.stage {
        LayoutStage::ReadOld => format!(
            "{} records taken, {}",
            HumanCount(sum(|status| status.records)),
            HumanBytes(sum(|status| status.bytes))
        ),
        stage => stage_text(stage).to_owned(),
    };
    if [LayoutStage::Prepare, LayoutStage::ReadOld].contains(&layout.stage) {
        let _ = write!(message, "; not yet all: {}", awaited_nodes(layout).join(", "));
    }
    if let Some(waits) = layout.moves.iter().find_map(|status| status.waits.as_ref()) {
        let source = &waits.source;
        let _ = write!(message, "; timestamps of {source} are ahead: kvorum cluster status");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &str = " --url http://a:1";

    #[test]
    fn a_council_without_a_majority_of_votes_is_not_waited_for() {
        let asking = |without_vote: &[&str]| -> LayoutStatus {
            let change = serde_json::json!({"plan": "p", "epoch": 2, "progress": "asking",
                "moves": false, "without_vote": without_vote});
            serde_json::from_value(serde_json::json!({"node": "a", "epoch": 1, "stage": "settled",
                "replicas": 3, "nodes": [], "council": ["a", "b", "c"], "has_vote": true,
                "change": change}))
            .unwrap()
        };
        assert!(plan_outcome(&asking(&["b"]), "p", false).is_none(), "two of three may decide");
        let Some(Err(why)) = plan_outcome(&asking(&["b", "c"]), "p", false) else {
            panic!("one of three decides nothing")
        };
        let why = why.text_with_command(FLAGS);
        assert!(why.starts_with("no majority of the council (a, b, c) has a vote: b, c"), "{why}");
        assert!(why.ends_with("(kvorum cluster status --url http://a:1 says how)"), "{why}");
        assert!(plan_outcome(&asking(&["b", "c"]), "another", false).is_none());
    }

    #[test]
    fn a_waiting_stage_names_the_awaited_nodes() {
        let layout = |stage: &str| -> LayoutStatus {
            let member = |name| {
                let url = format!("http://{name}:1");
                serde_json::json!({"name": name, "url": url, "weight": 1, "id": 0})
            };
            let nodes = ["a", "c", "d"].map(member);
            let status = serde_json::json!({"node": "d", "epoch": 3, "has_all": false, "sources": 1,
                "of_sources": 3, "records": 1234, "bytes": 5 << 20});
            let has_all = serde_json::json!({"node": "a", "epoch": 3, "has_all": true, "sources": 0,
                "of_sources": 0, "records": 0, "bytes": 0});
            serde_json::from_value(serde_json::json!({"node": "a", "epoch": 3, "stage": stage,
                "replicas": 3, "nodes": nodes, "council": ["a"],
                "has_vote": true, "moves": [status, has_all]}))
            .unwrap()
        };
        let cluster: Cluster = serde_json::from_str(
            r#"{"asked": "a", "nodes": [{"name": "c", "url": "http://c:1", "up": false,
                "reached_by": 0, "hints": 0}]}"#,
        )
        .unwrap();
        assert_eq!(holdups_text(&layout("settled"), &cluster, FLAGS), None);
        let text = holdups_text(&layout("read old"), &cluster, FLAGS).unwrap();
        let (d, c) = ("d (took 1,234 records, 5.00 MiB; all of 1 of 3 nodes)", "c (down)");
        assert!(text.starts_with("read old: keys move; waiting until all nodes hold"), "{text}");
        assert!(text.contains(&format!(": not yet {d}, {c}; if one is gone for good")), "{text}");
        let text = holdups_text(&layout("prepare"), &cluster, FLAGS).unwrap();
        assert!(text.contains("changes left: not yet d, c (down); if one"), "{text}");
        let text = holdups_text(&layout("read new"), &cluster, FLAGS).unwrap();
        assert!(text.ends_with("to confirm: not yet c (down)"), "{text}");
        let other = r#"{"asked": "a", "nodes": [{"name": "c", "url": "", "up": false,
            "reached_by": 0, "hints": 0, "other_cluster_id": "1"}]}"#;
        let text =
            holdups_text(&layout("prepare"), &serde_json::from_str(other).unwrap(), FLAGS).unwrap();
        assert!(text.ends_with("not yet d, c (other cluster ID)"), "no --remove-dead: {text}");
        let mut waits = layout("read old");
        let until =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_hours(50);
        let until_ms = until.as_millis() as u64;
        waits.moves[0].waits = Some(WaitStatus { source: "b".to_owned(), until_ms });
        let text = holdups_text(&waits, &cluster, FLAGS).unwrap();
        let bar = moves_text(&waits);
        assert!(bar.ends_with("; timestamps of b are ahead: kvorum cluster status"), "{bar}");
        assert!(text.contains("; b holds records with timestamps ahead of d's clock"), "{text}");
        assert!(text.contains("waits 2 days for them. If d's clock is behind"), "{text}");
        assert!(text.ends_with("Or go back: kvorum cluster abort --url http://a:1"), "{text}");
        let text = holdups_text(&layout("read both"), &cluster, FLAGS).unwrap();
        assert!(text.starts_with("read both: a stage that only a later release"), "{text}");
    }
}
