//! Wrong wall clocks, simulated by libfaketime: the reports of the nodes, and the advice in
//! messages.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::process::{kvorum_at, run, wait_until};
use crate::tokens::Files;

/// The series of the peers' clocks in `/metrics`.
const SKEW: &str = "kvorum_peer_clock_skew_seconds{";

/// Starts a cluster in which the clock of node n0 is wrong by `offset`; `None` if libfaketime is
/// not installed.
fn with_wrong_clock(count: usize, offset: &str) -> Option<Cluster> {
    let mut cluster = Cluster::create_stopped(count, &[]);
    cluster.start_by(0, kvorum_at(offset)?);
    (1..count).for_each(|node| cluster.up(node));
    cluster.wait_until_settled();
    Some(cluster)
}

/// Runs `kvorum status` until its output contains `note`; returns the output.
fn wait_for_note(cluster: &Cluster, asked: usize, note: &str) -> String {
    let url = format!("http://{}", cluster.address(asked));
    let mut text = String::new();
    wait_until(note, || {
        text = String::from_utf8(run(&["status", "--url", &url]).stdout).unwrap();
        text.contains(note)
    });
    text
}

/// Returns a node's row of `/v0/cluster`, once every row has a clock. On a busy machine a node may
/// report its status late, and its row then has no clock.
fn row(cluster: &Cluster, asked: usize, node: usize) -> Value {
    let mut nodes = Value::Null;
    wait_until("the status of every node", || {
        let body = cluster.client(asked).get("/v0/cluster").body();
        nodes = serde_json::from_slice::<Value>(&body).unwrap()["nodes"].take();
        nodes.as_array().unwrap().iter().all(|row| !row["clock_skew_us"].is_null())
    });
    nodes[node].take()
}

#[test]
fn status_names_the_node_whose_clock_differs_from_most_whichever_is_asked() {
    for (offset, side) in [("+3600s", "ahead of"), ("-3600s", "behind")] {
        let Some(cluster) = with_wrong_clock(3, offset) else { return };
        for asked in 0..3 {
            let text =
                wait_for_note(&cluster, asked, &format!("s {side} most other nodes' clocks"));
            let notes: Vec<_> = text.lines().filter(|line| line.contains("clock is")).collect();
            assert_eq!(notes.len(), 1, "{text}");
            assert!(notes[0].starts_with("n0's clock is 3"), "{text}");
            assert!(notes[0].contains("n0 refuses writes"), "{text}");
            let wrong = row(&cluster, asked, 0);
            assert_eq!(wrong["clock_differs"], "from-most", "{wrong}");
            let skew = wrong["clock_skew_us"].as_i64().unwrap();
            assert!(skew.unsigned_abs() > 3_590_000_000, "{wrong}");
            assert_eq!(skew > 0, side == "ahead of", "{wrong}");
            let metrics = String::from_utf8(cluster.client(asked).get("/metrics").body());
            let metrics = metrics.unwrap();
            let seconds = |line: &str| line.split_once("} ").unwrap().1.parse::<f64>().unwrap();
            let skews = metrics.lines().filter(|line| line.starts_with(SKEW)).map(seconds);
            let large = skews.filter(|skew| skew.abs() > 3590.0).count();
            assert_eq!(large, if asked == 0 { 2 } else { 1 }, "{metrics}");
            for right in [1, 2] {
                // Until the asked node has reached the other one itself, it passes on the skew that
                // a third node has measured, which may be n0.
                wait_until("the skew that the asked node has measured", || {
                    let right = row(&cluster, asked, right);
                    assert_eq!(right["clock_differs"], Value::Null, "{right}");
                    right["clock_skew_us"].as_i64().unwrap().unsigned_abs() < 10_000_000
                });
            }
        }
    }
}

#[test]
fn of_two_clocks_that_differ_status_names_both() {
    let Some(cluster) = with_wrong_clock(2, "+60s") else { return };
    for asked in 0..2 {
        let text = wait_for_note(&cluster, asked, "the clocks of n0 and n1 differ by");
        assert!(text.contains("at least one of them is wrong"), "{text}");
        for node in 0..2 {
            assert_eq!(row(&cluster, asked, node)["clock_differs"], "from-some", "{text}");
        }
    }
}

/// Nodes that require tokens refuse each other's proofs if their clocks differ, and report the
/// reason.
#[test]
fn where_tokens_are_needed_status_names_the_clock_for_which_a_node_gives_no_status() {
    for (offset, side) in [("+120s", "ahead of"), ("-120s", "behind")] {
        let files = Files::new();
        let args = files.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut cluster = Cluster::create_stopped(3, &args);
        let Some(command) = kvorum_at(offset) else { return };
        cluster.start_by(0, command);
        (1..3).for_each(|node| cluster.up(node));
        for asked in 0..3 {
            let mut text = String::new();
            let note = "n0's clock is 1";
            wait_until(note, || {
                let status = files.run(cluster.address(asked), "admin", &["status"]);
                text = String::from_utf8(status.stdout).unwrap();
                text.contains(note) && text.contains("refuses proof")
            });
            assert!(text.contains(&format!("s {side} most other nodes' clocks")), "{text}");
            let other = if asked == 0 { "n1" } else { "n0" };
            let why =
                text.lines().find(|line| line.starts_with(&format!("{other} gives no status")));
            let why = why.expect("the reason is below the table");
            assert!(
                why.contains("its clock is 1") && why.contains("accept a proof for 60 s"),
                "{why}"
            );
            assert!(!text.contains("  down  ") && !text.contains("kvorum node?"), "{text}");
            let rows = files.run(cluster.address(asked), "admin", &["status", "--json"]);
            let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
            let row = rows["nodes"].as_array().unwrap().iter().find(|row| row["name"] == other);
            assert_eq!(row.unwrap()["refuses_proof"], true, "{rows}");
        }
    }
}

/// Starts three nodes whose clocks are all ahead by `offset`, writes to them, and stops them;
/// `None` if libfaketime is not installed.
fn ahead_together(offset: &str) -> Option<Cluster> {
    let mut cluster = Cluster::create_stopped(3, &[]);
    for node in 0..3 {
        cluster.start_by(node, kvorum_at(offset)?);
    }
    cluster.wait_until_settled();
    wait_until("a write to all", || {
        cluster.client(0).put("/v0/entity?id=k&ack=3", b"v").status == 201
    });
    (0..3).for_each(|node| cluster.stop(node));
    Some(cluster)
}

/// The messages must not promise that other nodes have the records: repairs of all nodes would
/// remove the records everywhere.
#[test]
fn clocks_that_were_ahead_together_are_waited_for() {
    let Some(cluster) = ahead_together("+3600s") else { return };
    let refused = cluster.expect_refused_start(1);
    assert!(refused.contains("wait, a start in 35"), "{refused}");
    assert!(refused.contains("If other clocks were ahead as well, other nodes may have"));
    let data = cluster.data(1);
    let asked = run(&["repair-clock", "--data", data.to_str().unwrap()]);
    let asked = String::from_utf8(asked.stdout).unwrap();
    assert!(asked.contains("Nothing was changed."), "{asked}");
    assert!(asked.contains("removed from all these nodes, they are lost"), "{asked}");
    assert!(asked.contains("Then wait:\nin 35") || asked.contains("Then wait:\nin 36"), "{asked}");
}

#[test]
fn nodes_with_timestamps_ahead_say_how_long_they_refuse_writes() {
    let Some(mut cluster) = ahead_together("+50s") else { return };
    (0..3).for_each(|node| cluster.up(node));
    cluster.wait_until_settled();
    let mut said = String::new();
    wait_until("a refusal that says until when", || {
        let refused = cluster.client(0).put("/v0/entity?id=new&ack=3", b"v");
        said = refused.json()["detail"].as_str().unwrap_or_default().to_owned();
        refused.status == 503 && said.contains("refuse for another")
    });
    assert!(said.contains("wins over what was written"), "{said}");
    assert!(said.contains("on several nodes whose clocks were ahead"), "{said}");
    let text = wait_for_note(&cluster, 1, "n0 refuses writes for another");
    assert!(text.contains("wins over what was written"), "{text}");
    let ahead = cluster.status(0)["timestamps_ahead_ms"].as_u64().unwrap();
    assert!((1..50_000).contains(&ahead), "{ahead}");
}

/// After a start, a replica behaves as if it had promised, for all keys, all ballots up to the time
/// of its own clock. So a conditional write from a node whose clock is behind is refused even if
/// its key has no record, and the reason given must not be an existing record.
#[test]
fn a_conditional_write_by_a_clock_that_is_behind_is_not_refused_for_a_record_that_is_not_there() {
    let Some(cluster) = with_wrong_clock(2, "-30s") else { return };
    let mut keys = 0..;
    let mut said = String::new();
    wait_until("a key whose conditional writes n0 coordinates", || {
        let target = format!("/v0/entity?id=never{}", keys.next().unwrap());
        let mut client = cluster.client(0);
        client.send(format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n\
             Content-Length: 1\r\n\r\nx"
        ));
        let answer = client.response();
        if answer.status == 201 {
            return false;
        }
        said = answer.json()["detail"].as_str().unwrap().to_owned();
        said.contains("clock is behind")
    });
    assert!(said.contains("this key need not have a record"), "{said}");
    assert!(!said.contains("existing record"), "{said}");
}
