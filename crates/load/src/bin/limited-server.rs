//! A server of fixed capacity, for checking measuring tools against a known result.
//!
//! ```text
//!  requests of all connections ──▶ one queue ──▶ one answer every 1/capacity seconds
//! ```
//!
//! Below the capacity, an answer follows its request by little more than 1/capacity seconds. Above
//! the capacity, the queue grows as long as the load lasts.

#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use clap::Parser;
use parking_lot::Mutex;

/// Longest request body that the server reads, in bytes.
const MAX_BODY: u64 = 16 << 20;

/// Longest line of a request head, in bytes.
const MAX_LINE: u64 = 64 << 10;

/// A server that answers a given number of requests a second, and no more.
#[derive(Parser)]
struct Args {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Answers a second, 1..1000000.
    #[arg(long, default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    capacity: u32,
    /// Status of the answers.
    #[arg(long, default_value = "200 OK")]
    status: String,
    /// End with exit code 1 after this number of answers.
    #[arg(long)]
    die_after: Option<u64>,
}

/// State shared by all connections.
struct Queue {
    /// End of the last reserved slot, and number of slots reserved so far.
    next: Mutex<(Instant, u64)>,
    each: Duration,
    status: String,
    die_after: Option<u64>,
    died: SyncSender<()>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match serve(args) {
        Ok(died) => {
            // An error means that the acceptor thread has ended. The server ends in either case.
            let _ = died.recv();
            eprintln!("that was the last answer");
        }
        Err(error) => eprintln!("{error}"),
    }
    ExitCode::FAILURE
}

fn serve(args: Args) -> io::Result<Receiver<()>> {
    let listener = TcpListener::bind(args.listen)?;
    let (died, death) = sync_channel(1);
    let queue = Arc::new(Queue {
        next: Mutex::new((Instant::now(), 0)),
        each: Duration::from_secs(1) / args.capacity,
        status: args.status,
        die_after: args.die_after,
        died,
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || queue.connection(stream));
        }
    });
    Ok(death)
}

impl Queue {
    /// Answers requests until the client disconnects.
    fn connection(&self, stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        loop {
            read_request(&mut reader)?;
            self.wait_for_slot()?;
            let head = format!("HTTP/1.1 {}\r\nContent-Length: 2\r\n\r\nok", self.status);
            stream.write_all(head.as_bytes()).ok()?;
        }
    }

    /// Reserves the next slot in the queue, and sleeps until that slot.
    fn wait_for_slot(&self) -> Option<()> {
        let turn = {
            let mut next = self.next.lock();
            next.0 = next.0.max(Instant::now()) + self.each;
            next.1 += 1;
            if self.die_after.is_some_and(|last| next.1 > last) {
                let _ = self.died.try_send(());
                return None;
            }
            next.0
        };
        std::thread::sleep(turn.saturating_duration_since(Instant::now()));
        Some(())
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<()> {
    let mut length = 0;
    let mut line = String::new();
    let mut first = true;
    loop {
        line.clear();
        if reader.by_ref().take(MAX_LINE).read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim_end().is_empty() && !first {
            break;
        }
        first = false;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    io::copy(&mut reader.take(length.min(MAX_BODY)), &mut io::sink()).ok()?;
    Some(())
}
