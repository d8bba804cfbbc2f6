//! Tests of Lua scripts, compared with their behaviour in wrk and wrk2.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use load::script::{Script, Scripts, Source, Summary};
use load::url::Url;

fn source(file: Option<&Path>) -> Source {
    Source {
        file: file.map(Path::to_path_buf),
        url: Url::parse("http://localhost:8080/a?b=c").expect("a URL"),
        spread: Vec::new(),
        headers: Vec::new(),
        args: vec!["http://localhost:8080/a?b=c".into()],
        addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name)
}

fn next(script: &mut Script) -> String {
    let mut out = Vec::new();
    script.request(&mut out).expect("a request");
    String::from_utf8(out).expect("text")
}

/// Returns the request line, the headers in alphabetical order, and the body. Headers from a Lua
/// table have no fixed order.
fn sorted(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    let mut lines: Vec<_> = head.split("\r\n").collect();
    lines[1..].sort_unstable();
    format!("{}|{body}", lines.join("|"))
}

#[test]
fn without_a_script_the_request_is_the_url_and_the_headers() {
    let mut source = source(None);
    source.headers = vec![("X-One".into(), "1".into())];
    let mut scripts = Scripts::load(&[source], 2).expect("loads");
    assert!(!scripts.wants_done());
    for script in scripts.threads() {
        assert!(script.is_fixed() && !script.wants_response() && !script.is_stopped());
        let request = sorted(&next(script));
        assert_eq!(request, "GET /a?b=c HTTP/1.1|Host: localhost:8080|X-One: 1|");
        assert_eq!(next(script), next(script));
        assert_eq!(script.delay().expect("none"), None);
    }
}

#[test]
fn the_host_header_is_as_wrk_builds_it() {
    for (url, host) in [
        ("http://h", "h"),
        ("http://h:80/", "h:80"),
        ("http://[::1]:81/", "[::1]:81"),
        ("http://[::1]/", "[::1]"),
    ] {
        let source = Source { url: Url::parse(url).expect("a URL"), ..source(None) };
        let mut scripts = Scripts::load(&[source], 1).expect("loads");
        assert_eq!(
            sorted(&next(&mut scripts.threads()[0])),
            format!("GET / HTTP/1.1|Host: {host}|")
        );
    }
    let source = Source { headers: vec![("Host".into(), "mine".into())], ..source(None) };
    let mut scripts = Scripts::load(&[source], 1).expect("loads");
    assert_eq!(sorted(&next(&mut scripts.threads()[0])), "GET /a?b=c HTTP/1.1|Host: mine|");
}

/// Returns a script's requests to two servers that share its threads.
fn spread(file: Option<&Path>, targets: &[usize]) -> Vec<String> {
    let urls = ["http://one:1/a?b", "http://two/c"].map(|url| Url::parse(url).expect("a URL"));
    let source = Source { url: urls[0].clone(), spread: urls.to_vec(), ..source(file) };
    let mut scripts = Scripts::load(&[source], 2).expect("loads");
    let script = &mut scripts.threads()[1];
    let requests = targets.iter().map(|&target| {
        script.select_server(target).expect("a server");
        sorted(&next(script))
    });
    requests.collect()
}

#[test]
fn servers_that_share_a_thread_each_get_their_own_url() {
    let (one, two) = ("GET /a?b HTTP/1.1|Host: one:1|", "GET /c HTTP/1.1|Host: two|");
    for targets in [[1, 0, 1, 1, 0], [0, 0, 1, 0, 1]] {
        let want = targets.map(|target| [one, two][target]);
        assert_eq!(spread(None, &targets), want);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("spread.lua");
    let text = "n = 0\nmine = {}\nfunction request()\n n = n + 1\n \
                return wrk.format('PUT', wrk.path .. n, mine)\nend";
    fs::write(&file, text).expect("writes");
    let want = ["PUT /c1 HTTP/1.1|Host: two|", "PUT /a?b2 HTTP/1.1|Host: one:1|"];
    assert_eq!(spread(Some(&file), &[1, 0]), want);
    // Values that the script sets itself are kept.
    let text = "wrk.path = '/mine'\nwrk.headers['Host'] = 'x'";
    fs::write(&file, text).expect("writes");
    let want = ["GET /mine HTTP/1.1|Host: x|"; 2];
    assert_eq!(spread(Some(&file), &[1, 0]), want);
}

#[test]
fn a_script_counter_makes_every_request_different() {
    for (file, method) in [("put.lua", "PUT"), ("get.lua", "GET")] {
        let mut scripts = Scripts::load(&[source(Some(&fixture(file)))], 2).expect("loads");
        for script in scripts.threads() {
            assert!(!script.is_fixed());
            for number in 0..12 {
                let body = format!("value{number}");
                let want = format!(
                    "{method} /v0/entity?id=key{number} HTTP/1.1|Content-Length: {}|Host: \
                     localhost:8080|{body}",
                    body.len()
                );
                assert_eq!(sorted(&next(script)), want);
            }
        }
    }
}

#[test]
fn an_answer_can_change_the_next_request() {
    let mut scripts = Scripts::load(&[source(Some(&fixture("auth.lua")))], 1).expect("loads");
    let script = &mut scripts.threads()[0];
    assert!(script.wants_response());
    assert_eq!(sorted(&next(script)), "GET /token HTTP/1.1|Host: localhost:8080|");
    let head = b"HTTP/1.1 200 OK\r\nX-Token:  t=1: 2\r\nContent-Length: 3\r\n\r\n";
    script.response(200, head, b"abc").expect("takes it");
    let want = "GET /with/abc HTTP/1.1|Host: localhost:8080|X-Token: t=1: 2|";
    assert_eq!(sorted(&next(script)), want);
    assert_eq!(sorted(&next(script)), want);
}

#[test]
fn script_threads_and_done_share_values() {
    let dir = tempfile::tempdir().expect("a directory");
    let told = dir.path().join("told");
    let mut source = source(Some(&fixture("threads.lua")));
    source.args.extend([told.display().to_string(), "second".into()]);
    let mut scripts = Scripts::load(&[source], 2).expect("loads");
    for (index, script) in scripts.threads().iter_mut().enumerate() {
        let want = format!("GET /{}/t2 HTTP/1.1|Host: localhost:8080|", index + 1);
        assert_eq!(sorted(&next(script)), want);
    }
    let script = &mut scripts.threads()[1];
    next(script);
    assert!(!script.is_stopped());
    next(script);
    assert!(script.is_stopped());
    script.response(200, b"HTTP/1.1 200 OK\r\n\r\n", b"").expect("takes it");

    let mut latency = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds");
    for (micros, count) in [(100, 6), (200, 3), (1000, 1)] {
        latency.record_n(micros * 1000, count).expect("within");
    }
    let mut rates = Histogram::<u64>::new(3).expect("digits");
    [4, 6, 5].iter().for_each(|&rate| rates.record(rate).expect("within"));
    let summary = Summary {
        duration: Duration::from_secs(3),
        requests: 10,
        bytes: 1234,
        connect: 1,
        read: 2,
        write: 3,
        status: 4,
        timeout: 5,
        latency: &latency,
        requests_per_second: &rates,
    };
    assert!(scripts.wants_done());
    scripts.run_done(&summary).expect("it is done");
    let want = "thread 1 made 1 requests, got 0 responses, 127.0.0.1:8080\n\
                thread 2 made 3 requests, got 1 responses, 127.0.0.1:8080\n\
                10 requests in 3000000 us, 1234 bytes, errors 1 2 3 4 5\n\
                latency 100 1000 220.0 263.9 p50 100 p100 1000\n\
                #3, second 200 3 times, ranked 100 1000\n \
                100:6 200:3 1000:1, beyond 0:0\nrates 4 6 3\n";
    assert_eq!(fs::read_to_string(&told).expect("it wrote"), want);
}

#[test]
fn requests_in_one_string_are_counted() {
    let mut scripts = Scripts::load(&[source(Some(&fixture("pipeline.lua")))], 1).expect("loads");
    let script = &mut scripts.threads()[0];
    assert_eq!(script.pipeline(), 3);
    assert_eq!(next(script).matches(" HTTP/1.1\r\n").count(), 3);
}

#[test]
fn a_script_can_choose_where_its_threads_connect() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let url = Url::parse(&format!("http://localhost:{}", address.port())).expect("a URL");
    let source = Source { url, ..source(Some(&fixture("servers.lua"))) };
    let mut scripts = Scripts::load(&[source], 2).expect("loads");
    for script in scripts.threads() {
        assert_eq!(script.chosen_address(), Some(address));
    }
}

#[test]
fn a_script_can_wait() {
    let mut scripts = Scripts::load(&[source(Some(&fixture("delay.lua")))], 1).expect("loads");
    let script = &mut scripts.threads()[0];
    for micros in [10_000, 0, 2500] {
        assert_eq!(script.delay().expect("a time"), Some(Duration::from_micros(micros)));
    }
    let error = script.delay().expect_err("negative").to_string();
    assert!(error.contains("in delay: delay() must return milliseconds from 0 on, not -1"));
}

/// Returns the error of loading a script with this text.
fn load_error(text: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bad.lua");
    fs::write(&file, text).expect("writes");
    let error = Scripts::load(&[source(Some(&file))], 1).expect_err("it is bad").to_string();
    error.replace(&file.display().to_string(), "bad.lua")
}

#[test]
fn an_error_names_file_line_and_phase() {
    for (text, says) in [
        ("x = = 1", "script bad.lua:1: in load: unexpected symbol near '='"),
        ("\n\nnothing.here = 1", "script bad.lua:3: in load: attempt to index global 'nothing'"),
        ("function setup(t)\n  t:set('f', print)\nend", "script bad.lua:2: in setup: a function"),
        ("function setup(t)\n  t.addr = 'x'\nend", "script bad.lua:2: in setup: an address from"),
        ("t = {}\nt.t = t\nfunction setup(x) x:set('t', t) end", "bad.lua:3: in setup: a table 64"),
        ("function init(args)\n  error('no token')\nend", "script bad.lua:2: in init: no token"),
        (
            "function init()\n  wrk.lookup('h', 'x')\nend",
            "script bad.lua:2: in init: x is not a valid port",
        ),
        ("function request()\n  return nil + 1\nend", "script bad.lua:2: in request: attempt to"),
        ("function request() end", "script bad.lua: in request: request() must return the request"),
        (
            "function request() return 'GET' end",
            "script bad.lua: in request: request() returned an",
        ),
        ("function request() return 5 + nil end", "bad.lua:1: in request: attempt to perform"),
        ("request = 5", "script bad.lua: in request: request must be a function, not a number"),
        ("wrk.path = nil", "script bad.lua: in init: the path (wrk.path or wrk.format's second"),
        ("wrk.method = {}", "script bad.lua: in init: the method (wrk.method or wrk.format's fir"),
        (
            "function request()\n local text = wrk.format({})\n return text\nend",
            "script bad.lua:2: in request: the method (wrk.method or wrk.format's first argument) \
             is a table, and must be a string",
        ),
        ("function init()\n os.exit(7)\nend", "script bad.lua:2: in init: os.exit(7) would end"),
        ("wrk.headers = nil", "script bad.lua: in init: attempt to index field 'headers'"),
        ("#!/usr/bin/wrk\nx = nil + 1", "script bad.lua:2: in load: attempt to perform"),
        ("require('no_such_module')", "script bad.lua:1: in load: module 'no_such_module'"),
    ] {
        let error = load_error(text);
        assert!(error.contains(says), "{text:?}: {error}");
        assert!(!error.contains("traceback") && !error.contains("wrk.lua:"), "{error}");
    }
}

#[test]
fn an_error_during_the_run_is_reported_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("late.lua");
    let text = "n = 0\nfunction request()\n n = n + 1\n if n == 2 then error('late') end\n \
                return wrk.format()\nend\nfunction response()\n error({})\nend\nfunction done()\n \
                boom()\nend";
    fs::write(&file, text).expect("writes");
    let mut scripts = Scripts::load(&[source(Some(&file))], 1).expect("loads");
    let script = &mut scripts.threads()[0];
    next(script);
    let error = script.request(&mut Vec::new()).expect_err("late").to_string();
    assert!(error.ends_with("late.lua:4: in request: late"), "{error}");
    let error = script.response(200, b"", b"").expect_err("a table").to_string();
    assert!(error.contains("late.lua:8: in response: table"), "{error}");
    let latency = Histogram::<u64>::new(3).expect("digits");
    let summary = Summary {
        duration: Duration::ZERO,
        requests: 0,
        bytes: 0,
        connect: 0,
        read: 0,
        write: 0,
        status: 0,
        timeout: 0,
        latency: &latency,
        requests_per_second: &latency,
    };
    let error = scripts.run_done(&summary).expect_err("no boom").to_string();
    assert!(error.contains("late.lua:11: in done: attempt to call global 'boom'"), "{error}");
}

#[test]
fn a_missing_script_is_named() {
    let error = Scripts::load(&[source(Some(Path::new("no/such.lua")))], 1).expect_err("none");
    assert!(error.to_string().starts_with("can't read the script no/such.lua: No such file"));
}
