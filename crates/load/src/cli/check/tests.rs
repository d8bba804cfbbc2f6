//! Tests valid command lines from published reports with the plans that they yield, and invalid
//! command lines.

use std::time::Duration;

use clap::Parser;

use super::CheckedArgs;
use crate::cli::{LoadArgs, suggest_correction};
use crate::plan::{Pace, Requests};
use crate::server_profile::ServerProfile;
use crate::{Arrival, KeyOrder, TargetMode};

#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Load {
    #[command(flatten)]
    args: LoadArgs,
}

const KNOWN: ServerProfile = ServerProfile {
    ca_variable: "",
    tool: "kit 1",
    key_path: "/v0/entity?id={key}",
    metrics_path: "",
    idle: &[],
    write_stall_counters: &[],
    timeline: &[],
    profile_path: "",
    profile_diff: "",
    token_variable: "",
    about_path: "",
};

/// Parses and checks a command line; `|` separates words that contain blanks.
fn check_line(line: &str) -> Result<CheckedArgs, String> {
    let words: Vec<String> = if line.contains('|') {
        line.split('|').map(str::to_owned).collect()
    } else {
        line.split_whitespace().map(str::to_owned).collect()
    };
    match Load::try_parse_from([vec!["load".to_owned()], words.clone()].concat()) {
        Ok(load) => load.args.check(&KNOWN).map_err(|error| error.to_string()),
        Err(error) => Err(suggest_correction(&words).unwrap_or_else(|| error.to_string())),
    }
}

#[test]
fn command_lines_of_published_reports_are_accepted() {
    const PUT_LUA: &str = "src/main/java/ok/dht/test/kuleshov/put.lua";
    for (line, (threads, connections, rate, seconds, url)) in [
        (
            "-t4 -c64 -R2500 -d60m -s wrk/get.lua --latency  http://localhost:8080",
            (4, 64, 2500.0, 3600, "http://localhost:8080"),
        ),
        (
            "-c 1 -t 1 -d 2m -R 10000 -L -s wrk/put.lua http://localhost:8080",
            (1, 1, 10_000.0, 120, "http://localhost:8080"),
        ),
        (
            &format!("-d 100 -t 1 -c 1 -R 5000 -s {PUT_LUA} http://localhost:19234"),
            (1, 1, 5000.0, 100, "http://localhost:19234"),
        ),
        (
            "-d 30 -t 1 -c 1 -R 50000 -L -s ./src/resources/lua/get.lua http://localhost:8080",
            (1, 1, 50_000.0, 30, "http://localhost:8080"),
        ),
        (
            "-t4 -c64 -R40000 -d3m -s wrk/put.lua --latency http://localhost:8080",
            (4, 64, 40_000.0, 180, "http://localhost:8080"),
        ),
    ] {
        let checked = check_line(line).expect(line);
        let plan = &checked.plan;
        assert_eq!((plan.threads, plan.connections), (threads, connections), "{line}");
        assert_eq!(plan.pace, Pace::Open(rate), "{line}");
        assert_eq!(plan.duration, Duration::from_secs(seconds), "{line}");
        assert_eq!(checked.sources[0].url.text, url, "{line}");
        assert!(checked.sources[0].file.is_some() && matches!(plan.requests, Requests::Script));
    }
}

#[test]
fn omitted_flags_have_the_defaults_of_wrk2() {
    let checked = check_line("-R100 http://h/a").expect("a line");
    let plan = &checked.plan;
    assert_eq!((plan.threads, plan.connections), (2, 10));
    assert_eq!((plan.duration, plan.timeout), (Duration::from_secs(10), Duration::from_secs(2)));
    assert_eq!((plan.warmup, plan.arrival), (Duration::ZERO, Arrival::Even));
    assert_eq!(checked.requests, "GET /a");
    assert!(checked.sources[0].file.is_none());
    let checked = check_line("-R100 -c1 http://h/a").expect("one connection");
    assert_eq!(checked.plan.threads, 1);
}

#[test]
fn flags_can_be_written_long_attached_and_after_the_url() {
    let line = "http://h/ --connections=1k --threads 3 --rate 1.5k --duration 90 --timeout 500ms \
                --header X-A:1 --latency --u_latency --batch_latency --warmup 5s --arrival poisson";
    let plan = check_line(line).expect(line).plan;
    assert_eq!((plan.threads, plan.connections), (3, 1000));
    assert_eq!((plan.pace, plan.arrival), (Pace::Open(1500.0), Arrival::Poisson));
    assert_eq!((plan.duration, plan.warmup), (Duration::from_secs(90), Duration::from_secs(5)));
    assert_eq!(plan.timeout, Duration::from_millis(500));
    assert_eq!(plan.headers, ["X-A: 1"]);
    assert_eq!(check_line("--closed http://h/").expect("closed").plan.pace, Pace::Closed);
    let headers =
        check_line("-R1|-H|A: b c|-H|D: e|http://h/").expect("headers").sources[0].headers.clone();
    assert_eq!(headers, [("A".into(), "b c".into()), ("D".into(), "e".into())]);
}

#[test]
fn the_token_is_read_from_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let line = format!("-R1|--token-file|{}|http://h/", path.display());
    std::fs::write(&path, "abc\n").unwrap();
    let headers = check_line(&line).expect("a token").sources[0].headers.clone();
    assert_eq!(headers, [("Authorization".into(), "Bearer abc".into())]);
    for bad in ["", "a b", "a\nb"] {
        std::fs::write(&path, bad).unwrap();
        assert!(check_line(&line).unwrap_err().contains("it is not one word"), "{bad:?}");
    }
    let missing = check_line("-R1|--token-file|/nowhere/token|http://h/").unwrap_err();
    assert!(missing.contains("/nowhere/token"), "{missing}");
}

#[test]
fn words_after_the_url_are_passed_to_the_script() {
    for line in [
        "-R1 -s x.lua http://h/ one two",
        "-R1 -s x.lua http://h/ -- one two",
        "-s x.lua http://h/ one -R1 -- two",
    ] {
        let args = &check_line(line).expect(line).sources[0].args;
        assert_eq!(args[..], ["http://h/", "one", "two"], "{line}");
    }
    let args =
        &check_line("-R1 -s x.lua http://h/ -- -a http://i/").expect("dashes").sources[0].args;
    assert_eq!(args[..], ["http://h/", "-a", "http://i/"]);
}

#[test]
fn several_urls_share_the_load_or_each_get_all_of_it() {
    let checked = check_line("-R10 -c4 http://a:1 http://b:2").expect("two");
    assert_eq!((checked.plan.targets.len(), checked.sources.len()), (2, 1));
    assert_eq!(checked.sources[0].spread, checked.urls);
    assert_eq!(checked.plan.target_mode, TargetMode::Spread);
    let checked = check_line("-R10 --target-mode each http://a:1 http://b:2").expect("two");
    assert_eq!((checked.plan.targets.len(), checked.sources.len()), (2, 2));
    assert_eq!(checked.sources[1].url.host, "b");
}

#[test]
fn requests_with_keys_need_no_script() {
    let line = "-R10 --mix put=50,get=45,delete=5 --keys zipf --key-count 10k --key-len 20 \
                --value-len 100 --verify --seed 7 http://h:1";
    let checked = check_line(line).expect(line);
    let plan = &checked.plan;
    assert!(matches!(plan.requests, Requests::Keys) && checked.sources.is_empty());
    assert_eq!((plan.put_percent, plan.delete_percent), (50, 5));
    assert_eq!((plan.keys.order, plan.keys.count, plan.keys.len), (KeyOrder::Zipf, 10_000, 20));
    assert_eq!((plan.value_len, plan.verify, plan.seed), (100, true, 7));
    assert_eq!(plan.targets[0].path, "/v0/entity?id={key}");
    let checked = check_line("-R10 http://h:1/x/{key}/y").expect("a place");
    assert_eq!((checked.plan.put_percent, &*checked.plan.targets[0].path), (0, "/x/{key}/y"));
    let checked = check_line("-R10 --keys latest:5k http://h:1").expect("an order");
    assert_eq!(checked.plan.keys.order, KeyOrder::Latest(5000));
}

#[test]
fn invalid_command_lines_explain_the_correction() {
    for (line, says) in [
        ("-t4 -c64 -40000 -d3m -s wrk/put.lua --latency http://localhost:8080", "say -R40000"),
        ("-t4 -c64 -d3m http://h", "say -R RATE"),
        ("-t4 -c64 -d3m http://h", "or --closed"),
        ("-R5 --closed http://h", "cannot be used with"),
        ("-R5 -t4 -c2 http://h", "number of connections must be >= threads"),
        ("-R5 -t4 -c2 http://h", "say -c4 or -t2"),
        ("-R5 -c0 http://h", "at least one"),
        ("-R5 -t0 http://h", "at least one"),
        ("-R5 -c50k http://h", "50000 connections: there must be 1–20000"),
        ("-R0 http://h", "it must be 0.000001"),
        ("-Rfast http://h", "say requests a second"),
        ("-R5 -d0 http://h", "more than 0 and at most 24 h"),
        ("-R5 -d2d http://h", "s, m or h"),
        ("-R5 --client-cert a https://h", "--client-key <FILE>"),
        ("-R5 localhost:8080", "say http://localhost:8080"),
        ("-R5", "<URL>"),
        ("-R5 http://h extra", "no script (-s) to give it to"),
        ("-R5 -H novalue http://h", "say -H 'Name: value'"),
        ("-R -10 http://h", "-R -10: it must be positive"),
        ("-R5 -d -5s http://h", "-d -5s: it must be positive"),
        ("-R-10 http://h", "it must be positive"),
        ("-R5 -d-5s http://h", "it must be positive"),
        ("\u{2013}t4 -c64 -R10 http://h", "say -t4"),
        ("-R10 http://h \u{2014}latency", "say --latency"),
        ("-R10 -s x.lua http://h \u{2013}t4", "say -t4"),
        ("-R5 -T 0 http://h", "the timeout must be more than 0"),
        ("-R5 --csv x/../no --hdr-log x/../no http://h", "both write x/../no: name two files"),
        ("-R5 --csv ./no --hdr-log no http://h", "name two files"),
        ("-R5 -latency http://h", "say --latency, with two dashes"),
        ("-r1000 http://h", "say -R1000"),
        ("-R5 --mix put=50 http://h", "make 100 together"),
        ("-R5 --mix post=100 http://h", "make 100 together"),
        ("-R5 --keys random http://h", "say seq, scattered, uniform, zipf or latest:N"),
        ("-R5 --keys seq http://h/path", "put {key} there"),
        ("-R5 --keys seq -s x.lua http://h", "cannot be used with"),
        ("-R5 --key-len 4 --key-count 10k http://h", "keys of 4 bytes: 10000 keys need 5"),
        ("-R5 --profile gpu http://h", "possible values: cpu, alloc, lock, wall"),
        ("-R5 --conections 4 http://h", "--connections"),
    ] {
        let error = check_line(line).expect_err(line);
        assert!(error.contains(says), "{line}: {error}");
    }
}
