//! `kvorum scan`: prints a range, one item per line. A truncated response is an error, because its
//! items alone look like a complete list.
//!
//! The range is requested in pages, and a page is printed after its last item has arrived. The
//! reader of standard output may pause, as `less` does, and a node closes the connection of a
//! client that reads too slowly.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use protocol::visible;
use serde_json::{Map, Value};

use super::bytes::{add, escape, percent};
use super::connection::{self, ClientConnection, Head};
use super::{CommandFailure, ProblemDetails, ScanArgs, connect, fail, key_bytes, unreachable_node};
use crate::http::MAX_LIMIT;
use crate::http::frames::{CONTENT_TYPE, Frame, Frames, Item};

/// Items of the first page. Later pages have as many items as fit into `PAGE_BYTES`, by the average
/// size of the items so far.
const FIRST_PAGE: u64 = 100;

/// Limit on the bytes of keys and values that are buffered until their page is complete. A page
/// with more bytes is printed while it arrives.
const PAGE_BYTES: u64 = 4 << 20;

/// Items between two updates of the progress line.
const STEP: u64 = 1000;

/// The range to read, as bytes.
struct ScanRange<'a> {
    args: &'a ScanArgs,
    start: Option<Vec<u8>>,
    prefix: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
}

/// The output, and the counts of items and bytes printed so far.
struct Printed {
    out: BufWriter<io::StdoutLock<'static>>,
    bar: ProgressBar,
    items: u64,
    bytes: u64,
    last_key: Vec<u8>,
}

/// The items of a page that are not printed yet.
#[derive(Default)]
struct Page {
    items: Vec<Item>,
    bytes: u64,
}

/// Reason why the output ends early.
enum Stop {
    /// The reader has closed the pipe, as `head` does.
    Enough,
    Unable(CommandFailure),
}

impl From<CommandFailure> for Stop {
    fn from(unable: CommandFailure) -> Self {
        Self::Unable(unable)
    }
}

/// Prints a range.
pub(crate) fn scan(args: &ScanArgs) -> Result<(), CommandFailure> {
    if args.end.as_ref().is_some_and(|end| end.is_empty()) {
        return Err(fail("--end must not be empty: no key is before the empty one"));
    }
    // An empty prefix matches all keys, and an empty start precedes all keys, so both are omitted.
    let bytes = |key: &Option<OsString>| {
        let key = key.as_ref().filter(|key| !key.is_empty());
        key.map(|key| key_bytes(key, args.escaped)).transpose()
    };
    let [start, prefix, end] = [bytes(&args.start)?, bytes(&args.prefix)?, bytes(&args.end)?];
    let wanted = ScanRange { args, start, prefix, end };
    let mut printed = Printed {
        out: BufWriter::new(io::stdout().lock()),
        bar: progress(),
        items: 0,
        bytes: 0,
        last_key: Vec::new(),
    };
    let outcome = pages(&wanted, &mut printed);
    printed.bar.finish_and_clear();
    let flushed = printed.out.flush();
    match outcome {
        Err(Stop::Enough) => Ok(()),
        Err(Stop::Unable(unable)) => Err(unable),
        Ok(()) => match flushed {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            flushed => flushed.map_err(|error| fail(format!("stdout: {error}"))),
        },
    }
}

/// Requests and prints page after page.
fn pages(wanted: &ScanRange<'_>, printed: &mut Printed) -> Result<(), Stop> {
    let ask = &wanted.args.ask;
    let open = || {
        let mut connection = connect(ask)?;
        connection.add_header(&format!("Accept: {CONTENT_TYPE}\r\n"));
        Ok::<_, CommandFailure>(connection)
    };
    let mut connection = open()?;
    let mut after = None;
    loop {
        let left = wanted.items_left(printed);
        if left == Some(0) {
            return Ok(());
        }
        let target = wanted
            .target(after.as_deref(), left.unwrap_or(u64::MAX).min(printed.next_page_items()));
        let mut asked = connection.request("GET", &target, None, |_| {});
        if asked.is_err() && after.is_some() {
            // The node may have closed the idle connection while the reader of the output paused.
            connection = open().map_err(|unable| wanted.report_refusal(printed, unable))?;
            asked = connection.request("GET", &target, None, |_| {});
        }
        let head = asked.map_err(|error| wanted.report_unanswered(printed, &error))?;
        after = page(wanted, printed, &mut connection, &head)?;
        if after.is_none() {
            return Ok(());
        }
        if head.closes {
            connection = open().map_err(|unable| wanted.report_refusal(printed, unable))?;
        }
    }
}

/// Prints the items of a response; returns the cursor of the next page, or `None` after the last
/// page.
fn page(
    wanted: &ScanRange<'_>,
    printed: &mut Printed,
    connection: &mut ClientConnection,
    head: &Head,
) -> Result<Option<String>, Stop> {
    let ask = &wanted.args.ask;
    if head.status != 200 {
        let body = connection.body(head);
        let body = body.map_err(|error| wanted.report_unanswered(printed, &error))?;
        let refused = ProblemDetails::report(head.status, &body, ask);
        return Err(wanted.report_refusal(printed, refused).into());
    }
    let media = head.content_type.as_deref().unwrap_or_default();
    if !media.split(';').next().is_some_and(|one| one.trim().eq_ignore_ascii_case(CONTENT_TYPE)) {
        return Err(wanted.report_refusal(printed, wanted.other_type(media)).into());
    }
    let mut frames = Frames::new(connection.stream(head));
    let mut page = Page::default();
    let end = loop {
        match frames.read() {
            Ok(Frame::Item(item)) => {
                page.bytes += (item.key.len() + item.value.as_ref().map_or(0, Vec::len)) as u64;
                page.items.push(item);
                if page.bytes >= PAGE_BYTES {
                    printed.print(&mut page, ask.json)?;
                }
            }
            Ok(Frame::End) => break Ok(None),
            Ok(Frame::Next(cursor)) => break Ok(Some(cursor)),
            Err(error) => break Err(error),
        }
    };
    printed.print(&mut page, ask.json)?;
    match end {
        // All requested items are printed, so an error in the rest of the response does not matter.
        Err(_) if wanted.items_left(printed) == Some(0) => Ok(None),
        end => end.map_err(|error| wanted.report_interruption(printed, &error).into()),
    }
}

impl ScanRange<'_> {
    /// Returns the number of items left to print; `None` = there is no limit.
    fn items_left(&self, printed: &Printed) -> Option<u64> {
        self.args.limit.map(|limit| limit.saturating_sub(printed.items))
    }

    /// Returns the target of a request for a page of at most `limit` items.
    fn target(&self, after: Option<&str>, limit: u64) -> String {
        let mut query = Vec::new();
        let keys = [("start", &self.start), ("prefix", &self.prefix), ("end", &self.end)];
        for (name, key) in keys {
            query.extend(key.as_ref().map(|key| format!("{name}={}", percent(key))));
        }
        query.extend(self.args.local.then(|| "local=true".to_owned()));
        query.push(format!("limit={limit}"));
        query.extend(after.map(|cursor| format!("after={}", percent(cursor.as_bytes()))));
        let query = query.join("&") + &self.args.votes.query();
        format!("/v0/entities?{}", query.trim_start_matches('&'))
    }

    fn other_type(&self, media: &str) -> CommandFailure {
        let url = &self.args.ask.url;
        let media = media.escape_debug();
        fail(format!(
            "{url} answers 200 with an unexpected response, of the Content-Type \"{media}\" \
             instead of {CONTENT_TYPE}: it is a kvorum node of an earlier release (upgrade it, or \
             use the kvorum program of that release), another server, or a proxy that changes \
             responses. Nothing was printed of this response"
        ))
    }

    /// Reports that a response was truncated or damaged, and how to continue.
    fn report_interruption(&self, printed: &Printed, error: &dyn Display) -> CommandFailure {
        fail(self.interruption(printed, &format!(": {error}")))
    }

    /// Reports a missing or partial answer, and how to continue if items were printed before.
    fn report_unanswered(&self, printed: &Printed, error: &io::Error) -> CommandFailure {
        match printed.items {
            0 => unreachable_node(&self.args.ask, error),
            _ => self.report_interruption(printed, error),
        }
    }

    /// Reports how to continue after a refusal, which has been printed, if items were printed
    /// before it.
    fn report_refusal(&self, printed: &Printed, told: CommandFailure) -> CommandFailure {
        match printed.items {
            0 => told,
            _ => fail(self.interruption(printed, "")),
        }
    }

    /// Returns the message of an interrupted scan: the number of printed items, then `why`, then
    /// the command that reads the remaining items.
    fn interruption(&self, printed: &Printed, why: &str) -> String {
        let (url, items) = (&self.args.ask.url, printed.items);
        let go_on = match items {
            0 => "Run the command again".to_owned(),
            _ => format!("The next ones: {}", self.rest(printed)),
        };
        format!(
            "{url}: the range was interrupted after {items} items{why}. The items printed are \
             whole, and more may follow them. {go_on}"
        )
    }

    /// Returns the command that prints the items after the last printed key.
    fn rest(&self, printed: &Printed) -> String {
        let quoted = |key: &[u8]| {
            let text = escape(key);
            // A leading hyphen would make the key look like a flag.
            let text = text.strip_prefix('-').map_or(text.clone(), |rest| format!("\\x2d{rest}"));
            format!("'{}'", text.replace('\'', r"'\''"))
        };
        let next = [&printed.last_key[..], &[0]].concat();
        let mut command = format!("kvorum scan --escaped {}", quoted(&next));
        for (flag, key) in [("--prefix", &self.prefix), ("--end", &self.end)] {
            command +=
                &key.as_ref().map_or(String::new(), |key| format!(" {flag} {}", quoted(key)));
        }
        if let Some(left) = self.items_left(printed) {
            command += &format!(" --limit {left}");
        }
        let flags = [(self.args.local, " --local"), (self.args.ask.json, " --json")];
        command.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag));
        let votes = [(" --ack", self.args.votes.ack), (" --from", self.args.votes.from)];
        for (flag, votes) in votes {
            command += &votes.map_or(String::new(), |votes| format!("{flag} {votes}"));
        }
        command + &self.args.ask.flags()
    }
}

impl Printed {
    /// Returns the number of items of the next page.
    fn next_page_items(&self) -> u64 {
        match self.items {
            0 => FIRST_PAGE,
            items => (PAGE_BYTES / (self.bytes / items).max(1)).clamp(1, MAX_LIMIT.into()),
        }
    }

    /// Prints the items of a page, and removes them from it.
    fn print(&mut self, page: &mut Page, json: bool) -> Result<(), Stop> {
        page.bytes = 0;
        page.items.drain(..).try_for_each(|item| self.item(item, json))
    }

    fn item(&mut self, item: Item, json: bool) -> Result<(), Stop> {
        let Item { etag, key, value, expires_ms } = item;
        let value = value.unwrap_or_default();
        let written = if json {
            let mut object = Map::new();
            add(&mut object, "key", &key);
            let version = str::from_utf8(&etag).ok().and_then(connection::version);
            object.extend(version.map(|version| ("version".to_owned(), version.into())));
            if expires_ms != 0 {
                object.insert("expires_ms".to_owned(), expires_ms.into());
            }
            add(&mut object, "value", &value);
            writeln!(self.out, "{}", visible(&Value::from(object).to_string()))
        } else {
            writeln!(self.out, "{}\t{}", escape(&key), escape(&value))
        };
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Stop::Enough,
            _ => Stop::Unable(fail(format!("stdout: {error}"))),
        })?;
        self.items += 1;
        self.bytes += (key.len() + value.len()) as u64;
        self.last_key = key;
        if self.items.is_multiple_of(STEP) {
            self.bar.set_position(self.bytes);
            self.bar.set_message(HumanCount(self.items).to_string());
        }
        Ok(())
    }
}

/// Returns a progress line; hidden if stdout is a terminal, which shows the items, or if stderr is
/// not a terminal.
fn progress() -> ProgressBar {
    if io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg} items, {bytes}, {bytes_per_sec}");
    let bar = ProgressBar::new_spinner().with_message("0");
    // `new_spinner` is hidden if stderr is not a terminal.
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.expect("the template is well-formed"))
}
