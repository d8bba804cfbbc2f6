//! Tests of the commands, mainly of `load` with command lines of wrk2.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod server;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use load::record::{Run, Series};
use rustix::process::{Pid, Signal, kill_process};
use server::{Server, start_silent_server};

/// Maximum run time of a command on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvorum-bench"));
    command.arg("load").args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(words: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn wait(mut child: Child) -> Output {
    let deadline = Instant::now() + DEADLINE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the command did not end");
        std::thread::park_timeout(POLL_INTERVAL);
    }
    child.wait_with_output().unwrap()
}

fn script(name: &str) -> String {
    format!("{}/../load/tests/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns an address at which nobody listens yet.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn record(dir: &Path) -> Run {
    serde_json::from_slice(&fs::read(dir.join("run.json")).unwrap()).unwrap()
}

#[test]
fn every_command_has_help() {
    for word in ["load", "search", "coldhot", "compare", "import", "report"] {
        let kit = Command::new(env!("CARGO_BIN_EXE_kvorum-bench")).args([word, "--help"]).output();
        let Output { status, stdout, stderr } = kit.unwrap();
        assert!(status.success() && stderr.is_empty(), "{word}: {stderr:?}");
        assert!(String::from_utf8(stdout).unwrap().contains(&format!("kvorum-bench {word} ")));
    }
}

#[test]
fn a_run_is_left_on_disk_if_its_figures_cannot_be_printed() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("run");
    let mut load = Command::new(env!("CARGO_BIN_EXE_kvorum-bench"));
    load.args(["load", "-R50", "-c2", "-d1", "--json", &server.url()]).arg("--out").arg(&dir);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = load.stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("stdout: "), "{said}");
    assert_eq!(record(&dir).counts.answered, 50);
    assert!(fs::read_to_string(dir.join("output.txt")).unwrap().contains("50 requests in "));
}

#[test]
fn a_run_is_printed_like_wrk2_and_stored_on_disk() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("put");
    let (script, out) = (script("put.lua"), dir.to_str().unwrap().to_owned());
    let url = server.url();
    let words = ["-t2", "-c4", "-R200", "-d1s", "-s", &script, "--latency", &url, "--out", &out];
    let (code, stdout, stderr) = run(&words);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.starts_with(&format!("Running 1s test @ {url}\n  2 threads and 4 connections\n"))
    );

    // The importer for outputs of wrk2 also reads this output.
    let imported = load::import::read(&stdout, "put");
    let [imported] = &imported[..] else { panic!("{stdout}") };
    assert_eq!((imported.run.plan.threads, imported.run.plan.connections), (2, 4));
    assert_eq!(imported.run.counts.answered, 200);
    assert!(server.requests() >= 200);

    let record = record(&dir);
    assert_eq!((record.source.as_str(), record.counts.answered), ("load", 200));
    assert_eq!(record.plan.rate, Some(200.0));
    assert_eq!(record.argv[1..], [&["load"], &words[..]].concat());
    assert!(!record.started.is_empty() && record.machine.cpus > 0 && !record.interrupted);
    let (read, kept) = (&imported.run.latency[0], record.latency("intended").unwrap());
    assert_eq!(read.count, kept.count);
    assert!((read.mean - kept.mean).abs() < 0.001, "{} and {}", read.mean, kept.mean);
    assert_eq!(read.spectrum.last().map(|p| p.count), kept.spectrum.last().map(|p| p.count));
    assert_eq!(fs::read_to_string(dir.join("output.txt")).unwrap(), stdout);
    assert_eq!(fs::read(dir.join("script.lua")).unwrap(), fs::read(&script).unwrap());
    for log in ["intended.hdr", "written.hdr", "late.hdr"] {
        let text = fs::read_to_string(dir.join(log)).unwrap();
        assert!(text.contains("#[Histogram log format version 1.3]"), "{log}");
        assert!(text.lines().any(|line| line.starts_with("Tag=PUT,0.000,")), "{log}: {text}");
    }
    let timeline = fs::read_to_string(dir.join("timeline.csv")).unwrap();
    assert!(timeline.lines().count() >= 2, "{timeline}");

    let (code, _, stderr) = run(&words);
    assert_eq!(code, 1);
    assert!(stderr.contains("put is not empty: name another directory"), "{stderr}");
}

#[test]
fn errors_print_one_line_and_set_the_exit_code() {
    let server = Server::start();
    let url = server.url();
    let missing = format!("{url}/missing");
    let home = tempfile::tempdir().unwrap();
    let bad = home.path().join("bad.lua");
    fs::write(
        &bad,
        "n = 0\nfunction request()\n n = n + 1\n if n > 9 then n() end\n return wrk.format()\nend",
    )
    .unwrap();
    let bad = bad.to_str().unwrap();
    for (words, code, says) in [
        (&["-t4", "-c64", "-40000", "-d3m", &url][..], 2, "say -R40000"),
        (&["-c4", &url], 2, "say -R RATE"),
        (&["-R10", "-t4", "-c1", &url], 2, "connections must be >= threads"),
        (
            &["-R10", "--ca-file", "/none.pem", "https://localhost/"],
            1,
            "--ca-file /none.pem: No such",
        ),
        (&["-R10", "-s", "no.lua", &url], 1, "can't read the script no.lua"),
        (&["-R10", "http://no-such-host.invalid/"], 1, "can't find the address"),
        (&["-R10", "-d1", "http://127.0.0.1:1/"], 1, "Connection refused"),
        (&["-R100", "-d9", "-s", bad, &url], 1, "bad.lua:4: in request: attempt to call"),
        (&["-R1000", "-d2", "-L", "--csv", "/dev/full", &url], 1, "can't write /dev/full"),
    ] {
        let (got, _, stderr) = run(words);
        assert_eq!(got, code, "{words:?}: {stderr}");
        assert!(
            stderr.starts_with("kvorum-bench: ") && stderr.contains(says),
            "{words:?}: {stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let (code, stdout, _) = run(&["-R100", "-d1", "--strict", &missing]);
    assert_eq!(code, 3, "{stdout}");
    assert!(stdout.contains("  Non-2xx or 3xx responses: 100\n"), "{stdout}");
    assert!(stdout.contains("\nWARNING 100.00 % of the answers were not 2xx"), "{stdout}");
    let (code, stdout, _) = run(&["-R100", "-d1", &missing]);
    assert_eq!(code, 0, "{stdout}");
}

#[test]
fn a_failed_log_write_loses_no_figures() {
    let server = Server::start();
    let (code, stdout, stderr) = run(&["-R100", "-d1", "--hdr-log", "/dev/full", &server.url()]);
    assert_eq!(code, 1);
    assert!(stderr.contains("can't write /dev/full"), "{stderr}");
    // The write was refused at once, or the run continued to its end.
    assert!(stdout.is_empty() || stdout.contains("Requests/sec:"), "{stdout}");
}

#[test]
fn ctrl_c_ends_a_run_with_the_figures_so_far() {
    let server = Server::start();
    let child = command(&["-R200", "-c2", "-d10m", "--json", &server.url()]).spawn().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while server.requests() < 50 {
        assert!(Instant::now() < deadline, "it sends nothing");
        std::thread::park_timeout(POLL_INTERVAL);
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = wait(child);
    assert_eq!(ended.status.code(), Some(130));
    let record: Run = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(record.interrupted && record.counts.answered >= 40, "{:?}", record.counts);
    assert!(record.elapsed_s < 600.0 && record.throughput > Some(0.0));
}

/// The server that a series starts only signals its start. The test itself answers requests in its
/// place.
#[test]
fn ctrl_c_ends_a_series_with_the_runs_so_far() {
    let rates = ["--put-rate", "50", "--get-rate", "50", "--key-count", "10"];
    // The last element says whether anybody reads stdout; without a reader, the command ends by
    // saying where the results are.
    let (search, coldhot) = (&["--from", "50"][..], &rates[..]);
    for (kind, words, is_read) in
        [("search", search, true), ("coldhot", coldhot, true), ("search", search, false)]
    {
        let home = tempfile::tempdir().unwrap();
        let (out, up) = (home.path().join("out"), home.path().join("up"));
        let address = free_address();
        let serve = format!("sh -c 'mkdir -p {{data}}; touch {}; exec sleep 600'", up.display());
        let mut series = Command::new(env!("CARGO_BIN_EXE_kvorum-bench"));
        series.args([kind, &format!("http://{address}"), "-c2", "-d10m", "--server", &serve]);
        series.args(words).arg("--out").arg(&out);
        let (reader, stdout) = std::io::pipe().unwrap();
        let _reader = is_read.then_some(reader);
        let child = series.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let until = |what: &str, is_so: &dyn Fn() -> bool| {
            let deadline = Instant::now() + DEADLINE;
            while !is_so() {
                assert!(Instant::now() < deadline, "{kind}: no {what}");
                std::thread::park_timeout(POLL_INTERVAL);
            }
        };
        until("server", &|| up.is_file());
        assert!(out.join("series.json").is_file(), "{kind}: it is there before the server");
        let server = Server::start_at(address);
        until("requests", &|| server.requests() > 0);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ended = wait(child);
        let said = String::from_utf8_lossy(&ended.stderr);
        let code = if is_read { 130 } else { 1 };
        assert_eq!(ended.status.code(), Some(code), "{kind}: {ended:?}");
        assert_eq!(said.contains("Broken pipe (os error 32); the results are in"), !is_read);
        let kept: Series =
            serde_json::from_slice(&fs::read(out.join("series.json")).unwrap()).unwrap();
        assert!(kept.interrupted, "{kind}");
    }
}

#[test]
fn target_mode_each_gives_every_url_its_own_load() {
    let (one, two) = (Server::start(), Server::start());
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("both");
    let (a, b, out) = (one.url(), two.url(), dir.to_str().unwrap().to_owned());
    let words = ["-R50", "-c2", "-d1", "--target-mode", "each", &a, &b, "--out", &out];
    let (code, stdout, stderr) = run(&words);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.matches("Running 1s test @ ").count(), 3, "{stdout}");
    let both = record(&dir);
    assert_eq!(both.counts.answered, 100);
    assert_eq!((both.plan.rate, both.plan.total_rate()), (Some(50.0), Some(100.0)));
    let words = ["-R50", "-c2", "-d1", "--target-mode", "each", &a, &b, "--json"];
    let (code, stdout, stderr) = run(&words);
    assert_eq!(code, 0, "{stderr}");
    let all: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let targets: Vec<Run> = serde_json::from_value(all["targets"].clone()).unwrap();
    let each = targets.iter().map(|run| (run.plan.targets.concat(), run.counts.answered));
    assert_eq!(each.collect::<Vec<_>>(), [(one.url(), 50), (two.url(), 50)]);
    for server in [&one, &two] {
        let of = record(&dir.join(server.address.to_string().replace(':', "-")));
        assert_eq!(of.counts.answered, 50);
        assert_eq!(of.plan.targets, [server.url()]);
        assert_eq!(of.plan.total_rate(), Some(50.0));
    }
}

#[test]
fn target_mode_spread_sends_each_server_its_own_url() {
    let (one, two) = (Server::start(), Server::start());
    let (a, missing) = (one.url(), format!("{}/missing", two.url()));
    let (code, stdout, stderr) = run(&["-R50", "-c4", "-d1", &a, &missing, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let record: Run = serde_json::from_str(&stdout).unwrap();
    let statuses: Vec<(u16, u64)> = record.counts.statuses.into_iter().collect();
    assert_eq!(statuses, [(200, 25), (404, 25)]);
}

#[test]
fn script_output_is_kept_out_of_the_json() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("talks.lua");
    let text = "print('loaded')\nfunction request()\n io.write('asks')\n return wrk.format()\nend\n\
                function done() print('done') os.execute('echo shell') end";
    fs::write(&file, text).unwrap();
    let words = ["-R50", "-c2", "-d1", "--json", "-s", file.to_str().unwrap(), &server.url()];
    let (code, stdout, stderr) = run(&words);
    assert_eq!(code, 0, "{stderr}");
    let record: Run = serde_json::from_str(&stdout).unwrap();
    assert_eq!(record.counts.answered, 50);
    for said in ["loaded", "asks", "done", "shell"] {
        assert!(stderr.contains(said), "{stderr}");
    }
}

#[test]
fn printed_percentiles_with_too_few_samples_are_warned_of() {
    let printed = run_for_one_second("-L");
    let says = "WARNING 1000 samples are too few for p99.9 to p99.999: 10000 to 1000000 are";
    assert!(printed.contains(says), "{printed}");
}

#[test]
fn percentiles_that_are_not_printed_are_not_warned_of() {
    let printed = run_for_one_second("-c4");
    assert!(printed.contains("Transfer/sec") && !printed.contains("too few"), "{printed}");
}

/// Returns the output of a run of one second with this flag.
fn run_for_one_second(flag: &str) -> String {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let csv = home.path().join("x.csv");
    let file = csv.to_str().unwrap();
    let (code, stdout, stderr) = run(&["-R1000", "-d1", flag, "--csv", file, &server.url()]);
    assert_eq!(code, 0, "{stderr}");
    let rows = fs::read_to_string(&csv).unwrap();
    // A last interval of almost no length has a row only if it has requests, such as unfinished
    // requests. Their latencies fill the column after the zeros.
    assert!(!rows.contains(",0.000,0,0,0,0,0,0,0,0,,"), "{rows}");
    stdout
}

#[test]
fn ctrl_c_before_the_start_counts_nothing() {
    // The listener accepts as many connections as its backlog holds, and answers none.
    let full = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = full.local_addr().unwrap();
    let _room: Vec<_> =
        (0..2).map(|_| TcpStream::connect_timeout(&address, POLL_INTERVAL)).collect();
    let url = format!("http://{address}");
    let mut child = command(&["-R100", "-c9", "-d1m", &url]).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // The header is printed after the first query of the servers, just before connecting.
    said.read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(wait(child).status.code(), Some(130), "{rest}");
    assert!(rest.contains("\n  Interrupted: before anything was sent\n"), "{rest}");
    assert!(!rest.contains("Unfinished") && !rest.contains("WARNING"), "{rest}");
}

#[test]
fn an_unresponsive_server_is_not_queried_after_the_run() {
    let (url, asked) = start_silent_server();
    let (code, stdout, stderr) = run(&["-R10", "-c2", "-d1", &url]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("WARNING 10 requests had no answer"), "{stdout}");
    let asked = asked.lock();
    let beside: Vec<&String> = asked.iter().filter(|path| *path != "/").collect();
    assert_eq!(beside, ["/metrics"], "asked once, before the run");
}

#[test]
fn recordings_of_the_server_are_stored_in_the_run_directory() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("run");
    let (url, out) = (server.url(), dir.to_str().unwrap().to_owned());
    let (code, stdout, stderr) =
        run(&["-R50", "-c2", "-d1", "--profile", "cpu", &url, "--out", &out]);
    assert_eq!(code, 0, "{stderr}");
    assert!(!stdout.contains("no profile"), "{stdout}");
    let [profile] = &record(&dir).profiles[..] else { panic!("{stdout}") };
    assert_eq!((profile.url.as_str(), profile.event.as_str()), (url.as_str(), "cpu"));
    let folded = fs::read_to_string(dir.join(&profile.folded)).unwrap();
    assert_eq!(folded, "main;work 3\nmain;rest 1\n");
}

#[test]
fn recordings_and_metrics_are_requested_with_the_admin_token() {
    let server = Server::start();
    let words = ["-R20", "-c1", "-t1", "-d1", "--profile", "cpu", &server.url()];
    for token in ["", "sixteen letters!"] {
        let output = command(&words).env("KVORUM_ADMIN_TOKEN", token).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let received = server.tokens();
    let is_there = |path: &str| received.iter().any(|line| line.starts_with(path));
    assert!(is_there("/metrics") && is_there("/admin/profile"), "{received:?}");
    assert!(received.iter().all(|line| line.ends_with(" Bearer sixteen letters!")), "{received:?}");
    assert!(!is_there("/v0/entity"), "requests carry none: {received:?}");
}

#[test]
fn metrics_are_requested_with_the_requests_token() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    fs::write(&file, "a-token\n").unwrap();
    let (file, url) = (file.to_str().unwrap(), server.url());
    for words in [["--token-file", file], ["-H", "authorization: Bearer a-token"]] {
        let before = server.tokens().len();
        let words = [&words[..], &["-R20", "-c1", "-t1", "-d1", &url]].concat();
        let output = command(&words).env("KVORUM_ADMIN_TOKEN", "sixteen letters!").output();
        assert!(output.unwrap().status.success());
        let received = server.tokens().split_off(before);
        for path in ["/metrics", "/v0/status", "/"] {
            let line = format!("{path} Bearer a-token");
            assert!(received.contains(&line), "{path} {words:?} {received:?}");
        }
        assert!(received.iter().all(|line| line.ends_with(" Bearer a-token")), "{received:?}");
    }
}

#[test]
fn the_output_of_a_scripts_done_follows_the_figures() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("done.lua");
    let text = "function done(summary, latency, requests)\n \
                print('requests: ' .. summary.requests)\nend";
    fs::write(&file, text).unwrap();
    let (code, stdout, stderr) =
        run(&["-R50", "-c2", "-d1", "-s", file.to_str().unwrap(), &server.url()]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.ends_with("requests: 50\n") && stdout.contains("Transfer/sec:"), "{stdout}");
}

/// The server ignores SIGTERM, so that the first Ctrl-C waits for the server.
#[test]
fn a_second_ctrl_c_removes_server_and_data_directory() {
    let home = tempfile::tempdir().unwrap();
    let scratch = home.path().join("tmp");
    fs::create_dir(&scratch).unwrap();
    let url = format!("http://{}/{{key}}", free_address());
    let server = "sh -c 'trap \"touch {data}/told\" TERM; mkdir -p {data}; echo $$ > {data}/pid; \
                  while :; do date > {data}/busy; sleep 0.01; done'";
    let child = Command::new(env!("CARGO_BIN_EXE_kvorum-bench"))
        .args(["coldhot", &url, "--server", server, "--put-rate", "1", "--get-rate", "1"])
        .args(["--out", home.path().join("out").to_str().unwrap()])
        .env("TMPDIR", &scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let file = |name: &str| {
        let made = fs::read_dir(&scratch).unwrap().next()?.unwrap().path();
        Some(made.join("data").join(name)).filter(|path| path.is_file())
    };
    let until = |name: &str| {
        let deadline = Instant::now() + DEADLINE;
        while file(name).is_none() {
            assert!(Instant::now() < deadline, "{name} does not come");
            std::thread::park_timeout(POLL_INTERVAL);
        }
        fs::read_to_string(file(name).unwrap()).unwrap()
    };
    until("busy");
    let pid: i32 = until("pid").trim().parse().unwrap();
    let own = Pid::from_child(&child);
    kill_process(own, Signal::INT).unwrap();
    until("told");
    kill_process(own, Signal::INT).unwrap();
    let output = wait(child);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(2));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "a directory is left");
    let gone = || {
        !Path::new(&format!("/proc/{pid}/cmdline")).exists()
            || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
    };
    // The server was killed before the command ended, but may not be dead yet.
    let deadline = Instant::now() + DEADLINE;
    while !gone() {
        assert!(Instant::now() < deadline, "the server is left");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

#[test]
fn a_script_sets_the_exit_code() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("done.lua");
    for (call, expected) in [
        ("os.exit(7)", 7),
        ("if summary.requests < 1000 then os.exit(1) end", 1),
        ("os.exit(false)", 1),
        ("os.exit(0)", 0),
        ("os.exit()", 0),
        ("pcall(os.exit, 9)", 9),
        ("os.exit(256 + 5)", 5),
    ] {
        let text =
            format!("function done(summary, latency, requests)\n print('last')\n {call}\nend");
        fs::write(&file, text).unwrap();
        let (code, stdout, stderr) =
            run(&["-R50", "-c2", "-d1", "-s", file.to_str().unwrap(), &server.url()]);
        assert_eq!((code, &*stderr), (expected, ""), "{call}");
        assert!(stdout.ends_with("last\n") && stdout.contains("Transfer/sec:"), "{stdout}");
    }
    // The exit code of an error stays 1, and the message names its location.
    fs::write(&file, "function done()\n error('no')\nend").unwrap();
    let (code, _, stderr) =
        run(&["-R50", "-c2", "-d1", "-s", file.to_str().unwrap(), &server.url()]);
    assert!(code == 1 && stderr.contains("in done: no"), "{stderr}");
}

/// wrk accepts a repeated flag, and the last value counts.
#[test]
fn a_flag_can_be_given_twice_in_any_form() {
    let server = Server::start();
    let twice = ["-L", "--latency", "-U", "--u_latency", "-B", "-B", "-c9", "-c", "2"];
    let (code, stdout, stderr) = run(&[&twice[..], &["-R50", "-d1", &server.url()]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("2 connections") && stdout.contains("Detailed Percentile"), "{stdout}");
    let headers = ["-H", "Authorization: a", "-H", "X-Other: b"];
    let (code, _, stderr) = run(&[&headers[..], &["-R5", "-d1", "-c1", &server.url()]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(!server.tokens().is_empty(), "each header counts");
}

/// Warnings don't change the exit code without `--strict`, so the last line of the output must show
/// them.
#[test]
fn a_run_with_only_errors_warns_on_its_last_line() {
    let server = Server::start();
    let url = format!("{}/missing", server.url());
    let words = ["-R50", "-c2", "-d1", &url];
    let (code, stdout, _) = run(&words);
    let last = stdout.lines().last().unwrap();
    assert_eq!(code, 0);
    assert!(last.starts_with("No request succeeded: ") && last.contains("--strict"), "{stdout}");
    assert_eq!(run(&[&["--strict"], &words[..]].concat()).0, 3);
    let (_, stdout, _) = run(&["-R50", "-c2", "-d1", &server.url()]);
    assert!(!stdout.contains("No request succeeded"), "{stdout}");
}

/// Requests that a run never sent do not count as errors in reports and comparisons.
#[test]
fn reports_and_comparisons_have_one_share_of_errors() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let mut run = Run { format: load::record::FORMAT, source: "load".into(), ..Run::default() };
    run.plan.rate = Some(1000.0);
    run.plan.duration_s = 10.0;
    run.counts.planned = 10_000;
    run.counts.answered = 6960;
    run.counts.unfinished = 3040;
    assert_eq!(run.error_share(), Some(0.0));
    run.counts.refused = 696;
    run.counts.read_errors = 40;
    assert_eq!(run.error_share(), Some(736.0 / 7000.0));
    for number in 0..10 {
        let directory = home.path().join(format!("{number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("run.json"), serde_json::to_vec(&run).unwrap()).unwrap();
    }
    let kit = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kvorum-bench")).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    kit(&["report", &path("0"), "-o", &path("page.html")]);
    let page = fs::read_to_string(path("page.html")).unwrap();
    assert!(page.contains(">10.5 %</td>"), "{page}");
    let told = kit(&["compare", &path("0"), &path("1")]);
    assert!(told.contains("10.5"), "{told}");
}
