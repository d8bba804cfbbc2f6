//! The cluster at a glance: one node is asked who belongs to it, then each for itself.
//!
//! ```text
//!  --url ─▶ /v0/status ─▶ its peers ─┬─▶ /v0/status of each, all at once ─▶ one row a node
//!                                    └─▶ no answer in time ─▶ a row that says so
//! ```

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use serde::Serialize;

use super::connection::Connection;
use super::{StatusArgs, Unable, fail, print};
use crate::status::{Peer, Status};

/// How long a node may take to say how it is before it counts as down.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often `--watch` looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Puts the cursor into the upper left corner of an empty screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// One node of the cluster.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    url: String,
    up: bool,
    /// Writes that it missed and that the others keep for it.
    hints: u64,
    /// Microseconds that its clock is ahead of the others', as the one nearest to it saw last.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_skew_us: Option<i64>,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

/// Shows every node.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Unable> {
    let look = || {
        let rows = ask_all(&args.ask.url);
        rows.map(|rows| (if args.ask.json { json(&rows) } else { table(&rows) }, rows))
    };
    if !args.watch {
        let (text, rows) = look().map_err(fail)?;
        print(&text)?;
        return if rows.iter().all(|row| row.up) { Ok(()) } else { Err(Unable::No) };
    }
    let clear = if io::stdout().is_terminal() && !args.ask.json { CLEAR } else { "" };
    loop {
        // Waiting for the cluster to come is a reason to watch.
        let text = look().map_or_else(|error| format!("{error}\n"), |(text, _)| text);
        print(&format!("{clear}{text}"))?;
        thread::sleep(PERIOD);
    }
}

/// What the node at `url` says.
fn ask_one(url: &str) -> io::Result<Status> {
    let mut connection = Connection::open(url, PATIENCE)?;
    let head = connection.request("GET", "/v0/status", None, |_| {})?;
    let body = connection.body(&head)?;
    if head.status != 200 {
        return Err(io::Error::other(format!("answers {} to /v0/status", head.status)));
    }
    Ok(serde_json::from_slice(&body)?)
}

fn ask_all(url: &str) -> Result<Vec<Row>, String> {
    let first = ask_one(url).map_err(|error| format!("{url}: {error}"))?;
    let peers = first.peers.clone();
    let asked: Vec<_> = peers
        .into_iter()
        .map(|peer| {
            let url = peer.url.clone();
            (peer, thread::spawn(move || ask_one(&url)))
        })
        .collect();
    let mut rows = vec![Row::up(first)];
    for (peer, thread) in asked {
        let answer = thread.join().unwrap_or_else(|_| Err(io::Error::other("asking it failed")));
        rows.push(match answer {
            Ok(status) => Row::up(status),
            Err(error) => {
                let error = Some(error.to_string());
                Row::down(peer.name, peer.url, error)
            }
        });
    }
    let seen: Vec<Peer> =
        rows.iter().filter_map(|row| row.status.as_ref()).flat_map(|s| s.peers.clone()).collect();
    for row in &mut rows {
        let of_row = seen.iter().filter(|peer| peer.name == row.name);
        row.hints = of_row.clone().map(|peer| peer.hints).sum();
        let nearest = of_row.filter(|peer| peer.rtt_us > 0).min_by_key(|peer| peer.rtt_us);
        row.clock_skew_us = nearest.map(|peer| peer.clock_skew_us);
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

impl Row {
    fn up(status: Status) -> Self {
        let (name, url) = (status.name.clone(), status.url.clone());
        let status = Some(status);
        Self { name, url, up: true, hints: 0, clock_skew_us: None, error: None, status }
    }

    fn down(name: String, url: String, error: Option<String>) -> Self {
        Self { name, url, up: false, hints: 0, clock_skew_us: None, error, status: None }
    }

    fn cells(&self) -> Vec<String> {
        let hints = HumanCount(self.hints).to_string();
        let Some(status) = &self.status else {
            let why = self.error.as_deref().unwrap_or_default();
            return vec![self.name.clone(), self.url.clone(), hints, format!("down: {why}")];
        };
        let state = match (&status.failed, status.standing.as_str()) {
            (Some(why), _) => format!("no writes: {why}"),
            (None, "new") => "up, new".to_owned(),
            (None, "amnesiac") => "up, rebuilding".to_owned(),
            (None, _) => "up".to_owned(),
        };
        vec![
            self.name.clone(),
            self.url.clone(),
            hints,
            state,
            self.clock_skew_us.map_or("-".to_owned(), |us| format!("{:+.1} ms", us as f64 / 1e3)),
            HumanCount(status.keys).to_string(),
            HumanBytes(status.disk_bytes).to_string(),
            HumanBytes(status.memory_bytes).to_string(),
            HumanDuration(Duration::from_secs(status.uptime_s)).to_string(),
            status.version.clone(),
        ]
    }
}

fn json(rows: &[Row]) -> String {
    let text = serde_json::to_string(&serde_json::json!({ "nodes": rows }));
    text.expect("strings and numbers always serialize") + "\n"
}

fn table(rows: &[Row]) -> String {
    let titles =
        ["node", "url", "hints", "state", "clock", "keys", "disk", "memory", "up for", "version"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0; 10];
    for line in &lines {
        // What is down says why, over the columns that it has not.
        let columns = if line.len() == titles.len() { titles.len() } else { 3 };
        for (width, cell) in widths.iter_mut().zip(line).take(columns) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(row, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lines_up_and_says_why_a_node_is_down() {
        let status: Status = serde_json::from_str(
            r#"{"name":"a","url":"http://h:1","version":"0.1.0","uptime_s":61,"keys":12345,
                "disk_bytes":1048576,"memory_bytes":0,"more":true}"#,
        )
        .unwrap();
        let (name, url) = ("longer-name".to_owned(), "http://h:2".to_owned());
        let error = Some("Connection refused (os error 111)".to_owned());
        let down = Row { hints: 7, ..Row::down(name, url, error) };
        let text = table(&[Row::up(status), down]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let column = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(column(lines[0], "url"), column(lines[1], "http"));
        assert_eq!(column(lines[0], "state"), column(lines[2], "down: Connection refused"));
        assert_eq!(column(lines[0], "hints"), column(lines[2], "7  "));
        assert_eq!(column(lines[0], "keys"), column(lines[1], "12,345"));
    }
}
