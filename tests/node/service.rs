//! A node as a systemd service: its messages to `NOTIFY_SOCKET`. The test provides the socket in
//! place of systemd.

use std::fs;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Node, TIMEOUT, kvorum, run, wait_until};

/// The notification socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    at: TempDir,
}

impl Manager {
    fn new() -> Self {
        let at = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(at.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, at }
    }

    /// Returns a command that sends its notifications to this manager.
    fn command(&self) -> Command {
        let mut command = kvorum();
        command.env("NOTIFY_SOCKET", self.at.path().join("notify"));
        command
    }

    fn start(&self, command: Command, args: &[&str]) -> Node {
        Node::start_with(command, tempfile::tempdir().unwrap(), args)
    }

    fn receive_message(&self) -> std::io::Result<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes)?;
        Ok(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    /// Returns the next message that is not a message of the watchdog.
    fn next(&self) -> String {
        loop {
            let told = self.receive_message().expect("a message");
            if !told.contains("WATCHDOG=1") {
                return told;
            }
        }
    }
}

fn has(message: &str, line: &str) -> bool {
    message.lines().any(|told| told == line)
}

#[test]
fn a_node_reports_when_it_serves_and_when_it_stops() {
    let manager = Manager::new();
    let node = manager.start(manager.command(), &[]);
    let told = manager.next();
    assert!(has(&told, "READY=1") && has(&told, "STATUS=serves"), "{told}");
    assert_eq!(node.client().put("/v0/entity?id=a", b"v").status, 201);
    node.signal(Signal::TERM);
    let told = manager.next();
    assert!(has(&told, "STOPPING=1"), "{told}");
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_node_that_does_not_serve_is_not_ready() {
    let manager = Manager::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = manager.command();
    let data = manager.at.path().join("data");
    command.args(["serve", "--listen", &address, "--data"]).arg(data);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    manager.socket.set_nonblocking(true).unwrap();
    assert!(manager.receive_message().is_err(), "a node that could not start told something");
}

/// A node that waits for an operator must report that it is ready; otherwise systemd would kill it.
#[test]
fn a_node_that_asks_for_a_place_is_ready_to_be_asked() {
    let manager = Manager::new();
    let mut command = manager.command();
    command.env("WATCHDOG_USEC", "1000000");
    let data = manager.at.path().join("data");
    command.args(["serve", "--listen", "127.0.0.1:0", "--join", "http://127.0.0.1:9", "--data"]);
    let node = command.arg(data).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut node = Killed(node.unwrap());
    let told = manager.next();
    let status = "STATUS=waits for a place in the cluster of http://127.0.0.1:9";
    assert!(has(&told, "READY=1") && has(&told, status), "{told}");
    for _ in 0..3 {
        assert!(has(&manager.receive_message().unwrap(), "WATCHDOG=1"), "it is not stuck");
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&node.0), Signal::TERM).unwrap();
    assert_eq!(node.0.wait().unwrap().code(), Some(0));
}

/// sd_notify(3): a name that begins with `@` is the name of an abstract socket.
#[test]
fn a_manager_may_listen_at_an_abstract_socket() {
    let at = tempfile::tempdir().unwrap();
    let name = format!("kvorum-test{}", at.path().display());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let manager = Manager { socket, at };
    let mut command = kvorum();
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let node = manager.start(command, &[]);
    let told = manager.receive_message().unwrap();
    assert!(has(&told, "READY=1") && has(&told, "STATUS=serves"), "{told}");
    drop(node);
}

#[test]
fn a_node_runs_on_without_its_service_manager() {
    let mut command = kvorum();
    command.env("NOTIFY_SOCKET", "/nowhere/notify");
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &[]);
    assert_eq!(node.client().put("/v0/entity?id=a", b"v").status, 201);
    let log = node.stop_for_its_log();
    assert!(log.contains("$NOTIFY_SOCKET cannot be told"), "{log}");
}

/// `systemctl reload` makes a node reload the admin token's file and the certificates.
#[test]
fn a_reload_ends_with_what_the_files_say() {
    let manager = Manager::new();
    let token = manager.at.path().join("admin");
    fs::write(&token, "the first admin token").unwrap();
    let file = token.to_str().unwrap();
    let node = manager.start(manager.command(), &["--require-auth", "--admin-token-file", file]);
    assert!(has(&manager.next(), "READY=1"));
    let url = format!("http://{}", node.address);
    let reload = |content: &str| {
        fs::write(&token, content).unwrap();
        node.signal(Signal::HUP);
        let told = manager.next();
        assert!(has(&told, "RELOADING=1") && told.contains("MONOTONIC_USEC="), "{told}");
        let told = manager.next();
        assert!(has(&told, "READY=1"), "{told}");
    };
    let accepts = |content: &str| {
        let own = manager.at.path().join("own");
        fs::write(&own, content).unwrap();
        let own = own.to_str().unwrap();
        run(&["token", "list", "--url", &url, "--token-file", own]).status.success()
    };
    assert!(accepts("the first admin token"));
    reload("the second admin token");
    assert!(accepts("the second admin token") && !accepts("the first admin token"));
    // An invalid token is reported, and the previous token stays in use.
    reload("short");
    assert!(accepts("the second admin token"));
    let log = node.stop_for_its_log();
    assert!(log.contains("admin token reloaded"), "{log}");
    assert!(log.contains("admin token not reloaded, what was in use stays in use"), "{log}");
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the directory name in `/proc/PID/task` of the thread with this name; `None` if no thread
/// has it.
fn thread(node: &Node, name: &str) -> Option<String> {
    let tasks = fs::read_dir(node.proc("task")).unwrap().flatten();
    let mut named = tasks.filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    named.next().map(|task| task.file_name().into_string().unwrap())
}

/// strace delays one of two event loops while it waits for events; the other event loop continues.
#[test]
fn the_watchdog_is_told_nothing_while_a_loop_is_stuck() {
    const PERIOD: Duration = Duration::from_secs(4);
    if Command::new("strace").arg("-V").output().is_err() {
        return;
    }
    let manager = Manager::new();
    let mut command = manager.command();
    command.env("WATCHDOG_USEC", PERIOD.as_micros().to_string());
    let node = manager.start(command, &["--loops", "2"]);
    let is_alive = || manager.receive_message().is_ok_and(|told| has(&told, "WATCHDOG=1"));
    wait_until("a message of the watchdog", is_alive);
    assert!(is_alive(), "it goes on");
    let stuck = thread(&node, "loop-1").unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-p", &stuck, "-e", "trace=epoll_wait"]);
    strace
        .args(["-e", "inject=epoll_wait:delay_exit=600s", "-o"])
        .arg(manager.at.path().join("log"));
    let strace = Killed(strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    // systemd kills a service after a whole period without a message.
    manager.socket.set_read_timeout(Some(PERIOD)).unwrap();
    wait_until("silence", || manager.receive_message().is_err());
    assert!(TcpStream::connect(node.address).is_ok(), "the rest of the node lives");
    drop(strace);
    manager.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert!(is_alive(), "a loop that turns again is no reason to be killed");
    drop(node);
}
