//! Exit codes and messages of commands whose output has no reader, and of commands whose URL does
//! not lead to a kvorum node.

use std::io;
use std::process::{Output, Stdio};

use crate::people::{run_against_answer, run_at, run_redirected, run_silently, stderr_text, url};
use crate::process::{Node, kvorum};

/// The command shows the token's text only once, so it needs an open stdout.
#[test]
fn with_a_closed_stdout_no_token_is_created() {
    let node = Node::start(&[]);
    let (code, said) = run_redirected(&node, "token create --name lost", ">&-");
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("stdout: it is closed") && said.contains("No token was created"),
        "{said}"
    );
    assert_eq!(run_silently(&node, &["token", "list"]), b"there are no tokens\n");
    assert_eq!(run_redirected(&node, "token create --name thrown-away", ">/dev/null").0, Some(0));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure_of_a_read() {
    let node = Node::start(&[]);
    run_silently(&node, &["put", "k", "hello"]);
    run_silently(&node, &["token", "create", "--name", "t"]);
    let ended = |args: &[&str]| {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = kvorum();
        command.args(args).env("KVORUM_URL", url(&node)).stdin(Stdio::null()).stdout(writer);
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        (output.status.code(), stderr_text(&output))
    };
    let data = node.data.path().join("checked");
    for args in [
        &["get", "k"][..],
        &["scan"],
        &["status"],
        &["status", "--json"],
        &["status", "--watch"],
        &["cluster", "status"],
        &["token", "list"],
        &["quota", "list"],
        &["serve", "--check", "--data", data.to_str().unwrap()],
    ] {
        assert_eq!(ended(args), (Some(0), String::new()), "{args:?}");
    }
    let (code, said) = ended(&["token", "revoke", "t"]);
    assert!(code == Some(2) && said.contains("the token was revoked"), "{said}");
}

#[test]
fn with_json_a_read_without_a_response_of_kvorum_fails_as_json() {
    let object =
        |output: &Output| serde_json::from_str::<serde_json::Value>(&stderr_text(output)).unwrap();
    let commands = [&["get", "k", "--json"][..], &["scan", "--json"], &["status", "--json"]];
    let commands = commands.into_iter().chain([&["token", "list", "--json"][..]]);
    for args in commands {
        let (_, silent) = run_against_answer("", args);
        let (_, foreign) =
            run_against_answer("HTTP/1.1 404 N\r\nContent-Length: 2\r\n\r\nno", args);
        let nobody = run_at("http://127.0.0.1:1", args, b"");
        for (output, kind) in
            [(&silent, "no-response"), (&foreign, "unexpected-response"), (&nobody, "no-response")]
        {
            assert_eq!(output.status.code(), Some(2), "{args:?} {kind}");
            let object = object(output);
            assert_eq!(object["type"], kind, "{args:?}: {object}");
            assert!(object["detail"].is_string() && object["outcome"].is_null(), "{object}");
            assert_eq!(object["status"] == 404, kind == "unexpected-response", "{object}");
        }
    }
}
