//! A test server that answers every request and counts them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The answer to a request for a recording.
const PROFILE: &str = r#"{"events": {"cpu": {"folded": "main;work 3\nmain;rest 1\n"}}}"#;

/// A server that runs until the test's process ends.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<AtomicUsize>,
    tokens: Arc<Mutex<Vec<String>>>,
}

/// Starts a server that accepts connections and never answers, until the test's process ends.
/// Returns the server's URL and the paths of the requests that it receives.
pub(crate) fn start_silent_server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let asked = Arc::clone(&kept);
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    let path = line.strip_prefix("GET ").and_then(|line| line.split(' ').next());
                    asked.lock().extend(path.map(str::to_owned));
                }
            });
        }
    });
    (url, asked)
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    pub(crate) fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, requests: Arc::default(), tokens: Arc::default() };
        let (requests, tokens) = (Arc::clone(&server.requests), Arc::clone(&server.tokens));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, tokens) = (Arc::clone(&requests), Arc::clone(&tokens));
                std::thread::spawn(move || serve(stream.unwrap(), &requests, &tokens));
            }
        });
        server
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the `Authorization` headers received, each with its path.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.tokens.lock().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Serves until the connection ends. A client that disconnects does not make the test fail.
fn serve(mut stream: TcpStream, requests: &AtomicUsize, tokens: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let path = line.split(' ').nth(1)?.to_owned();
        let mut length = 0;
        let mut header = String::new();
        while reader.read_line(&mut header).ok()? > 2 {
            let (name, value) = header.split_once(':')?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().ok()?,
                "authorization" => {
                    tokens.lock().push(format!("{path} {}", value.trim()));
                }
                _ => {}
            }
            header.clear();
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        requests.fetch_add(1, Ordering::SeqCst);
        let (status, body) = match path.as_str() {
            path if path.starts_with("/admin/profile") => ("200 OK", PROFILE),
            path if path.starts_with("/missing") => ("404 Not Found", "none"),
            "/metrics" | "/v0/status" => ("404 Not Found", ""),
            _ => ("200 OK", "value"),
        };
        let length = body.len();
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    }
}
