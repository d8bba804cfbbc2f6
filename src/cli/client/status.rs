//! `kvorum status`: an overview of the cluster, as one node collects it from the others.
//!
//! ```text
//!  node at --url ─▶ /v0/cluster ─▶ a table with a row for each node; below the table, the problems
//! ```

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use rustix::termios::tcgetwinsize;

use super::connection::{ClientConnection, unexpected_response};
use super::repair::last_round;
use super::{
    CommandFailure, ConnectionArgs, ProblemDetails, StatusArgs, connect, print, print_to_reader,
    token_of, unreachable_node,
};
use crate::counters::clocks::wall_micros;
use crate::operations::status::{
    ClockDiffers, Cluster, ForgottenKeys, ForgottenReason, Membership, Row, Status,
};
use crate::settings::members;
use crate::transport::WARN_BEFORE;

/// Timeout of the node's answer: the node asks the other nodes, 16 at a time, and waits up to 2 s
/// for each node that does not answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Refresh interval of `--watch`.
const PERIOD: Duration = Duration::from_secs(1);

/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Columns that are omitted on a narrow terminal, the first one first. `--json` has all columns.
const DISPENSABLE: [&str; 4] = ["url", "version", "up for", "memory"];

/// State of a node if a node of another cluster answers at its URL.
pub(super) const OTHER_CLUSTER: &str = "other cluster ID";

/// State of a node that answers, but refuses the proof that the asking node knows the cluster
/// secret.
const REFUSES_PROOF: &str = "refuses proof";

/// Returns the state of a node that did not report its status.
pub(super) fn unreported_state(row: &Row) -> &'static str {
    if row.refuses_proof { REFUSES_PROOF } else { "down" }
}

/// State of a node about which the asked node, removed from the cluster, knows nothing.
pub(super) const NOT_ASKED: &str = "not asked";

/// Spaces between two columns.
const GAP: usize = 2;

/// Shows the state of every node, or whether the asked node serves.
pub(crate) fn status(args: &StatusArgs) -> Result<(), CommandFailure> {
    if args.ready {
        return readiness(&args.ask);
    }
    let url = &args.ask.url;
    let token = token_of(args.ask.token_file.as_deref())?;
    let show = |body: &[u8], cluster: &Cluster| match args.ask.json {
        true => String::from_utf8_lossy(body).into_owned() + "\n",
        false => table(cluster, width(), &args.ask.flags()),
    };
    if !args.watch {
        let (body, cluster) = fetch_cluster(&args.ask, token.as_deref())
            .map_err(|unseen| unseen.report(&args.ask))?;
        print(&show(&body, &cluster))?;
        return if is_whole(&cluster) { Ok(()) } else { Err(CommandFailure::No) };
    }
    let clear = if io::stdout().is_terminal() && !args.ask.json { CLEAR } else { "" };
    loop {
        let text = match fetch_cluster(&args.ask, token.as_deref()) {
            Ok((body, cluster)) => format!("{clear}{}", show(&body, &cluster)),
            // A failed request does not end `--watch`: the cluster may still be starting.
            Err(unseen) if args.ask.json => {
                unseen.report(&args.ask);
                String::new()
            }
            Err(unseen) => format!("{clear}{url}: {unseen}\n"),
        };
        if !print_to_reader(&text)? {
            return Ok(());
        }
        thread::sleep(PERIOD);
    }
}

/// The output of `--ready --json`.
#[derive(serde::Serialize)]
struct Readiness<'a> {
    ready: bool,
    /// The text of `/readyz`.
    state: &'a str,
}

/// Shows whether the asked node serves (`/readyz`).
fn readiness(ask: &ConnectionArgs) -> Result<(), CommandFailure> {
    let mut connection = connect(ask)?;
    let answer = connection.request("GET", "/readyz", None, |_| {});
    let answer = answer.and_then(|head| Ok((head.status, connection.body(&head)?)));
    let (status, body) = answer.map_err(|error| unreachable_node(ask, &error))?;
    let (is_ready, text) = (status == 200, String::from_utf8_lossy(&body));
    let text = text.trim_end();
    match ask.json {
        true => {
            let shown = Readiness { ready: is_ready, state: text };
            let json = serde_json::to_string(&shown).expect("texts always serialize");
            print(&(json + "\n"))?;
        }
        false => print(&format!("{text}\n"))?,
    }
    if is_ready { Ok(()) } else { Err(CommandFailure::No) }
}

/// Reason why the state of the cluster is not known.
#[derive(Debug, thiserror::Error)]
enum ClusterUnavailable {
    #[error(transparent)]
    Lost(#[from] io::Error),
    #[error("it answers {}", ProblemDetails::describe_answer(*status, body))]
    Refused { status: u16, body: Vec<u8> },
}

impl ClusterUnavailable {
    /// Reports the reason to the user, or a node's refusal as JSON.
    fn report(&self, ask: &ConnectionArgs) -> CommandFailure {
        match self {
            Self::Lost(error) => unreachable_node(ask, error),
            Self::Refused { status, body } => ProblemDetails::report(*status, body, ask),
        }
    }
}

/// Requests the state of the cluster from the asked node; returns the answer as received and
/// parsed.
fn fetch_cluster(
    ask: &ConnectionArgs,
    token: Option<&str>,
) -> Result<(Vec<u8>, Cluster), ClusterUnavailable> {
    let patience = ask.timeout.map_or(TIMEOUT, |timeout| timeout.0);
    let mut connection = ClientConnection::open(&ask.url, &ask.certificates, patience, token)?;
    let head = connection.request("GET", "/v0/cluster", None, |_| {})?;
    let body = connection.body(&head)?;
    if head.status != 200 {
        return Err(ClusterUnavailable::Refused { status: head.status, body });
    }
    let cluster = serde_json::from_slice(&body);
    let cluster = cluster.map_err(|error| unexpected_response(&error.to_string()))?;
    Ok((body, cluster))
}

/// Returns the terminal's width in characters; `None` if stdout is not a terminal.
fn width() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Formats the table and the notes below it. `width` is the width of the terminal. `flags` are the
/// connection's flags for printed commands.
fn table(cluster: &Cluster, width: Option<usize>, flags: &str) -> String {
    let mut columns = columns(&cluster.nodes);
    for title in DISPENSABLE {
        let taken: usize = columns.iter().map(|column| column.width() + GAP).sum();
        if width.is_none_or(|width| taken <= width + GAP) {
            break;
        }
        columns.retain(|column| column.title != title);
    }
    let mut text = String::new();
    for place in 0..=cluster.nodes.len() {
        let mut line = String::new();
        for column in &columns {
            let cell = match place.checked_sub(1) {
                Some(row) => column.cells[row].as_str(),
                None => column.title,
            };
            let _ = write!(line, "{cell:width$}", width = column.width() + GAP);
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let notes = cluster.nodes.iter().flat_map(|row| notes(row, &cluster.asked, flags));
    let notes = notes.chain(lost_votes(cluster, flags)).chain(clock_problems(&cluster.nodes));
    let mut notes: Vec<String> = notes.collect();
    if notes.is_empty() {
        notes.extend(single_node_hint(&cluster.nodes, flags));
    }
    for note in notes.into_iter().chain(last_round(&cluster.nodes, wall_micros() / 1000, flags)) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Describes how to extend a single node to a cluster; `None` if the cluster has several nodes, or
/// if the node's status does not make it a member.
fn single_node_hint(rows: &[Row], flags: &str) -> Option<String> {
    let [Row { name, url, status: Some(status), .. }] = rows else { return None };
    if status.membership != Membership::Member {
        return None;
    }
    let first = if members::is_loopback(url) {
        "give it name, listen, cluster-secret-file, tls-cert and tls-key in its settings and \
         restart it (so far only this machine reaches it); then "
    } else {
        ""
    };
    Some(format!(
        "{name} is alone: its disk has the only copy. To make a cluster, {first}start a node on \
         another machine with --join and this one's URL, and run kvorum cluster plan --add \
         NAME{flags}"
    ))
}

/// A column: its title, and a cell for each row.
struct Column {
    title: &'static str,
    cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        let widths = self.cells.iter().map(|cell| cell.chars().count());
        widths.chain([self.title.chars().count()]).max().unwrap_or(0)
    }
}

fn columns(rows: &[Row]) -> Vec<Column> {
    let column = |title, cell: &dyn Fn(&Row) -> String| Column {
        title,
        cells: rows.iter().map(cell).collect(),
    };
    let said = |title, cell: fn(&Status) -> String| {
        column(title, &|row| row.status.as_ref().map_or("-".to_owned(), cell))
    };
    let mut columns = vec![
        column("node", &|row| row.name.clone()),
        column("url", &|row| row.url.clone()),
        column("state", &state),
        column("hints", &|row| HumanCount(row.hints).to_string()),
        column("clock", &|row| match row.clock_skew_us.filter(|_| row.up) {
            Some(us) => format!("{:+.1} ms", us as f64 / 1e3),
            None => "-".to_owned(),
        }),
        said("≈ keys", |status| HumanCount(status.keys).to_string()),
        said("disk", |status| HumanBytes(status.disk_bytes).to_string()),
        said("memory", |status| HumanBytes(status.memory_bytes).to_string()),
        said("up for", |status| {
            format!("{:#}", HumanDuration(Duration::from_secs(status.uptime_s)))
        }),
        said("version", |status| status.version.clone()),
    ];
    // A node without a configured name has its URL as its name.
    if rows.iter().all(|row| row.name == row.url) {
        columns.retain(|column| column.title != "url");
    }
    columns
}

fn state(row: &Row) -> String {
    use Membership::{Fenced, Joining, Member, Other, Rebuilding, Removed, Starting, Verifying};
    if row.not_asked {
        return NOT_ASKED.to_owned();
    }
    if row.other_cluster_id.is_some() {
        return OTHER_CLUSTER.to_owned();
    }
    let Some(status) = &row.status else { return unreported_state(row).to_owned() };
    match &status.membership {
        _ if status.failed.is_some() => "no writes".to_owned(),
        _ if status.disk_full => "up, disk full".to_owned(),
        Fenced => Fenced.to_string(),
        Removed => Removed.to_string(),
        Member => "up".to_owned(),
        state @ (Joining | Rebuilding | Verifying | Starting | Other(_)) => format!("up, {state}"),
    }
}

/// Describes which node can't reach the node of this row, at which URL, and why; `None` if all
/// nodes reach it.
fn connection_problem(row: &Row, asked: &str) -> Option<String> {
    let Row { name, url, .. } = row;
    if row.not_asked {
        return None;
    }
    if let (Some(_), Some(error)) = (&row.other_cluster_id, &row.error) {
        return Some(format!("{name} at {url}: {error}"));
    }
    if let Some(error) = &row.error {
        let others = match row.reached_by {
            0 => String::new(),
            1 => "; 1 other node is connected to it".to_owned(),
            more => format!("; {more} other nodes are connected to it"),
        };
        let does = if row.refuses_proof { "gives no status to" } else { "does not answer" };
        return Some(format!("{name} {does} {asked} at {url}: {error}{others}"));
    }
    let other = row.unreached_by.as_ref()?;
    let why = other.error.as_ref().map_or(String::new(), |error| format!(": {error}"));
    Some(format!(
        "{} has no connection to {name}: it looks for it at {}{why}",
        other.node, other.url
    ))
}

/// Returns true if all nodes serve, and a majority of the council has votes.
fn is_whole(cluster: &Cluster) -> bool {
    let lost = names_without_vote(cluster).len();
    cluster.nodes.iter().all(serves) && !has_lost_majority(cluster.council.len(), lost)
}

/// Returns true if a node is up and serves reads and writes.
fn serves(row: &Row) -> bool {
    let serves = |status: &Status| {
        let is_out = matches!(status.membership, Membership::Fenced | Membership::Removed);
        !is_out && status.failed.is_none()
    };
    row.up && row.status.as_ref().is_none_or(serves)
}

/// Returns a line for each problem that keeps a node from its part in the cluster: it is
/// unreachable, removed or waiting, or it refuses writes.
pub(super) fn problems(row: &Row, asked: &str) -> Vec<String> {
    let name = &row.name;
    let mut problems: Vec<String> = connection_problem(row, asked).into_iter().collect();
    if let Some(status) = &row.status {
        if status.membership == Membership::Removed {
            let others = if name == asked {
                ", and can't tell how the other nodes are: ask one of them (--url)"
            } else {
                ""
            };
            problems.push(format!(
                "{name} was removed from the cluster: it serves no requests{others}. To add it \
                 again, start it with an empty directory and --join"
            ));
        }
        problems.extend(status.failed.iter().map(|why| format!("{name} accepts no writes: {why}")));
        if status.disk_full {
            problems.push(format!(
                "{name} has a full disk: it refuses writes, or will soon, and goes on once there \
                 is room. Enlarge the file system, or remove files that are not in the data \
                 directory: deletions and compactions need room as well"
            ));
        }
        if is_new(status) && row.unreached_by.is_none() {
            problems.push(format!(
                "{name} waits for the other nodes of a new cluster: start all nodes of the list \
                 once. Until then, some requests fail"
            ));
        }
    }
    problems
}

/// Returns the names of the nodes of the council that have lost their votes.
fn names_without_vote(cluster: &Cluster) -> Vec<&str> {
    let lacks = |status: &Status| status.lacks_vote && !is_new(status);
    let lost = cluster.nodes.iter().filter(|row| row.status.as_ref().is_some_and(lacks));
    lost.map(|row| row.name.as_str()).collect()
}

/// Returns a line for each node of the council that has lost its vote. If no majority of the
/// council has a vote, returns a single line with the remedy.
pub(super) fn lost_votes(cluster: &Cluster, flags: &str) -> Vec<String> {
    let lost = names_without_vote(cluster);
    let of = cluster.council.len();
    if has_lost_majority(of, lost.len()) {
        return vec![recovery_advice(cluster, &lost, flags)];
    }
    let again = |name: &&str| {
        format!(
            "{name} is in the council and has no vote: its disk was replaced, or its directory was \
             copied, and votes may be missing there. kvorum cluster plan{flags}, then apply the \
             plan, seats it again; do that before another councillor's disk is replaced or \
             directory copied"
        )
    };
    lost.iter().map(again).collect()
}

/// Returns true if a council of `of` nodes, of which `lost` have lost their votes, can't decide any
/// more, even if all its nodes are up.
pub(super) fn has_lost_majority(of: usize, lost: usize) -> bool {
    lost > 0 && of.saturating_sub(lost) < of / 2 + 1
}

/// Describes the remedy if no majority of the council has a vote: a recovery from the node with the
/// greatest epoch. Of several such nodes, a node with a vote is preferred.
fn recovery_advice(cluster: &Cluster, lost: &[&str], flags: &str) -> String {
    let known = cluster.nodes.iter().filter_map(|row| Some((row, row.status.as_ref()?)));
    let best = known.max_by_key(|(row, status)| {
        let votes = cluster.council.contains(&row.name) && !status.lacks_vote;
        (status.epoch, votes, std::cmp::Reverse(&row.name))
    });
    let best = best.map_or("one node", |(row, _)| &row.name);
    let (council, lost) = (cluster.council.join(", "), lost.join(","));
    // A cluster with fewer than three nodes has a council of one node, which the recovery appoints.
    let then = match cluster.nodes.len() {
        0..3 => String::new(),
        _ => format!("; then kvorum cluster plan{flags}, and apply the plan"),
    };
    format!(
        "no majority of the council ({council}) has a vote: not {lost}, whose disks were replaced, \
         or whose directories were copied. Members, tokens and quotas can't be changed, and no \
         plan can seat these nodes again; keys are read and written as before. The way out: stop \
         {best}, run kvorum cluster recover --data DIRECTORY-OF-{best} --without-vote {lost}, the \
         same with --yes, and start {best}{then}"
    )
}

/// Returns true if a node of a new cluster waits until the other listed nodes have started once.
fn is_new(status: &Status) -> bool {
    status.cluster_id.is_none() && status.membership == Membership::Joining
}

/// Describes a clock that differs from most others, and the consequences; `None` for any other
/// clock.
fn clock_differs(row: &Row) -> Option<String> {
    let (name, skew) = (&row.name, row.clock_skew_us?);
    if row.clock_differs != Some(ClockDiffers::FromMost) {
        return None;
    }
    let (side, consequence) = match skew > 0 {
        true => ("ahead of", "refuses writes"),
        false => ("behind", "refuses writes of keys that other nodes have written since then"),
    };
    Some(format!(
        "{name}'s clock is {} {side} most other nodes' clocks, more than --max-clock-skew: {name} \
         {consequence}. Correct its clock (date -u shows it), and send writes to other nodes until \
         then",
        seconds_of(skew)
    ))
}

/// Returns a line for each clock that differs from most others, and one line about all clocks of
/// which no majority shows whether they are wrong.
pub(super) fn clock_problems(rows: &[Row]) -> impl Iterator<Item = String> {
    rows.iter().filter_map(clock_differs).chain(unclear_clocks_text(rows))
}

/// Describes clocks that differ from each other, if no majority shows which of them is wrong;
/// `None` if there are no such clocks.
fn unclear_clocks_text(rows: &[Row]) -> Option<String> {
    let unclear = |row: &&Row| row.clock_differs == Some(ClockDiffers::FromSome);
    let differ: Vec<&Row> = rows.iter().filter(unclear).collect();
    let skew = differ.iter().filter_map(|row| row.clock_skew_us).max_by_key(|us| us.abs())?;
    let names: Vec<&str> = differ.iter().map(|row| row.name.as_str()).collect();
    Some(format!(
        "the clocks of {} differ by {}, more than --max-clock-skew: at least one of them is wrong, \
         and no majority shows which. A node whose clock is ahead refuses writes; one whose clock \
         is behind refuses writes of keys that others have written since then. Compare date -u on \
         these nodes with a clock that is right, and correct the wrong one",
        names.join(" and "),
        seconds_of(skew)
    ))
}

/// Formats the absolute value of a clock skew in seconds.
fn seconds_of(skew_us: i64) -> String {
    format!("{:.1} s", skew_us.unsigned_abs() as f64 / 1e6)
}

/// Describes a node that refuses writes for a while, because its last timestamps are ahead of most
/// clocks.
fn timestamps_ahead(name: &str, ahead_ms: u64) -> String {
    format!(
        "{name} refuses writes for another {}: its timestamps are ahead of most other nodes' \
         clocks, for its clock, or one that it followed, was ahead. After that {name} takes writes \
         again, and what it stored with these timestamps wins over what was written to the same \
         keys meanwhile. If only this clock was ahead, run kvorum repair-clock on its stopped \
         directory: it removes {name}'s records of that time, and ends the wait. Do not run it on \
         several nodes whose clocks were ahead, or what they acknowledged together is lost",
        HumanDuration(Duration::from_millis(ahead_ms))
    )
}

/// Returns a line for each problem of a node.
fn notes(row: &Row, asked: &str, flags: &str) -> Vec<String> {
    let name = &row.name;
    let mut notes = problems(row, asked);
    if let Some(status) = &row.status {
        notes.extend(status.timestamps_ahead_ms.map(|ahead_ms| timestamps_ahead(name, ahead_ms)));
        let is_new = is_new(status);
        let partitions = status.partitions_to_repair;
        if partitions > 0 && !is_new {
            notes.push(format!(
                "{name} may lack writes in {} of 65,536 partitions; the nodes that are up send it \
                 these writes",
                HumanCount(partitions.into())
            ));
        }
        let forgotten = status.forgotten_idempotency_keys.iter().filter(|_| !is_new);
        let state = &status.membership;
        notes.extend(forgotten.map(|forgotten| forgotten_keys(name, state, forgotten)));
        let expires_ms = status.certificate_expires_ms;
        notes.extend(expires_ms.and_then(|ms| certificate_expiry(name, ms, wall_micros() / 1000)));
        if status.damaged_tables > 0 {
            let way_out = match status.repair {
                Some(_) => {
                    format!("kvorum repair --full --wait{flags} heals them from the other nodes")
                }
                None => "there are no other nodes to heal them from: start it on a backup".into(),
            };
            let tables = HumanCount(status.damaged_tables);
            notes.push(format!("{name} cannot read parts of {tables} of its tables: {way_out}"));
        }
        let peers = status.peers.iter().flatten();
        for peer in peers.filter(|peer| peer.partitions_to_repair > 0) {
            let partitions = HumanCount(peer.partitions_to_repair.into());
            let missed = &peer.name;
            notes.push(format!(
                "{missed} missed writes in {partitions} partitions, as reported by \
                {name}"
            ));
        }
    }
    notes
}

/// Describes a certificate that has expired or expires soon.
fn certificate_expiry(name: &str, expires_ms: u64, now_ms: u64) -> Option<String> {
    let replace = "replace the files of its --tls-cert and --tls-key; it loads them without a \
                   restart";
    if expires_ms <= now_ms {
        return Some(format!(
            "{name} has an expired TLS certificate, which clients refuse; nodes still accept each \
             other: {replace}"
        ));
    }
    let left = Duration::from_millis(expires_ms - now_ms);
    (left <= WARN_BEFORE).then(|| {
        let left = HumanDuration(left);
        format!("{name} has a TLS certificate that expires in {left}: {replace}")
    })
}

/// Describes why a node may have forgotten idempotency keys, and until when. A node that lost its
/// disk recovers the idempotency keys from the other nodes at the end of its rebuild. Keys that it
/// does not recover then stay unknown for a day.
fn forgotten_keys(name: &str, state: &Membership, forgotten: &ForgottenKeys) -> String {
    let ForgottenKeys { until_ms, reason } = forgotten;
    let is_rebuilt =
        matches!(state, Membership::Joining | Membership::Rebuilding | Membership::Verifying);
    if is_rebuilt && *reason == ForgottenReason::LostDisk {
        return format!(
            "{name} does not know yet which writes with an idempotency key were done: its disk was \
             lost, and its rebuild takes that over from the other nodes at the end; do not replace \
             another node's disk before {name} is up"
        );
    }
    let why = match reason {
        ForgottenReason::LostDisk => "its disk is new, or its directory a copy",
        ForgottenReason::Moved => "keys moved to it",
        ForgottenReason::Other(_) => "it says so",
    };
    let until = UNIX_EPOCH + Duration::from_millis(*until_ms);
    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
    format!(
        "{name} may not know of writes with an idempotency key, for another {}: {why}, and not all \
         other nodes told what they remember. Keys of which too few replicas know refuse such \
         writes with 409. Do not replace another node's disk in this time",
        HumanDuration(left)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operations::status::Unreached;
    use crate::operations::status::tests::status;

    fn row(name: &str) -> Row {
        let url = format!("http://192.168.100.1:8080/{name}");
        let status = Some(status(json!({})));
        Row { name: name.to_owned(), url, up: true, status, ..Row::default() }
    }

    fn down(name: &str) -> Row {
        let error = Some("Connection refused (os error 111)".to_owned());
        Row { up: false, status: None, hints: 7, error, ..row(name) }
    }

    fn cluster(nodes: Vec<Row>) -> Cluster {
        Cluster { asked: "a".to_owned(), council: vec!["a".to_owned()], nodes }
    }

    #[test]
    fn the_table_lines_up_and_says_below_why_a_node_is_down() {
        let text = table(&cluster(vec![row("a"), down("longer-name")]), None, "");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let column = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(column(lines[0], "url"), column(lines[1], "http"));
        assert_eq!(column(lines[0], "state"), column(lines[2], "down"));
        assert_eq!(column(lines[0], "hints"), column(lines[2], "7  "));
        assert_eq!(column(lines[0], "≈ keys"), column(lines[1], "12,345"));
        let why = "longer-name does not answer a at http://192.168.100.1:8080/longer-name: \
                   Connection refused (os error 111)";
        assert_eq!(lines[3], why);
        let half = Row { reached_by: 1, ..down("b") };
        let text = table(&cluster(vec![row("a"), half]), None, "");
        assert!(text.ends_with("(os error 111); 1 other node is connected to it\n"), "{text}");
        let mut by = Unreached { node: "c".into(), url: "http://old:1".into(), error: None };
        let elsewhere = |by| Row { unreached_by: Some(by), ..row("b") };
        let text = table(&cluster(vec![row("a"), elsewhere(by.clone())]), None, "");
        assert!(text.ends_with("c has no connection to b: it looks for it at http://old:1\n"));
        by.error = Some("b belongs to another cluster".to_owned());
        let text = table(&cluster(vec![row("a"), elsewhere(by)]), None, "");
        assert!(text.ends_with("at http://old:1: b belongs to another cluster\n"), "{text}");
    }

    #[test]
    fn missed_writes_are_reported_below_the_table() {
        let peer = |name: &str, partitions: u32| {
            json!({
                "name": name, "url": "", "incarnation": "", "up": true, "rtt_us": 1,
                "clock_skew_us": 0, "hints": 0, "hint_bytes": 0, "hints_ahead_of_clock": 0,
                "hints_dropped": 0, "partitions_to_repair": partitions,
            })
        };
        let peers = [peer("b", 7), peer("c", 0)];
        let status = status(json!({ "partitions_to_repair": 1234, "peers": peers }));
        let row = Row { status: Some(status), ..row("a") };
        let text = table(&cluster(vec![row]), None, "");
        let notes: Vec<&str> = text.lines().skip(2).collect();
        let own = "a may lack writes in 1,234 of 65,536 partitions; the nodes that are up send it \
                   these writes";
        assert_eq!(notes, [own, "b missed writes in 7 partitions, as reported by a"]);
    }

    #[test]
    fn a_node_that_is_alone_learns_how_to_become_one_of_a_cluster() {
        let near = Row { url: "http://127.0.0.1:8080".to_owned(), ..row("a") };
        let text = table(&cluster(vec![near]), None, " --url X");
        let note = text.lines().last().unwrap();
        assert!(note.starts_with("a is alone: its disk has the only copy"), "{note}");
        assert!(note.contains("only this machine reaches it); then start a node"), "{note}");
        assert!(note.ends_with("run kvorum cluster plan --add NAME --url X"), "{note}");
        let text = table(&cluster(vec![row("a")]), None, "");
        assert!(!text.contains("only this machine"), "{text}");
        let text = table(&cluster(vec![row("a"), row("b")]), None, "");
        assert!(!text.contains("is alone"), "{text}");
    }

    #[test]
    fn a_differing_clock_is_reported_below_the_table() {
        let of = |name: &str, skew: i64, differs: ClockDiffers| Row {
            clock_skew_us: Some(skew),
            clock_differs: Some(differs),
            ..row(name)
        };
        let notes = |rows: Vec<Row>| {
            let skipped = rows.len() + 1;
            let text = table(&cluster(rows), None, "");
            text.lines().skip(skipped).map(str::to_owned).collect::<Vec<_>>()
        };
        let ahead = notes(vec![of("a", 3_600_000_000, ClockDiffers::FromMost), row("b")]);
        assert_eq!(ahead.len(), 1, "{ahead:?}");
        assert!(ahead[0].starts_with(
            "a's clock is 3600.0 s ahead of most other nodes' clocks, more than --max-clock-skew: \
             a refuses writes. Correct"
        ));
        let behind = notes(vec![of("a", -700_000, ClockDiffers::FromMost), row("b")]);
        assert!(behind[0].starts_with("a's clock is 0.7 s behind most"), "{behind:?}");
        assert!(behind[0].contains("a refuses writes of keys that"), "{behind:?}");
        let some = |name, skew| of(name, skew, ClockDiffers::FromSome);
        let both = notes(vec![some("a", 60_000_000), some("b", -60_000_000)]);
        assert_eq!(both.len(), 1, "{both:?}");
        assert!(both[0].starts_with("the clocks of a and b differ by 60.0 s, more than"));
        assert!(both[0].contains("at least one of them is wrong"), "{both:?}");
        let mut was_ahead = row("a");
        was_ahead.status.as_mut().unwrap().timestamps_ahead_ms = Some(3_540_000);
        let was_ahead = notes(vec![was_ahead]);
        assert!(was_ahead[0].starts_with("a refuses writes for another 59 minutes: its"));
        assert!(was_ahead[0].contains("wins over what was written"), "{was_ahead:?}");
    }

    #[test]
    fn a_node_that_is_fenced_or_takes_no_writes_does_not_serve() {
        assert!(serves(&row("a")) && !serves(&down("a")));
        let with = |membership: &str, failed: Option<&str>| {
            let status = status(json!({ "membership": membership, "failed": failed }));
            Row { status: Some(status), ..row("a") }
        };
        assert!(serves(&with("member", None)) && serves(&with("rebuilding", None)));
        assert!(!serves(&with("fenced", None)) && !serves(&with("removed", None)));
        assert!(!serves(&with("member", Some("no write is taken"))));
    }

    /// One of the nodes has never run, so the default values in the status report neither a lost
    /// disk nor a repair.
    #[test]
    fn a_new_cluster_that_waits_for_a_node_says_just_that() {
        let status = status(json!({
            "cluster_id": null, "membership": "joining", "partitions_to_repair": 65_536,
            "forgotten_idempotency_keys": { "until_ms": u64::MAX, "reason": "lost-disk" },
        }));
        let row = Row { status: Some(status), ..row("a") };
        let text = table(&cluster(vec![row]), None, "");
        let notes: Vec<&str> = text.lines().skip(2).collect();
        let waits = "a waits for the other nodes of a new cluster: start all nodes of the list \
                     once. Until then, some requests fail";
        assert_eq!(notes, [waits]);
    }

    #[test]
    fn a_cluster_is_whole_while_its_nodes_serve_and_most_of_the_council_votes() {
        let row_without_vote = |name: &str| {
            let status = Some(status(json!({ "lacks_vote": true, "cluster_id": "1" })));
            Row { status, ..row(name) }
        };
        let council = |nodes| Cluster {
            council: ["a", "b", "c"].map(str::to_owned).to_vec(),
            ..cluster(nodes)
        };
        assert!(is_whole(&council(vec![row("a"), row("b"), row("c")])));
        assert!(is_whole(&council(vec![row("a"), row("b"), row_without_vote("c")])));
        let lost = vec![row("a"), row_without_vote("b"), row_without_vote("c")];
        assert!(!is_whole(&council(lost)));
        assert!(!is_whole(&council(vec![row("a"), row("b"), down("c")])));
    }

    #[test]
    fn a_certificate_is_reported_when_it_has_expired_or_expires_soon() {
        let day = 24 * 3600 * 1000;
        let at = |expires_ms| certificate_expiry("a", expires_ms, 100 * day);
        assert!(at(115 * day).is_none());
        assert!(at(103 * day).unwrap().contains("expires in 3 days"), "{:?}", at(103 * day));
        assert!(at(100 * day).unwrap().starts_with("a has an expired TLS certificate"));
    }

    #[test]
    fn forgotten_idempotency_keys_are_reported_below_the_table() {
        let mut row = row("a");
        let status = row.status.as_mut().unwrap();
        let in_an_hour =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() + 3_600_000;
        let until_ms = in_an_hour as u64;
        let reason = ForgottenReason::LostDisk;
        status.forgotten_idempotency_keys = Some(ForgottenKeys { until_ms, reason });
        let text = table(&cluster(vec![row.clone()]), None, "");
        let note = text.lines().last().unwrap();
        assert!(note.starts_with("a may not know of writes with an idempotency key, for another"));
        assert!(note.contains(": its disk is new, or its directory a copy, and"), "{note}");
        // A node that is being rebuilt has yet to recover the keys.
        row.status.as_mut().unwrap().membership = Membership::Rebuilding;
        let text = table(&cluster(vec![row]), None, "");
        let note = text.lines().last().unwrap();
        assert!(note.contains("its rebuild takes that over from the other nodes"), "{note}");
        assert!(!note.contains("for another"), "{note}");
    }

    #[test]
    fn a_terminal_of_80_columns_is_wide_enough() {
        let rows = ["node-1", "node-2", "node-3"].map(row).to_vec();
        for (width, shown) in [(Some(80), 9), (None, 10)] {
            let text = table(&cluster(rows.clone()), width, "");
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(width.is_none_or(|width| widest <= width), "{text}");
            assert!(text.contains("node-3") && text.contains("12,345"), "{text}");
            assert_eq!(columns(&rows).len(), 10);
            assert_eq!(text.contains("http://"), shown == 10, "{text}");
        }
    }
}
