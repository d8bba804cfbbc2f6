//! `kvorum repair-clock`: removes records with timestamps ahead of the clock from a stopped node's
//! directory. [`server::Ahead`] finds and removes the records; this module reports them and
//! requires `--yes`.

use protocol::Clock;
use server::{Ahead, StartError};

use crate::cli::RepairClockArgs;
use crate::counters::clocks::wall_micros;
use crate::node::store::{DirectoryError, StoppedError, open_stopped};

/// Reason why the command does not repair a directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepairError {
    #[error(transparent)]
    Stopped(#[from] StoppedError),
    #[error(transparent)]
    Kept(#[from] StartError),
    #[error(
        "this is a single-node store: no other node refuses its timestamps, so there is nothing to \
         repair, and no other node could restore what a repair removes"
    )]
    Alone,
}

/// Runs the command; returns the text to print.
pub(crate) fn run(args: &RepairClockArgs) -> Result<String, DirectoryError<RepairError>> {
    try_repair(args).map_err(|source| DirectoryError { data: args.data.clone(), source })
}

/// Returns the outcome to report if the text of [`run`] can't be printed.
pub(crate) fn outcome(args: &RepairClockArgs) -> &'static str {
    match args.yes {
        true => "; the records and hints ahead of the clock were removed",
        false => "; nothing was changed",
    }
}

fn try_repair(args: &RepairClockArgs) -> Result<String, RepairError> {
    let shown = args.data.display();
    let engine = open_stopped(&args.data)?;
    let wall = wall_micros();
    let skew = args.max_clock_skew.0;
    let limit = Clock::limit(wall, skew.as_micros() as u64);
    let Some(found) = Ahead::find(&engine, limit)? else { return Err(RepairError::Alone) };
    let ahead = |time: u64| Clock::micros(time).saturating_sub(wall) / 1_000_000;
    let reported = format!(
        "{shown}: {} records and {} hints have timestamps ahead of this machine's clock by more \
         than the allowed skew ({skew:?}), at most by {} s; the node's clock would start {} s \
         ahead.\n",
        found.records,
        found.hints,
        ahead(found.furthest),
        ahead(found.bound)
    );
    if !found.is_any() {
        return Ok(reported + "There is nothing to repair.\n");
    }
    if !args.yes {
        let wait = ahead(found.furthest.max(found.bound)) + 1;
        return Ok(reported
            + &format!(
                "Nothing was changed. Check that the clock is correct now (date -u).\n\
                 If only this node's clock was ahead, run again with --yes to remove those records \
                 and hints,\nincluding writes that only this node acknowledged while its clock was \
                 wrong.\n\
                 If other nodes' clocks were ahead as well, they may have acknowledged those \
                 writes too, and no node\nwith a right clock has them: removed from all these \
                 nodes, they are lost, whatever their ack was. Then wait:\nin {wait} s the clock \
                 has passed all these timestamps. No record is removed, and these records win over \
                 what was\nwritten to the same keys meanwhile.\n"
            ));
    }
    found.remove(&engine)?;
    engine.close().map_err(StoppedError::Store)?;
    Ok(reported
        + "They were removed. After the start, the other nodes stream back what they hold of this \
            node's keys; until then the node is not authoritative for missing keys.\n")
}
