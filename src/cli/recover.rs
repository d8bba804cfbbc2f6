//! `kvorum cluster recover`: forces a layout on a stopped node after the majority of the council
//! (the metadata quorum) was lost for good. [`protocol::layout::Decree`] defines the forced layout;
//! this module reports its effects and requires `--yes`.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use clap::Args;
use protocol::layout::{DecreeError, Layout, Stage, VoterId};
use protocol::{MembershipState, NodeId};
use server::StartError;
use server::identity::SurvivingDirectory;

use crate::node::life_file::DataDirectory;
use crate::node::store::{DirectoryError, StoppedError, open_stopped};

/// Arguments of `kvorum cluster recover`.
#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// Data directory of the node, which must be stopped
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Nodes that are gone for good, with their disks
    #[arg(long, value_name = "NAME,NAME,…", value_delimiter = ',')]
    lost: Vec<String>,

    /// Members of the council that came back with another disk, or with a copy of their directory,
    /// and therefore have no vote
    #[arg(long, value_name = "NAME,NAME,…", value_delimiter = ',')]
    without_vote: Vec<String>,

    /// Make the change; without this flag, only show its effects
    #[arg(long)]
    yes: bool,
}

/// Minimum number of nodes for which a plan makes a council of more than one node.
const COUNCIL_OF_SEVERAL: usize = 3;

/// Reason why the command forces no layout.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecoverError {
    #[error(transparent)]
    Stopped(#[from] StoppedError),
    #[error(transparent)]
    Kept(#[from] StartError),
    #[error("it belongs to node {0}, which is not lost then: name only other nodes")]
    Itself(String),
    #[error(
        "node {0} is named by --lost, as gone for good, and by --without-vote, as a node that came \
         back: name it once"
    )]
    Contradiction(String),
    #[error("node {name:?} is not a member: the members are {}", members.join(", "))]
    NoMember { name: String, members: Vec<String> },
    #[error(
        "of the council, {} can vote, and {needed} are enough: start them, and change the members \
         with kvorum cluster plan. If one is gone for good with its disk, name it with --lost; if \
         one has come back with another disk, or with a copy of its directory, with --without-vote \
         (this directory says itself whether its node has a vote). Nothing was changed",
        voting.join(", ")
    )]
    CanVote { voting: Vec<String>, needed: usize },
    #[error(
        "its node belongs to no cluster yet. If the cluster of its list has not begun, no council \
         was lost: start all nodes of the list, once each (one that can't come any more: another \
         one in its place, with its name and URL and an empty directory). If the node's disk was \
         replaced, take the directory of another node. Nothing was changed"
    )]
    NotBegun,
    #[error(transparent)]
    DecreeError(#[from] DecreeError),
}

/// Runs the command; returns the text to print.
pub(super) fn run(args: &RecoverArgs) -> Result<String, DirectoryError<RecoverError>> {
    try_recover(args).map_err(|source| DirectoryError { data: args.data.clone(), source })
}

/// Returns the outcome to report if the text of [`run`] can't be printed.
pub(super) fn outcome(args: &RecoverArgs) -> &'static str {
    match args.yes {
        true => {
            "the change was made: run the command on no other node, and start this one, for the \
             other nodes learn of the change from it"
        }
        false => "nothing was changed",
    }
}

fn try_recover(args: &RecoverArgs) -> Result<String, RecoverError> {
    let engine = open_stopped(&args.data)?;
    let survivor = SurvivingDirectory::read(&engine, &DataDirectory(&args.data))?;
    if survivor.cluster().is_none() && survivor.state() == MembershipState::Joining {
        return Err(RecoverError::NotBegun);
    }
    let lost = ids(&survivor, &args.lost)?;
    if lost.contains(&survivor.node()) {
        return Err(RecoverError::Itself(survivor.name().to_owned()));
    }
    let without_vote = ids(&survivor, &args.without_vote)?;
    if let Some(twice) = lost.iter().find(|node| without_vote.contains(node)) {
        return Err(RecoverError::Contradiction(name(survivor.layout(), *twice).to_owned()));
    }
    let voting = voting_members(&survivor, &[&lost[..], &without_vote].concat());
    refuse(survivor.layout(), &voting)?;
    let voter = VoterId(RandomState::new().hash_one("voter").max(1));
    let decreed = survivor.plan_forced_layout(voter, &lost)?;
    let any_lost = !lost.is_empty();
    let text = state(&survivor, &voting, &lost, &without_vote)
        + &losses_text(&survivor, &decreed, any_lost);
    if !args.yes {
        let off = if any_lost { "the lost nodes are off for good, and that " } else { "" };
        return Ok(format!(
            "{text}Nothing was changed. Make sure that {off}no other remaining node has a later\n\
             epoch; then run again with --yes.\n"
        ));
    }
    let epoch = decreed.epoch;
    survivor.store_decree(&engine, decreed, voter)?;
    engine.close().map_err(StoppedError::Store)?;
    Ok(text + &describe_result(&survivor, epoch, &args.lost))
}

fn name(layout: &Layout, id: NodeId) -> &str {
    layout.node(id).map_or("?", |node| &node.member.name)
}

/// Returns the ids of the named nodes; a name that no node of the layout has is an error.
fn ids(survivor: &SurvivingDirectory, names: &[String]) -> Result<Vec<NodeId>, RecoverError> {
    let layout = survivor.layout();
    let id = |name: &String| match layout.all().find(|node| node.member.name == *name) {
        Some(node) => Ok(node.id),
        None => {
            let members = layout.all().map(|node| node.member.name.clone()).collect();
            Err(RecoverError::NoMember { name: name.clone(), members })
        }
    };
    names.iter().map(id).collect()
}

/// Returns the council members that can still vote. Members in `without`, which the operator named,
/// have no vote. For this node, only its own directory decides.
fn voting_members(survivor: &SurvivingDirectory, without: &[NodeId]) -> Vec<NodeId> {
    let seats = survivor.layout().council.iter().map(|seat| seat.node);
    let votes = |node: &NodeId| match *node == survivor.node() {
        true => survivor.has_vote(),
        false => !without.contains(node),
    };
    seats.filter(votes).collect()
}

/// Returns an error if a majority of the council can still vote.
fn refuse(layout: &Layout, voting: &[NodeId]) -> Result<(), RecoverError> {
    let needed = layout.council.len() / 2 + 1;
    if voting.len() < needed {
        return Ok(());
    }
    let voting = voting.iter().map(|id| name(layout, *id).to_owned()).collect();
    Err(RecoverError::CanVote { voting, needed })
}

/// Describes the state of the directory.
fn state(
    survivor: &SurvivingDirectory,
    voting: &[NodeId],
    lost: &[NodeId],
    without_vote: &[NodeId],
) -> String {
    let layout = survivor.layout();
    let stage = match layout.stage {
        Stage::Settled => "settled",
        Stage::Prepare => "a change is prepared",
        Stage::ReadOld => "keys move, and reads have not switched",
        Stage::ReadNew => "keys have moved, and reads have switched",
    };
    let mut text = format!(
        "node {}, {}: epoch {}, {stage}, replicas {}\n",
        survivor.name(),
        survivor.state().label(),
        layout.epoch,
        layout.replicas
    );
    if let Some(id) = survivor.cluster() {
        let _ = writeln!(text, "cluster {id}");
    }
    for node in layout.all() {
        let fate = if lost.contains(&node.id) { "  lost" } else { "" };
        let _ = writeln!(text, "  {}  {}{fate}", node.member.name, node.url);
    }
    let seats = layout.council.iter().map(|seat| {
        let vote = if voting.contains(&seat.node) {
            "can vote"
        } else if lost.contains(&seat.node) {
            "lost"
        } else if without_vote.contains(&seat.node) || seat.node == survivor.node() {
            "has no vote"
        } else {
            "unknown"
        };
        format!("{} ({vote})", name(layout, seat.node))
    });
    let seats: Vec<String> = seats.collect();
    let needed = layout.council.len() / 2 + 1;
    let _ = writeln!(
        text,
        "council: {}; {needed} must vote, and {} can",
        seats.join(", "),
        voting.len()
    );
    text
}

/// Describes the effects of the forced layout, and the data and changes that it may lose.
fn losses_text(survivor: &SurvivingDirectory, decreed: &Layout, any_lost: bool) -> String {
    let (layout, name) = (survivor.layout(), survivor.name());
    let (epoch, next) = (layout.epoch, decreed.epoch);
    let who = if any_lost { "the lost nodes" } else { "other nodes" };
    let mut text = format!(
        "\nNode {name} would be in epoch {next}, and be the whole council. The other nodes learn \
         that from it.\n\n\
         If {who} decided a change after epoch {epoch}, it is given up: the others \
         refuse a node that already uses it,\nand it can come back only with an empty directory.\n"
    );
    if let Some(accepted) = survivor.accepted_epoch() {
        let _ = writeln!(
            text,
            "This is possible: this node has voted for a change to epoch {accepted}, and does not \
             know whether it was decided."
        );
    }
    if survivor.state() == MembershipState::Rebuilding {
        text += "This node's disk was replaced, and the others know more: take the directory of \
                 another node if one is left.\n";
    }
    text += match layout.stage {
        Stage::Settled => "No keys move because of this. ",
        Stage::Prepare | Stage::ReadOld => {
            "The change that is under way is undone: nodes that were about to join must ask again, \
             with an empty directory. "
        }
        Stage::ReadNew => {
            "The change that is under way is completed, without waiting for lost nodes. "
        }
    };
    if any_lost {
        text += "What only lost nodes held is lost. The memory of idempotency keys is one of these \
                 things: for a day, nodes that take the place of lost ones make writes with an \
                 Idempotency-Key fail with 409 `idempotency-key-used`, new keys included. kvorum \
                 status names those nodes and the time left.";
    }
    text.trim_end().to_owned() + "\n\n"
}

fn describe_result(survivor: &SurvivingDirectory, epoch: u64, lost: &[String]) -> String {
    if lost.is_empty() && survivor.layout().nodes.len() < COUNCIL_OF_SEVERAL {
        return format!(
            "Done: node {} is in epoch {epoch} from its next start on, with its vote. Start it.\n",
            survivor.name()
        );
    }
    if lost.is_empty() {
        return format!(
            "Done: node {} is in epoch {epoch} from its next start on. Start it; then restore the \
             council's size, and the votes\nof its nodes:\n\n  \
             kvorum cluster plan\n  \
             kvorum cluster apply PLAN --wait\n",
            survivor.name()
        );
    }
    let dead: String = lost.iter().map(|name| format!(" --remove-dead {name}")).collect();
    format!(
        "Done: node {} is in epoch {epoch} from its next start on. Start it; then replace the lost \
         nodes, which also restores\nthe council's size, for example:\n\n  \
         kvorum serve --join URL --name NEW …\n  \
         kvorum cluster plan --add NEW{dead}\n",
        survivor.name()
    )
}
