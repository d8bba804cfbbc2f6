//! `kvorum cluster`: shows and changes the members of the cluster.
//!
//! ```text
//!   status    GET /admin/layout, GET /v0/cluster: the members, each node's epoch, the council
//!   plan      POST /admin/layout/plan: the partitions that would move, and the plan's id
//!   apply ID  POST /admin/layout/apply: the council decides the change, or refuses with a reason
//!   abort     POST /admin/layout/abort: the council reverts the change, or refuses with a reason
//!   finalize  POST /admin/finalize: all members raise their store format, or refuse with a reason
//!   recover   changes a stopped node's directory (`cli/recover.rs`)
//! ```

mod finalize;
mod progress;

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, HumanCount, HumanDuration};

use super::admin::{AdminClient, show};
use super::args::ConnectionArgs;
use super::bytes::percent;
use super::status::{
    NOT_ASKED, OTHER_CLUSTER, has_lost_majority, lost_votes, problems, unreported_state,
};
use super::{CommandFailure, fail, print, print_done};
use crate::cli::recover::{self, RecoverArgs};
use crate::cli::shell::word;
use crate::layout::status::{
    ChangeProgress, ChangeStatus, LayoutPlan, LayoutStage, LayoutStatus, PlannedNode,
};
use crate::operations::status::Cluster;
use progress::{TIMEOUT, holdups_text};
pub(super) use progress::{wait_for_plan, wait_until_settled};

/// Arguments of `kvorum cluster`.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// The command to run.
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show the members, the epoch of each member, and the council. Exit code 1 if a node is down
    /// or in another epoch
    Status(ClusterStatusArgs),
    /// Show the effects of a change of the members; changes nothing
    ///
    /// Prints how much each node would hold, relative to its share, how many partitions would move
    /// from which node to which, and an id for `kvorum cluster apply`.
    Plan(PlanArgs),
    /// Apply a plan: the council decides it, and the keys move
    ///
    /// Refused if the members changed since the plan was made. Exit code 1 with --wait if another
    /// change was decided instead, or no majority of the council answered.
    Apply(ApplyArgs),
    /// Go back to the previous members, as long as reads do not use the new replicas yet
    Abort(AbortArgs),
    /// End an upgrade: raise the store format of all nodes. There is no way back afterwards
    ///
    /// Until then, each node writes the store format that it had before the upgrade, and the
    /// release before can open its directory. Changes nothing unless all nodes are up and run a
    /// release that writes the latest store format of the node at --url. If a node fails in
    /// between, the command says which stores were raised; the cluster serves, and the same command
    /// completes the rest.
    Finalize(FinalizeArgs),
    /// Let one stopped node replace a council whose majority is lost for good
    ///
    /// Reads the node's data directory, and shows what the node knows and what may be lost. Without
    /// --yes, changes nothing. From its next start on this node is the whole council; the remaining
    /// nodes learn that from it. Run the command on one node only: the one with the greatest epoch
    /// in `kvorum cluster status`.
    Recover(RecoverArgs),
}

#[derive(Debug, Args)]
struct ClusterStatusArgs {
    #[command(flatten)]
    ask: ConnectionArgs,
}

#[derive(Debug, Args)]
struct PlanArgs {
    // Not a doc comment: rustdoc would take the brackets for links.
    #[arg(
        long,
        value_name = "NAME",
        help = "A node that joins: the name of one that asks to (kvorum cluster status), or, to \
                see what would move, [NAME=]URL[;zone=Z][;weight=W]; may be given several times"
    )]
    add: Vec<String>,

    /// A node that hands over its keys and leaves; can be given several times
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,

    /// A node that is lost for good, with its disk; can be given several times
    #[arg(long, value_name = "NAME")]
    remove_dead: Vec<String>,

    /// A node's new weight, 1..1000; can be given several times
    #[arg(long, value_name = "NAME=W")]
    weight: Vec<String>,

    /// New number of replicas of a key, 1..255
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,

    /// The new council, which decides about later changes: 1, 3, 5 or 7 nodes [default: the current
    /// council, completed if it has too few nodes]
    #[arg(long, value_name = "NAME,NAME,…", value_delimiter = ',')]
    council: Vec<String>,

    #[command(flatten)]
    ask: ConnectionArgs,
}

#[derive(Debug, Args)]
struct ApplyArgs {
    /// The plan's id, as `kvorum cluster plan` printed it
    #[arg(value_name = "PLAN")]
    plan: String,

    /// Wait until the change is decided and all keys have moved
    #[arg(long)]
    wait: bool,

    /// The connection to the node that made the plan.
    #[command(flatten)]
    ask: ConnectionArgs,
}

#[derive(Debug, Args)]
struct AbortArgs {
    /// Wait until the council has decided it
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    ask: ConnectionArgs,
}

#[derive(Debug, Args)]
struct FinalizeArgs {
    #[command(flatten)]
    ask: ConnectionArgs,
}

/// Runs the command.
pub(crate) fn cluster(args: &ClusterArgs) -> Result<(), CommandFailure> {
    match &args.command {
        ClusterCommand::Status(args) => status(args),
        ClusterCommand::Plan(args) => plan(args),
        ClusterCommand::Apply(args) => apply(args),
        ClusterCommand::Abort(args) => abort(args),
        ClusterCommand::Finalize(args) => finalize::finalize(&args.ask),
        ClusterCommand::Recover(args) => {
            let said = recover::run(args).map_err(fail)?;
            print_done(&said, recover::outcome(args))
        }
    }
}

fn status(args: &ClusterStatusArgs) -> Result<(), CommandFailure> {
    let mut client = AdminClient::new(&args.ask)?;
    let layout: LayoutStatus = client.request("GET", "/admin/layout", 200)?;
    let cluster: Cluster = client.request("GET", "/v0/cluster", 200)?;
    let epoch_of = |name: &str| {
        let row = cluster.nodes.iter().find(|row| row.name == name)?;
        Some(row.status.as_ref()?.epoch)
    };
    if args.ask.json {
        let mut json = serde_json::to_value(&layout).expect("strings and numbers serialize");
        for node in json["nodes"].as_array_mut().into_iter().flatten() {
            let name = node["name"].as_str().unwrap_or_default().to_owned();
            node["epoch"] = epoch_of(&name).into();
            finalize::add_formats(node, &cluster, &name);
        }
        print(&format!("{json}\n"))?;
    } else {
        let problems = cluster.nodes.iter().flat_map(|row| problems(row, &cluster.asked));
        let votes = lost_votes(&cluster, &args.ask.flags());
        let held_up = holdups_text(&layout, &cluster, &args.ask.flags());
        let formats = finalize::formats_text(&cluster, &args.ask.flags());
        let notes = formats.into_iter().chain(held_up).chain(problems).chain(votes);
        let notes: String = notes.map(|line| line + "\n").collect();
        let epoch_text = |name: &str| {
            let row = cluster.nodes.iter().find(|row| row.name == name);
            match (row, epoch_of(name)) {
                (Some(row), _) if row.not_asked => NOT_ASKED.to_owned(),
                (Some(row), _) if row.other_cluster_id.is_some() => OTHER_CLUSTER.to_owned(),
                (Some(row), None) => unreported_state(row).to_owned(),
                (None, None) => "down".to_owned(),
                (_, Some(epoch)) => format!("epoch {epoch}"),
            }
        };
        print(&(status_text(&layout, epoch_text, &args.ask.flags()) + &notes))?;
    }
    let differs = differing_members(&layout, epoch_of);
    if differs.is_empty() {
        return Ok(());
    }
    fail(format_args!("exit code 1, for not all nodes go by epoch {}: {differs}", layout.epoch));
    Err(CommandFailure::No)
}

/// Lists the members whose epoch is not known or differs from that of the asked node.
fn differing_members(layout: &LayoutStatus, epoch_of: impl Fn(&str) -> Option<u64>) -> String {
    let differs = |name: &str| match epoch_of(name) {
        Some(epoch) if epoch == layout.epoch => None,
        Some(epoch) => Some(format!("{name} goes by epoch {epoch}")),
        None => Some(format!("{name} does not tell its epoch")),
    };
    let differs = layout.nodes.iter().filter_map(|node| differs(&node.name));
    differs.collect::<Vec<_>>().join(", ")
}

/// Formats the layout's status. `epoch_text` returns the text about a member's epoch.
/// `flags` are the connection's flags for printed commands.
fn status_text(layout: &LayoutStatus, epoch_text: impl Fn(&str) -> String, flags: &str) -> String {
    let LayoutStatus { epoch, stage, replicas, council, .. } = layout;
    let id = layout.cluster_id.as_ref().map_or("without an id yet", String::as_str);
    let mut text =
        format!("cluster {id}, epoch {epoch}, {stage}, replicas {replicas}, of {}\n", layout.node);
    let width = |of: fn(&crate::layout::status::MemberStatus) -> usize| {
        layout.nodes.iter().map(of).max().unwrap_or(0)
    };
    let (names, urls) = (width(|node| node.name.len()), width(|node| node.url.len()));
    for node in &layout.nodes {
        let role = if council.contains(&node.name) { "council" } else { "" };
        let epoch_text = epoch_text(&node.name);
        let zone = if node.zone.is_empty() { "-" } else { &node.zone };
        let line = format!(
            "{:names$}  {:urls$}  zone {zone}  weight {}  {epoch_text:8}  {role}",
            node.name, node.url, node.weight
        );
        text += line.trim_end();
        text.push('\n');
    }
    for node in &layout.joining {
        let zone = if node.zone.is_empty() { "-" } else { &node.zone };
        let _ = writeln!(
            text,
            "asks to join: {}  {}  zone {zone}  weight {}; kvorum cluster plan --add {}{flags}",
            node.name,
            node.url,
            node.weight,
            word(node.name.as_ref())
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

fn plan(args: &PlanArgs) -> Result<(), CommandFailure> {
    let mut client = AdminClient::new(&args.ask)?;
    let lists = [
        ("add", &args.add),
        ("remove", &args.remove),
        ("remove_dead", &args.remove_dead),
        ("weight", &args.weight),
        ("council", &args.council),
    ];
    let plan = request_plan(&mut client, &lists, args.replicas)?;
    if args.ask.json {
        let json = serde_json::to_string(&plan).expect("strings and numbers always serialize");
        return print(&(json + "\n"));
    }
    let LayoutPlan { plan: id, base_epoch, .. } = &plan;
    print(&format!(
        "{}plan {id} for epoch {base_epoch}; nothing is changed before: kvorum cluster apply {id} \
         --wait{}\n",
        plan_text(&plan),
        args.ask.flags()
    ))
}

/// Requests the plan of a change. Each entry of `lists` is a query parameter and its values.
pub(super) fn request_plan(
    client: &mut AdminClient<'_>,
    lists: &[(&str, &Vec<String>)],
    replicas: Option<u8>,
) -> Result<LayoutPlan, CommandFailure> {
    let mut query = Vec::new();
    for (name, list) in lists {
        if !list.is_empty() {
            query.push(format!("{name}={}", percent(list.join(",").as_bytes())));
        }
    }
    query.extend(replicas.map(|replicas| format!("replicas={replicas}")));
    client.request("POST", &format!("/admin/layout/plan?{}", query.join("&")), 200)
}

/// Formats the effects of a plan.
pub(super) fn plan_text(plan: &LayoutPlan) -> String {
    let mut text: String = plan.changes.iter().map(|change| format!("{change}\n")).collect();
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
    if let Some(seconds) = plan.seconds_at_rate.filter(|_| plan.moved_copies > 0) {
        let time = HumanDuration(Duration::from_secs(seconds));
        let _ = writeln!(text, "that takes {time} at least, at the --stream-rate of this node");
    }
    let _ = writeln!(text, "council afterwards: {}", plan.council.join(", "));
    for warning in &plan.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// Asks the node to propose a plan to the council. Returns the layout before the council's
/// decision; later layouts show the outcome.
pub(super) fn request_apply(
    client: &mut AdminClient<'_>,
    plan: &str,
) -> Result<LayoutStatus, CommandFailure> {
    let target = format!("/admin/layout/apply?plan={}", percent(plan.as_bytes()));
    client.request_change(&target, 202)
}

fn apply(args: &ApplyArgs) -> Result<(), CommandFailure> {
    let mut client = AdminClient::new(&args.ask)?;
    let asked = request_apply(&mut client, &args.plan)?;
    if !args.wait && args.ask.json {
        return print_done(&layout_json(&asked), REQUESTED);
    }
    if !args.wait {
        return print_done(
            &format!(
                "the council is asked for plan {}; kvorum cluster status{} shows its end\n",
                args.plan,
                args.ask.flags()
            ),
            REQUESTED,
        );
    }
    let epoch = wait_for_plan(&mut client, &args.plan)?;
    let done = format_args!("the change is done: epoch {epoch}");
    if args.ask.json {
        print_done(&format!("{{\"epoch\":{epoch}}}\n"), done)
    } else {
        print_done(&format!("done: epoch {epoch}\n"), done)
    }
}

fn abort(args: &AbortArgs) -> Result<(), CommandFailure> {
    let mut client = AdminClient::new(&args.ask)?;
    let until = Instant::now() + TIMEOUT;
    let ended = loop {
        let asked: LayoutStatus = client.request_change("/admin/layout/abort", 202)?;
        if !args.wait && args.ask.json {
            return print_done(&layout_json(&asked), REQUESTED);
        }
        if !args.wait {
            return print_done(
                &format!(
                    "the council is asked to go back; kvorum cluster status{} shows its end\n",
                    args.ask.flags()
                ),
                REQUESTED,
            );
        }
        let ended = client.wait("/admin/layout", |_, layout: LayoutStatus, bar| {
            show(bar, 0, None, "asking the council".to_owned());
            match layout.stage {
                LayoutStage::Settled if layout.epoch == asked.epoch + 1 => {
                    Some(Ok(Some(layout.epoch)))
                }
                // The layout has changed since the request, because keys have begun to move or
                // tokens have changed: request the abort again.
                LayoutStage::Prepare | LayoutStage::ReadOld if layout.epoch > asked.epoch => {
                    Some(Ok(None))
                }
                _ if layout.epoch > asked.epoch => Some(Err(ChangeFailure::GoesForward)),
                _ if Instant::now() > until => Some(Err(ChangeFailure::NoMajority {
                    council: layout.council,
                    without_vote: Vec::new(),
                })),
                _ => ChangeFailure::from_missing_votes(&layout).map(Err),
            }
        })?;
        if let Some(ended) = ended.transpose() {
            break ended;
        }
    };
    match ended {
        Ok(epoch) => {
            let text = format!("aborted: epoch {epoch}, with the previous members\n");
            let json = format!("{{\"epoch\":{epoch}}}\n");
            print_done(if args.ask.json { &json } else { &text }, text.trim_end())
        }
        Err(why) => {
            fail(why.text_with_command(&args.ask.flags()));
            Err(CommandFailure::No)
        }
    }
}

/// Outcome to report if the result of a request to the council can't be printed.
const REQUESTED: &str = "the council was asked (kvorum cluster status shows its answer)";

fn layout_json(layout: &LayoutStatus) -> String {
    serde_json::to_string(layout).expect("strings and numbers always serialize") + "\n"
}

/// Reason why a requested change was not made.
#[derive(Debug, thiserror::Error)]
enum ChangeFailure {
    #[error("another change was decided before: plan again")]
    Overtaken,
    #[error("the change was aborted (kvorum cluster abort)")]
    Aborted,
    #[error("reads had switched before: the change goes forward")]
    GoesForward,
    #[error("{}", no_majority(council, without_vote))]
    NoMajority { council: Vec<String>, without_vote: Vec<String> },
    #[error(
        "no majority of the council ({}) has a vote: {} lost theirs with a disk, or because a \
         directory was copied. No plan can be decided, and asking again does not help; the way out \
         is kvorum cluster recover",
        council.join(", "),
        without_vote.join(", ")
    )]
    NoVotes { council: Vec<String>, without_vote: Vec<String> },
}

impl ChangeFailure {
    /// Returns the reason and the command to run next. `flags` are the connection's flags.
    fn text_with_command(&self, flags: &str) -> String {
        match self {
            Self::Overtaken => format!("{self} (kvorum cluster plan{flags})"),
            Self::NoMajority { .. } => format!("{self}: kvorum cluster status{flags}"),
            Self::NoVotes { .. } => format!("{self} (kvorum cluster status{flags} says how)"),
            Self::Aborted | Self::GoesForward => self.to_string(),
        }
    }

    /// Returns the reason why the council can never decide the requested change: too many of its
    /// nodes have reported that they have no vote. `None` if a majority may have votes, or if no
    /// change is waiting for the council.
    fn from_missing_votes(layout: &LayoutStatus) -> Option<Self> {
        let asks = |change: &&ChangeStatus| change.progress == ChangeProgress::Asking;
        let without_vote = &layout.change.as_ref().filter(asks)?.without_vote;
        has_lost_majority(layout.council.len(), without_vote.len()).then(|| Self::NoVotes {
            council: layout.council.clone(),
            without_vote: without_vote.clone(),
        })
    }
}

fn no_majority(council: &[String], without_vote: &[String]) -> String {
    let votes = if without_vote.is_empty() { "answered" } else { "voted" };
    let mut why = format!("no majority of the council ({}) {votes}", council.join(", "));
    if !without_vote.is_empty() {
        let _ = write!(
            why,
            "; {} may have lost votes with a disk, or because a directory was copied, and has none \
             until a later layout seats it again",
            without_vote.join(", ")
        );
    }
    why + "; the change may be decided all the same once a majority does"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_majority_names_the_nodes_without_vote() {
        let council = ["a", "b", "c"].map(str::to_owned);
        let why = no_majority(&council, &[]);
        assert!(why.starts_with("no majority of the council (a, b, c) answered; the"), "{why}");
        let why = no_majority(&council, &council[1..]);
        assert!(why.contains("(a, b, c) voted; b, c may have lost votes"), "{why}");
    }
}
