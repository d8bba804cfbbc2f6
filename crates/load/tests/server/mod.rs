//! A server that answers as it is told: a thread for each connection, stopped when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How one request is answered.
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    pub(crate) body: &'static [u8],
    pub(crate) delay: Duration,
    /// Never.
    pub(crate) silent: bool,
    /// The connection ends after it, as announced.
    pub(crate) close: bool,
    /// The connection ends in the middle of it.
    pub(crate) cut: bool,
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
        }
    }
}

type Script = dyn Fn(usize) -> Answer + Send + Sync;

struct Shared {
    script: Box<Script>,
    answered: AtomicUsize,
    connections: AtomicUsize,
    stopped: AtomicBool,
    requests: Mutex<Vec<(String, usize)>>,
}

pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    /// `script` says how the n-th request is answered.
    pub(crate) fn start(script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            answered: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            requests: Mutex::new(Vec::new()),
        });
        let accepted = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepted.stopped.load(Ordering::SeqCst) {
                    return;
                }
                accepted.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepted);
                std::thread::spawn(move || serve(stream.expect("accepts"), &shared));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Request lines and lengths of bodies.
    pub(crate) fn requests(&self) -> Vec<(String, usize)> {
        self.shared.requests.lock().expect("no panic holding it").clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

/// Ends with the connection: the client's going away is no failure of the test.
fn serve(stream: TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
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
        reader.read_exact(&mut vec![0; length]).ok()?;
        shared
            .requests
            .lock()
            .expect("no panic holding it")
            .push((line.trim_end().to_owned(), length));
        let n = shared.answered.fetch_add(1, Ordering::SeqCst);
        let answer = (shared.script)(n);
        std::thread::sleep(answer.delay);
        if answer.silent {
            continue;
        }
        let close = if answer.close { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {}\r\n{close}Content-Length: {}\r\n\r\n",
            answer.status,
            answer.body.len()
        );
        let whole = [head.as_bytes(), answer.body].concat();
        let sent = if answer.cut { whole.len() - 1 } else { whole.len() };
        stream.write_all(&whole[..sent]).ok()?;
        if answer.close || answer.cut {
            return None;
        }
    }
}
