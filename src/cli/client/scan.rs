//! A range: `scan`. One item a line, as it comes; a stream that breaks off is an error, for a short
//! list looks like a whole one.

use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

use super::bytes::{add, escape, percent};
use super::problem::stranger;
use super::{BY, Problem, ScanArgs, Unable, connect, fail, key_bytes, unreachable_node};

/// Items between two looks at the progress line.
const STEP: u64 = 1000;

/// The least key there is.
const FIRST_KEY: &[u8] = b"\0";

/// Prints a range.
pub(crate) fn scan(args: &ScanArgs) -> Result<(), Unable> {
    let start = match &args.start {
        Some(start) => key_bytes(start, args.escaped)?,
        None => FIRST_KEY.to_vec(),
    };
    let mut target = format!("/v0/entities?start={}", percent(&start));
    if let Some(end) = &args.end {
        target += &format!("&end={}", percent(&key_bytes(end, args.escaped)?));
    }
    if args.local {
        target += "&local=true";
    }
    target += &args.votes.query();
    let mut connection = connect(&args.ask)?;
    let asked = connection.request("GET", &target, None, |_| {});
    let head = asked.map_err(|error| unreachable_node(&args.ask.url, &error, BY))?;
    if head.status != 200 {
        let body = connection.body(&head);
        let body = body.map_err(|error| unreachable_node(&args.ask.url, &error, BY))?;
        return Err(Problem::report(head.status, &body, &args.ask));
    }
    if !head.chunked {
        return Err(fail(format!("{} answers {}", args.ask.url, stranger(head.status))));
    }
    let bar = progress();
    let mut out = BufWriter::new(io::stdout().lock());
    let mut items = 0;
    let mut bytes = 0;
    let outcome = loop {
        if args.limit == Some(items) {
            break Ok(());
        }
        let item = match connection.chunk() {
            Ok(Some(item)) => item,
            Ok(None) => break Ok(()),
            Err(error) => break Err(broken(&args.ask.url, items, &error)),
        };
        if let Err(error) = print(&mut out, &item, args.ask.json) {
            // Whoever reads has enough, as `head` does.
            let enough = error.kind() == ErrorKind::BrokenPipe;
            return if enough { Ok(()) } else { Err(fail(format!("stdout: {error}"))) };
        }
        items += 1;
        bytes += item.len() as u64;
        if items % STEP == 0 {
            bar.set_position(bytes);
            bar.set_message(HumanCount(items).to_string());
        }
    };
    bar.finish_and_clear();
    let flushed = out.flush().map_err(|error| fail(format!("stdout: {error}")));
    outcome.and(flushed)
}

fn broken(url: &str, items: u64, error: &io::Error) -> Unable {
    fail(format!(
        "{url}: the range was interrupted after {items} items: {error}. The items printed are \
         correct but incomplete; resume from the last key"
    ))
}

/// Only while the items go elsewhere than to the terminal, and that is there.
fn progress() -> ProgressBar {
    if io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg} items, {bytes}, {bytes_per_sec}");
    let bar = ProgressBar::new_spinner().with_message("0");
    // `new_spinner` is hidden where stderr is no terminal.
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.expect("the template is well-formed"))
}

fn print(out: &mut impl Write, item: &[u8], json: bool) -> io::Result<()> {
    let end = item.iter().position(|byte| *byte == b'\n').unwrap_or(item.len());
    let (key, value) = (&item[..end], item.get(end + 1..).unwrap_or_default());
    if !json {
        return writeln!(out, "{}\t{}", escape(key), escape(value));
    }
    let mut object = Map::new();
    add(&mut object, "key", key);
    add(&mut object, "value", value);
    writeln!(out, "{}", Value::from(object))
}
