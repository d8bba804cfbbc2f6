//! Fuzzes the load generator's parser of HTTP answers. The parser must parse or refuse every input,
//! with the same result for all divisions of the input into pieces.
//!
//! ```text
//!  input: mode u8 │ length of a piece u8 … 0 │ the server's bytes
//!  mode & 1: heads and bodies are kept
//!       & 2: every other answer is the answer to a HEAD
//!       & 4: the pieces are 32 times as long
//! ```
//!
//! The target includes the parser's file by its path. A dependency on the parser's crate would
//! bring LuaJIT and a TLS library.
#![no_main]

#[allow(dead_code, reason = "only the parser is called")]
#[path = "../../crates/load/src/reply.rs"]
mod reply;

use libfuzzer_sys::fuzz_target;
use reply::Reply;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else { return };
    let Some(zero) = rest.iter().position(|length| *length == 0) else { return };
    let (lengths, stream) = (&rest[..zero], &rest[zero + 1..]);
    let times = if mode & 4 == 0 { 1 } else { 32 };
    let mut lengths = lengths.iter().map(|length| usize::from(*length) * times);
    let mut left = stream;
    let pieces = std::iter::from_fn(|| {
        let length = lengths.next().unwrap_or(left.len()).min(left.len());
        let (piece, rest) = left.split_at(length);
        left = rest;
        (!piece.is_empty()).then_some(piece)
    });
    let whole = answers([stream].into_iter(), mode);
    assert_eq!(answers(pieces, mode), whole);
    assert_eq!(answers(stream.chunks(1), mode), whole);
});

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    closes: bool,
    head: Vec<u8>,
    body: Vec<u8>,
}

/// Parses all answers. The flag is true if the bytes after the last answer are an answer once the
/// stream ends. It is `None` if the parser refuses the bytes.
fn answers<'a>(pieces: impl Iterator<Item = &'a [u8]>, mode: u8) -> (Vec<Answer>, Option<bool>) {
    let mut answers = Vec::new();
    let mut reply = Reply::new(mode & 1 != 0);
    reply.reset(false);
    for mut piece in pieces {
        while !piece.is_empty() {
            match reply.feed(piece) {
                Ok(taken) => piece = &piece[taken..],
                Err(_) => return (answers, None),
            }
            if reply.is_done() {
                answers.push(Answer {
                    status: reply.status(),
                    closes: reply.closes(),
                    head: reply.head().to_vec(),
                    body: reply.body().to_vec(),
                });
                reply.reset(mode & 2 != 0 && answers.len() % 2 == 1);
            }
        }
    }
    let completes = reply.end_of_stream();
    (answers, Some(completes))
}
