//! `kvorum compact`: has a node compact its whole store, and shows the result.

use indicatif::HumanBytes;

use super::admin::{AdminClient, duration_text, show, task_number_json};
use super::{CommandFailure, CompactArgs, fail, print_done};
use crate::compact::status::{Compaction, Compactions};

const TARGET: &str = "/admin/compact";

/// Runs the command.
pub(crate) fn compact(args: &CompactArgs) -> Result<(), CommandFailure> {
    let url = &args.ask.url;
    let mut client = AdminClient::new(&args.ask)?;
    let number = client.ask(TARGET)?;
    if !args.wait && args.ask.json {
        return print_done(
            &task_number_json(number),
            format_args!("compaction {number} was requested"),
        );
    }
    if !args.wait {
        return print_done(
            &format!(
                "compaction {number} was requested at {url}; kvorum compact --wait{} shows its \
                 end\n",
                args.ask.flags()
            ),
            format_args!("compaction {number} was requested"),
        );
    }
    let ended = client.wait(TARGET, |_, status: Compactions, bar| {
        if let Some(current) = &status.current {
            let (before, now) = (HumanBytes(current.bytes_before), HumanBytes(current.bytes));
            let of = (current.of_records > 0).then_some(current.of_records);
            show(bar, current.records, of, format!("tables: {before} before, {now} now"));
        }
        status.last.filter(|last| last.number >= number)
    })?;
    if args.ask.json {
        let json = serde_json::to_string(&ended).expect("strings and numbers always serialize");
        print_done(&(json + "\n"), "the compaction has ended")?;
    }
    if let Some(why) = &ended.failed {
        fail(format_args!("{url}: the compaction ended early: {why}"));
        return Err(CommandFailure::No);
    }
    if args.ask.json { Ok(()) } else { print_done(&summary(&ended), "the compaction has ended") }
}

/// Describes the result in one line.
fn summary(ended: &Compaction) -> String {
    let Compaction { took_ms, bytes_before, bytes, records, .. } = ended;
    let (took, before, now) =
        (duration_text(*took_ms), HumanBytes(*bytes_before), HumanBytes(*bytes));
    if *records == 0 {
        return format!("nothing to compact in {now} of tables\n");
    }
    format!("compacted in {took}: {before} of tables before, {now} now\n")
}
