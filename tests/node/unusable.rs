//! A data directory that can't be read, and limits of the process: the node's messages, which must
//! not advise a start without the data.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, geteuid, getrlimit, prlimit};
use tempfile::TempDir;

use crate::cluster::{Cluster, key};
use crate::process::{Node, TIMEOUT, kvorum, run, wait_until};

/// User and group ID of `nobody`, the owner of the files of tests that run as root.
const NOBODY: u32 = 65_534;

/// Flags of three kinds of nodes: a single node, one of several nodes, and a joining node.
const WAYS: [&[&str]; 3] = [
    &[],
    &[
        "--cluster",
        "a=http://127.0.0.1:1,b=http://127.0.0.1:2",
        "--advertise",
        "http://127.0.0.1:1",
    ],
    &["--join", "http://127.0.0.1:1", "--name", "c"],
];

/// Runs `kvorum serve`, which must refuse to start; returns its output. If it starts, it is killed,
/// and its exit status fails the test.
pub(crate) fn serve(mut command: Command, data: &Path, way: &[&str]) -> Output {
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(way);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    wait_until("the end of a start", || {
        let ended = child.try_wait().unwrap().is_some();
        if begun.elapsed() > TIMEOUT / 2 && !ended {
            child.kill().unwrap();
        }
        ended
    });
    child.wait_with_output().unwrap()
}

/// Asserts that the last line of a refused start reports an error of the system, and advises
/// nothing that would lose data. Returns that line.
fn says(output: &Output, parts: &[&str]) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let last = said.lines().last().unwrap_or_default().to_owned();
    // `kvorum serve` exits with 1. Commands that query a cluster exit with 2, because 1 is their
    // negative answer.
    assert!(matches!(output.status.code(), Some(1 | 2)), "{said}");
    for part in parts.iter().chain(&["Nothing was deleted"]) {
        assert!(last.contains(part), "{part}: {said}");
    }
    for wrong in ["older copy", "empty", "backup", "rebuilt", "moved", "no node's data"] {
        assert!(!last.contains(wrong), "{wrong}: {said}");
    }
    last
}

/// Returns a command that runs kvorum as a user other than root; `None` if that is not possible.
fn nobody() -> Option<Command> {
    if !geteuid().is_root() {
        return Some(kvorum());
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(env!("CARGO_BIN_EXE_kvorum"));
    let tried = Command::new("setpriv").args(["--reuid=65534", "true"]).output();
    tried.is_ok_and(|output| output.status.success()).then_some(command)
}

/// Makes `nobody` the owner of a directory and its files, if the test runs as root.
fn give_away(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        for entry in fs::read_dir(path).unwrap() {
            chown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_path_that_is_no_directory_is_said_to_be_that() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::write(at("file"), "").unwrap();
    symlink(at("b"), at("a")).unwrap();
    symlink(at("a"), at("b")).unwrap();
    symlink(at("not mounted"), at("link")).unwrap();
    let long = "x".repeat(300);
    for way in WAYS {
        for (name, parts) in [
            ("file", ["Not a directory (os error 20)", "is a file where a directory is expected"]),
            ("file/data", ["Not a directory (os error 20)", "is a file where"]),
            ("a", ["Too many levels of symbolic links (os error 40)", "leads back to itself"]),
            ("a/data", ["Too many levels of symbolic links", "leads back to itself"]),
            ("link", ["No such file or directory (os error 2)", "mount what belongs there"]),
            (&long, ["File name too long (os error 36)", "Shorten the path"]),
        ] {
            says(&serve(kvorum(), &at(name), way), &parts);
        }
        assert!(!at("not mounted").exists(), "nothing is made in its place");
    }
    for command in [&["repair-clock"][..], &["cluster", "recover"]] {
        let output = run(&[command, &["--data", at("a").to_str().unwrap()]].concat());
        says(&output, &["Too many levels of symbolic links (os error 40)"]);
    }
}

/// Replaces each file of a directory in turn by a symbolic link to itself, which no user can open.
#[test]
fn a_file_that_can_not_be_read_is_named_and_is_no_damage() {
    let mut cluster = Cluster::start(3, &["--repair-interval", "off"]);
    cluster.wait_until_settled();
    for number in 0..20 {
        let put = cluster.client(0).put(&format!("{}&ack=3&from=3", key(number)), b"v");
        assert_eq!(put.status, 201);
    }
    cluster.stop(1);
    let data = cluster.data(1);
    let names: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    let aside = data.with_file_name("aside");
    // The log is excluded: after a stop its files are empty, and need not be opened.
    let is_read = |path: &&PathBuf| {
        !path.ends_with("LOCK") && path.extension().is_none_or(|ending| ending != "wal")
    };
    for path in names.iter().filter(is_read) {
        fs::rename(path, &aside).unwrap();
        symlink(path, path).unwrap();
        let said = cluster.expect_refused_start(1);
        let last = said.lines().last().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(last.contains(name), "{name}: {said}");
        assert!(last.contains("Too many levels of symbolic links (os error 40)"), "{name}: {said}");
        for wrong in ["copy was", "older copy", "empty", "damaged", "streamed"] {
            assert!(!last.contains(wrong), "{name}: {said}");
        }
        fs::remove_file(path).unwrap();
        fs::rename(&aside, path).unwrap();
    }
    cluster.up(1);
    cluster.wait_until_settled();
    let membership = cluster.status(1)["membership"].clone();
    assert!(membership == "member" || membership == "starting", "{membership}");
    assert_eq!(cluster.local(1).len(), 20);
}

#[test]
fn a_directory_of_another_user_is_said_to_be_that() {
    if nobody().is_none() {
        eprintln!("skipped: setpriv is needed to run a node as another user");
        return;
    }
    let node = Node::start(&[]);
    assert_eq!(node.client().put("/v0/entity?id=k", b"v").status, 201);
    let root = node.stop();
    let data = root.path().join("data");
    mode(root.path(), 0o755);
    give_away(&data);
    for way in WAYS {
        mode(&data, 0);
        let said = says(
            &serve(nobody().unwrap(), &data, way),
            &["(os error 13)", "kvorum runs as user ", "mode 0000", "chown -R"],
        );
        assert!(said.contains(data.to_str().unwrap()), "{said}");
        mode(&data, 0o700);
        mode(root.path(), 0);
        says(&serve(nobody().unwrap(), &data, way), &["(os error 13)", "directories above"]);
        mode(root.path(), 0o755);
    }
    for command in [&["repair-clock"][..], &["cluster", "recover"]] {
        mode(&data, 0);
        let mut as_nobody = nobody().unwrap();
        let output = as_nobody.args(command).arg("--data").arg(&data).output().unwrap();
        says(&output, &["(os error 13)"]);
        mode(&data, 0o700);
    }
    let names: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_read = |path: &&PathBuf| path.extension().is_none_or(|ending| ending != "wal");
    for path in names.iter().filter(is_read) {
        mode(path, 0);
        let name = path.file_name().unwrap().to_str().unwrap();
        says(&serve(nobody().unwrap(), &data, &[]), &[name, "(os error 13)"]);
        mode(path, 0o600);
    }
    let node = Node::start_with(nobody().unwrap(), root, &[]);
    assert_eq!(node.client().get("/v0/entity?id=k").body(), b"v");
}

/// Returns a command that runs `kvorum` with limits that `sh` sets first.
pub(crate) fn kvorum_with_limits(limits: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_kvorum"));
    command
}

/// A limit of 6 MiB on the size of files: the first segment of the log (4 MiB) is within it, the
/// next one (8 MiB) is not. `sh` counts in blocks of 512 bytes.
pub(crate) const FILE_LIMIT: &str = "ulimit -S -f 12288";

#[test]
fn a_write_past_the_limit_of_file_sizes_is_refused_as_on_a_full_disk() {
    let args = ["--memory", "64MiB", "--sync", "never"];
    let data = tempfile::tempdir().unwrap();
    let node = Node::start_with(kvorum_with_limits(FILE_LIMIT), data, &args);
    let mut client = node.client();
    let value = vec![b'v'; 512 << 10];
    let mut written = 0;
    let refused = loop {
        let put = client.put(&format!("/v0/entity?id=k{written}"), &value);
        if put.status != 201 {
            break put;
        }
        written += 1;
        assert!(written < 1000, "nothing is refused");
    };
    let problem = refused.json();
    assert_eq!((refused.status, &problem["type"]), (507, &"no-space".into()), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("limit of file sizes (ulimit -f, LimitFSIZE=)"), "{detail}");
    for number in 0..written {
        assert_eq!(client.get(&format!("/v0/entity?id=k{number}")).status, 200, "reads go on");
    }
    assert_eq!(client.get("/healthz").status, 200);
    let fsize = getrlimit(Resource::Fsize);
    let pid = node.proc("").split('/').nth(2).and_then(|pid| pid.parse().ok());
    let raised = Rlimit { current: fsize.current, maximum: fsize.maximum };
    prlimit(Pid::from_raw(pid.unwrap()), Resource::Fsize, raised).unwrap();
    wait_until("writes resume", || client.put("/v0/entity?id=later", &value).status == 201);
    let node = Node::start_with(kvorum(), node.kill(), &args);
    for number in 0..written {
        assert_eq!(node.client().get(&format!("/v0/entity?id=k{number}")).status, 200);
    }
}

#[test]
fn a_start_under_limits_that_are_too_low_says_which() {
    let root = tempfile::tempdir().unwrap();
    for (name, limits, part) in [
        ("fsize", "ulimit -f 16", "limit of file sizes (ulimit -f"),
        ("nofile", "ulimit -n 16", "the limit of open files is 16, and a node with 16"),
        ("more", "ulimit -n 93", "the limit of open files is 93, and a node with 16"),
    ] {
        let output = serve(kvorum_with_limits(limits), &root.path().join(name), &["--loops", "16"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.lines().last().unwrap().contains(part), "{name}: {said}");
        assert!(!said.contains("uncategorized"), "{said}");
    }
}

/// As in [`a_write_past_the_limit_of_file_sizes_is_refused_as_on_a_full_disk`], but the limit is
/// lowered below the end of the log's contents, so that a write is interrupted in the middle.
#[test]
fn lowering_the_limit_of_file_sizes_fails_writes_with_the_remedy_and_loses_nothing() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let value = vec![b'v'; 20_000];
    for number in 0..20 {
        assert_eq!(client.put(&format!("/v0/entity?id=k{number}"), &value).status, 201);
    }
    let pid = node.proc("").split('/').nth(2).and_then(|pid| pid.parse().ok());
    let lowered = Rlimit { current: Some(300_000), maximum: getrlimit(Resource::Fsize).maximum };
    prlimit(Pid::from_raw(pid.unwrap()), Resource::Fsize, lowered).unwrap();
    let refused = client.put("/v0/entity?id=late", &value);
    let problem = refused.json();
    assert_eq!((refused.status, &problem["type"]), (500, &"storage-failed".into()), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    let limit = "limit of file sizes (ulimit -f, LimitFSIZE=): raise the limit; restart it";
    assert!(detail.contains("File too large") && detail.contains(limit), "{detail}");
    let ready = String::from_utf8(client.get("/readyz").body()).unwrap();
    assert!(ready.contains(limit), "{ready}");
    let has_all = |client: &mut kit::raw::Client| {
        for number in 0..20 {
            let got = client.get(&format!("/v0/entity?id=k{number}"));
            assert!(got.status == 200 && got.body() == value, "k{number}: {}", got.status);
        }
    };
    has_all(&mut client);
    let node = Node::start_with(kvorum(), node.kill(), &[]);
    has_all(&mut node.client());
    assert_eq!(node.client().put("/v0/entity?id=late", &value).status, 201);
}

/// The directory is on a disk that is full from the beginning.
#[test]
fn a_start_on_a_full_disk_is_refused_by_one_message() {
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().to_str().unwrap();
    let mounts = format!("mount -t tmpfs -o size=64k tmpfs '{path}' && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: only root can mount a disk");
        return;
    }
    command.args(["--mount", "sh", "-c", &mounts, env!("CARGO_BIN_EXE_kvorum")]);
    let last = says(
        &serve(command, &disk.path().join("data"), &[]),
        &[": no space left on disk for the log. The node did not start", "Free some space (df"],
    );
    assert!(!last.contains("automatically"), "{last}");
}

fn modes(data: &Path) -> Vec<(String, u32)> {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut all = vec![(".".to_owned(), mode(data))];
    for entry in fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        all.push((path.file_name().unwrap().to_string_lossy().into_owned(), mode(&path)));
    }
    all
}

#[test]
fn a_directory_is_its_users_alone_whatever_the_umask_is() {
    for umask in ["umask 0", "umask 077", "umask 0777"] {
        let data = tempfile::tempdir().unwrap();
        let node = Node::start_with(kvorum_with_limits(umask), data, &[]);
        assert_eq!(node.client().put("/v0/entity?id=k", b"v").status, 201);
        let data = node.stop();
        let node = Node::start_with(kvorum_with_limits(umask), data, &[]);
        let data = node.stop();
        for (name, mode) in modes(&data.path().join("data")) {
            let expected = if name == "." { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{umask}: {name} {mode:o}");
        }
    }
}

/// The node does not narrow the permissions of an existing directory, because they may be intended.
#[test]
fn a_directory_that_others_can_read_is_warned_of() {
    let warning = "other users of this machine can read files of the data directory";
    let started = |data: TempDir| {
        let mut node = Node::start_with(kvorum(), data, &[]);
        let mut stderr = node.take_stderr();
        let data = node.stop();
        let mut log = String::new();
        stderr.read_to_string(&mut log).unwrap();
        (data, log)
    };
    let (data, log) = started(tempfile::tempdir().unwrap());
    assert!(!log.contains(warning), "{log}");
    let path = data.path().join("data");
    mode(&path, 0o755);
    mode(&path.join("STORE"), 0o644);
    let (data, log) = started(data);
    assert!(log.contains(warning) && log.contains("chmod -R go= "), "{log}");
    let wide: Vec<_> = modes(&path).into_iter().filter(|(_, mode)| mode & 0o077 != 0).collect();
    assert_eq!(wide, [(".".to_owned(), 0o755), ("STORE".to_owned(), 0o644)]);
    mode(&path, 0o700);
    let (_, log) = started(data);
    assert!(!log.contains(warning), "{log}");
}

#[test]
fn a_check_refuses_a_directory_that_is_a_file_and_too_few_descriptors() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |shell: &str, data: &Path| {
        let script = format!("{shell}; exec \"$0\" serve --check --loops 2 --data \"$1\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_kvorum")]).arg(data);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused("true", &file);
    assert!(said.contains(&format!("data directory {}: ", file.display())), "{said}");
    assert!(said.contains("Not a directory") && said.contains("correct the path"), "{said}");
    let said = refused("ulimit -n 16", &root.path().join("missing"));
    assert!(said.contains("the limit of open files is 16") && said.contains("38"), "{said}");
    assert!(!root.path().join("missing").exists());
}

#[test]
fn more_memory_than_there_is_is_warned_of() {
    let check = |memory: &str| {
        let output = run(&["serve", "--check", "--memory", memory]);
        String::from_utf8(output.stdout).unwrap()
    };
    let said = check("65536GiB");
    let begins = "warning: --memory 65536GiB, and the 64MiB that the process may take besides, are \
                  more than the ";
    assert!(said.contains(begins) && said.contains("set --memory to at most "), "{said}");
    assert!(!check("64MiB").contains("warning: --memory"));
}
