//! A server that answers after a known time, and records the times of its requests and answers.
//! Each connection has a thread, and all threads run on the server's CPU.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::place;

/// Maximum lateness of a sleep, in nanoseconds. No smaller value can be set.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::new(1).unwrap();

/// Service time of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Service {
    /// No delay before the answer.
    None,
    /// A fixed time for every request.
    Fixed(Duration),
    /// The second time for each request whose number is a multiple of ten, the first time for the
    /// others.
    Bimodal(Duration, Duration),
    /// A stall: no request is answered in the first `length` of each `period`.
    Stall { period: Duration, length: Duration },
}

impl Service {
    /// Returns when a request that arrived at `came` must be answered. Both times count from the
    /// server's start.
    fn due(self, number: u64, came: Duration) -> Duration {
        match self {
            Self::None => came,
            Self::Fixed(time) => came + time,
            Self::Bimodal(_, long) if number.is_multiple_of(10) => came + long,
            Self::Bimodal(short, _) => came + short,
            Self::Stall { period, length } => {
                let into = Duration::from_nanos((came.as_nanos() % period.as_nanos()) as u64);
                came + length.saturating_sub(into)
            }
        }
    }
}

/// One request, as recorded by the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedRequest {
    /// Number of the request, from its path.
    pub(crate) number: u64,
    pub(crate) came: Instant,
    /// Times just before and just after the write of the answer; the answer left between them.
    pub(crate) answered: (Instant, Instant),
}

struct Shared {
    start: Instant,
    service: Service,
    stopped: AtomicBool,
    seen: Mutex<Vec<RecordedRequest>>,
}

pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Recorder {
    pub(crate) fn start(service: Service) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the recording server: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (start, stopped) = (Instant::now(), AtomicBool::new(false));
        let shared = Arc::new(Shared { start, service, stopped, seen: Mutex::default() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            place::pin_to(place::SERVER_CPU)?;
            for stream in listener.incoming() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    break;
                }
                let stream = stream.map_err(|error| error.to_string())?;
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || serve(stream, &shared));
            }
            Ok::<(), String>(())
        });
        Ok(Self { address, shared })
    }

    /// Returns all requests of closed connections as soon as there are `expected` requests. The
    /// client must have closed its connections. Fails after 10 s.
    pub(crate) fn wait_for_requests(&self, expected: u64) -> Result<Vec<RecordedRequest>, String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let seen = self.shared.seen.lock().clone();
            if seen.len() as u64 >= expected {
                return Ok(seen);
            }
            if Instant::now() > deadline {
                return Err(format!("the server saw {} of {expected} requests", seen.len()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // This connection ends the wait in `accept`.
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers requests `GET /kNUMBER` until the client disconnects, and then records them. On any
/// other error, returns `None` and records nothing.
fn serve(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK)).ok()?;
    stream.set_nodelay(true).ok()?;
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(len) = stream.read(&mut buffer) {
        let came = Instant::now();
        let text = &buffer[..len];
        let Some(digits) = text.strip_prefix(b"GET /k") else { break };
        let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(0);
        let number = std::str::from_utf8(&digits[..end]).ok()?.parse().ok()?;
        let due = shared.start + shared.service.due(number, came - shared.start);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let answered = Instant::now();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok()?;
        seen.push(RecordedRequest { number, came, answered: (answered, Instant::now()) });
    }
    shared.seen.lock().append(&mut seen);
    Some(())
}
