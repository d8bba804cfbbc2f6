//! Commands for single keys: `put`, `get`, `del`, `add`.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use protocol::visible;
use serde_json::{Map, Value};

use super::args::{IdempotencyArgs, IfMatch, WantReceipt};
use super::bytes::{add as add_bytes, escape, percent};
use super::connection::{self, ClientConnection, Head};
use super::problem::{UncertainRequest, UnknownOutcome, other_program_text};
use super::{
    AddArgs, CommandFailure, ConnectionArgs, DelArgs, KeyArgs, ProblemDetails, PutArgs, connect,
    fail, key_bytes, print_done,
};
use super::{is_closed, report_unanswered, unreachable_node};
use crate::http::receipt::{RECEIPT, Receipt};
use crate::operations::stderr;
use crate::settings::config::MAX_VALUE;

/// Minimum size in bytes of an upload that shows a progress bar.
const MIN_BAR_BYTES: usize = 256 << 10;

/// Outcome to report if the result of a write can't be printed.
const APPLIED: &str = "the write was applied: do not repeat it (kvorum get KEY shows the value)";

/// Writes a value.
pub(crate) fn put(args: &PutArgs) -> Result<(), CommandFailure> {
    let key = key_bytes(&args.key, args.escaped)?;
    let value = match (&args.file, &args.value) {
        (Some(path), _) => read_file(path)?,
        (None, Some(dash)) if dash == "-" => read_stdin()?,
        (None, value) => value.as_ref().map_or(Vec::new(), |value| value.as_bytes().to_vec()),
    };
    let (votes, receipt) = (args.votes.query(), args.receipt.query());
    let ttl = args.life.query();
    let target = format!("/v0/entity?id={}{votes}{receipt}{ttl}", percent(&key));
    let condition = args.if_none_match.as_ref().map(|any| format!("If-None-Match: {any}\r\n"));
    let condition = condition.map_or_else(|| if_match(&args.condition), Ok)?;
    let headers = condition + &idempotency_header(&args.known)?;
    let (head, body) = EntityClient::new(&args.ask, &headers).ask("PUT", &target, Some(&value))?;
    finish_write(&key, &head, &body, &args.ask, (&args.receipt, STORED))
}

/// Reads values. Prints only the bytes of the value for one key, and a line for each of several
/// keys, as `scan` does.
pub(crate) fn get(args: &KeyArgs) -> Result<(), CommandFailure> {
    let keys = keys_of(args)?;
    let mut outcome = Ok(());
    let mut asker = EntityClient::new(&args.ask, "");
    for key in &keys {
        let target = format!("/v0/entity?id={}{}", percent(key), args.votes.query());
        let (head, body) = asker.ask("GET", &target, None)?;
        if head.status == 404 && ProblemDetails::is_absence(head.status, &body) {
            let _ = match args.ask.json {
                true => ProblemDetails::report_absent(key, &body),
                false => fail(format!("key not found: {}", escape(key))),
            };
            outcome = Err(CommandFailure::No);
            continue;
        }
        if head.status != 200 {
            if keys.len() > 1 {
                let (key, all) = (escape(key), keys.len());
                stderr::say(format_args!(
                    "kvorum: stopped at {key}: of {all} keys none behind it was read"
                ));
            }
            return Err(ProblemDetails::report(head.status, &body, &args.ask));
        }
        if head.version.is_none() {
            return Err(ProblemDetails::report_other_program(head.status, &args.ask));
        }
        print_value(key, &head, &body, args.ask.json, keys.len() > 1)?;
    }
    outcome
}

fn print_value(
    key: &[u8],
    head: &Head,
    body: &[u8],
    json: bool,
    is_one_of_several: bool,
) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    let written = if json {
        let mut object = key_json(key, head, None);
        add_bytes(&mut object, "value", body);
        writeln!(out, "{}", visible(&Value::from(object).to_string()))
    } else if is_one_of_several {
        writeln!(out, "{}\t{}", escape(key), escape(body))
    } else {
        // A terminal's prompt needs a line of its own; a file gets only the value.
        let end: &[u8] = if out.is_terminal() && !body.ends_with(b"\n") { b"\n" } else { b"" };
        out.write_all(body).and_then(|()| out.write_all(end))
    };
    match written.and_then(|()| out.flush()) {
        // The reader has closed the pipe, as with `scan`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| fail(format!("stdout: {error}"))),
    }
}

/// Deletes values, one after the other.
pub(crate) fn del(args: &DelArgs) -> Result<(), CommandFailure> {
    let DelArgs { condition, known: word, receipt, key: args } = args;
    let keys = keys_of(args)?;
    let is_known = word.idempotency_key.is_some();
    if keys.len() > 1 && (is_known || condition.if_match.iter().any(|version| version != "*")) {
        return Err(fail(
            "--if-match VERSION and --idempotency-key are good for one key: delete it alone",
        ));
    }
    let votes = args.votes.query();
    let headers = if_match(condition)? + &idempotency_header(word)?;
    let mut asker = EntityClient::new(&args.ask, &headers);
    for (done, key) in keys.iter().enumerate() {
        // A receipt proves that the answer comes from a kvorum node.
        let target = format!("/v0/entity?id={}{votes}&receipt=true", percent(key));
        let answer = asker.ask("DELETE", &target, None);
        let deleted = answer
            .and_then(|(head, body)| finish_write(key, &head, &body, &args.ask, (receipt, DELETED)))
            .inspect_err(|_| {
                if keys.len() > 1 {
                    let (key, all) = (escape(key), keys.len());
                    stderr::say(format_args!(
                        "kvorum: stopped at {key}: {done} of {all} keys were deleted before it, \
                         and none behind it"
                    ));
                }
            });
        deleted?;
    }
    Ok(())
}

/// Returns the keys of a command line.
fn keys_of(args: &KeyArgs) -> Result<Vec<Vec<u8>>, CommandFailure> {
    args.keys.iter().map(|key| key_bytes(key, args.escaped)).collect()
}

/// Adds to a number.
pub(crate) fn add(args: &AddArgs) -> Result<(), CommandFailure> {
    let key = key_bytes(&args.key, args.escaped)?;
    let (number, votes) = (args.number, args.votes.query());
    let (receipt, ttl) = (args.receipt.query(), args.life.query());
    let target = format!("/v0/entity?id={}&add={number}{votes}{receipt}{ttl}", percent(&key));
    let headers = idempotency_header(&args.known)?;
    let (head, body) = EntityClient::new(&args.ask, &headers).ask("POST", &target, Some(b""))?;
    if head.status != 200 {
        return Err(ProblemDetails::report_with_outcome(
            UncertainRequest::Write,
            head.status,
            &body,
            &args.ask,
        ));
    }
    let sum = str::from_utf8(&body).ok().and_then(|sum| sum.parse::<i64>().ok());
    let Some(sum) = sum.filter(|_| head.version.is_some()) else {
        return Err(unconfirmed_write(&args.ask, head.status));
    };
    if args.ask.json {
        let mut object = key_json(&key, &head, head.receipt.as_ref());
        object.insert("sum".to_owned(), sum.into());
        print_done(&format!("{}\n", Value::from(object)), APPLIED)?;
    } else {
        print_done(&format!("{sum}\n{}", receipt_line(head.receipt.as_ref())), APPLIED)?;
    }
    check_receipt(&head, &args.ask, &args.receipt)
}

/// Formats a receipt for the user, if there is one.
fn receipt_line(receipt: Option<&Receipt>) -> String {
    let Some(Receipt { version, epoch, ack, from, sync, by }) = receipt else {
        return String::new();
    };
    let by =
        by.as_ref().map_or("replicas whose names are not known".to_owned(), |by| by.join(", "));
    format!(
        "version {version} acknowledged by {by} ({ack} of {from} required, sync {sync}, epoch \
         {epoch})\n"
    )
}

/// Fails if a receipt was requested and the answer has none, although the write was done.
fn check_receipt(
    head: &Head,
    ask: &ConnectionArgs,
    wanted: &WantReceipt,
) -> Result<(), CommandFailure> {
    if wanted.receipt && head.receipt.is_none() {
        let url = &ask.url;
        return Err(fail(format!("{url}: written, but the response has no {RECEIPT} header")));
    }
    Ok(())
}

/// Returns the header line of an idempotency key; empty without a key.
fn idempotency_header(
    IdempotencyArgs { idempotency_key }: &IdempotencyArgs,
) -> Result<String, CommandFailure> {
    let Some(word) = idempotency_key else { return Ok(String::new()) };
    if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
        let shown = word.escape_debug();
        return Err(fail(format!("--idempotency-key \"{shown}\": visible ASCII characters only")));
    }
    Ok(format!("Idempotency-Key: {word}\r\n"))
}

/// Returns the header line of a condition; empty without a condition.
fn if_match(IfMatch { if_match }: &IfMatch) -> Result<String, CommandFailure> {
    if if_match.is_empty() {
        return Ok(String::new());
    }
    if if_match.iter().any(|version| version == "*") {
        let alone = if_match.len() == 1;
        return alone
            .then(|| "If-Match: *\r\n".to_owned())
            .ok_or_else(|| fail("--if-match: either * or versions"));
    }
    let quoted = |version: &String| {
        let shown = version.trim_matches('"');
        let tag = format!("\"{shown}\"");
        match connection::version(&tag) {
            Some(_) => Ok(tag),
            None => Err(fail(format!(
                "--if-match {shown:?} is not a valid version; `kvorum get KEY --json` prints one"
            ))),
        }
    };
    let quoted: Vec<String> = if_match.iter().map(quoted).collect::<Result<_, _>>()?;
    Ok(format!("If-Match: {}\r\n", quoted.join(", ")))
}

/// Sends requests to one node, one after the other, over one connection as long as the node keeps
/// it open.
struct EntityClient<'a> {
    ask: &'a ConnectionArgs,
    /// Header lines of each request, with line ends.
    headers: &'a str,
    connection: Option<ClientConnection>,
}

impl<'a> EntityClient<'a> {
    fn new(ask: &'a ConnectionArgs, headers: &'a str) -> Self {
        Self { ask, headers, connection: None }
    }

    /// Sends a request and reads the answer.
    fn ask(
        &mut self,
        method: &str,
        target: &str,
        body: Option<&[u8]>,
    ) -> Result<(Head, Vec<u8>), CommandFailure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut connection = connect(self.ask)?;
                connection.add_header(self.headers);
                connection
            }
        };
        let bar = upload_bar(body.map_or(0, <[u8]>::len));
        let head = connection.request(method, target, body, |sent| bar.inc(sent as u64));
        bar.finish_and_clear();
        let answer = head.and_then(|head| connection.body(&head).map(|body| (head, body)));
        let answer = answer.map_err(|error| {
            if method == "GET" {
                return unreachable_node(self.ask, &error);
            }
            report_unanswered(UncertainRequest::Write, self.ask, &error)
        })?;
        self.connection = Some(connection).filter(|_| !answer.0.closes);
        Ok(answer)
    }
}

/// Returns a progress bar for long uploads, shown on stderr, and only on a terminal.
fn upload_bar(bytes: usize) -> ProgressBar {
    if bytes < MIN_BAR_BYTES {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}");
    ProgressBar::new(bytes as u64).with_style(style.expect("the template is well-formed"))
}

/// A node's confirmation of a write: its status, and a header that other programs do not send.
type Confirmation = (u16, fn(&Head) -> bool);

/// Confirmation of a stored value: the answer has the value's version.
const STORED: Confirmation = (201, |head| head.version.is_some());

/// Confirmation of a deletion: the answer has a receipt, which is always requested. It has no
/// version.
const DELETED: Confirmation = (202, |head| head.receipt.is_some());

fn finish_write(
    key: &[u8],
    head: &Head,
    body: &[u8],
    ask: &ConnectionArgs,
    (wanted, done): (&WantReceipt, Confirmation),
) -> Result<(), CommandFailure> {
    if head.status == 412 && ProblemDetails::is_condition_failed(head.status, body) {
        ProblemDetails::report_condition_failed(body, head.version.as_deref(), ask);
        return Err(CommandFailure::No);
    }
    if head.status != done.0 {
        return Err(ProblemDetails::report_with_outcome(
            UncertainRequest::Write,
            head.status,
            body,
            ask,
        ));
    }
    if !(done.1)(head) {
        return Err(unconfirmed_write(ask, head.status));
    }
    // The request of a deletion always asks for a receipt, even if the user does not.
    let receipt = head.receipt.as_ref().filter(|_| wanted.receipt);
    if ask.json {
        print_done(&format!("{}\n", Value::from(key_json(key, head, receipt))), APPLIED)?;
    } else {
        print_done(&receipt_line(receipt), APPLIED)?;
    }
    check_receipt(head, ask, wanted)
}

/// Reports that a program other than kvorum confirmed a write, so that the outcome is unknown.
fn unconfirmed_write(ask: &ConnectionArgs, status: u16) -> CommandFailure {
    UnknownOutcome::OtherProgram(status).report(
        UncertainRequest::Write,
        &other_program_text(&ask.url, status),
        ask,
    )
}

/// Returns a JSON object that describes a key, without its value.
fn key_json(key: &[u8], head: &Head, receipt: Option<&Receipt>) -> Map<String, Value> {
    let mut object = Map::new();
    add_bytes(&mut object, "key", key);
    if let Some(version) = &head.version {
        object.insert("version".to_owned(), version.as_str().into());
    }
    if let Some(expires_ms) = head.expires_ms {
        object.insert("expires_ms".to_owned(), expires_ms.into());
    }
    if let Some(receipt) = receipt {
        object.insert("receipt".to_owned(), serde_json::json!(receipt));
    }
    object
}

fn read_stdin() -> Result<Vec<u8>, CommandFailure> {
    if is_closed(io::stdin()) {
        return Err(fail(
            "stdin: it is closed, so there is no value. Nothing was written; for an empty value, \
             give '' as the value",
        ));
    }
    read(io::stdin().lock(), "stdin")
}

fn read_file(path: &Path) -> Result<Vec<u8>, CommandFailure> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| fail(format!("{shown}: {error}")))?;
    read(file, &shown)
}

/// Reads all bytes, up to the maximum size of a value.
fn read(from: impl Read, shown: &str) -> Result<Vec<u8>, CommandFailure> {
    let mut value = Vec::new();
    let read = from.take(MAX_VALUE.0 + 1).read_to_end(&mut value);
    read.map_err(|error| fail(format!("{shown}: {error}")))?;
    if value.len() as u64 > MAX_VALUE.0 {
        return Err(fail(format!("{shown} is larger than {MAX_VALUE}, the maximum for any node")));
    }
    Ok(value)
}
