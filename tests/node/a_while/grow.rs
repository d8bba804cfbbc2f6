//! `kvorum dev add` and `kvorum dev remove`: nodes join a running cluster, and leave it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use super::stories::{KEYS, Stops, goes_on, story};
use crate::cluster::key;
use crate::dev::{Dev, pid_of};
use crate::process::{kvorum, run, wait_until};

const FLAGS: [&str; 4] = ["--sync", "never", "--memory", "64MiB"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a subcommand of `kvorum dev` for the running cluster.
fn command(dev: &Dev, args: &[&str]) -> Output {
    let data = dev.data();
    run(&[&["dev"], args, &["--data", data.to_str().unwrap()]].concat())
}

fn does(dev: &Dev, args: &[&str]) -> String {
    let output = command(dev, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that must be refused; returns the reason, which is one line.
fn run_refused(dev: &Dev, args: &[&str]) -> String {
    let output = command(dev, args);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{args:?}: {said}");
    said
}

/// Adds a node; returns its name.
fn add_node(dev: &Dev, args: &[&str]) -> String {
    let said = does(dev, &[&["add"], args].concat());
    assert!(said.contains(" is a member of the cluster: http://"), "{said}");
    said.split(' ').next().unwrap().to_owned()
}

fn layout(dev: &Dev) -> Value {
    serde_json::from_slice(&dev.client(0).get("/admin/layout").body()).unwrap()
}

/// Returns the members' names, as the first node reports them.
fn members(dev: &Dev) -> Vec<String> {
    let layout = layout(dev);
    let nodes = layout["nodes"].as_array().unwrap().iter();
    nodes.map(|node| node["name"].as_str().unwrap().to_owned()).collect()
}

fn url(dev: &Dev) -> String {
    format!("http://127.0.0.1:{}", dev.port)
}

fn is_whole(dev: &Dev) {
    wait_until("all are up", || run(&["status", "--url", &url(dev)]).status.success());
}

#[test]
fn one_node_becomes_four_and_three_and_starts_again_as_what_it_has_become() {
    let dev = Dev::start(1, &FLAGS);
    for number in 0..50 {
        assert_eq!(dev.client(0).put(&format!("/v0/entity?id=k{number}"), b"v").status, 201);
    }
    let second = add_node(&dev, &[]);
    let third = add_node(&dev, &["--zone", "z", "--weight", "2"]);
    let fourth = add_node(&dev, &[]);
    assert_eq!(members(&dev), ["node-1", &second, &third, &fourth]);
    let layout = layout(&dev);
    assert_eq!(
        (&layout["nodes"][2]["zone"], &layout["nodes"][2]["weight"]),
        (&"z".into(), &2.into())
    );
    for number in 0..50 {
        let got = dev.client(0).get(&format!("/v0/entity?id=k{number}&ack=3&from=3"));
        assert_eq!((got.status, got.body()), (200, b"v".to_vec()), "it has its three copies");
    }
    let process = pid_of(&dev, &second);
    let said = does(&dev, &["remove", &second]);
    let data = dev.data().join(&second);
    assert!(said.ends_with(&format!("may be deleted: rm -r {}\n", data.display())), "{said}");
    assert!(data.join("STORE").exists() && test_kill_process(process).is_err());
    let few = run_refused(&dev, &["remove", &third]);
    assert!(few.contains("2 nodes would be left, fewer than replicas 3"), "{few}");
    let gone = run_refused(&dev, &["remove", &second]);
    assert!(gone.contains(&format!("those that run are node-1, {third}, {fourth}")), "{gone}");

    // A restart starts the existing nodes, whatever number of nodes its flag gives, and the cluster
    // can be changed further.
    let dev = dev.again(1, &FLAGS);
    assert_eq!(members(&dev), ["node-1", &third, &fourth]);
    is_whole(&dev);
    does(&dev, &["remove", &fourth, "--replicas", "2"]);
    assert_eq!(members(&dev), ["node-1", &third]);
    let fifth = add_node(&dev, &[]);
    assert_ne!(fifth, fourth, "that directory is still there");
    assert_eq!(members(&dev).len(), 3);
    for number in 0..50 {
        assert_eq!(dev.client(0).get(&format!("/v0/entity?id=k{number}")).status, 200);
    }
}

/// Runs the commands of `docs/guide/tour.md` that add and remove nodes, exactly as printed there,
/// while a client sends requests.
#[test]
fn the_tour_adds_and_removes_nodes() {
    let dev = Dev::start(1, &FLAGS);
    for number in 0..KEYS {
        assert_eq!(dev.client(0).put(&key(number), b"value").status, 201);
    }
    let (stop, mut most) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let client = dev.client(0);
        scope.spawn(|| goes_on(client, &stop));
        let _stops = Stops(&stop);
        for line in story("tour") {
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            match &words[..] {
                ["dev", rest @ ..] => drop(does(&dev, rest)),
                other => {
                    let told = run(&[other, &["--url", &url(&dev)]].concat());
                    assert!(told.status.success(), "{line}: {}", text(&told.stderr));
                }
            }
            most = most.max(members(&dev).len());
        }
    });
    assert_eq!((most, members(&dev)), (4, vec!["node-1".to_owned()]));
    for number in 0..KEYS {
        assert_eq!(dev.client(0).get(&key(number)).body(), b"value");
    }
}

#[test]
fn what_cannot_be_done_is_one_clear_line_and_changes_nothing() {
    let dev = Dev::start(2, &FLAGS);
    is_whole(&dev);
    let socket = dev.data().join("dev.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let unknown = run_refused(&dev, &["remove", "node-9"]);
    assert!(unknown.contains("there is no node node-9: those that run are node-1, node-2"));
    let data = dev.data();
    let port = dev.port.to_string();
    let twice = run(&["dev", "--port", &port, "--data", data.to_str().unwrap()]);
    let twice = text(&twice.stderr);
    assert!(twice.contains("another kvorum dev runs with the data directory"), "{twice}");

    let second = pid_of(&dev, "node-2");
    kill_process(second, Signal::STOP).unwrap();
    wait_until("it is missed", || !run(&["status", "--url", &url(&dev)]).status.success());
    for args in [&["add"][..], &["remove", "node-2"]] {
        let down = run_refused(&dev, args);
        assert!(down.contains("node-2 can't be reached, and the change would wait"), "{down}");
    }
    kill_process(second, Signal::CONT).unwrap();
    is_whole(&dev);
    // A node whose command was interrupted waits for its place. The next command stops the node, or
    // adds it.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"{\"Add\":{\"zone\":\"z\",\"weight\":null}}\n").unwrap();
    wait_until("it asks", || layout(&dev)["joining"].is_array());
    let other = run_refused(&dev, &["add", "--zone", "x"]);
    assert!(other.contains("asks for a place already, with another zone or weight"), "{other}");
    let waits = layout(&dev)["joining"][0]["name"].as_str().unwrap().to_owned();
    let said = does(&dev, &["remove", &waits]);
    assert!(said.contains("is stopped. Its directory"), "{said}");
    assert_eq!(layout(&dev)["epoch"], 1);
    does(&dev, &["remove", "node-2", "--replicas", "1"]);
    let last = run_refused(&dev, &["remove", "node-1"]);
    assert!(last.contains("node-1 is the last node"), "{last}");

    let data = dev.stop();
    let nobody = run(&["dev", "add", "--data", data.path().join("dev").to_str().unwrap()]);
    let said = text(&nobody.stderr);
    assert!(said.contains("no kvorum dev is running with the data directory"), "{said}");
    assert!(!data.path().join("dev/dev.sock").exists());
}

fn begin(dev: &Dev, args: &[&str]) -> Child {
    let mut command = kvorum();
    command.arg("dev").args(args).arg("--data").arg(dev.data()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Interrupts a command as by ctrl-C; returns its stderr.
fn interrupt(child: Child) -> String {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    text(&output.stderr)
}

#[test]
fn an_interrupted_command_reports_the_change_and_kvorum_dev_completes_it() {
    let mut dev = Dev::start(3, &FLAGS);
    is_whole(&dev);
    let added = add_node(&dev, &[]);
    // A suspended `kvorum dev` answers no command.
    dev.signal(Signal::STOP);
    let adding = begin(&dev, &["add"]);
    let stat = format!("/proc/{}/task", adding.id());
    wait_until("it is at work", || std::fs::read_dir(&stat).is_ok_and(|tasks| tasks.count() > 1));
    let said = interrupt(adding);
    assert!(said.contains("interrupted: nothing was changed"), "{said}");
    dev.signal(Signal::CONT);
    assert_eq!(members(&dev).len(), 4);

    let removing = begin(&dev, &["remove", &added]);
    wait_until("keys move", || layout(&dev)["stage"] != "settled");
    let said = interrupt(removing);
    assert!(said.contains("interrupted: the change goes on without this command"), "{said}");
    assert!(dev.until(&format!("{added} = stopped: the cluster has removed it")).is_some());
    assert_eq!(members(&dev), ["node-1", "node-2", "node-3"]);
    assert!(run_refused(&dev, &["remove", &added]).contains("there is no node"));
    let dev = dev.again(3, &FLAGS);
    is_whole(&dev);
    assert_eq!(members(&dev).len(), 3);
}
