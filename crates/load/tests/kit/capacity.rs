//! Searches and cold–hot series against a server of known capacity. The objective allows 200 ms,
//! far more than a busy machine adds. The module's name makes its tests start first, because they
//! take longest.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use clap::{Args, Parser};
use load::record::Series;
use load::{ServerProfile, coldhot, search};
use rustix::net::Shutdown;
use tempfile::TempDir;

#[derive(Parser)]
struct Cli<A: Args> {
    #[command(flatten)]
    args: A,
}

/// An unused address and a directory for one test.
struct TestSite {
    address: SocketAddr,
    dir: TempDir,
}

impl TestSite {
    fn new() -> Self {
        // Each test has a loopback address of its own, so that the kernel gives the port to no
        // client of another test before the server listens.
        static PLACES: AtomicU8 = AtomicU8::new(2);
        let [.., high, low] = std::process::id().to_be_bytes();
        let own = PLACES.fetch_add(1, Ordering::Relaxed);
        let own = Ipv4Addr::new(127, 1 + high % 200, low, own);
        let listener = TcpListener::bind((own, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        // Without the shutdown, a process that another test starts now would inherit the socket,
        // and the socket would continue to listen.
        rustix::net::shutdown(&listener, Shutdown::Both).expect("it listens");
        Self { address, dir: tempfile::tempdir().expect("a directory") }
    }

    fn out(&self) -> String {
        self.dir.path().join("out").display().to_string()
    }

    fn server(&self, flags: &str) -> String {
        let program = env!("CARGO_BIN_EXE_limited-server");
        format!("{program} --listen {} {flags}", self.address)
    }

    /// Returns the words of a search's command line, followed by `flags`.
    fn words(&self, flags: &[&str]) -> Vec<String> {
        let mut words = vec!["search".to_owned(), format!("http://{}/", self.address)];
        words.extend(["-c", "8", "--out"].map(str::to_owned));
        words.push(self.out());
        words.extend(flags.iter().map(|flag| (*flag).to_owned()));
        words
    }

    /// Searches with short trials. Their verdicts are unreliable.
    fn search(&self, flags: &[&str]) -> Result<Series, search::Error> {
        self.search_until("500ms", flags, false)
    }

    /// Searches with trials of length `trial`. With `stopped`, the search must stop at once.
    fn search_until(
        &self,
        trial: &str,
        flags: &[&str],
        stopped: bool,
    ) -> Result<Series, search::Error> {
        let usual = ["--slo", "p90<200ms", "-d", trial, "--warmup", "0s", "--precision", "25%"];
        let words = self.words(&[&usual, flags].concat());
        let args = Cli::<search::SearchArgs>::try_parse_from(words).expect("flags").args;
        search::run(&args, &ServerProfile::default(), &Arc::new(AtomicBool::new(stopped)))
    }

    fn nobody_listens(&self) -> bool {
        TcpStream::connect(self.address).is_err()
    }
}

fn search_error(flags: &[&str]) -> String {
    let error = TestSite::new().search(flags).expect_err("an error");
    error.to_string()
}

#[test]
fn a_search_finds_the_capacity_of_its_server() {
    let place = TestSite::new();
    let server = place.server("--capacity 500");
    // At a hundredth of the capacity, a trial would need ten times as long to have enough samples.
    let flags = ["--server", &server, "--restart", "--from", "200"];
    let series = place.search_until("1500ms", &flags, false).unwrap();
    let finding = &series.findings[0];
    let (passes, fails) = (finding.passes.unwrap(), finding.fails.unwrap());
    // The last 5 % of the queue's growth are within the objective.
    assert!(passes > 375.0 && passes < 650.0, "{finding:?}");
    assert!(fails > 475.0 && fails < 800.0, "{finding:?}");
    assert!(fails <= passes * 1.26, "{finding:?}");
    assert!(place.nobody_listens(), "the server was left behind");
}

#[test]
fn a_sweep_reports_each_server_configuration() {
    let place = TestSite::new();
    let server = place.server("--capacity 1000");
    let flags = ["--server", server.as_str(), "--restart", "--sweep", "capacity=100,5000"];
    let bounds = ["--from", "400", "--to", "400", "--repeats", "1"];
    let series = place.search(&[&flags[..], &bounds].concat()).unwrap();
    let found: Vec<_> = series
        .findings
        .iter()
        .map(|finding| (finding.value.as_str(), finding.passes, finding.fails))
        .collect();
    let rate = Some(400.0);
    assert_eq!(found, [("capacity=100", None, rate), ("capacity=5000", rate, None)]);
    assert!(place.nobody_listens(), "the server was left behind");
    let dir = place.dir.path().join("out");
    for trial in &series.trials {
        assert!(dir.join(&trial.dir).join("run.json").is_file(), "{trial:?}");
    }
    let kept: Series =
        serde_json::from_slice(&std::fs::read(dir.join("series.json")).unwrap()).unwrap();
    assert_eq!(kept, series);
    let curve = std::fs::read_to_string(dir.join("curve.csv")).unwrap();
    assert_eq!(curve.lines().count(), series.trials.len() + 1, "{curve}");
}

#[test]
fn a_server_too_slow_at_the_lowest_rate_is_reported() {
    let place = TestSite::new();
    let server = place.server("--capacity 200");
    let series = place.search(&["--server", &server, "--from", "600", "--to", "900"]).unwrap();
    let finding = &series.findings[0];
    assert_eq!((finding.passes, finding.fails), (None, Some(600.0)));
    let confirmed = series.trials.iter().filter(|trial| trial.rate == Some(600.0));
    assert!(confirmed.count() >= 2, "{:?}", series.trials);
}

#[test]
fn an_upper_bound_is_never_exceeded() {
    let place = TestSite::new();
    let server = place.server("--capacity 100000");
    let series = place.search(&["--server", &server, "--to", "400", "--repeats", "1"]).unwrap();
    let finding = &series.findings[0];
    assert_eq!((finding.passes, finding.fails), (Some(400.0), None));
    let rates: Vec<_> = series.trials.iter().map(|trial| trial.rate).collect();
    assert!(rates.iter().all(|rate| rate.is_some_and(|rate| rate <= 400.0)), "{rates:?}");
}

#[test]
fn a_server_that_dies_in_a_trial_fails_it_and_is_started_again() {
    let place = TestSite::new();
    // The first trial, of half the length, takes 225 of the 450 answers, and the next trial the
    // rest.
    let server = place.server("--capacity 400 --die-after 450");
    let flags = ["--server", &server, "--from", "300", "--to", "300", "--repeats", "1"];
    let series = place.search_until("1500ms", &flags, false).unwrap();
    let died: Vec<_> =
        series.trials.iter().filter(|trial| trial.why.contains("the server died")).collect();
    assert!(!died.is_empty(), "{:?}", series.trials);
    assert!(died.iter().all(|trial| trial.verdict == "fail"), "{died:?}");
    assert!(died[0].why.contains("that was the last answer"), "{died:?}");
    let found = &series.findings[0];
    let (what, why) = (found.limit.as_str(), found.why.as_str());
    assert_eq!(what, "died", "{found:?}");
    let deaths = format!("the server died in {} of {} trials", died.len(), series.trials.len());
    assert!(why.starts_with(&deaths) && why.contains("that was the last answer"), "{why}");
    assert!(place.nobody_listens());
}

#[test]
fn a_server_that_answers_only_errors_stops_the_search() {
    let place = TestSite::new();
    let server = place.server("--status 404");
    let error = place.search(&["--server", &server]).unwrap_err().to_string();
    assert!(error.contains("100 %") && error.contains("--prepare"), "{error}");
    let place = TestSite::new();
    let server = place.server("--status 404");
    let bounded = place.search(&["--server", &server, "--to", "300"]).unwrap_err().to_string();
    assert!(bounded.contains("100 %") && bounded.contains("--prepare"), "{bounded}");
    let place = TestSite::new();
    let server = place.server("--status 302");
    let error = place.search(&["--server", &server]).unwrap_err().to_string();
    assert!(error.contains("errors - 100 % of the answers were redirects (302)"), "{error}");
    assert!(place.nobody_listens());
}

#[test]
fn each_script_is_searched_on_data_that_a_script_prepared() {
    let place = TestSite::new();
    let script = |name: &str, text: &str| {
        let path = place.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let get = script("get.lua", "wrk.method = 'GET'");
    let put = script("put.lua", "wrk.method = 'PUT' wrk.body = 'value'");
    let server = place.server("--capacity 2000");
    let (prepare, some) = (format!("{put}:20"), ["--from", "400", "--to", "400", "--repeats", "1"]);
    let flags = ["-s", &get, "--also", &put, "--prepare", &prepare, "--server", &server];
    let series = place.search(&[&flags[..], &some].concat()).unwrap();
    let found: Vec<_> =
        series.findings.iter().map(|found| (found.value.clone(), found.passes)).collect();
    assert_eq!(found, [(get.clone(), Some(400.0)), (put.clone(), Some(400.0))]);
    let dir = place.dir.path().join("out").join(&series.trials[0].dir);
    assert_eq!(std::fs::read_to_string(dir.join("script.lua")).unwrap(), "wrk.method = 'GET'");

    let place = TestSite::new();
    let server = place.server("--status 503");
    let error = place.search(&["-s", &get, "--prepare", &prepare, "--server", &server]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("0 of 20 requests") && error.contains("put.lua"), "{error}");
}

#[test]
fn a_failed_start_shows_the_servers_output() {
    let error = search_error(&["--server", "ls /nowhere/at/all"]);
    assert!(error.contains("exit code 2") && error.contains("/nowhere/at/all"), "{error}");
    let error = search_error(&["--server", "no-such-program --flag"]);
    assert!(error.contains("no-such-program"), "{error}");
    // Output may be unread when the process has ended. Whether all output is read is a race, so the
    // test tries several times.
    for _ in 0..5 {
        let said = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; done; echo the last of it >&2; exit 3";
        let error = search_error(&["--server", &format!("sh -c '{said}'")]);
        assert!(error.contains("exit code 3") && error.contains("the last of it"), "{error}");
    }
    let error = search_error(&["--server", "serve 'quoted"]);
    assert!(error.contains("quote"), "{error}");
}

#[test]
fn a_server_is_not_started_where_another_listens() {
    let place = TestSite::new();
    let _other = TcpListener::bind(place.address).unwrap();
    let server = place.server("");
    let error = place.search(&["--server", &server]).unwrap_err().to_string();
    assert!(error.contains("listens on") && error.contains("--server"), "{error}");
}

#[test]
fn a_missing_server_is_reported() {
    let place = TestSite::new();
    let error = place.search(&[]).unwrap_err().to_string();
    assert!(error.contains("can't open 8 connections"), "{error}");
    assert!(!Path::new(&place.out()).exists(), "there is nothing to keep");
    // A directory from before the search stays there, and stays empty.
    std::fs::create_dir(place.out()).unwrap();
    place.search(&[]).unwrap_err();
    assert_eq!(std::fs::read_dir(place.out()).unwrap().count(), 0);
}

#[test]
fn invalid_bounds_are_refused() {
    let error = search_error(&["--from", "2k", "--to", "1k"]);
    assert!(error.contains("--from 2000 is above --to 1000"), "{error}");
    assert!(search_error(&["--from", "0"]).contains("--from 0"));
    for wrong in [["--precision", "0%"], ["--slo", "p99<10"], ["--repeats", "0"], ["-d", "x"]] {
        let words = TestSite::new().words(&wrong);
        assert!(Cli::<search::SearchArgs>::try_parse_from(words).is_err(), "{wrong:?}");
    }
    let words = TestSite::new().words(&["--sweep", "loops=1,2"]);
    assert!(Cli::<search::SearchArgs>::try_parse_from(words).is_err(), "a sweep needs --server");
}

#[test]
fn a_nonempty_directory_is_not_overwritten() {
    let place = TestSite::new();
    let out = place.dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("file"), "mine").unwrap();
    let error = place.search(&[]).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
    assert_eq!(std::fs::read_to_string(out.join("file")).unwrap(), "mine");
}

#[test]
fn a_search_that_is_ended_early_keeps_its_results() {
    let place = TestSite::new();
    let server = place.server("");
    let series = place.search_until("500ms", &["--server", &server], true).unwrap();
    assert!(series.interrupted && series.findings.is_empty());
    assert!(Path::new(&place.out()).join("series.json").is_file());
    assert!(place.nobody_listens());
}

#[test]
fn each_of_the_four_cold_and_hot_runs_has_fresh_data() {
    let place = TestSite::new();
    let list = place.dir.path().join("starts");
    let list = list.display();
    // Each start of the server appends its directory to a list.
    let server = format!(
        "sh -c 'mkdir -p {{data}} && echo {{data}} >> {list} && exec {}'",
        place.server("--capacity 100000")
    );
    let mut words = place.words(&["--server", &server, "--put-rate", "200", "--get-rate", "200"]);
    words[1].push_str("{key}");
    words.extend(["-d", "1s", "--key-count", "100"].map(str::to_owned));
    let args = Cli::<coldhot::ColdHotArgs>::try_parse_from(words).unwrap().args;
    let stop = Arc::new(AtomicBool::new(false));
    let series = coldhot::run(&args, &ServerProfile::default(), &stop).unwrap();
    let roles: Vec<&str> = series.trials.iter().map(|trial| trial.role.as_str()).collect();
    assert_eq!(roles, ["put-cold", "put-hot", "get-cold", "get-hot"]);
    let starts = std::fs::read_to_string(place.dir.path().join("starts")).unwrap();
    let starts: Vec<&str> = starts.lines().collect();
    // The server of a cold run starts twice on the same data.
    assert_eq!(starts.len(), 6, "{starts:?}");
    assert!(starts[0] == starts[1] && starts[3] == starts[4], "{starts:?}");
    let mut fresh = starts.clone();
    fresh.sort_unstable();
    fresh.dedup();
    assert_eq!(fresh.len(), 4, "{starts:?}");
    assert!(fresh.iter().all(|data| !Path::new(data).exists()), "{fresh:?}");
    assert!(place.nobody_listens());
}

#[test]
fn cold_and_hot_need_a_server_that_can_be_started_anew() {
    for server in [None, Some("serve --data ./data")] {
        let place = TestSite::new();
        let mut words = place.words(&["--put-rate", "1", "--get-rate", "1"]);
        words.extend(server.map(|server| format!("--server={server}")));
        let args = Cli::<coldhot::ColdHotArgs>::try_parse_from(words).unwrap().args;
        let stop = Arc::new(AtomicBool::new(false));
        let error = coldhot::run(&args, &ServerProfile::default(), &stop).unwrap_err().to_string();
        assert!(error.contains("{data}"), "{error}");
    }
}
