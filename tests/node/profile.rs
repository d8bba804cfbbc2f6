//! `/admin/profile` and `kvorum profile`: authorization, refusals, results, and the cleanup after a
//! recording.

use std::fs;
use std::process::{Command, Stdio};

use crate::process::{Node, kvorum, run, wait_until};

/// Returns the resources that a recording uses in a node: the numbers of perf descriptors and of
/// timers, and the handled signals.
fn traces(node: &Node) -> (usize, usize, String) {
    let events = fs::read_dir(node.proc("fd")).unwrap().flatten().filter(|file| {
        fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains("perf_event"))
    });
    let timers = fs::read_to_string(node.proc("timers")).unwrap_or_default().lines().count();
    let status = fs::read_to_string(node.proc("status")).unwrap();
    let caught = status.lines().find(|line| line.starts_with("SigCgt:")).unwrap();
    (events.count(), timers, caught.to_owned())
}

#[test]
fn all_events_in_one_recording_while_the_node_serves() {
    let node = Node::start(&["--read-threads", "2"]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"v");
    let before = traces(&node);
    let mut recorder = node.client();
    recorder.send(
        "GET /admin/profile?event=cpu,alloc,live,lock,wall&seconds=3&format=json&idle=true \
         HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    wait_until("a recording", || traces(&node).2 != before.2);
    let mut served = 0;
    while traces(&node).2 != before.2 {
        assert_eq!(client.put("/v0/entity?id=k", &[b'v'; 1000]).status, 201);
        served += 1;
    }
    assert!(served > 10, "{served} requests were served meanwhile");
    let answer = recorder.response();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let json: serde_json::Value = serde_json::from_slice(&answer.body()).unwrap();
    let folded = |event: &str| json["events"][event]["folded"].as_str().unwrap().to_owned();
    assert!(folded("cpu").contains("loop-") || folded("cpu").contains("kv-commit"), "{json}");
    assert!(folded("wall").contains("read-1;"), "threads have their names");
    assert!(folded("wall").contains("idle: read pool: idle"), "{}", folded("wall"));
    assert!(folded("lock").contains("file: sync"), "{}", folded("lock"));
    assert!(folded("alloc").contains("kvorum::"), "{}", folded("alloc"));
    assert_eq!(json["events"]["alloc"]["unit"], "bytes");
    wait_until("no trace of it", || traces(&node) == before);
}

#[test]
fn invalid_profile_queries_are_refused_by_name() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for (query, named) in [
        ("event=cpu%2cgc", "unknown event \"gc\""),
        ("event=%zz", "a % without two hex digits"),
        ("event=gc", "unknown event \"gc\"; known: cpu,alloc,live,lock,wall"),
        ("event=cpu,cpu", "twice"),
        ("event=", "unknown event \"\""),
        ("format=png", "unknown format \"png\"; known: html, svg, folded, pprof, json"),
        ("event=cpu,wall&format=svg", "format=svg holds one event, not cpu,wall"),
        ("event=cpu,wall&format=pprof", "format=pprof holds one event"),
        ("seconds=0", "seconds=0 is out of range 1..300"),
        ("seconds=86400", "seconds=86400 is out of range"),
        ("seconds=-1", "not a decimal number"),
        ("idle=1", "idle=\"1\" is not a boolean: use true or false"),
        ("duration=5", "unknown parameter \"duration\""),
    ] {
        let refused = client.get(&format!("/admin/profile?{query}"));
        assert_eq!(refused.status, 400, "{query}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(named), "{query}: {detail}");
    }
    let refused = client.request("POST", "/admin/profile", b"");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")));
}

#[test]
fn one_recording_runs_at_a_time_and_ends_with_its_client() {
    let node = Node::start(&[]);
    let before = traces(&node);
    let mut first = node.client();
    first.send("GET /admin/profile?event=wall&seconds=300 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until("a recording", || traces(&node).2 != before.2);
    let refused = node.client().get("/admin/profile?seconds=1");
    assert_eq!(refused.status, 409);
    let own = first.stream.local_addr().unwrap().to_string();
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(&format!("{own} is recording until 2")), "{detail}");
    drop(first);
    wait_until("no trace of it", || traces(&node).2 == before.2);
    let second = node.client().get("/admin/profile?event=cpu&seconds=1&format=folded");
    assert_eq!(second.status, 200);
    node.stop();
}

#[test]
fn a_node_that_stops_does_not_wait_for_a_recording() {
    let node = Node::start(&[]);
    let before = traces(&node);
    let mut client = node.client();
    client.send("GET /admin/profile?event=wall&seconds=300 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until("a recording", || traces(&node).2 != before.2);
    node.stop();
}

/// Row 36 of docs/results/reliability.md, for admin requests: a request without the token is
/// refused.
#[test]
fn profile_requests_without_the_admin_token_are_refused() {
    const TOKEN: &str = "sixteen letters!";
    let mut command = kvorum();
    command.env("KVORUM_ADMIN_TOKEN", TOKEN);
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &[]);
    let ask = |header: &str| {
        let mut client = node.client();
        let target = "/admin/profile?seconds=1&format=folded";
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"));
        client.response()
    };
    for header in [
        String::new(),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        "Authorization: Bearer sixteen letters\r\n".to_owned(),
        "Authorization: Bearer sixteen letters!!\r\n".to_owned(),
        "Authorization: Bearer Sixteen letters!\r\n".to_owned(),
        format!("Authorization: Basic {TOKEN}\r\n"),
        format!("Authorization: {TOKEN}\r\n"),
        format!("X-Authorization: Bearer {TOKEN}\r\n"),
        format!("Authorization: Bearer {}\r\n", "x".repeat(4000)),
    ] {
        let refused = ask(&header);
        assert_eq!(refused.status, 401, "{header:?}");
        assert!(!String::from_utf8_lossy(&refused.body()).contains(TOKEN));
        refused.json();
    }
    assert_eq!(ask(&format!("Authorization: Bearer {TOKEN}\r\n")).status, 200);
}

/// Returns an address of this machine that is not loopback; `None` if there is none. Connecting a
/// UDP socket sends nothing, but makes the kernel choose a source address.
pub(crate) fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

#[test]
fn without_a_token_only_loopback_is_answered() {
    let Some(address) = own_address() else { return };
    let data = tempfile::tempdir().unwrap();
    let node = Node::start_at("0.0.0.0:0", kvorum(), data, &["--insecure"]);
    let at = |ip: std::net::IpAddr| {
        let mut client = kit::raw::Client::connect((ip, node.address.port()).into());
        client.get("/admin/profile?seconds=1&format=folded")
    };
    let refused = at(address);
    assert_eq!(refused.status, 401);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("--admin-token-file"), "{detail}");
    assert_eq!(at(std::net::Ipv4Addr::LOCALHOST.into()).status, 200);
}

#[test]
fn the_command_writes_a_file_for_each_node_and_event() {
    let nodes = [Node::start(&[]), Node::start(&[])];
    let urls = nodes.each_ref().map(|node| format!("http://{}", node.address));
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().join("new");
    let record = |format: &str| {
        let output = kvorum()
            .args(["profile", &urls[0], &urls[1], "-e", "cpu,alloc", "-d", "1", "-o", format])
            .arg("--out")
            .arg(&dir)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The command also prints notes about a recording on stderr.
        let notes = |line: &str| line.contains("CPU time is sampled by timers");
        assert!(output.status.success() && said.lines().all(notes), "{said}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (format, extension) in [("html", "html"), ("svg", "svg"), ("pprof", "pb.gz")] {
        let files = record(format);
        assert_eq!(files.len(), 4, "two nodes, two events, even where nothing happened: {files:?}");
        let name = format!("127.0.0.1-{}-alloc.{extension}", nodes[1].address.port());
        assert!(files.iter().any(|file| file.ends_with(&name)), "{files:?}");
        assert!(files.iter().all(|file| fs::metadata(file).unwrap().len() > 50), "{files:?}");
    }
    let [first, second] = ["a", "b"].map(|name| dir.join(format!("{name}-cpu.folded")));
    fs::write(&first, "loop-0;lsm::memtable::insert 10\n").unwrap();
    fs::write(&second, "loop-0;lsm::memtable::insert 10\nloop-0;hyper::poll 10\n").unwrap();
    // The stacks in the page are compressed, so only tests/browser checks them.
    for (output, shown) in [("d.svg", "memtable"), ("d.html", "\"base\":1")] {
        let output = dir.join(output);
        let mut diff = kvorum();
        diff.args(["profile", "diff"]).args([&first, &second]).arg("-o").arg(&output);
        assert_eq!(diff.output().unwrap().status.code(), Some(0));
        assert!(fs::read_to_string(&output).unwrap().contains(shown));
    }
    let shares = kvorum().args(["profile", "shares"]).args([&first, &second]).output().unwrap();
    let table = String::from_utf8(shares.stdout).unwrap();
    assert!(table.contains("| memtable | 100.0 % | 50.0 % |"), "{table}");
    if let Ok(go) = Command::new("go").arg("version").output() {
        assert!(go.status.success());
        let file = record("pprof").into_iter().find(|file| file.ends_with("-alloc.pb.gz")).unwrap();
        let top = Command::new("go").args(["tool", "pprof", "-top", &file]).output().unwrap();
        let text = String::from_utf8_lossy(&top.stdout).into_owned();
        assert!(top.status.success() && text.contains("Type: alloc"), "{text}{top:?}");
    }
}

#[test]
fn the_command_says_what_is_wrong_on_one_line() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("f");
    fs::write(&file, "no stack").unwrap();
    let path = file.to_str().unwrap();
    let made = [
        ("page.html", "<!doctype html>\n"),
        ("nothing-cpu.folded", ""),
        ("a-cpu.folded", "a 1\n"),
        ("a-alloc.folded", "a 1\n"),
    ]
    .map(|(name, text)| {
        let file = out.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    });
    let [page, nothing, cpu, alloc] = made.each_ref().map(String::as_str);
    for (args, named) in [
        (&["profile", "http://127.0.0.1:1", "-d", "1"][..], "refused"),
        (&["profile", "diff", path, path], "line 1 is not a collapsed stack"),
        (&["profile", "shares", "/nowhere/f"], "/nowhere/f"),
        (
            &["profile", "diff", page, page],
            "is an HTML page: to compare or summarize, record with \
            -o folded",
        ),
        (&["profile", "shares", nothing], "nothing-cpu.folded has no samples"),
        (&["profile", "diff", cpu, alloc], "-cpu.folded recorded cpu, "),
        (&["profile", "--token-file", "/nowhere/token"], "/nowhere/token"),
    ] {
        let output = run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named) && said.lines().count() == 1, "{said}");
    }
    for args in [&["profile", "-e", "gc"][..], &["profile", "-d", "0"], &["profile", "-d", "301"]] {
        let mut child = kvorum().args(args).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(2), "{args:?}");
    }
}
