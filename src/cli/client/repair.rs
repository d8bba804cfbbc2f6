//! `kvorum repair`: asks a node for a round of repair over the whole cluster, and shows its end.

use indicatif::{HumanBytes, HumanCount, ProgressBar};

use super::admin::{Worker, took_text};
use super::{RepairArgs, Unable, print};
use crate::operations::repair::{Repair, Round};

/// Does what is asked for.
pub(crate) fn repair(args: &RepairArgs) -> Result<(), Unable> {
    let url = &args.admin.ask.url;
    let mut worker = Worker::new(&args.admin)?;
    let number = worker.ask(&format!("/admin/repair?full={}", args.full))?;
    if !args.wait {
        return print(&format!(
            "repair round {number} was requested at {url}; kvorum repair --wait shows its end\n"
        ));
    }
    let round = worker.wait("/admin/repair", |repair: Repair, bar| {
        show(bar, repair.current.as_ref().filter(|current| current.number >= number));
        repair.last.filter(|last| last.number >= number)
    })?;
    if args.admin.ask.json {
        let json = serde_json::to_string(&round).expect("strings and numbers always serialize");
        print(&(json + "\n"))?;
    } else {
        print(&told(&round))?;
    }
    if round.equal { Ok(()) } else { Err(Unable::No) }
}

fn show(bar: &ProgressBar, round: Option<&Round>) {
    let Some(round) = round else { return bar.set_message("waiting for the round to begin") };
    bar.set_length(round.of_records.unwrap_or(round.records).max(round.records));
    bar.set_position(round.records);
    bar.set_message(format!(
        "{} differ, {} repaired",
        HumanCount(round.differing),
        HumanCount(round.repaired)
    ));
}

/// What came of a round, in a few lines.
fn told(round: &Round) -> String {
    let kind = if round.full { "full" } else { "incremental" };
    let mut text = format!(
        "{kind} round of {} over {} records of the node asked; {} read on all nodes\n",
        took_text(round.took_ms),
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
        text += &format!("keys not made equal: {}; try again\n", HumanCount(round.failed));
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
        text += "what was deleted before may be purged: compactions do that\n";
    } else if let Some(why) = &round.unproven {
        text += &format!("deleted keys stay on disk: {why}\n");
    }
    if round.equal {
        text += "all replicas hold the same\n";
    }
    text
}
