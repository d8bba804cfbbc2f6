//! Counts the requests in a string that the script's `request()` returns. As in wrk, only the
//! string of the first call is counted.

/// Maximum number of headers of one request. A script with more headers has an error.
const MAX_HEADERS: usize = 256;

/// The reason why a string is not a sequence of complete requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PipelineError {
    #[error("request() returned an empty string")]
    Empty,
    #[error("request() returned {0}")]
    First(#[source] RequestError),
    #[error("request() returned {source}, after {before} whole requests")]
    Later { before: usize, source: RequestError },
}

/// The reason why a string does not begin with a whole request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error("an incomplete request: no empty line ends its head")]
    Head,
    #[error("what is not a valid HTTP request ({source}): {line:?}")]
    Malformed { line: String, source: httparse::Error },
    #[error("a request whose Content-Length is not a number")]
    Length,
    #[error("a request with {there} bytes of the {length} of its Content-Length")]
    Body { there: usize, length: usize },
    #[error("an incomplete request: its chunked body has no end")]
    Chunks,
}

/// Counts the whole requests in `bytes`.
pub(super) fn count(mut bytes: &[u8]) -> Result<usize, PipelineError> {
    if bytes.is_empty() {
        return Err(PipelineError::Empty);
    }
    let mut requests = 0;
    while !bytes.is_empty() {
        let len = one(bytes).map_err(|source| match requests {
            0 => PipelineError::First(source),
            before => PipelineError::Later { before, source },
        })?;
        requests += 1;
        bytes = &bytes[len..];
    }
    Ok(requests)
}

/// Returns the length of the first request.
fn one(bytes: &[u8]) -> Result<usize, RequestError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Err(RequestError::Head),
        Err(source) => {
            let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line).trim_end().to_owned();
            return Err(RequestError::Malformed { line, source });
        }
    };
    let value = |name: &str| {
        let header = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| header.value.trim_ascii())
    };
    if value("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case(b"chunked")) {
        return chunks(&bytes[head..]).map(|body| head + body);
    }
    let Some(length) = value("content-length") else { return Ok(head) };
    let length = std::str::from_utf8(length).ok().and_then(|digits| digits.parse().ok());
    let length: usize = length.ok_or(RequestError::Length)?;
    let there = bytes.len() - head;
    if there < length {
        return Err(RequestError::Body { there, length });
    }
    Ok(head + length)
}

/// Returns the length of a chunked body.
fn chunks(bytes: &[u8]) -> Result<usize, RequestError> {
    let mut at = 0;
    while let Ok(httparse::Status::Complete((line, size))) =
        httparse::parse_chunk_size(&bytes[at..])
    {
        let end = usize::try_from(size).ok().and_then(|size| (at + line + 2).checked_add(size));
        let Some(end) = end.filter(|&end| end <= bytes.len()) else { break };
        at = end;
        if size == 0 {
            return Ok(at);
        }
    }
    Err(RequestError::Chunks)
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn requests_are_counted_whatever_their_bodies() {
        let get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let put = "PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\nGET /";
        let chunked = "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(count(get.as_bytes()), Ok(1));
        assert_eq!(count([get, put, chunked, get].concat().as_bytes()), Ok(4));
    }

    #[test]
    fn incomplete_requests_are_refused_with_a_reason() {
        for (text, says) in [
            ("", "empty string"),
            ("GET / HTTP/1.1\r\nHost: h\r\n", "no empty line ends its head"),
            ("key=value&x=y\r\n\r\n", "not a valid HTTP request"),
            ("PUT / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab", "2 bytes of the 9"),
            ("PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\nab", "is not a number"),
            ("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "has no end"),
            ("GET / HTTP/1.1\r\n\r\nGET", "after 1 whole requests"),
        ] {
            let error = count(text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
