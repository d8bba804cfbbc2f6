//! Flags, variables and the settings file: their precedence, and error messages.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::process::{Node, kvorum, run};

/// Returns the maximum length of a value, from 1 to 5 bytes, that a node with these settings
/// accepts.
fn max_value(node: &Node) -> usize {
    let fits = |len: usize| node.client().put("/v0/entity?id=k", &vec![0; len]).status == 201;
    [1, 2, 3, 4, 5].into_iter().take_while(|len| fits(*len)).last().unwrap()
}

#[test]
fn a_flag_wins_over_a_variable_and_that_over_the_file() {
    let start = |file: &str, variable: Option<&str>, args: &[&str]| {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("kvorum.toml");
        fs::write(&path, file).unwrap();
        let mut command = kvorum();
        command.env("KVORUM_CONFIG", &path);
        if let Some(value) = variable {
            command.env("KVORUM_MAX_VALUE", value);
        }
        Node::start_with(command, data, args)
    };
    let file = "max-value = \"1B\"\nqueue = 7\nsync = \"interval:5\"\n";
    assert_eq!(max_value(&start(file, None, &[])), 1);
    assert_eq!(max_value(&start(file, Some("2B"), &[])), 2);
    assert_eq!(max_value(&start(file, Some("2B"), &["--max-value", "3B"])), 3);
}

#[test]
fn errors_are_one_line_that_names_what_is_wrong() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("kvorum.toml");
    let path = file.to_str().unwrap();
    for (text, named) in [
        ("queu = 7\n", "queu"),
        ("queue = \"many\"\n", "line 1"),
        ("queue = 0\n", "queue = 0"),
        ("listen = \n", "line 1"),
        ("sync = \"sometimes\"\n", "\"sometimes\" is not a valid sync mode"),
        ("memory = \"5\"\n", "\"5\" is not a valid size"),
        ("replicas = 256\n", "replicas = 256"),
        ("log-format = \"xml\"\n", "xml"),
    ] {
        fs::write(&file, text).unwrap();
        let output = run(&["serve", "--config", path]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text:?}");
        assert!(said.contains(named) && said.contains("kvorum.toml"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for (args, named) in [
        (&["--memory", "1MiB"][..], "--memory 1MiB"),
        (&["--memory", "64MB"], "--memory"),
        (&["--nonsense"], "--nonsense"),
        (&["--max-value", "1GiB"], "--max-value 1GiB"),
        (&["--memtable", "1GiB"], "--memtable 1GiB"),
        (&["--memory", "64GiB", "--memtable", "2GiB"], "--memtable 2GiB"),
        (&["--config", "/nowhere/kvorum.toml"], "/nowhere/kvorum.toml"),
        (&["--cluster", "http://127.0.0.1:1,http://127.0.0.1:2"], "does not contain this node"),
        (&["--cluster", "http://127.0.0.1:8080,http://127.0.0.1:8080"], "is listed twice"),
        (&["--cluster", "http://127.0.0.1:8080,http://h:2"], "--cluster-secret-file"),
        (&["--cluster", "http://127.0.0.1:8080;weight=1001"], "weight 1001"),
        (&["--cluster-secret-file", "/nowhere/secret"], "/nowhere/secret"),
        (&["--allow-host", "a.example,b:80"], "\"b:80\" is not a host name"),
        (&["--advertise", "nonsense"], "nonsense"),
        (&["--log", "foo=bar"], "--log foo=bar"),
        (&["--log", "wanr"], "--log wanr: \"wanr\" is neither a level (off, error, warn,"),
        (&["--log", "info,lms=debug"], "a module that logs (audit, h2, kvorum, lsm, server)"),
        (&["--log", "wanr", "--check"], "--log wanr: \"wanr\" is neither a level"),
        (&["--log", ""], "write off to log nothing"),
    ] {
        let output = run(&[&["serve"], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named) && said.lines().count() == 1, "{said}");
    }
    let output = run(&["serve", "--listen", "host:8080"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("\"host:8080\"") && said.contains("write IP:PORT"), "{said}");
    fs::write(&file, "data = \"\"\n").unwrap();
    for way in [&["serve", "--config", path][..], &["serve", "--config", path, "--check"]] {
        let output = run(way);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("data = \"\" names no directory"), "{said}");
    }
    fs::write(&file, "listen = \"host:1\"\n").unwrap();
    let said = String::from_utf8(run(&["serve", "--config", path]).stderr).unwrap();
    assert!(said.contains("line 1") && said.contains("write IP:PORT"), "{said}");
    for args in [
        &["--queue", "0"][..],
        &["--nonsense"],
        &["--sync", "x"],
        &["--listen", "x"],
        &["--max-clock-skew", "61s"],
    ] {
        let output = run(&[&["serve"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(args[0]));
    }
}

#[test]
fn an_argument_or_variable_that_is_not_utf_8_is_named() {
    let bytes = OsStr::from_bytes(b"/data/\xff");
    let mut by_flag = kvorum();
    by_flag.args(["serve", "--name"]).arg(bytes);
    let mut by_variable = kvorum();
    by_variable.arg("serve").env("KVORUM_NAME", bytes);
    for (mut command, named) in [(by_flag, "argument"), (by_variable, "KVORUM_NAME")] {
        let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert!(said.contains(named) && said.ends_with("is not UTF-8\n"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn dev_add_refuses_an_invalid_zone_at_once() {
    let said = run(&["dev", "add", "--zone", "a b"]).stderr;
    assert!(String::from_utf8(said).unwrap().contains("\"a b\" is not a valid name"));
}

/// Runs a node whose settings are invalid. Its stderr must be one line of JSON; returns the message
/// in it.
fn read_json_refusal(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
    assert!(output.stdout.is_empty() && said.lines().count() == 1, "{command:?}: {said}");
    let line: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(line["timestamp"].is_string() && line["target"].is_string(), "{said}");
    assert_eq!(line["level"], "ERROR");
    let message = line["message"].as_str().unwrap();
    assert!(message.starts_with("kvorum: ") && !message.contains('\n'), "{message}");
    message.to_owned()
}

#[test]
fn a_node_that_logs_json_is_refused_its_settings_in_json() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("kvorum.toml");
    fs::write(&file, "log-format = \"json\"\n").unwrap();
    for (flag, value) in
        [("--memory", "1MiB"), ("--log", "inof"), ("--cluster", "x"), ("--loops", "x"), ("--n", "")]
    {
        let refused = |format: &[&str], variable: Option<&str>| {
            let mut command = kvorum();
            command.args(["serve", flag, value]).args(format);
            if let Some(variable) = variable {
                command.env("KVORUM_LOG_FORMAT", variable);
            }
            read_json_refusal(command)
        };
        let said = refused(&["--log-format", "json"], None);
        assert!(said.contains(flag) || said.contains(value), "{said}");
        assert_eq!(refused(&["--log-format=json"], Some("text")), said);
        assert_eq!(refused(&[], Some("json")), said);
        assert_eq!(refused(&["--config", file.to_str().unwrap()], None), said);
    }
    fs::write(&file, "log-format = \"json\"\nqueu = 7\n").unwrap();
    let mut command = kvorum();
    command.arg("serve").env("KVORUM_CONFIG", &file);
    let said = read_json_refusal(command);
    assert!(said.contains("kvorum.toml, line 2: queu = 7"), "{said}");
}

#[test]
fn a_value_that_is_refused_is_repeated_with_where_it_was_given() {
    for (args, named) in [
        (["--memory", "18446744073709551615KiB"], "\"18446744073709551615KiB\" is too large"),
        (["--max-clock-skew", "0ms"], "0ms is out of range 1ms..60s"),
    ] {
        let said = String::from_utf8(run(&["serve", args[0], args[1]]).stderr).unwrap();
        assert!(said.contains(args[0]) && said.contains(named), "{said}");
    }
    let mut command = kvorum();
    let output = command.args(["serve"]).env("KVORUM_LOOPS", "abc").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("'abc' for 'KVORUM_LOOPS'") && !said.contains("--loops"), "{said}");
    let mut command = kvorum();
    let output = command.args(["serve", "--loops=abc"]).env("KVORUM_LOOPS", "abc").output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("'abc' for '--loops <N>'"), "{said}");
}

#[test]
fn a_start_that_is_refused_says_what_to_do() {
    let node = Node::start(&[]);
    let (at, other) = (node.address.to_string(), tempfile::tempdir().unwrap());
    let other = other.path().join("data");
    let taken = run(&["serve", "--listen", &at, "--data", other.to_str().unwrap()]);
    let said = String::from_utf8(taken.stderr).unwrap();
    assert!(said.contains("stop it, or choose another --listen"), "{said}");
    let data = node.data();
    let in_use = run(&["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()]);
    let said = String::from_utf8(in_use.stderr).unwrap();
    assert!(said.contains("is in use by another process"), "{said}");
    assert_eq!(said.matches("data directory").count(), 1, "{said}");
    let own = "http://127.0.0.1:7";
    for check in [None, Some("--check")] {
        let mut joins = kvorum();
        joins.args(["serve", "--listen", "127.0.0.1:0", "--advertise", own, "--join", own]);
        joins.arg("--data").arg(&other).args(["--log", "warn"]).args(check);
        let joins = joins.output().unwrap();
        let said = String::from_utf8(joins.stderr).unwrap();
        assert_eq!(joins.status.code(), Some(2), "a restart changes nothing: {said}");
        assert!(said.contains("is this node's own URL, and it would wait for itself"), "{said}");
    }
    let mut unsecured = kvorum();
    unsecured.args(["serve", "--listen", "127.0.0.1:0", "--tls-cert", "none.pem"]);
    let unsecured = unsecured.args(["--tls-key", "none.key", "--data"]).arg(&other).output();
    let (status, said) = unsecured.map(|output| (output.status, output.stderr)).unwrap();
    let said = String::from_utf8(said).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("--tls-cert none.pem"), "{said}");
}

#[test]
fn the_secret_is_not_shown() {
    let secret = "a secret of many letters";
    let data = tempfile::tempdir().unwrap();
    let mut command = kvorum();
    command.env("KVORUM_CLUSTER_SECRET", secret);
    let help = command.args(["serve", "--help"]).output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains(secret));
    let mut command = kvorum();
    command.env("KVORUM_CLUSTER_SECRET", secret).env("KVORUM_LOG", "trace");
    let node = Node::start_with(command, data, &[]);
    assert!(!node.greeting.contains(secret));
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    assert!(log.contains("stopped") && !log.contains(secret), "{log}");
}

#[test]
fn a_secret_that_others_can_read_is_warned_of() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("secret");
    fs::write(&path, "a secret of many letters").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let args = ["--cluster-secret-file", path.to_str().unwrap()];
    let node = Node::start_with(kvorum(), data, &args);
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    let warned = log.lines().filter(|line| line.contains("others can read it")).count();
    assert_eq!(warned, 1, "{log}");
}

#[test]
fn help_tells_units_ranges_and_defaults() {
    let output = run(&["serve", "--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("--queue <N>") && help.contains("KVORUM_QUEUE"), "{help}");
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.matches("[default: ").count() >= 20, "each has its default");
    let version = run(&["--version"]);
    let said = String::from_utf8(version.stdout).unwrap();
    assert_eq!(version.status.code(), Some(0));
    assert!(said.starts_with(concat!("kvorum ", env!("CARGO_PKG_VERSION"))), "{said}");
    assert!(
        said.contains("\nstore format 1, opens 1 to 1\npeer protocol 1, speaks 1 to 1\n"),
        "{said}"
    );
    assert_eq!(String::from_utf8(run(&["-V"]).stdout).unwrap().lines().count(), 1);
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn a_variable_that_is_empty_is_not_set() {
    let mut command = kvorum();
    for name in ["MEMORY", "CLUSTER", "CONFIG", "LISTEN", "CLUSTER_SECRET", "ADMIN_TOKEN", "LOG"] {
        command.env(format!("KVORUM_{name}"), "");
    }
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &[]);
    let url = format!("http://{}/", node.address);
    let mut put = kvorum();
    put.args(["put", "k", "v", "--url", &url]).env("KVORUM_URL", "");
    let output = put.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let help = kvorum().args(["get", "k"]).env("KVORUM_URL", "").output().unwrap();
    let said = String::from_utf8(help.stderr).unwrap();
    assert!(said.is_empty() || said.contains("http://127.0.0.1:8080"), "the default: {said}");
}

#[test]
fn a_variable_that_nothing_reads_is_told_of() {
    let mut command = kvorum();
    command.env("KVORUM_MEMROY", "1GiB").env("KVORUM_MAX_VALUE", "2B");
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &[]);
    let mut get = kvorum();
    get.args(["get", "k", "--url", &format!("http://{}", node.address)]);
    let output = get.env("KVORUM_ULR", "http://nowhere:1").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("KVORUM_ULR (did you mean KVORUM_URL?)"), "{said}");
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    let told: Vec<_> = log.lines().filter(|line| line.contains("KVORUM_")).collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(
        told[0].contains("WARN") && told[0].contains("KVORUM_MEMROY (did you mean KVORUM_MEMORY?)")
    );
}

#[test]
fn localhost_and_a_slash_are_taken() {
    let data = tempfile::tempdir().unwrap();
    let node = Node::start_at("localhost:0", kvorum(), data, &[]);
    assert!(node.address.ip().is_loopback());
    let (at, data) = (node.address, node.stop());
    let list = format!("http://localhost:{}/,b=http://127.0.0.1:1/", at.port());
    let cluster = ["--cluster", list.as_str()];
    drop(data);
    let listen = format!("localhost:{}", at.port());
    let node = Node::start_at(&listen, kvorum(), tempfile::tempdir().unwrap(), &cluster);
    let status = node.client().get("/v0/status").body();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["name"], format!("http://localhost:{}", at.port()));
    assert_eq!(status["peers"][0]["url"], "http://127.0.0.1:1");
}
