//! Control socket of a running `kvorum dev`, for `kvorum dev add` and `kvorum dev remove`: a Unix
//! socket in the data directory, accessible only to the directory's owner. Each connection carries
//! one request and one answer, each in a line of JSON.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::umask;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::error::DevError;

/// Name of the socket in the data directory.
const NAME: &str = "dev.sock";

/// Longest path in the address of a Unix socket, in bytes.
const MAX_PATH: usize = 107;

/// Limit on the bytes of a request line.
const LINE: u64 = 64 << 10;

/// Timeout for a client to send its request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Timeout of an answer. A node may take half of this time to stop.
const ANSWER: Duration = Duration::from_secs(60);

/// A request to a running `kvorum dev`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum DevRequest {
    /// List the nodes.
    Nodes,
    /// Make a node ask to join: the node that already asks, or a new node if none asks.
    Add { zone: Option<String>, weight: Option<u32> },
    /// Stop running a node.
    Stop { name: String },
    /// Record that all nodes use a layout whose members differ from the initial ones.
    Settled,
}

/// The answer of a running `kvorum dev`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum DevAnswer {
    /// The nodes, in order.
    Nodes(Vec<DevNode>),
    /// The name of the node that asks to join; `before` is true if the node asked before this
    /// request.
    Added { name: String, before: bool },
    /// The node is stopped; `data` is its directory, which is kept.
    Stopped { data: PathBuf },
    /// The change is recorded.
    Noted,
    /// The request was refused, for this reason.
    Refused(String),
}

/// A supervised node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DevNode {
    pub(crate) name: String,
    pub(crate) url: String,
    /// True if the node is a member of the cluster; otherwise it asks to join.
    pub(crate) is_member: bool,
    /// True if the node's process serves.
    pub(crate) is_up: bool,
}

/// A request, and the channel for its answer.
pub(super) type Request = (DevRequest, oneshot::Sender<DevAnswer>);

/// The listening socket, removed on drop.
#[derive(Debug)]
pub(super) struct DevSocket {
    path: PathBuf,
}

/// Calls `open` with a path of the socket. The kernel limits the path in a socket address to 107
/// bytes, so a longer path is replaced by a path through a descriptor of the directory.
fn at<T>(data: &Path, open: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = data.join(NAME);
    if path.as_os_str().len() <= MAX_PATH {
        return open(&path);
    }
    let directory = File::open(data)?;
    open(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(NAME))
}

/// Refuses to run if another `kvorum dev` uses the data directory.
pub(super) fn refuse_second_instance(data: &Path) -> Result<(), DevError> {
    match at(data, |path| UnixStream::connect(path)) {
        Ok(_) => Err(DevError::Another(data.to_owned())),
        Err(_) => Ok(()),
    }
}

impl DevSocket {
    /// Opens the socket and passes its requests to `requests`.
    pub(super) fn open(data: &Path, requests: mpsc::Sender<Request>) -> Result<Self, DevError> {
        let path = data.join(NAME);
        let failed = |source| DevError::File { file: path.clone(), source };
        // A socket without a listener was left by a killed process.
        refuse_second_instance(data)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let before = umask(Mode::from_raw_mode(0o177));
        let bound = at(data, |path| UnixListener::bind(path));
        umask(before);
        let listener = bound.map_err(failed)?;
        spawn_local(accept(listener, requests));
        Ok(Self { path })
    }
}

impl Drop for DevSocket {
    fn drop(&mut self) {
        // If the removal fails, the next start removes the file.
        let _ = fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, requests: mpsc::Sender<Request>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process may be out of file descriptors; the pause gives it time to close some.
            sleep(PAUSE).await;
            continue;
        };
        let requests = requests.clone();
        spawn_local(async move {
            // If the client has disconnected, nobody needs the answer.
            let _ = serve(stream, requests).await;
        });
    }
}

async fn serve(
    mut stream: tokio::net::UnixStream,
    requests: mpsc::Sender<Request>,
) -> io::Result<()> {
    let (from, mut to) = stream.split();
    let mut line = Vec::new();
    let mut from = tokio::io::BufReader::new(from.take(LINE));
    timeout(TIMEOUT, from.read_until(b'\n', &mut line)).await??;
    let answer = match serde_json::from_slice(&line) {
        Ok(wanted) => {
            let (answer, answered) = oneshot::channel();
            let sent = requests.send((wanted, answer)).await;
            let stopping = || DevAnswer::Refused("kvorum dev is about to stop".to_owned());
            if sent.is_ok() { answered.await.unwrap_or_else(|_| stopping()) } else { stopping() }
        }
        Err(error) => DevAnswer::Refused(format!(
            "the kvorum dev that runs does not understand that ({error}): it is of another version"
        )),
    };
    to.write_all(&line_of(&answer)).await
}

fn line_of(what: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(what).expect("strings and numbers always serialize");
    line.push(b'\n');
    line
}

/// Reason why a request to a running `kvorum dev` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(
        "no kvorum dev is running with the data directory {}: start one with kvorum dev --data {}, \
         or say by --data which one is meant",
        .0.display(),
        .0.display()
    )]
    NoneRuns(PathBuf),
    #[error("{}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("the kvorum dev of {} did not answer: {source}", data.display())]
    NoAnswer { data: PathBuf, source: io::Error },
}

/// Sends a request to the `kvorum dev` that runs with this data directory.
pub(crate) fn ask(data: &Path, wanted: &DevRequest) -> Result<DevAnswer, AskError> {
    let path = data.join(NAME);
    let connected = at(data, |path| UnixStream::connect(path));
    let mut stream = connected.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            AskError::NoneRuns(data.to_owned())
        }
        _ => AskError::Socket { path, source },
    })?;
    let mut asked = || -> io::Result<DevAnswer> {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(&line_of(wanted))?;
        let mut line = Vec::new();
        BufReader::new(&stream).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    };
    match asked() {
        Ok(DevAnswer::Refused(why)) => Err(AskError::Refused(why)),
        Ok(answer) => Ok(answer),
        Err(source) => Err(AskError::NoAnswer { data: data.to_owned(), source }),
    }
}
