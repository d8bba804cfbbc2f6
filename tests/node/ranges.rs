//! Range reads: order, framing, and a client that does not read.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use kit::raw::Client;

use crate::cluster::Cluster;
use crate::process::{Node, wait_until};

fn fill(client: &mut Client, count: usize, value: &[u8]) -> Vec<Vec<u8>> {
    let mut items = Vec::new();
    for number in 0..count {
        let key = format!("key{number:06}");
        assert_eq!(client.put(&format!("/v0/entity?id={key}"), value).status, 201);
        items.push([key.as_bytes(), b"\n", value].concat());
    }
    items
}

#[test]
fn items_come_in_order_each_a_chunk() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for key in ["b", "a", "c%0a", "%00", "%ff", "ab"] {
        client.put(&format!("/v0/entity?id={key}"), key.as_bytes());
    }
    client.put("/v0/entity?id=empty", b"");
    client.put("/v0/entity?id=gone", b"x");
    client.delete("/v0/entity?id=gone");
    let all: [&[u8]; 7] =
        [b"\0\n%00", b"a\na", b"ab\nab", b"b\nb", b"c\n\nc%0a", b"empty\n", b"\xff\n%ff"];
    let range = client.get("/v0/entities?start=%00");
    assert_eq!((range.status, range.header("transfer-encoding")), (200, Some("chunked")));
    assert_eq!(range.chunks, all);
    assert_eq!(client.get("/v0/entities?start=ab&end=c").chunks, all[2..4]);
    assert_eq!(client.get("/v0/entities?start=ab&end=ab").chunks, all[..0]);
    assert_eq!(client.get("/v0/entities?start=b&end=a").chunks, all[..0]);
    assert_eq!(client.get("/v0/entities?start=a%00&end=ab%00&local=true").chunks, all[2..3]);
    assert_eq!(client.get("/v0/entities?start=%ff%ff").chunks, all[..0]);
}

#[test]
fn ranges_go_over_many_pages() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    let mut items = fill(&mut client, 3_000, &[b'v'; 100]);
    let large = vec![b'L'; 300_000];
    client.put("/v0/entity?id=key001500", &large);
    items[1500] = [b"key001500\n", &large[..]].concat();
    assert_eq!(client.get("/v0/entities?start=a").chunks, items);
    let part = client.get("/v0/entities?start=key000999&end=key002001");
    assert_eq!(part.chunks, items[999..2001]);
    for number in (0..3_000).filter(|number| number % 100 != 0) {
        assert_eq!(client.delete(&format!("/v0/entity?id=key{number:06}")).status, 202);
    }
    let left: Vec<_> = items.into_iter().step_by(100).collect();
    assert_eq!(client.get("/v0/entities?start=a").chunks, left);
}

/// Deletes absent keys; each delete leaves a tombstone.
fn delete_keys(client: &mut Client, count: usize, votes: &str) {
    const AT_ONCE: usize = 500;
    for first in (0..count).step_by(AT_ONCE) {
        let requests = (first..first + AT_ONCE).map(|number| {
            format!(
                "DELETE /v0/entity?id=key{number:06}{votes} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
        });
        client.send(requests.collect::<String>());
        for _ in 0..AT_ONCE {
            // An unacknowledged delete may leave a tombstone too.
            assert!(matches!(client.response().status, 202 | 503 | 504));
        }
    }
}

#[test]
fn a_range_goes_on_over_any_number_of_tombstones() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    delete_keys(&mut client, 50_000, "");
    client.put("/v0/entity?id=last", b"v");
    for votes in ["", "&local=true"] {
        let range = client.get(&format!("/v0/entities?start=a{votes}"));
        assert_eq!((range.status, range.chunks), (200, vec![b"last\nv".to_vec()]), "{votes:?}");
    }
}

/// All concurrent ranges together may take far longer than a request's deadline, as long as each of
/// their pages takes less.
///
/// The time depends on the machine and its load. So the test measures the time of all ranges, and
/// sets the deadline to half of it. A range has so many pages that each takes only a fraction of
/// the deadline.
#[test]
fn each_page_has_its_own_deadline() {
    let settings = |deadline: &str| {
        ["--sync", "never", "--read-threads", "2", "--deadline", deadline].map(str::to_owned)
    };
    let mut cluster = Cluster::start(3, &settings("60s").each_ref().map(String::as_str));
    cluster.wait_until_settled();
    delete_keys(&mut cluster.client(0), 120_000, "&ack=2&from=3");
    let put = || cluster.client(0).put("/v0/entity?id=last&ack=3&from=3", b"v").status == 201;
    wait_until("a put", put);
    let mut took = read_at_once(&cluster);
    loop {
        let deadline = (took / 2).max(Duration::from_millis(250));
        let deadline_ms = format!("{}ms", deadline.as_millis());
        cluster.with(&settings(&deadline_ms).each_ref().map(String::as_str));
        for node in 0..3 {
            cluster.stop(node);
        }
        for node in 0..3 {
            cluster.up(node);
        }
        cluster.wait_until_settled();
        took = read_at_once(&cluster);
        // If the ranges took less than the deadline, the machine has become faster meanwhile. The
        // run then shows nothing, and is repeated.
        if took > deadline {
            break;
        }
    }
}

/// Reads a range of tombstones and one value with forty concurrent requests; returns the duration.
fn read_at_once(cluster: &Cluster) -> Duration {
    const VOTES: [&str; 4] = ["", "&ack=3&from=3", "&ack=1&from=1", "&local=true"];
    let begun = Instant::now();
    thread::scope(|scope| {
        for reader in 0..40 {
            let votes = VOTES[reader % VOTES.len()];
            scope.spawn(move || {
                let target = format!("/v0/entities?start=a{votes}");
                let range = cluster.client(reader % 3).get(&target);
                assert_eq!(
                    (range.status, range.chunks),
                    (200, vec![b"last\nv".to_vec()]),
                    "{votes}"
                );
            });
        }
    });
    begun.elapsed()
}

/// The node reads a range only as fast as its client reads the answer, however long the range is.
#[test]
fn a_range_waits_for_its_reader() {
    let node = Node::start(&["--sync", "never", "--memory", "128MiB"]);
    let mut client = node.client();
    let items = fill(&mut client, 600, &vec![b'v'; 100_000]);
    let held = |client: &mut Client| {
        let text = String::from_utf8(client.get("/metrics").body()).unwrap();
        let line = text.lines().find(|line| line.starts_with("kvorum_range_page_bytes ")).unwrap();
        line.split_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let mut readers: Vec<Client> = (0..4).map(|_| node.client()).collect();
    for reader in &mut readers {
        reader.send("GET /v0/entities?start=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(reader.read_head().unwrap().status, 200);
        assert_eq!(reader.read_chunk().unwrap().unwrap(), items[0]);
    }
    // After the socket of its reader is full, a range holds the memory of one page.
    wait_until("holding a page for each", || {
        let bytes = held(&mut client);
        assert!(bytes < 4.0 * 1024.0 * 1024.0, "{bytes} bytes are held");
        bytes > 0.0
    });
    assert_eq!(client.put("/v0/entity?id=other", b"v").status, 201, "others are served meanwhile");
    for reader in &mut readers {
        for item in &items[1..] {
            assert!(reader.read_chunk().unwrap().unwrap() == *item, "an item came back changed");
        }
        assert_eq!(reader.read_chunk().unwrap().unwrap(), b"other\nv", "no snapshot is held");
        assert_eq!(reader.read_chunk().unwrap(), None);
    }
    wait_until("giving back what ranges held", || held(&mut client) == 0.0);
}

/// A reader that waits for memory must not hold memory that other readers wait for. Otherwise the
/// node would abort all of them in the end.
#[test]
fn ranges_beyond_the_memory_for_pages_are_sent_whole_or_refused() {
    let node = Node::start(&["--sync", "never", "--memory", "64MiB"]);
    let items = fill(&mut node.client(), 12, &vec![b'v'; 400_000]);
    let served = thread::scope(|scope| {
        let read = || {
            let range = node.client().get("/v0/entities?start=a");
            assert!(matches!(range.status, 200 | 503), "{}", range.status);
            assert!(range.status == 503 || range.chunks == items);
            range.status == 200
        };
        let readers: Vec<_> = (0..40).map(|_| scope.spawn(read)).collect();
        readers.into_iter().map(|r| r.join().unwrap()).filter(|ok| *ok).count()
    });
    assert!(served > 1, "only {served} were served");
}

#[test]
fn a_reader_that_goes_away_leaves_nothing_behind() {
    let node = Node::start(&["--sync", "never", "--loops", "1"]);
    let mut client = node.client();
    fill(&mut client, 300, &vec![b'v'; 100_000]);
    for _ in 0..20 {
        let mut reader = node.client();
        reader.send("GET /v0/entities?start=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(reader.read_head().unwrap().status, 200);
    }
    let metric = |client: &mut Client, name: &str| {
        let text = String::from_utf8(client.get("/metrics").body()).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    wait_until("closing", || metric(&mut client, "kvorum_connections{") == 1.0);
    wait_until("giving memory back", || metric(&mut client, "kvorum_range_page_bytes ") == 0.0);
    drop(TcpStream::connect(node.address).unwrap());
}
