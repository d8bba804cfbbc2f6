//! `kvorum repair`: asks a node for a round of repair over the whole cluster, and shows its end.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use serde::Deserialize;

use super::connection::{Connection, malformed};
use super::problem::Problem;
use super::{BY, RepairArgs, Unable, admin_token, connect, fail, print, unreachable_node};
use crate::operations::repair::{Repair, Round};

/// How often it is asked how far the round is.
const PERIOD: Duration = Duration::from_millis(200);

/// What a node answers who asks for a round.
#[derive(Deserialize)]
struct Asked {
    number: u64,
}

/// Does what is asked for.
pub(crate) fn repair(args: &RepairArgs) -> Result<(), Unable> {
    let url = &args.ask.url;
    let token = admin_token(args.token_file.as_deref())?;
    let mut connection = connect(&args.ask)?;
    if let Some(token) = &token {
        connection.authorize(token);
    }
    let target = format!("/admin/repair?full={}", args.full);
    let body = exchange(&mut connection, "POST", &target, 202, url)?;
    let Asked { number } = parse(&body, url)?;
    if !args.wait {
        return print(&format!(
            "repair round {number} was requested at {url}; kvorum repair --wait shows its end\n"
        ));
    }
    let bar = progress();
    let round = loop {
        let body = exchange(&mut connection, "GET", "/admin/repair", 200, url)?;
        let repair: Repair = parse(&body, url)?;
        if let Some(last) = repair.last.filter(|last| last.number >= number) {
            break last;
        }
        show(&bar, repair.current.as_ref().filter(|current| current.number >= number));
        thread::sleep(PERIOD);
    };
    bar.finish_and_clear();
    if args.ask.json {
        let json = serde_json::to_string(&round).expect("strings and numbers always serialize");
        print(&(json + "\n"))?;
    } else {
        print(&told(&round))?;
    }
    if round.equal { Ok(()) } else { Err(Unable::No) }
}

fn exchange(
    connection: &mut Connection,
    method: &str,
    target: &str,
    status: u16,
    url: &str,
) -> Result<Vec<u8>, Unable> {
    let lost = |error: &io::Error| unreachable_node(url, error, BY);
    let head = connection.request(method, target, None, |_| {}).map_err(|error| lost(&error))?;
    let body = connection.body(&head).map_err(|error| lost(&error))?;
    if head.status == status { Ok(body) } else { Err(Problem::tell_of(head.status, &body, url)) }
}

fn parse<T: for<'a> Deserialize<'a>>(body: &[u8], url: &str) -> Result<T, Unable> {
    let parsed = serde_json::from_slice(body);
    parsed.map_err(|error| fail(format!("{url}: {}", malformed(&error.to_string()))))
}

/// Shown on a terminal only.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent} % {msg}");
    ProgressBar::new(0).with_style(style.expect("the template is well-formed"))
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
    let took = Duration::from_millis(round.took_ms.unwrap_or(0));
    let mut text = format!(
        "{kind} round of {} over {} records of the node asked; {} read on all nodes\n",
        took_text(took),
        HumanCount(round.records),
        HumanBytes(round.bytes_read)
    );
    text += &match round.differing {
        0 => "no key differed\n".to_owned(),
        differing => format!(
            "{} keys differed, {} of them are equal now\n",
            HumanCount(differing),
            HumanCount(round.repaired)
        ),
    };
    if round.failed > 0 {
        text += &format!("{} keys could not be made equal: try again\n", HumanCount(round.failed));
    }
    if round.damaged > 0 {
        text += &format!(
            "{} damaged ranges of keys were found, {} healed\n",
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
    if round.equal {
        text += "all replicas hold the same\n";
    }
    text
}

fn took_text(took: Duration) -> String {
    if took < Duration::from_secs(10) {
        format!("{:.1} s", took.as_secs_f64())
    } else {
        HumanDuration(took).to_string()
    }
}
