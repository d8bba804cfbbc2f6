//! A proxy between a client and a node that changes the framing of bodies, as proxies may do, or
//! cuts them.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use kit::raw::{Client, Response};

/// The way in which the proxy changes responses.
#[derive(Debug, Clone)]
pub(crate) enum Framing {
    /// Chunks of this many bytes.
    Chunks(usize),
    /// One body with a `Content-Length`.
    Length,
    /// A body that ends with the end of the connection.
    Connection,
    /// The first bytes, in chunks, as if they were the whole body.
    CutInChunks(usize),
    /// The first bytes, with a `Content-Length`, as if they were the whole body.
    CutByLength(usize),
    /// The first bytes, then the end of the connection in the middle of a chunk.
    BrokenOff(usize),
    /// The whole body with another `Content-Type`.
    Typed(&'static str),
    /// This many whole responses on a connection, which ends instead of the next response.
    Hangup(usize),
    /// This many whole responses on a connection, and this text instead of the next response.
    Refusal(usize, &'static str),
}

/// A proxy on its own port. It runs until the test's process exits.
pub(crate) struct Relay {
    address: SocketAddr,
}

impl Relay {
    pub(crate) fn to(node: SocketAddr, framing: Framing) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let framing = Arc::new(framing);
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let framing = Arc::clone(&framing);
                thread::spawn(move || {
                    let _ = serve(near, node, &framing);
                });
            }
        });
        Self { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Forwards requests without bodies until the client closes the connection, or the framing ends it.
fn serve(near: TcpStream, node: SocketAddr, framing: &Framing) -> io::Result<()> {
    let mut far = Client::connect(node);
    let mut near_out = near.try_clone()?;
    let mut near = BufReader::new(near);
    for answered in 0.. {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if near.read_until(b'\n', &mut head)? == 0 {
                return Ok(());
            }
        }
        match framing {
            Framing::Hangup(after) if *after == answered => break,
            Framing::Refusal(after, refusal) if *after == answered => {
                near_out.write_all(refusal.as_bytes())?;
                break;
            }
            _ => {}
        }
        far.send(&head);
        let response = far.try_response()?;
        near_out.write_all(&frame_response(&response, framing))?;
        if matches!(framing, Framing::Connection | Framing::BrokenOff(_)) {
            break;
        }
    }
    near_out.shutdown(Shutdown::Both)
}

fn frame_response(response: &Response, framing: &Framing) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {} Relayed\r\n", response.status);
    let own_type = response.header("content-type").unwrap_or_default();
    let media = if let Framing::Typed(media) = framing { *media } else { own_type };
    head += &format!("Content-Type: {media}\r\n");
    let body = response.body();
    let chunked = |body: &[u8], size: usize| {
        let mut out = b"Transfer-Encoding: Chunked\r\n\r\n".to_vec();
        for chunk in body.chunks(size) {
            out.extend(format!("{:x};from=relay\r\n", chunk.len()).bytes());
            out.extend([chunk, b"\r\n"].concat());
        }
        out.extend(b"0\r\nX-Trailer: t\r\n\r\n");
        out
    };
    let whole = |body: &[u8]| {
        let mut out = format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        out.extend(body);
        out
    };
    let rest = match framing {
        Framing::Chunks(size) => chunked(&body, *size),
        Framing::Length | Framing::Typed(_) | Framing::Hangup(_) | Framing::Refusal(..) => {
            whole(&body)
        }
        Framing::Connection => [b"Connection: close\r\n\r\n", &body[..]].concat(),
        Framing::CutInChunks(len) => chunked(&body[..*len], 5),
        Framing::CutByLength(len) => whole(&body[..*len]),
        Framing::BrokenOff(len) => {
            let out = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", len + 1);
            [out.as_bytes(), &body[..*len]].concat()
        }
    };
    [head.as_bytes(), &rest].concat()
}
