//! `kvorum cluster`: the members of the cluster, and who decides about them.
//!
//! ```text
//!   status ─▶ GET /admin/layout, GET /v0/cluster ─▶ members, epoch by node, council
//!   plan ─▶ POST /admin/layout/plan ─▶ what would move; an id
//!   apply ID ─▶ POST /admin/layout/apply ─▶ decided by the council ─▶ done, or why not
//!   abort ─▶ POST /admin/layout/abort ─▶ the same
//!   recover ─▶ a stopped node's directory (`cli/recover.rs`)
//! ```

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, HumanCount, ProgressBar};

use super::admin::{Worker, show};
use super::args::Admin;
use super::bytes::percent;
use super::status::unreached;
use super::{Unable, fail, print};
use crate::cli::recover::{self, RecoverArgs};
use crate::operations::layout::{ChangeProgress, LayoutStatus, MoveStatus, Plan, PlannedNode};
use crate::operations::status::Cluster;

/// How long `apply --wait` waits for the council: as long as a node goes on asking it.
const PATIENCE: Duration = Duration::from_secs(70);

/// Everything after `cluster`.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show the members, the epoch that each goes by, and the council. Exit code 1 if a node is
    /// down or goes by another epoch
    Status(StatusArgs),
    /// Show what a change of the members would do; changes nothing
    ///
    /// Prints which nodes would hold how much of their share, what would move from whom to whom,
    /// and an id for `kvorum cluster apply`.
    Plan(PlanArgs),
    /// Have a plan decided by the council
    ///
    /// Refused if the members changed since the plan was made. Exit code 1 with --wait if another
    /// change was decided instead, or no majority of the council answered.
    Apply(ApplyArgs),
    /// Go back to the members of before, as long as reads have not switched to the new ones
    Abort(AbortArgs),
    /// Have a stopped node decide alone what follows, for the council's majority is lost for good
    ///
    /// Reads the node's data directory, and shows what it knows and what this may cost; without
    /// --yes, changes nothing. From its next start on the node is the whole council, and the other
    /// nodes that are left hear of that from it. Run it on one node only: the one that `kvorum
    /// cluster status` showed with the greatest epoch.
    Recover(RecoverArgs),
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Where.
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct PlanArgs {
    // No comment of its own: rustdoc would take the brackets for links.
    #[arg(
        long,
        value_name = "NAME",
        help = "A node that joins: the name of one that asks to (kvorum cluster status), or, to \
                see what would move, [NAME=]URL[;zone=Z][;weight=W]; may be given several times"
    )]
    add: Vec<String>,

    /// A node that hands over what it holds, and leaves; may be given several times
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,

    /// A node that is lost with its disk; may be given several times
    #[arg(long, value_name = "NAME")]
    remove_dead: Vec<String>,

    /// Another weight, 1..1000; may be given several times
    #[arg(long, value_name = "NAME=W")]
    weight: Vec<String>,

    /// Another number of copies, 1..255
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,

    /// Who decides about the next change: 1, 3, 5 or 7 nodes [default: who does now, and others if
    /// there are too few]
    #[arg(long, value_name = "NAME,NAME,…", value_delimiter = ',')]
    council: Vec<String>,

    /// Where.
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct ApplyArgs {
    /// The plan's id, as `kvorum cluster plan` printed it
    #[arg(value_name = "PLAN")]
    plan: String,

    /// Wait until a majority of the council knows it and all keys have moved
    #[arg(long)]
    wait: bool,

    /// Where: the node that made the plan.
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct AbortArgs {
    /// Wait until it is decided
    #[arg(long)]
    wait: bool,

    /// Where.
    #[command(flatten)]
    admin: Admin,
}

/// Does what is asked for.
pub(crate) fn cluster(args: &ClusterArgs) -> Result<(), Unable> {
    match &args.command {
        ClusterCommand::Status(args) => status(args),
        ClusterCommand::Plan(args) => plan(args),
        ClusterCommand::Apply(args) => apply(args),
        ClusterCommand::Abort(args) => abort(args),
        ClusterCommand::Recover(args) => print(&recover::run(args).map_err(fail)?),
    }
}

fn status(args: &StatusArgs) -> Result<(), Unable> {
    let mut worker = Worker::new(&args.admin)?;
    let layout: LayoutStatus = worker.exchange("GET", "/admin/layout", 200)?;
    let cluster: Cluster = worker.exchange("GET", "/v0/cluster", 200)?;
    let epoch_of = |name: &str| {
        let row = cluster.nodes.iter().find(|row| row.name == name)?;
        Some(row.status.as_ref()?.epoch)
    };
    if args.admin.ask.json {
        let mut json = serde_json::to_value(&layout).expect("strings and numbers serialize");
        for node in json["nodes"].as_array_mut().into_iter().flatten() {
            node["epoch"] = epoch_of(node["name"].as_str().unwrap_or_default()).into();
        }
        print(&format!("{json}\n"))?;
    } else {
        let rows = cluster.nodes.iter().filter(|row| row.status.is_none());
        let down: Vec<&str> = rows.map(|row| row.name.as_str()).collect();
        let unreached = cluster.nodes.iter().filter_map(|row| unreached(row, &cluster.asked));
        let unreached: String = unreached.map(|line| line + "\n").collect();
        print(&(status_text(&layout, epoch_of) + &held_up(&layout, &down) + &unreached))?;
    }
    let agree = layout.nodes.iter().all(|node| epoch_of(&node.name) == Some(layout.epoch));
    if agree { Ok(()) } else { Err(Unable::No) }
}

fn status_text(layout: &LayoutStatus, epoch_of: impl Fn(&str) -> Option<u64>) -> String {
    let LayoutStatus { epoch, stage, replicas, council, .. } = layout;
    let mut text = format!("epoch {epoch}, {stage}, replicas {replicas}, of {}\n", layout.node);
    let width = |of: fn(&crate::operations::layout::MemberStatus) -> usize| {
        layout.nodes.iter().map(of).max().unwrap_or(0)
    };
    let (names, urls) = (width(|node| node.name.len()), width(|node| node.url.len()));
    for node in &layout.nodes {
        let role = if council.contains(&node.name) { "council" } else { "" };
        let goes_by = match epoch_of(&node.name) {
            None => "down".to_owned(),
            Some(epoch) => format!("epoch {epoch}"),
        };
        let zone = if node.zone.is_empty() { "-" } else { &node.zone };
        let line = format!(
            "{:names$}  {:urls$}  zone {zone}  weight {}  {goes_by:8}  {role}",
            node.name, node.url, node.weight
        );
        text += line.trim_end();
        text.push('\n');
    }
    for node in &layout.joining {
        let zone = if node.zone.is_empty() { "-" } else { &node.zone };
        let _ = writeln!(
            text,
            "asks to join: {}  {}  zone {zone}  weight {}; kvorum cluster plan --add {}",
            node.name, node.url, node.weight, node.name
        );
    }
    let majority = council.len() / 2 + 1;
    let _ = writeln!(
        text,
        "council: {}; {majority} of them decide about the next change",
        council.join(", ")
    );
    text
}

fn plan(args: &PlanArgs) -> Result<(), Unable> {
    let mut worker = Worker::new(&args.admin)?;
    let lists = [
        ("add", &args.add),
        ("remove", &args.remove),
        ("remove_dead", &args.remove_dead),
        ("weight", &args.weight),
        ("council", &args.council),
    ];
    let plan = planned(&mut worker, &lists, args.replicas)?;
    if args.admin.ask.json {
        let json = serde_json::to_string(&plan).expect("strings and numbers always serialize");
        return print(&(json + "\n"));
    }
    let Plan { plan: id, base_epoch, .. } = &plan;
    print(&format!(
        "{}plan {id} for epoch {base_epoch}; nothing is changed before: kvorum cluster apply {id} \
         --wait\n",
        plan_text(&plan)
    ))
}

/// Has a change planned: lists by the names that the node knows them by.
pub(super) fn planned(
    worker: &mut Worker<'_>,
    lists: &[(&str, &Vec<String>)],
    replicas: Option<u8>,
) -> Result<Plan, Unable> {
    let mut query = Vec::new();
    for (name, list) in lists {
        if !list.is_empty() {
            query.push(format!("{name}={}", percent(list.join(",").as_bytes())));
        }
    }
    query.extend(replicas.map(|replicas| format!("replicas={replicas}")));
    worker.exchange("POST", &format!("/admin/layout/plan?{}", query.join("&")), 200)
}

/// What a plan would do.
pub(super) fn plan_text(plan: &Plan) -> String {
    let mut text = String::new();
    let width = plan.nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
    for PlannedNode { name, change, fill_before, fill_after } in &plan.nodes {
        let fill = |fill: &Option<f64>| fill.map_or("-".to_owned(), |fill| format!("{fill:.3}"));
        let _ = writeln!(
            text,
            "{name:width$}  {change:6}  holds {} × its share now, {} × afterwards",
            fill(fill_before),
            fill(fill_after)
        );
    }
    for step in &plan.moves {
        let (copies, bytes) = (HumanCount(step.copies.into()), HumanBytes(step.bytes));
        let _ = writeln!(text, "{} → {}: {copies} partitions, about {bytes}", step.from, step.to);
    }
    let (copies, bytes) = (HumanCount(plan.moved_copies), HumanBytes(plan.moved_bytes));
    let _ = match plan.moved_copies {
        0 => writeln!(text, "nothing moves"),
        _ => writeln!(text, "in all {copies} copies of partitions move, about {bytes}"),
    };
    let _ = writeln!(text, "council afterwards: {}", plan.council.join(", "));
    for warning in &plan.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// Has a plan decided; what becomes of it is shown by the layout.
pub(super) fn applied(worker: &mut Worker<'_>, plan: &str) -> Result<(), Unable> {
    let target = format!("/admin/layout/apply?plan={}", percent(plan.as_bytes()));
    let _: LayoutStatus = worker.exchange("POST", &target, 202)?;
    Ok(())
}

fn apply(args: &ApplyArgs) -> Result<(), Unable> {
    let url = &args.admin.ask.url;
    let mut worker = Worker::new(&args.admin)?;
    applied(&mut worker, &args.plan)?;
    if !args.wait {
        return print(&format!(
            "the council is asked for plan {}; kvorum cluster status --url {url} shows its end\n",
            args.plan
        ));
    }
    let epoch = settled(&mut worker, &args.plan)?;
    if args.admin.ask.json {
        print(&format!("{{\"epoch\":{epoch}}}\n"))
    } else {
        print(&format!("done: epoch {epoch}\n"))
    }
}

/// Waits for the end of a plan that is applied: the epoch in which all is done.
pub(super) fn settled(worker: &mut Worker<'_>, plan: &str) -> Result<u64, Unable> {
    wait_for(worker, plan)?.map_err(|why| {
        fail(why);
        Unable::No
    })
}

fn abort(args: &AbortArgs) -> Result<(), Unable> {
    let url = &args.admin.ask.url;
    let mut worker = Worker::new(&args.admin)?;
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        let asked: LayoutStatus = worker.exchange("POST", "/admin/layout/abort", 202)?;
        if !args.wait {
            return print(&format!(
                "the council is asked to go back; kvorum cluster status --url {url} shows its end\n"
            ));
        }
        let ended = worker.wait("/admin/layout", |layout: LayoutStatus, bar| {
            show(bar, 0, None, "asking the council".to_owned());
            match layout.stage.as_str() {
                "settled" if layout.epoch == asked.epoch + 1 => Some(Ok(Some(layout.epoch))),
                // Keys have begun to move meanwhile.
                "read old" if layout.epoch > asked.epoch => Some(Ok(None)),
                _ if layout.epoch > asked.epoch => {
                    Some(Err("reads had switched before: the change goes forward".to_owned()))
                }
                _ if Instant::now() > until => Some(Err(no_majority(&layout.council, &[]))),
                _ => None,
            }
        })?;
        if let Some(ended) = ended.transpose() {
            break ended;
        }
    };
    match ended {
        Ok(epoch) if args.admin.ask.json => print(&format!("{{\"epoch\":{epoch}}}\n")),
        Ok(epoch) => print(&format!("aborted: epoch {epoch}, with the members of before\n")),
        Err(why) => {
            fail(why);
            Err(Unable::No)
        }
    }
}

/// Waits for the end of a plan: the epoch in which all is done, or why it is not.
fn wait_for(worker: &mut Worker<'_>, plan: &str) -> Result<Result<u64, String>, Unable> {
    let until = Instant::now() + PATIENCE;
    worker.wait("/admin/layout", |layout: LayoutStatus, bar| {
        let change = layout.change.as_ref().filter(|change| change.plan == plan);
        let progress = change.map(|change| (change.epoch, change.progress));
        let without = change.map(|change| change.without_vote.clone()).unwrap_or_default();
        let (epoch, is_settled) = (layout.epoch, layout.stage == "settled");
        show_moves(bar, &layout);
        match progress {
            Some((_, ChangeProgress::Overtaken)) => {
                Some(Err("another change was decided before: plan again (kvorum cluster plan)"
                    .to_owned()))
            }
            Some((_, ChangeProgress::GivenUp)) => Some(Err(no_majority(&layout.council, &without))),
            // Four layouts, of which the first is the plan's, if keys move.
            Some((planned, _)) if epoch >= planned && !is_settled => None,
            Some((planned, _))
                if is_settled && change.is_some_and(|c| c.moves) && epoch > planned =>
            {
                let aborted = epoch < planned + 3;
                let why = || "the change was aborted (kvorum cluster abort)".to_owned();
                Some(if aborted { Err(why()) } else { Ok(epoch) })
            }
            Some((planned, ChangeProgress::Done)) if epoch >= planned => Some(Ok(epoch)),
            _ if Instant::now() > until => Some(Err(no_majority(&layout.council, &without))),
            _ => None,
        }
    })
}

/// Waits until no keys move.
pub(super) fn come_to_rest(worker: &mut Worker<'_>) -> Result<(), Unable> {
    worker.wait("/admin/layout", |layout: LayoutStatus, bar| {
        show_moves(bar, &layout);
        (layout.stage == "settled").then_some(())
    })
}

/// Who holds up a change that is under way: nodes that are down, those that leave included, and
/// those that have not done their part yet.
fn held_up(layout: &LayoutStatus, down: &[&str]) -> String {
    if layout.stage == "settled" {
        return String::new();
    }
    let is_told = !layout.moves.is_empty() && layout.stage != "read new";
    let slow = if is_told { slow(layout) } else { String::new() };
    let slow = slow.split(", ").filter(|name| !name.is_empty() && !down.contains(name));
    let down_too = down.iter().map(|name| format!("{name} (down)"));
    let all: Vec<String> = slow.map(str::to_owned).chain(down_too).collect();
    let mut text = format!("{}: ", stage_text(&layout.stage));
    text +=
        &if all.is_empty() { "goes on".to_owned() } else { format!("not yet {}", all.join(", ")) };
    if !down.is_empty() && layout.stage != "read new" {
        text +=
            "; if one is gone for good: kvorum cluster abort, and plan again with --remove-dead";
    }
    text + "\n"
}

/// What a stage waits for.
fn stage_text(stage: &str) -> &'static str {
    match stage {
        "prepare" => "waiting until all nodes are up and have room",
        "read old" => "waiting until all nodes hold what moves to them",
        _ => "reads have switched; waiting for most nodes of before to go by it",
    }
}

/// The nodes that a stage waits for, as far as the node that is asked knows.
fn slow(layout: &LayoutStatus) -> String {
    let has_all = |name: &str| layout.moves.iter().any(|told| told.node == name && told.has_all);
    let names = layout.nodes.iter().map(|node| node.name.as_str());
    names.filter(|name| !has_all(name)).collect::<Vec<_>>().join(", ")
}

/// What of a change is under way.
fn show_moves(bar: &ProgressBar, layout: &LayoutStatus) {
    let sum = |of: fn(&MoveStatus) -> u64| layout.moves.iter().map(of).sum::<u64>();
    let message = match layout.stage.as_str() {
        "settled" => "asking the council".to_owned(),
        stage @ "prepare" => format!("{}: {}", stage_text(stage), slow(layout)),
        "read old" => format!(
            "{} records taken, {}; not yet all: {}",
            HumanCount(sum(|told| told.records)),
            HumanBytes(sum(|told| told.bytes)),
            slow(layout)
        ),
        stage => stage_text(stage).to_owned(),
    };
    let (done, of) = (sum(|told| told.sources.into()), sum(|told| told.of_sources.into()));
    show(bar, done, Some(of).filter(|of| *of > 0), message);
}

fn no_majority(council: &[String], without_vote: &[String]) -> String {
    let votes = if without_vote.is_empty() { "answered" } else { "voted" };
    let mut why = format!("no majority of the council ({}) {votes}", council.join(", "));
    if !without_vote.is_empty() {
        let _ = write!(
            why,
            "; {} may have lost votes with a disk or with an older copy of it, and has none until \
             a later layout seats it again",
            without_vote.join(", ")
        );
    }
    why + "; the change may be decided all the same once a majority does: kvorum cluster status"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_vote_is_named_if_no_majority_decides() {
        let council = ["a", "b", "c"].map(str::to_owned);
        let why = no_majority(&council, &[]);
        assert!(why.starts_with("no majority of the council (a, b, c) answered; the"), "{why}");
        let why = no_majority(&council, &council[1..]);
        assert!(why.contains("(a, b, c) voted; b, c may have lost votes"), "{why}");
    }
}
