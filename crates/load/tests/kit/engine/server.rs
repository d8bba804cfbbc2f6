//! A test server with configurable answers. The server has a thread for each connection, and stops
//! when dropped.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The answer to one request.
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    pub(crate) body: &'static [u8],
    pub(crate) delay: Duration,
    /// True if no answer is sent.
    pub(crate) silent: bool,
    /// True if the connection is closed after the answer, as the answer's head announces.
    pub(crate) close: bool,
    /// True if the connection is closed in the middle of the answer.
    pub(crate) cut: bool,
    /// Bytes to send in place of status and body.
    pub(crate) verbatim: Option<&'static [u8]>,
    /// True if the connection is reset instead of an answer.
    pub(crate) reset: bool,
    /// True if the server ends instead of answering.
    pub(crate) die: bool,
    /// True if a `GET` is answered with the value that the last `PUT` stored under the path, if
    /// any.
    pub(crate) stored: bool,
}

impl Answer {
    pub(crate) fn value(body: &'static [u8]) -> Self {
        Self {
            status: "200 OK",
            body,
            delay: Duration::ZERO,
            silent: false,
            close: false,
            cut: false,
            verbatim: None,
            reset: false,
            die: false,
            stored: false,
        }
    }

    /// Returns an answer like that of a store.
    pub(crate) fn new_stored() -> Self {
        Self { stored: true, ..Self::value(b"") }
    }

    /// Returns an answer that consists of these bytes.
    pub(crate) fn verbatim(bytes: &'static [u8]) -> Self {
        Self { verbatim: Some(bytes), ..Self::value(b"") }
    }
}

/// A connection, in plain text or with TLS.
trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

type Script = dyn Fn(usize) -> Answer + Send + Sync;

struct Shared {
    address: SocketAddr,
    values: Mutex<HashMap<String, Vec<u8>>>,
    script: Box<Script>,
    answered: AtomicUsize,
    connections: AtomicUsize,
    stopped: AtomicBool,
    requests: Mutex<Vec<(String, usize)>>,
    times: Mutex<Vec<Times>>,
}

/// Times of a request: when it had arrived completely, and when its answer began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) arrived: Instant,
    pub(crate) answered: Instant,
}

pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    /// Starts a server. `script` returns the answer to the n-th request, from 0 on.
    pub(crate) fn start(script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::begin(None, script)
    }

    /// Starts a server with TLS.
    pub(crate) fn start_tls(
        tls: Arc<ServerConfig>,
        script: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::begin(Some(tls), script)
    }

    fn begin(
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            address,
            values: Mutex::new(HashMap::new()),
            script: Box::new(script),
            answered: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            requests: Mutex::new(Vec::new()),
            times: Mutex::new(Vec::new()),
        });
        let accepted = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepted.stopped.load(Ordering::SeqCst) {
                    return;
                }
                accepted.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepted);
                let (stream, tls) = (stream.expect("accepts"), tls.clone());
                std::thread::spawn(move || {
                    let socket = stream.try_clone().ok()?;
                    let wire: Box<dyn Wire> = match tls {
                        Some(tls) => {
                            let session = ServerConnection::new(tls).expect("a configuration");
                            Box::new(StreamOwned::new(session, stream))
                        }
                        None => Box::new(stream),
                    };
                    serve(wire, &socket, &shared)
                });
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the request lines, each with the length of the body.
    pub(crate) fn requests(&self) -> Vec<(String, usize)> {
        self.shared.requests.lock().clone()
    }

    /// Returns the times of each request, in the order of the answers.
    pub(crate) fn times(&self) -> Vec<Times> {
        self.shared.times.lock().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }

    /// Stores or finds a value by the request line. Returns the status and the body of the answer.
    fn keep(&self, line: &str, body: Vec<u8>) -> (&'static str, Vec<u8>) {
        let mut words = line.split(' ');
        let (method, path) = (words.next(), words.next().unwrap_or_default());
        let mut values = self.values.lock();
        match method {
            Some("PUT") => {
                values.insert(path.to_owned(), body);
                ("201 Created", Vec::new())
            }
            Some("DELETE") => {
                values.remove(path);
                ("202 Accepted", Vec::new())
            }
            _ => match values.get(path) {
                Some(value) => ("200 OK", value.clone()),
                None => ("404 Not Found", Vec::new()),
            },
        }
    }
}

/// Serves until the connection ends. A client that disconnects is not a failure of the test.
fn serve(wire: Box<dyn Wire>, socket: &TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(wire);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut length = 0;
        let mut header = String::new();
        while reader.read_line(&mut header).ok()? > 2 {
            if let Some(value) = header.strip_prefix("Content-Length:") {
                length = value.trim().parse().ok()?;
            }
            header.clear();
        }
        let mut sent = vec![0; length];
        reader.read_exact(&mut sent).ok()?;
        let arrived = Instant::now();
        shared.requests.lock().push((line.trim_end().to_owned(), length));
        let n = shared.answered.fetch_add(1, Ordering::SeqCst);
        let answer = (shared.script)(n);
        std::thread::sleep(answer.delay);
        if answer.die {
            shared.stop();
        }
        if answer.reset {
            rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).ok()?;
        }
        if answer.reset || shared.stopped.load(Ordering::SeqCst) {
            return None;
        }
        if answer.silent {
            continue;
        }
        let times = Times { arrived, answered: Instant::now() };
        shared.times.lock().push(times);
        if let Some(bytes) = answer.verbatim {
            reader.get_mut().write_all(bytes).ok()?;
            if answer.close {
                return None;
            }
            continue;
        }
        let (status, body) = match answer.stored {
            true => shared.keep(line.trim_end(), sent),
            false => (answer.status, answer.body.to_vec()),
        };
        let close = if answer.close { "Connection: close\r\n" } else { "" };
        let head = format!("HTTP/1.1 {status}\r\n{close}Content-Length: {}\r\n\r\n", body.len());
        let whole = [head.as_bytes(), &body].concat();
        let sent = if answer.cut { whole.len() - 1 } else { whole.len() };
        reader.get_mut().write_all(&whole[..sent]).ok()?;
        if answer.close || answer.cut {
            return None;
        }
    }
}
