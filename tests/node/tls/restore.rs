//! The script in docs/operate/repair-and-backup.md that restores the output of `kvorum scan
//! --json`. Runs the script exactly as printed: in plaintext, and over TLS with a token and a
//! client certificate.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::Certs;
use crate::process::{Node, kvorum};

/// Returns the script from that page.
fn script() -> &'static str {
    let manual = include_str!("../../../docs/operate/repair-and-backup.md");
    let (_, marked) = manual.split_once("tests/node/tls/restore.rs runs it").unwrap();
    let (_, block) = marked.split_once("```sh\n").unwrap();
    block.split_once("\n```").unwrap().0
}

/// Runs the script in the directory `at`, which has a file `FILE` with items.
fn run_script(at: &Path, url: &str, set: &[(&str, &str)]) -> Output {
    let mut shell = Command::new("sh");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVORUM_") {
            shell.env_remove(name);
        }
    }
    shell.args(["-c", script()]).current_dir(at).env("KVORUM_URL", url);
    shell.envs(set.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// Saves a node's items, deletes them, runs the script, and asserts that the items exist again.
fn restores(url: &str, set: &[(&str, &str)]) {
    let command = |args: &[&str]| {
        let mut command = kvorum();
        command.args(args).env("KVORUM_URL", url).envs(set.iter().copied());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let at = tempfile::tempdir().unwrap();
    command(&["put", "k", "v"]);
    command(&["put", "a/b c", ""]);
    command(&["put", "--escaped", r"\xff", "other"]);
    command(&["put", "lease", "held", "--ttl", "1h"]);
    let held = command(&["scan", "--json"]);
    fs::write(at.path().join("FILE"), &held).unwrap();
    command(&["del", "--escaped", "k", "a/b c", r"\xff", "lease"]);
    assert_eq!(command(&["scan"]), b"");
    let output = run_script(at.path(), url, set);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(command(&["scan"]), b"a/b c\t\nk\tv\nlease\theld\n\\xff\tother\n");
    let restored = String::from_utf8(command(&["scan", "--json"])).unwrap();
    assert_eq!(restored.matches("\"expires_ms\":1").count(), 1, "{restored}");
}

/// Asserts that the script names an item that the node refuses, and writes the other items.
fn refuses_one(node: &Node) {
    let at = tempfile::tempdir().unwrap();
    let items = [
        r#"{"key":"lease","value":"held","expires_ms":99999999999999}"#,
        r#"{"key":"k","value":"v"}"#,
    ];
    fs::write(at.path().join("FILE"), items.join("\n")).unwrap();
    let output = run_script(at.path(), &format!("http://{}", node.address), &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("b'lease' is not written: 400") && said.contains("ttl"), "{said}");
    assert_eq!(node.client().get("/v0/entity?id=k").body(), b"v");
}

#[test]
fn the_manuals_script_restores_what_was_saved() {
    if !Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 is needed");
        return;
    }
    let node = Node::start(&[]);
    restores(&format!("http://{}", node.address), &[]);
    refuses_one(&Node::start(&["--max-ttl", "1m"]));
    let certs = Certs::new();
    certs.make(&["client"]);
    let token = "0123456789abcdef0123456789abcdef";
    fs::write(certs.path("admin-token"), token).unwrap();
    let [ca, cert, key, file] =
        ["ca.pem", "client.pem", "client.key", "admin-token"].map(|name| certs.text(name));
    let node = certs.node(&["--require-auth", "--admin-token-file", &file, "--tls-client-ca", &ca]);
    let set = [
        ("KVORUM_CA_FILE", ca.as_str()),
        ("KVORUM_CLIENT_CERT", &cert),
        ("KVORUM_CLIENT_KEY", &key),
        ("KVORUM_TOKEN", token),
    ];
    restores(&format!("https://{}", node.address), &set);
}
