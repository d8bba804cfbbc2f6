//! Incremental parser that finds the end of an HTTP/1.1 response in a stream of bytes. The parser
//! keeps the status and, on request, head and body.
//!
//! ```text
//!  Head ─┬▶ Sized(left) ─────────────────────────┬▶ done
//!        ├▶ ChunkSize ─▶ Chunk(left) ─▶ ChunkEnd ─┤
//!        │      └──▶ Trailers ────────────────────┤
//!        └▶ UntilClose ───────────── end of stream┘
//! ```

use memchr::{memchr, memchr_iter};

/// Longest response head or chunk line, in bytes. No known server sends longer heads or lines.
const MAX_HEAD_LEN: usize = 16 << 10;

/// Longest body that is kept, in bytes.
const MAX_KEPT_LEN: usize = 64 << 20;

/// Length of the longest end marker, of a line or of a head.
const LONGEST_END: usize = b"\n\r\n".len();

/// The response is not HTTP/1.1, or exceeds a length limit. Its connection can't be used further.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadReply;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyState {
    Head,
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    UntilClose,
    Done,
}

/// One response, as far as it has arrived.
#[derive(Debug)]
pub(crate) struct Reply {
    state: ReplyState,
    /// The partial head or line.
    pieces: Vec<u8>,
    status: u16,
    close: bool,
    /// True for the answer to a `HEAD`. It has no body, even if its head gives a length.
    bodiless: bool,
    keep: bool,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Reply {
    /// Creates a parser. With `keep`, the parser keeps head and body.
    pub(crate) fn new(keep: bool) -> Self {
        Self {
            state: ReplyState::Head,
            pieces: Vec::new(),
            status: 0,
            close: false,
            bodiless: false,
            keep,
            head: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Prepares for the next response on the connection. `bodiless` marks the answer to a `HEAD`.
    pub(crate) fn reset(&mut self, bodiless: bool) {
        self.state = ReplyState::Head;
        self.pieces.clear();
        self.close = false;
        self.bodiless = bodiless;
        self.body.clear();
    }

    /// Returns the head with its status line, if heads are kept and the response is complete.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the body, if bodies are kept and the response is complete.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == ReplyState::Done
    }

    /// Returns the bytes of an incomplete head or line, or of a head or line that could not be
    /// parsed.
    pub(crate) fn pieces(&self) -> &[u8] {
        &self.pieces
    }

    /// Returns the status, which is valid once the response is complete.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Returns true if the server closes the connection after the response.
    pub(crate) fn closes(&self) -> bool {
        self.close
    }

    /// Handles the end of the stream. Returns true if the end completes the response.
    pub(crate) fn end_of_stream(&mut self) -> bool {
        if self.state == ReplyState::UntilClose {
            self.state = ReplyState::Done;
        }
        self.is_done()
    }

    /// Parses `bytes`. Returns the number of bytes that belong to this response.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<usize, BadReply> {
        let mut at = 0;
        while at < bytes.len() && self.state != ReplyState::Done {
            at += self.step(&bytes[at..])?;
        }
        Ok(at)
    }

    fn step(&mut self, bytes: &[u8]) -> Result<usize, BadReply> {
        match self.state {
            ReplyState::Head => self.until(bytes, end_of_head, Self::read_head),
            ReplyState::ChunkSize => self.until(bytes, end_of_line, Self::chunk_size),
            ReplyState::ChunkEnd => self.until(bytes, end_of_line, Self::chunk_end),
            ReplyState::Trailers => self.until(bytes, end_of_line, Self::trailer),
            ReplyState::Sized(left) => self.data(bytes, left, ReplyState::Sized, ReplyState::Done),
            ReplyState::Chunk(left) => {
                self.data(bytes, left, ReplyState::Chunk, ReplyState::ChunkEnd)
            }
            ReplyState::UntilClose => {
                self.keep(bytes)?;
                Ok(bytes.len())
            }
            ReplyState::Done => Ok(0),
        }
    }

    fn data(
        &mut self,
        bytes: &[u8],
        left: u64,
        more: fn(u64) -> ReplyState,
        end: ReplyState,
    ) -> Result<usize, BadReply> {
        let taken = left.min(bytes.len() as u64);
        self.keep(&bytes[..taken as usize])?;
        self.state = if taken == left { end } else { more(left - taken) };
        Ok(taken as usize)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), BadReply> {
        if self.keep {
            if self.body.len() + bytes.len() > MAX_KEPT_LEN {
                return Err(BadReply);
            }
            self.body.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Collects bytes up to and including the end marker, which `end` finds, and then calls `whole`
    /// with them. Returns the number of bytes taken from `bytes`.
    fn until(
        &mut self,
        bytes: &[u8],
        end: fn(&[u8]) -> Option<usize>,
        whole: fn(&mut Self, &[u8]) -> Result<(), BadReply>,
    ) -> Result<usize, BadReply> {
        if self.pieces.is_empty()
            && let Some(len) = end(bytes)
        {
            // The same limit applies to a head that arrives in pieces.
            if len > MAX_HEAD_LEN {
                return Err(BadReply);
            }
            whole(self, &bytes[..len])?;
            return Ok(len);
        }
        let had = self.pieces.len();
        let room = MAX_HEAD_LEN.checked_sub(had).filter(|&room| room > 0).ok_or(BadReply)?;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let from = had.saturating_sub(LONGEST_END - 1);
        match end(&pieces[from..]) {
            Some(at) => {
                let len = from + at;
                let read = whole(self, &pieces[..len]);
                if read.is_ok() {
                    pieces.clear();
                }
                self.pieces = pieces;
                read.map(|()| len - had)
            }
            None => {
                let taken = pieces.len() - had;
                self.pieces = pieces;
                Ok(taken)
            }
        }
    }

    fn read_head(&mut self, head: &[u8]) -> Result<(), BadReply> {
        let status = head.get(9..12).ok_or(BadReply)?;
        if !head.starts_with(b"HTTP/1.") || !status.iter().all(u8::is_ascii_digit) {
            return Err(BadReply);
        }
        self.status = status.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        let mut length = None;
        let mut chunked = false;
        self.close = head.starts_with(b"HTTP/1.0");
        let mut rest = head;
        while let Some(end) = memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            // Only three headers matter. A check of the first letter skips most other lines.
            if !matches!(line.first(), Some(b'c' | b'C' | b't' | b'T')) {
                continue;
            }
            let Some(colon) = memchr(b':', line) else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                let declared_length = number(value, 10).ok_or(BadReply)?;
                // With two different lengths, the end of the response is ambiguous (RFC 9112
                // section 6.3).
                if length.replace(declared_length).is_some_and(|before| before != declared_length) {
                    return Err(BadReply);
                }
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                // `chunked` counts only as the last coding.
                let last = value.rsplit(|&byte| byte == b',').next().unwrap_or_default();
                chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            } else if name.eq_ignore_ascii_case(b"connection") {
                self.close = value.eq_ignore_ascii_case(b"close");
            }
        }
        if self.keep {
            self.head.clear();
            self.head.extend_from_slice(head);
        }
        self.state = match self.status {
            // After a 101, which no request asks for, all further bytes are not HTTP.
            101 => {
                self.close = true;
                ReplyState::Done
            }
            100..=199 => ReplyState::Head,
            204 | 304 => ReplyState::Done,
            _ if self.bodiless => ReplyState::Done,
            _ if chunked => ReplyState::ChunkSize,
            _ => match length {
                Some(0) => ReplyState::Done,
                Some(length) => ReplyState::Sized(length),
                None => ReplyState::UntilClose,
            },
        };
        self.close |= self.state == ReplyState::UntilClose;
        Ok(())
    }

    fn chunk_size(&mut self, line: &[u8]) -> Result<(), BadReply> {
        let digits = memchr(b';', line).map_or(line, |at| &line[..at]).trim_ascii();
        self.state = match number(digits, 16).ok_or(BadReply)? {
            0 => ReplyState::Trailers,
            size => ReplyState::Chunk(size),
        };
        Ok(())
    }

    fn chunk_end(&mut self, line: &[u8]) -> Result<(), BadReply> {
        self.state = ReplyState::ChunkSize;
        if is_empty(line) { Ok(()) } else { Err(BadReply) }
    }

    fn trailer(&mut self, line: &[u8]) -> Result<(), BadReply> {
        if is_empty(line) {
            self.state = ReplyState::Done;
        }
        Ok(())
    }
}

/// Returns the length of a head including its empty line, or `None` if the head is incomplete.
/// Heads have few lines, so a check at the end of each line costs less than the setup of a search
/// for the whole marker.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    memchr_iter(b'\n', bytes)
        .map(|at| at + 1)
        .find(|&at| bytes[..at].ends_with(b"\n\r\n") || bytes[..at].ends_with(b"\n\n"))
}

/// Returns the length of a line including its line feed, or `None` if the line is incomplete. A
/// line feed ends a line even without a carriage return before it (RFC 9112 section 2.2).
fn end_of_line(bytes: &[u8]) -> Option<usize> {
    memchr(b'\n', bytes).map(|at| at + 1)
}

fn is_empty(line: &[u8]) -> bool {
    matches!(line, b"\r\n" | b"\n")
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.first() == Some(&b'+') {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::{BadReply, MAX_HEAD_LEN, Reply};

    const WHOLE: [&str; 10] = [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 201 Created\r\nContent-Length: 0\r\nETag: \"x\"\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\nA\r\n0123456789\r\n\
         0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-sum: 1\r\n\r\n",
        "HTTP/1.1 200 OK\ncontent-length: 5\n\nhello",
        "HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n2\nab\n0\nx-sum: 1\n\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\nno",
    ];

    #[test]
    fn a_reply_in_two_pieces_is_complete_at_its_last_byte() {
        for text in WHOLE {
            let stream = [text.as_bytes(), b"HTTP/1.1 next"].concat();
            for cut in 0..text.len() {
                let mut reply = Reply::new(false);
                assert_eq!(reply.feed(&stream[..cut]), Ok(cut), "{text:?} cut at {cut}");
                assert!(!reply.is_done(), "{text:?} cut at {cut}");
                assert_eq!(reply.feed(&stream[cut..]), Ok(text.len() - cut), "{text:?} at {cut}");
                assert!(reply.is_done());
            }
        }
    }

    #[test]
    fn replies_are_parsed_byte_by_byte() {
        let mut reply = Reply::new(false);
        for text in WHOLE {
            reply.reset(false);
            for byte in text.as_bytes() {
                assert!(!reply.is_done());
                assert_eq!(reply.feed(&[*byte]), Ok(1));
            }
            assert!(reply.is_done(), "{text:?}");
        }
        assert_eq!(reply.status(), 503);
    }

    #[test]
    fn a_reply_without_a_length_ends_with_the_stream() {
        let mut reply = Reply::new(false);
        let text = b"HTTP/1.1 200 OK\r\n\r\nany";
        assert_eq!(reply.feed(text), Ok(text.len()));
        assert!(!reply.is_done() && reply.closes());
        assert!(reply.end_of_stream());
        assert!(!Reply::new(false).end_of_stream());
    }

    #[test]
    fn the_body_is_kept_on_request_however_it_is_split() {
        let bodies = ["hello", "", "", "x", "hello0123456789", "", "hello", "ab", "ab", "no"];
        for (text, body) in WHOLE.iter().zip(bodies) {
            for cut in 0..text.len() {
                let mut reply = Reply::new(true);
                reply.feed(&text.as_bytes()[..cut]).unwrap();
                reply.feed(&text.as_bytes()[cut..]).unwrap();
                assert_eq!(reply.body(), body.as_bytes(), "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let mut reply = Reply::new(false);
        reply.reset(true);
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(reply.feed(text), Ok(text.len()));
        assert!(reply.is_done());
    }

    #[test]
    fn a_connection_is_unusable_after_an_upgrade() {
        let mut reply = Reply::new(false);
        reply.feed(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n").unwrap();
        assert!(reply.is_done() && reply.closes());
    }

    #[test]
    fn the_connection_close_header_is_recognised() {
        let mut reply = Reply::new(false);
        reply.feed(b"HTTP/1.1 400 Bad\r\nConnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
        assert!(reply.is_done() && reply.closes());
    }

    /// Only the length of a head decides whether the head is too long, not the pieces in which it
    /// arrives.
    #[test]
    fn too_long_replies_are_refused_however_they_are_split() {
        let head = |value: usize| format!("HTTP/1.1 204 No\r\nx: {}\r\n\r\n", "y".repeat(value));
        let room = MAX_HEAD_LEN - head(0).len();
        let chunk = |value: usize| {
            let line = format!("0;{}\r\n", "y".repeat(value - 4));
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{line}\r\n")
        };
        for (longest, too_long) in
            [(head(room), head(room + 1)), (chunk(MAX_HEAD_LEN), chunk(MAX_HEAD_LEN + 1))]
        {
            for piece in [1, 1000, MAX_HEAD_LEN, usize::MAX] {
                let fed = |text: &str| {
                    let mut reply = Reply::new(false);
                    let mut pieces = text.as_bytes().chunks(piece.min(text.len()));
                    pieces.try_for_each(|mut piece| {
                        while !piece.is_empty() {
                            piece = &piece[reply.feed(piece)?..];
                        }
                        Ok(())
                    })
                };
                assert_eq!(fed(&longest), Ok(()), "in pieces of {piece}");
                assert_eq!(fed(&too_long), Err(BadReply), "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn malformed_replies_are_refused() {
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD_LEN + 1));
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +3\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\nContent-Length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
            long.as_str(),
        ] {
            assert_eq!(Reply::new(false).feed(text.as_bytes()), Err(BadReply), "{text:.60}");
        }
    }
}
