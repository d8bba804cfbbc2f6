//! `kvorum dev`: its processes start, are killed, are restarted, and stop.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use kit::ports;
use kit::raw::Client;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

use crate::process::{DEADLINE, kvorum, run, wait_until};
use crate::stderr;
use crate::tls::Certs;

/// Maximum number of nodes in these tests, all of which need a free port.
const MAX_NODES: u16 = 8;

/// A running `kvorum dev`, stopped with its nodes when dropped.
pub(crate) struct Dev {
    child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) port: u16,
    data: TempDir,
}

impl Dev {
    pub(crate) fn start(nodes: u16, flags: &[&str]) -> Self {
        loop {
            let data = tempfile::tempdir().unwrap();
            // Another process may have taken a port meanwhile.
            if let Some(dev) = Self::begin(data, nodes, ports::free(MAX_NODES), flags) {
                return dev;
            }
        }
    }

    /// Stops `kvorum dev`, and restarts it with its data.
    pub(crate) fn again(self, nodes: u16, flags: &[&str]) -> Self {
        let port = self.port;
        Self::begin(self.stop(), nodes, port, flags).unwrap()
    }

    fn begin(data: TempDir, nodes: u16, port: u16, flags: &[&str]) -> Option<Self> {
        let mut dev =
            Self::spawn(data, nodes, port, &[&["--", "--deadline", DEADLINE], flags].concat());
        dev.until("Ctrl-C stops all").map(|_| dev)
    }

    fn spawn(data: TempDir, nodes: u16, port: u16, flags: &[&str]) -> Self {
        Self::spawn_by(kvorum(), data, nodes, port, flags)
    }

    fn spawn_by(
        mut command: Command,
        data: TempDir,
        nodes: u16,
        port: u16,
        flags: &[&str],
    ) -> Self {
        command.args(["dev", "--nodes", &nodes.to_string(), "--port", &port.to_string()]);
        // Users type the printed commands in another directory than that of `kvorum dev`.
        command.current_dir(data.path()).args(["--data", "dev"]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out, port, data }
    }

    /// Stops `kvorum dev` with its nodes; returns its data.
    pub(crate) fn stop(self) -> TempDir {
        self.signal(Signal::TERM);
        self.wait_for_exit()
    }

    /// Waits until the process has exited; returns its data.
    fn wait_for_exit(mut self) -> TempDir {
        wait_until("the end", || self.child.try_wait().unwrap().is_some());
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Stops `kvorum dev` with its nodes; returns the lines that it printed since the last read.
    fn stop_for_its_lines(mut self) -> Vec<String> {
        self.signal(Signal::TERM);
        let lines = (&mut self.out).lines().map(Result::unwrap).collect();
        self.child.wait().unwrap();
        lines
    }

    /// Returns the data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.data.path().join("dev")
    }

    /// Reads lines until one contains `what`; returns that line, or `None` if the output ends
    /// before.
    pub(crate) fn until(&mut self, what: &str) -> Option<String> {
        let mut line = String::new();
        while self.out.read_line(&mut line).unwrap() > 0 {
            if line.contains(what) {
                return Some(line);
            }
            line.clear();
        }
        None
    }

    pub(crate) fn client(&self, number: u16) -> Client {
        Client::connect(SocketAddr::from(([127, 0, 0, 1], self.port + number)))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // SIGTERM stops the nodes too, which SIGKILL would not do. SIGCONT resumes a suspended
        // process. Errors are ignored, because the process may have exited.
        for signal in [Signal::TERM, Signal::CONT] {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
        let _ = self.child.wait();
    }
}

fn pid_in(line: &str) -> Pid {
    let pid = line.split("pid ").nth(1).unwrap().split([',', '\n']).next().unwrap();
    Pid::from_raw(pid.parse().unwrap()).unwrap()
}

#[test]
fn a_killed_node_comes_back_with_its_data_and_ctrl_c_stops_all() {
    let mut dev = Dev::start(1, &["--sync", "never", "--memory", "64MiB"]);
    assert!(dev.data.path().join("dev/node-1/STORE").exists());
    assert_eq!(dev.client(0).put("/v0/entity?id=k", b"v").status, 201);
    let status = dev.client(0).get("/v0/status").body();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["name"], "node-1");
    let pid = pid_of(&dev, "node-1");
    kill_process(pid, Signal::KILL).unwrap();
    let line = dev.until("node-1 = ").unwrap();
    assert!(line.contains("killed") && line.contains("restarting in"), "{line}");
    let line = dev.until("node-1 = ").unwrap();
    assert!(line.contains("up: pid"), "{line}");
    let again = pid_in(&line);
    assert_ne!(again, pid);
    assert_eq!(dev.client(0).get("/v0/entity?id=k").body(), b"v");
    dev.signal(Signal::INT);
    assert!(dev.until("node-1 = stopped").is_some());
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
    assert!(test_kill_process(again).is_err(), "no process is left behind");
}

#[test]
fn a_terminal_that_stands_still_holds_up_neither_the_nodes_nor_the_end() {
    let mut dev = Dev::start(1, &["--sync", "never", "--memory", "64MiB"]);
    let node = SocketAddr::from(([127, 0, 0, 1], dev.port));
    stderr::log_lines(node, stderr::MANY);
    assert_eq!(dev.client(0).put("/v0/entity?id=k", b"v").status, 201);
    dev.signal(Signal::TERM);
    wait_until("the end", || dev.child.try_wait().unwrap().is_some());
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_cluster_heals_after_a_kill() {
    let mut dev = Dev::start(3, &["--sync", "never", "--memory", "64MiB"]);
    let url = |number: u16| format!("http://127.0.0.1:{}", dev.port + number);
    let kvorum = |number: u16, args: &[&str]| run(&[args, &["--url", &url(number)]].concat());
    let value = |number, key| kvorum(number, &["get", key, "--ack", "2", "--from", "3"]).stdout;
    wait_until("a cluster", || kvorum(0, &["put", "before", "1", "--ack", "3"]).status.success());
    assert_eq!(value(2, "before"), b"1");
    let table = kvorum(1, &["status"]);
    assert_eq!(table.status.code(), Some(0), "{}", String::from_utf8_lossy(&table.stdout));
    // Until all nodes are connected to each other, a line below the table reports missing
    // connections.
    wait_until("nothing to be said", || {
        String::from_utf8(kvorum(1, &["status"]).stdout).unwrap().lines().count() == 4
    });
    // A suspended `kvorum dev` restarts no node, however long the next steps take.
    dev.signal(Signal::STOP);
    kill_process(pid_of(&dev, "node-3"), Signal::KILL).unwrap();
    // The first attempt may fail: a write at the moment of the node's death may wait for the node
    // until the deadline.
    wait_until("a write", || kvorum(0, &["put", "while-away", "2", "--ack", "2"]).status.success());
    assert_eq!(value(1, "while-away"), b"2");
    assert_eq!(kvorum(1, &["status"]).status.code(), Some(1), "one is down");
    let again = kvorum(1, &["get", "before", "--ack", "3"]);
    assert_eq!(again.status.code(), Some(2), "three can't answer");
    dev.signal(Signal::CONT);
    wait_until("healing", || {
        let held = kvorum(2, &["scan", "--local"]).stdout;
        held == b"before\t1\nwhile-away\t2\n"
    });
    wait_until("a whole cluster", || kvorum(0, &["status"]).status.success());
    assert!(dev.until("node-3 = down").is_some() && dev.until("node-3 = up").is_some());
}

/// Waits for the process that serves a node's directory; returns its ID.
pub(crate) fn pid_of(dev: &Dev, name: &str) -> Pid {
    let (at, data) = (dev.data.path(), Path::new("dev").join(name));
    let mut found = None;
    wait_until("the node's process", || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        found = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = command.split(|byte| *byte == 0);
            let works_at = std::fs::read_link(format!("/proc/{pid}/cwd"));
            words.any(|word| word == data.as_os_str().as_encoded_bytes())
                && works_at.is_ok_and(|works_at| works_at == at)
        });
        found.is_some()
    });
    Pid::from_raw(found.unwrap()).unwrap()
}

#[test]
fn a_taken_port_and_wrong_flags_are_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    for (args, named) in [
        (&["dev", "--port", &port, "--data", data][..], port.as_str()),
        (&["dev", "--port", &port, "--data", data, "--", "--nonsense"], "--nonsense"),
        (&["dev", "--port", &port, "--data", data, "--", "--listen", "[::1]:1"], "--listen"),
    ] {
        let output = run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(named), "{said}");
    }
    assert_eq!(run(&["dev", "--nodes", "0"]).status.code(), Some(2));
}

#[test]
fn a_node_that_ends_at_its_start_stops_the_rest() {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(data.path().join("dev")).unwrap();
    std::fs::write(data.path().join("dev/node-1"), "no directory").unwrap();
    let port = ports::free(1).to_string();
    let data = data.path().join("dev");
    let output = run(&["dev", "--nodes", "1", "--port", &port, "--data", data.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("node-1 failed to start"), "{said}");
    let log = String::from_utf8(output.stdout).unwrap();
    assert!(log.contains("node-1 | kvorum: data directory"), "{log}");
}

/// A second `kvorum dev` with the same ports or the same directory must neither touch the nodes nor
/// the data of the first.
#[test]
fn a_second_kvorum_dev_on_the_ports_or_the_data_of_the_first_one_is_refused() {
    let dev = Dev::start(2, &["--sync", "never", "--memory", "64MiB"]);
    assert_eq!(dev.client(0).put("/v0/entity?id=k", b"of the first one").status, 201);
    let data = tempfile::tempdir().unwrap();
    let (fresh, own) = (data.path().join("dev"), dev.data());
    let (same, next) = (dev.port, dev.port + 1);
    for (port, data, said) in [
        (same, &fresh, format!("cannot listen on 127.0.0.1:{same}")),
        (next, &fresh, format!("cannot listen on 127.0.0.1:{next}")),
        (ports::free(2), &own, "another kvorum dev runs with the data directory".to_owned()),
    ] {
        let (port, data) = (port.to_string(), data.to_str().unwrap());
        let output = run(&["dev", "--nodes", "2", "--port", &port, "--data", data]);
        let why = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(why.contains(&said) && why.contains("choose another --"), "{why}");
    }
    for node in 0..2 {
        assert_eq!(dev.client(node).get("/v0/entity?id=k").body(), b"of the first one");
    }
}

/// Nodes whose `kvorum dev` was killed; the drop kills them.
struct Left([Pid; 2]);

impl Drop for Left {
    fn drop(&mut self) {
        for pid in self.0 {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn nodes_that_a_killed_kvorum_dev_left_are_named_with_how_to_stop_them() {
    let dev = Dev::start(2, &["--sync", "never", "--memory", "64MiB"]);
    assert_eq!(dev.client(0).put("/v0/entity?id=k", b"kept").status, 201);
    let pids = ["node-1", "node-2"].map(|name| pid_of(&dev, name));
    let (port, left) = (dev.port, Left(pids));
    dev.signal(Signal::KILL);
    let data = dev.wait_for_exit();
    let own = data.path().join("dev");
    let refused = |port: u16, data: &Path| {
        let (port, data) = (port.to_string(), data.to_str().unwrap());
        let output = run(&["dev", "--nodes", "2", "--port", &port, "--data", data]);
        let why = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), why.lines().count()), (Some(1), 1), "{why}");
        why
    };
    let [first, second] = pids.map(|pid| pid.as_raw_nonzero());
    for port in [port, ports::free(2)] {
        let why = refused(port, &own);
        let named = format!("node-1 (pid {first}), node-2 (pid {second})");
        assert!(why.contains("nodes of an earlier kvorum dev still run"), "{why}");
        assert!(why.contains(&named) && why.contains(own.to_str().unwrap()), "{why}");
        assert!(why.contains(&format!("(kill {first} {second})")), "{why}");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let why = refused(port, &elsewhere.path().join("dev"));
    assert!(why.contains("another --port") && why.contains("go on if it is killed"), "{why}");
    pids.iter().for_each(|pid| kill_process(*pid, Signal::TERM).unwrap());
    // The nodes' new parent process may leave them as zombies until it reads their exit codes.
    let command = |pid: &Pid| std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    let has_ended = |pid: &Pid| command(pid).unwrap_or_default().is_empty();
    wait_until("their end", || pids.iter().all(has_ended));
    std::mem::forget(left);
    let again = Dev::begin(data, 2, port, &["--sync", "never", "--memory", "64MiB"]).unwrap();
    wait_until("its being read", || {
        again.client(1).get("/v0/entity?id=k").body() == b"kept".as_slice()
    });
}

/// Returns the commands that `kvorum dev` prints, after it has printed all of them; `None` if its
/// output ends before.
fn read_commands(dev: &mut Dev) -> Option<Vec<String>> {
    let mut commands = Vec::new();
    dev.until("Try in another terminal")?;
    loop {
        let mut line = String::new();
        if dev.out.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if line.contains("Ctrl-C stops all") {
            return Some(commands);
        }
        commands.extend(line.strip_prefix("  ").map(|command| command.trim_end().to_owned()));
    }
}

/// The test runs exactly the printed commands, in their order and from another directory.
#[test]
fn what_is_printed_can_be_typed() {
    if !Command::new("curl").arg("--version").output().is_ok_and(|curl| curl.status.success()) {
        eprintln!("skipped: curl is needed");
        return;
    }
    let more: [(&[&str], &[&str]); 3] =
        [(&[], &[]), (&["--tls"], &[]), (&["--tls"], &["--require-auth"])];
    for (first, last) in more {
        let flags = [first, &["--", "--sync", "never", "--memory", "64MiB"], last].concat();
        let (mut dev, commands) = loop {
            let data = tempfile::Builder::new().prefix("with space").tempdir().unwrap();
            let mut dev = Dev::spawn(data, 3, ports::free(MAX_NODES), &flags);
            // Another process may have taken a port meanwhile.
            if let Some(commands) = read_commands(&mut dev) {
                break (dev, commands);
            }
        };
        assert_eq!(commands.len(), 8, "{commands:?}");
        let elsewhere = tempfile::tempdir().unwrap();
        for command in &commands {
            // Without `--watch` the command ends by itself.
            let once = command.replace(" --watch", "");
            let mut outcome = (false, String::new());
            wait_until(&once, || {
                let mut shell = Command::new("sh");
                shell.args(["-c", &once]).current_dir(elsewhere.path()).stdin(Stdio::null());
                shell.env_remove("KVORUM_URL").env_remove("KVORUM_CA_FILE");
                shell.env_remove("KVORUM_TOKEN").env_remove("KVORUM_ADMIN_TOKEN");
                let output = shell.output().unwrap();
                let said = [&output.stdout[..], &output.stderr[..]].concat();
                outcome = (output.status.success(), String::from_utf8(said).unwrap());
                // Three nodes that have just started may not be connected yet, so the command is
                // retried.
                outcome.0 && !outcome.1.contains("HTTP/1.1 50") && !outcome.1.contains("HTTP/2 50")
            });
            let said = outcome.1;
            match &command[..4] {
                "curl" if command.contains("PUT") => assert!(said.contains(" 201"), "{said}"),
                "curl" => assert!(said.contains(" 200") && said.contains("hello"), "{said}"),
                "kill" => assert!(dev.until(" = down: killed").is_some()),
                _ => {}
            }
        }
        let log = dev.stop_for_its_lines();
        assert!(log.iter().any(|line| line.contains("node-4 = up")), "{log:?}");
    }
}

/// The environment is that of an operator who also runs a node of a production cluster.
#[test]
fn variables_of_a_node_are_not_for_those_of_kvorum_dev() {
    let certs = Certs::new();
    let (cert, key) = (certs.text("node.pem"), certs.text("node.key"));
    let set = [
        ("KVORUM_CONFIG", "/nowhere/kvorum.toml"),
        ("KVORUM_CLUSTER", "http://127.0.0.1:1"),
        ("KVORUM_JOIN", "http://127.0.0.1:1"),
        ("KVORUM_NAME", "a"),
        ("KVORUM_ZONE", "z"),
        ("KVORUM_WEIGHT", "7"),
        ("KVORUM_LISTEN", "127.0.0.1:1"),
        ("KVORUM_ADVERTISE", "https://a.example"),
        ("KVORUM_DATA", "/nowhere"),
        ("KVORUM_TLS_CERT", &cert),
        ("KVORUM_TLS_KEY", &key),
        ("KVORUM_TLS_CLIENT_CA", &cert),
    ];
    let flags = ["--", "--sync", "never", "--memory", "64MiB"];
    let (dev, note) = loop {
        let mut command = kvorum();
        command.envs(set);
        let data = tempfile::tempdir().unwrap();
        let mut dev = Dev::spawn_by(command, data, 2, ports::free(MAX_NODES), &flags);
        // Another process may have taken a port meanwhile.
        let note = dev.until("ignored environment variable(s): ");
        if let Some(note) = note.filter(|_| dev.until("Ctrl-C stops all").is_some()) {
            break (dev, note);
        }
    };
    for (variable, _) in set {
        assert!(note.contains(variable), "{note}");
    }
    let url = format!("http://127.0.0.1:{}", dev.port);
    wait_until("a write", || run(&["put", "k", "v", "--url", &url]).status.success());
    let output = run(&["dev", "--data", "/nowhere", "--", "--tls-cert", &cert, "--tls-key", &key]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("kvorum dev --tls"), "{said}");
}

/// The path in the address of a Unix socket is limited to 107 bytes.
#[test]
fn a_long_path_of_the_data_directory_does_no_harm() {
    let flags = ["--", "--sync", "never", "--memory", "64MiB"];
    let (mut dev, commands) = loop {
        let name = "y".repeat(150);
        let data = tempfile::Builder::new().prefix(&name).tempdir().unwrap();
        let mut dev = Dev::spawn(data, 1, ports::free(MAX_NODES), &flags);
        // Another process may have taken a port meanwhile.
        if let Some(commands) = read_commands(&mut dev) {
            break (dev, commands);
        }
    };
    let data = dev.data();
    let port = ports::free(1).to_string();
    let second = run(&["dev", "--port", &port, "--data", data.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("another kvorum dev runs"));
    let add = commands.iter().find(|command| command.contains(" dev add ")).unwrap();
    let output = Command::new("sh").args(["-c", add]).env_remove("KVORUM_TOKEN").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dev.until("node-2 = up").is_some());
    let data = dev.stop();
    assert!(!data.path().join("dev/dev.sock").exists(), "it is removed at the end");
}

/// The planned removal of a node is not an error for any node.
#[test]
fn a_node_that_is_removed_logs_no_error() {
    let dev = Dev::start(3, &["--sync", "never", "--memory", "64MiB", "--log-format", "json"]);
    let data = dev.data();
    let url = format!("http://127.0.0.1:{}", dev.port);
    wait_until("a cluster", || run(&["status", "--url", &url]).status.success());
    let data = data.to_str().unwrap();
    let remove = ["dev", "remove", "node-2", "--replicas", "2", "--data", data];
    let output = run(&remove);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let status = String::from_utf8(run(&["status", "--url", &url]).stdout).unwrap();
    assert!(status.contains("node-1") && !status.contains("node-2"), "{status}");
    let lines = dev.stop_for_its_lines();
    for line in &lines {
        assert!(!line.contains("\"level\":\"ERROR\""), "{line}");
    }
}
