//! Certificates that `kvorum cert` issues: only a CA that clients accept may issue them, and they
//! may replace only an earlier pair of the same node or client.

use std::fs;

use super::Certs;
use crate::process::{run, wait_until};

/// Runs `kvorum cert` in a directory; returns its exit code and its stderr.
fn cert(certs: &Certs, args: &[&str]) -> (Option<i32>, String) {
    let dir = certs.text("");
    let output = run(&[&["cert"], args, &["--dir", &dir]].concat());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Returns the contents of these files in a directory.
fn contents(certs: &Certs, files: &[&str]) -> Vec<Vec<u8>> {
    files.iter().map(|file| fs::read(certs.path(file)).unwrap()).collect()
}

/// Runs a command that must fail without changing these files; returns its message.
fn run_refused(certs: &Certs, args: &[&str], files: &[&str]) -> String {
    let before = contents(certs, files);
    let (code, said) = cert(certs, args);
    assert_eq!(code, Some(1), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    assert!(contents(certs, files) == before, "{args:?} changed a file");
    assert!(said.ends_with("Nothing was made\n"), "{args:?}: {said}");
    said
}

#[test]
fn the_end_of_a_certificate_is_printed_and_a_ca_that_cuts_it_short() {
    let certs = Certs::new();
    let stdout = |args: &[&str]| {
        let output = run(&[&["cert"], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let dir = certs.text("");
    let shown = stdout(&["client", "--name", "carol", "--dir", &dir]);
    assert!(shown.contains("\nvalid until ") && !shown.contains("when its CA expires"), "{shown}");
    let short = certs.text("short");
    stdout(&["ca", "--expires", "1h", "--dir", &short]);
    let shown = stdout(&["node", "--host", "a.example", "--dir", &short]);
    assert!(shown.contains(", when its CA expires: "), "{shown}");
}

#[test]
fn no_certificate_replaces_a_ca() {
    let certs = Certs::new();
    let (ca, other_end) = (certs.text("ca.pem"), certs.text("ca.crt"));
    let files = ["ca.pem", "ca.key"];
    for args in [
        &["node", "--host", "a.example", "--out", &ca][..],
        &["client", "--out", &ca],
        &["client", "--name", "ca"],
    ] {
        let said = run_refused(&certs, args, &files);
        assert!(said.contains("ca.pem exists, is a CA"), "{said}");
    }
    let said = run_refused(&certs, &["client", "--out", &other_end], &files);
    assert!(said.contains("ca.key exists, is not the key of"), "{said}");
    // The output is the file of another CA, not of the issuing one.
    let other = Certs::new();
    let said = run_refused(&certs, &["client", "--out", &other.text("ca.pem")], &files);
    assert!(said.contains("is a CA"), "{said}");
}

#[test]
fn no_pair_replaces_that_of_another_node_or_client() {
    let certs = Certs::new();
    certs.make(&["client", "--name", "alice"]);
    certs.make(&["client", "--name", "bob"]);
    certs.make(&["client"]);
    let files = ["alice.pem", "alice.key", "bob.pem", "bob.key", "node.pem", "node.key"];
    let [alice, node, crt, notes] =
        ["alice.pem", "node.pem", "alice.crt", "notes.pem"].map(|file| certs.text(file));
    fs::write(&notes, "my notes").unwrap();
    for (args, why) in [
        (&["client", "--name", "bob", "--out", &alice][..], "is a certificate for \"alice\""),
        (&["client", "--name", "node"], "is a certificate for 127.0.0.1, localhost"),
        (&["client", "--name", "alice", "--out", &crt], "alice.key exists, is not the key of"),
        (&["node", "--host", "a.example", "--out", &alice], "is a certificate for \"alice\""),
        (&["node", "--host", "a.example"], "is a certificate for 127.0.0.1, localhost"),
        (&["node", "--host", "a.example", "--out", &node], "name another --out"),
        (&["client", "--out", &notes], "holds no certificate"),
        (&["client", "--name", "../alice"], "makes no file name"),
    ] {
        let said = run_refused(&certs, args, &files);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert_eq!(fs::read_to_string(&notes).unwrap(), "my notes");
}

#[test]
fn a_pair_is_renewed_with_a_new_key() {
    let certs = Certs::new();
    certs.make(&["client", "--name", "alice"]);
    for (args, files) in [
        (&["client", "--name", "alice"][..], ["alice.pem", "alice.key"]),
        (&["node", "--host", "127.0.0.1,new.example"], ["node.pem", "node.key"]),
        (&["node", "--host", "new.example"], ["node.pem", "node.key"]),
    ] {
        let before = contents(&certs, &files);
        certs.make(args);
        let after = contents(&certs, &files);
        assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{args:?}");
    }
    // The certificate may be replaced even if its key is missing, as after a move of the key to the
    // node.
    fs::remove_file(certs.path("node.key")).unwrap();
    certs.make(&["node", "--host", "new.example"]);
}

#[test]
fn a_ca_that_nobody_accepts_issues_nothing() {
    let certs = Certs::new();
    let out = certs.text("x.pem");
    let issue = ["node", "--host", "a.example", "--out", &out];
    let kept = contents(&certs, &["ca.pem", "ca.key"]);
    let restore = || {
        fs::write(certs.path("ca.pem"), &kept[0]).unwrap();
        fs::write(certs.path("ca.key"), &kept[1]).unwrap();
    };
    // Replaces ca.pem by a certificate that is not a CA, as `--out ca.pem` of an earlier release
    // did.
    fs::copy(certs.path("node.pem"), certs.path("ca.pem")).unwrap();
    fs::copy(certs.path("node.key"), certs.path("ca.key")).unwrap();
    let said = run_refused(&certs, &issue, &["ca.pem"]);
    assert!(said.contains("ca.pem is no CA"), "{said}");
    restore();
    fs::copy(certs.path("node.key"), certs.path("ca.key")).unwrap();
    let said = run_refused(&certs, &issue, &["ca.pem"]);
    assert!(said.contains("does not belong to ca.key"), "{said}");
    restore();
    for file in ["ca.pem", "ca.key"] {
        fs::remove_file(certs.path(file)).unwrap();
    }
    certs.make(&["ca", "--expires", "1s"]);
    wait_until("the CA expires", || {
        let (code, said) = cert(&certs, &["node", "--host", "127.0.0.1"]);
        code == Some(1) && said.contains("ca.pem expired on") && said.contains("kvorum cert ca")
    });
    assert!(!certs.path("x.pem").exists() && !certs.path("x.key").exists());
}

#[test]
fn no_certificate_outlives_its_ca() {
    let certs = Certs::new();
    for file in ["ca.pem", "ca.key", "node.pem", "node.key"] {
        fs::remove_file(certs.path(file)).unwrap();
    }
    certs.make(&["ca", "--expires", "10d"]);
    certs.make(&["node", "--host", "127.0.0.1", "--expires", "20d"]);
    let end = |file: &str| {
        let pem = fs::read(certs.path(file)).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        pem.parse_x509().unwrap().validity().not_after.timestamp()
    };
    assert_eq!(end("node.pem"), end("ca.pem"));
}
