//! The files in `deploy/` match the binary: the metrics, flags and settings that they name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kit::raw::Client;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::process::{Node, kvorum, run};
use crate::tls::Certs;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn text(path: &str) -> String {
    fs::read_to_string(deploy().join(path)).unwrap()
}

/// Returns the words of `text` that begin with `prefix` and are longer.
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with(prefix) && word.len() > prefix.len())
        .collect()
}

/// Returns the names of all metrics that `/metrics` can show.
fn metrics(node: &Node) -> BTreeSet<String> {
    let text = String::from_utf8(node.client().get("/metrics").body()).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .flat_map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            suffixes.iter().map(move |suffix| format!("{name}{suffix}")).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_metric_that_is_watched_exists() {
    let node = Node::start(&[]);
    let known = metrics(&node);
    for path in
        ["prometheus/kvorum.rules.yml", "prometheus/kvorum.rules.test.yml", "grafana/kvorum.json"]
    {
        let text = text(path);
        let used = words(&text, "kvorum_");
        assert!(used.len() > 5, "{path} uses {used:?}");
        for name in used {
            assert!(known.contains(name), "{path}: there is no {name}");
        }
    }
}

/// Returns the alerts that at least one test expects to be raised.
fn alerts_in_tests() -> BTreeSet<String> {
    let tests = &YamlLoader::load_from_str(&text("prometheus/kvorum.rules.test.yml")).unwrap()[0];
    let looks = tests["tests"].as_vec().unwrap().iter();
    let looks = looks.flat_map(|test| test["alert_rule_test"].as_vec().unwrap());
    let raised =
        looks.filter(|look| look["exp_alerts"].as_vec().is_some_and(|all| !all.is_empty()));
    raised.map(|look| look["alertname"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_rules_are_complete() {
    let rules = &YamlLoader::load_from_str(&text("prometheus/kvorum.rules.yml")).unwrap()[0];
    let rules = rules["groups"][0]["rules"].as_vec().unwrap();
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name), "{name} is there twice");
        assert!(rule["expr"].as_str().is_some(), "{name} has an expression");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["page", "ticket"].contains(&severity), "{name}: {severity}");
        for said in ["summary", "description"] {
            assert!(rule["annotations"][said].as_str().is_some(), "{name} has no {said}");
        }
    }
    let raised = alerts_in_tests();
    for name in names {
        assert!(raised.contains(name), "no test of kvorum.rules.test.yml raises {name}");
    }
    let scrape = &YamlLoader::load_from_str(&text("prometheus/prometheus.yml")).unwrap()[0];
    assert_eq!(scrape["rule_files"][0].as_str(), Some("kvorum.rules.yml"));
    assert_eq!(scrape["scrape_configs"][0]["job_name"].as_str(), Some("kvorum"));
}

/// Returns the example configuration for nodes with TLS and tokens, with its files in the directory
/// `at`.
fn secured_scrape(at: &Path) -> String {
    text("prometheus/prometheus-tls.yml").replace("/etc/prometheus/", &format!("{}/", at.display()))
}

#[test]
fn a_node_with_tls_and_tokens_is_scraped_as_in_the_example() {
    let certs = Certs::new();
    let example = secured_scrape(&certs.path(""));
    let scrape = &YamlLoader::load_from_str(&example).unwrap()[0];
    assert_eq!(scrape["rule_files"][0].as_str(), Some("kvorum.rules.yml"));
    let job = &scrape["scrape_configs"][0];
    let word = |name: &str| job[name].as_str();
    assert_eq!(
        (word("job_name"), word("scheme"), word("metrics_path")),
        (Some("kvorum"), Some("https"), Some("/metrics"))
    );
    assert!(job["tls_config"]["ca_file"].as_str().is_some(), "{example}");
    assert!(job["authorization"]["credentials_file"].as_str().is_some(), "{example}");
    // The command in the example's comment creates the token that the node requires.
    let command = "kvorum token create --name prometheus --for metrics --methods read";
    assert!(example.contains(command), "{example}");
    fs::write(certs.path("admin"), "0123456789abcdef0123456789abcdef").unwrap();
    let mut args = certs.serve();
    args.extend(["--require-auth", "--admin-token-file", &certs.text("admin")].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let node = Node::start(&args);
    let url = format!("https://localhost:{}", node.address.port());
    let mut made = kvorum();
    made.args(command.split(' ').skip(1)).args(["--url", &url, "--ca-file"]);
    made.arg(certs.text("ca.pem")).args(["--token-file", &certs.text("admin")]);
    let made = made.stdin(Stdio::null()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let token = String::from_utf8(made.stdout).unwrap();
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    let mut scrape = |token: &str| {
        client.send(format!(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        ));
        client.response().status
    };
    assert_eq!((scrape(token.trim()), scrape("kvorum_no")), (200, 401));
}

#[test]
fn the_panels_have_a_place_and_a_query_each() {
    let board: Value = serde_json::from_str(&text("grafana/kvorum.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title} is beyond the edge");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            assert!(query.contains("job=\"$job\",instance=~\"$instance\""), "{title}: {query}");
        }
    }
}

#[test]
fn every_variable_that_is_set_exists() {
    let help = String::from_utf8(run(&["serve", "--help"]).stdout).unwrap();
    let known = words(&help, "KVORUM_");
    for path in ["systemd/kvorum.service", "docker/Dockerfile", "docker/compose.yml"] {
        let text = text(path);
        for name in words(&text, "KVORUM_") {
            assert!(known.contains(name), "{path}: there is no {name}");
        }
    }
}

#[test]
fn the_composed_nodes_are_one_cluster() {
    let compose = &YamlLoader::load_from_str(&text("docker/compose.yml")).unwrap()[0];
    let list = compose["x-environment"]["KVORUM_CLUSTER"].as_str().unwrap();
    let services = compose["services"].as_hash().unwrap();
    assert_eq!(services.len(), 3);
    let mut ports = BTreeSet::new();
    for (name, service) in services {
        let name = name.as_str().unwrap();
        let url = service["environment"]["KVORUM_ADVERTISE"].as_str().unwrap();
        assert_eq!(url, format!("http://{name}:8080"));
        assert!(list.contains(&format!("{name}={url}")), "{list} lacks {name}");
        let port = service["ports"][0].as_str().unwrap();
        assert!(port.starts_with("127.0.0.1:") && ports.insert(port), "{port}");
        assert_ne!(compose["volumes"][name], Yaml::BadValue, "{name} has no volume of its own");
        // Docker Compose refuses to start a read-only service whose secret comes from a variable.
        let (node, secrets) = (&compose["x-node"], &compose["secrets"]);
        assert_eq!(node["read_only"].as_bool(), Some(true));
        for secret in node["secrets"].as_vec().unwrap() {
            assert!(secrets[secret.as_str().unwrap()]["file"].as_str().is_some(), "{secrets:?}");
        }
    }
}

#[test]
fn the_settings_of_the_service_are_taken() {
    let (certs, own) = (Certs::new(), "https://10.0.0.1:8080");
    for name in ["secret", "admin-token"] {
        fs::write(certs.path(name), "0123456789abcdef").unwrap();
    }
    let settings = text("systemd/kvorum.toml").replace("/etc/kvorum/", &certs.text(""));
    let config = certs.path("kvorum.toml");
    fs::write(&config, settings).unwrap();
    let command = kvorum();
    let tls = certs.serve();
    let mut args = vec!["--greet", "--config", config.to_str().unwrap(), "--advertise", own];
    args.extend(tls.iter().map(String::as_str));
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &args);
    let mut client = Client::connect_tls(node.address, &certs.client(None, &[])).unwrap();
    let status: Value = serde_json::from_slice(&client.get("/v0/status").body()).unwrap();
    assert_eq!((&status["name"], &status["url"]), (&"a".into(), &own.into()));
    node.stop();
}

/// The node is started as by the systemd unit, with files that the unit's user can read.
#[test]
fn the_service_can_be_administered() {
    let certs = Certs::new();
    for name in ["secret", "admin-token"] {
        assert!(text("README.md").contains(&format!("/etc/kvorum/{name}")), "{name} is made");
        fs::write(certs.path(name), format!("{name}-0123456789abcdef")).unwrap();
    }
    let settings = text("systemd/kvorum.toml")
        .replace("/etc/kvorum/tls/", &certs.text(""))
        .replace("/etc/kvorum/", &certs.text(""))
        .replace("/var/lib/kvorum", &certs.text("data"));
    fs::write(certs.path("kvorum.toml"), &settings).unwrap();
    let is_of_token = |line: &&str| line.starts_with("admin-token-file");
    let without: Vec<&str> = settings.lines().filter(|line| !is_of_token(line)).collect();
    fs::write(certs.path("without.toml"), without.join("\n")).unwrap();
    let (config, without) = (certs.text("kvorum.toml"), certs.text("without.toml"));
    let check = |config: &str, more: &[(&str, &str)]| {
        let mut again = kvorum();
        again.envs(more.iter().copied());
        let output = again.args(["serve", "--check", "--config", config]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let said = check(&config, &[]);
    assert!(said.contains("whoever has a token for it, on this machine too"), "{said}");
    assert!(!said.contains("anybody on this machine"), "{said}");
    assert!(!said.contains("nobody can use or administer"), "{said}");
    let closed = check(&without, &[]);
    assert!(closed.contains("nobody can use or administer this node"), "{closed}");
    assert!(closed.contains("--admin-token-file") && closed.contains("0.0.0.0"), "{closed}");
    let anywhere =
        [("KVORUM_LISTEN", "0.0.0.0:8080"), ("KVORUM_ADVERTISE", "https://10.0.0.1:8080")];
    let everywhere = check(&without, &anywhere);
    assert!(everywhere.contains("from 127.0.0.1 or ::1; from elsewhere"), "{everywhere}");
    assert!(!everywhere.contains("nobody can use or administer"), "{everywhere}");
    let one = kvorum();
    let own = ["--greet", "--config", &config, "--advertise", "https://10.0.0.1:8080"];
    let node = Node::start_with(one, tempfile::tempdir().unwrap(), &own);
    let url = format!("https://localhost:{}", node.address.port());
    let (ca, token) = (certs.text("ca.pem"), certs.text("admin-token"));
    let status = ["status", "--url", &url, "--ca-file", &ca, "--token-file", &token];
    // The command's exit code is 1, because the other two nodes of the list are down.
    assert_eq!(run(&status).status.code(), Some(1));
    let quota = ["quota", "list", "--url", &url, "--ca-file", &ca];
    assert_eq!(run(&quota).status.code(), Some(2), "it needs the token");
    let output = run(&[&quota[..], &["--token-file", &token]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    node.stop();
}

#[test]
fn a_node_that_nobody_can_use_says_so() {
    let node = Node::start(&["--require-auth"]);
    let log = node.stop_for_its_log();
    assert!(log.contains("WARN") && log.contains("nobody can use or administer"), "{log}");
    let node = Node::start(&[]);
    let log = node.stop_for_its_log();
    assert!(!log.contains("nobody can use or administer"), "{log}");
}

/// Returns the manual's commands that start a node, each on one line, without abbreviated commands.
fn starts() -> Vec<String> {
    let pages = [
        include_str!("../../docs/operate/cluster.md"),
        include_str!("../../docs/operate/tls-and-tokens.md"),
    ];
    let manual = pages.concat().replace("\\\n", "");
    let blocks = manual.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines = blocks.flat_map(str::lines).filter(|line| line.starts_with("kvorum serve "));
    lines.filter(|line| !line.contains('…')).map(str::to_owned).collect()
}

/// The commands run with the files that they name. The commands of procedures that add and remove
/// nodes run with the environment that the manual gives them.
#[test]
fn the_commands_of_the_manual_start_nodes() {
    let certs = Certs::new();
    for (node, host) in [("a", "10.0.0.1"), ("d", "10.0.0.4")] {
        certs.make(&["node", "--host", host, "--out", &certs.text(&format!("{node}.pem"))]);
    }
    for file in ["secret", "admin-token"] {
        fs::write(certs.path(file), "0123456789abcdef0123456789abcdef").unwrap();
    }
    let starts = starts();
    assert!(starts.len() > 8, "{starts:?}");
    for start in starts {
        let start = start.replace("/etc/kvorum/", "").replace("/var/lib/kvorum", "data");
        let (start, in_story) = (start.trim_end_matches(" &"), start.ends_with(" &"));
        let words = start.split_whitespace().skip(1).map(|word| word.replace('\'', ""));
        let mut command = kvorum();
        command.args(words).arg("--check").current_dir(certs.path(""));
        if in_story {
            command.env("KVORUM_CLUSTER_SECRET_FILE", "secret").env("KVORUM_INSECURE", "true");
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{start}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns true if `tool` is installed on this machine.
fn is_here(tool: &str) -> bool {
    let tried =
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

fn approves(command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
}

#[test]
fn prometheus_takes_the_rules_where_it_is_installed() {
    if !is_here("promtool") {
        return;
    }
    let at = deploy().join("prometheus");
    approves(Command::new("promtool").args(["check", "config", "prometheus.yml"]).current_dir(&at));
    let secured = tempfile::tempdir().unwrap();
    for file in ["kvorum-ca.pem", "kvorum-token"] {
        fs::write(secured.path().join(file), "").unwrap();
    }
    fs::copy(at.join("kvorum.rules.yml"), secured.path().join("kvorum.rules.yml")).unwrap();
    let config = secured.path().join("prometheus-tls.yml");
    fs::write(&config, secured_scrape(secured.path())).unwrap();
    approves(Command::new("promtool").args(["check", "config"]).arg(&config));
    let tests = ["test", "rules", "kvorum.rules.test.yml"];
    approves(Command::new("promtool").args(tests).current_dir(&at));
}

#[test]
fn systemd_takes_the_service_where_it_is_installed() {
    if !is_here("systemd-analyze") {
        return;
    }
    let unit = text("systemd/kvorum.service");
    let binary = env!("CARGO_BIN_EXE_kvorum");
    let unit = unit.replace("/usr/bin/kvorum", binary);
    assert!(unit.contains(&format!("ExecStart={binary} serve --config")), "{unit}");
    let at = tempfile::tempdir().unwrap();
    let path = at.path().join("kvorum.service");
    fs::write(&path, unit).unwrap();
    approves(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    // The threshold is in tenths of systemd's exposure level, so it allows the unit a level of 2.0
    // out of 10.
    let most = ["security", "--offline=true", "--threshold=20"];
    approves(Command::new("systemd-analyze").args(most).arg(&path));
}
