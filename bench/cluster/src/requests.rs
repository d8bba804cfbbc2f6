//! Requests as they go over the wire: keys `key0`, `key1` … with values `value0`, `value1` …, as
//! the seeds' scripts (`crates/load/tests/scripts/put.lua`) make them.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use load::Write;

/// `ack` and `from` as the cluster has them by default: 2 of 3, or 1 of 1.
pub(crate) const DEFAULT: Write = |put, number, out| entity("", put, number, out);

/// One copy.
pub(crate) const ONE_COPY: Write = |put, number, out| entity("ack=1&from=1&", put, number, out);

/// etcd's gateway: JSON over HTTP, keys and values in base64. Reads are linearizable, its default.
pub(crate) const ETCD: Write = |put, number, out| {
    let key = STANDARD.encode(format!("key{number}"));
    let (path, body) = if put {
        let value = STANDARD.encode(format!("value{number}"));
        ("put", format!(r#"{{"key":"{key}","value":"{value}"}}"#))
    } else {
        ("range", format!(r#"{{"key":"{key}"}}"#))
    };
    let len = body.len();
    say(out, format_args!("POST /v3/kv/{path} HTTP/1.1\r\nHost: localhost\r\n"));
    say(out, format_args!("Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"));
};

fn entity(query: &str, put: bool, number: u64, out: &mut Vec<u8>) {
    let method = if put { "PUT" } else { "GET" };
    say(out, format_args!("{method} /v0/entity?{query}id=key{number} HTTP/1.1\r\n"));
    if put {
        let len = "value".len() + number.checked_ilog10().unwrap_or(0) as usize + 1;
        let head = format_args!("Host: localhost\r\nContent-Length: {len}\r\n\r\nvalue{number}");
        say(out, head);
    } else {
        out.extend_from_slice(b"Host: localhost\r\n\r\n");
    }
}

fn say(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a Vec takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: Write, put: bool, number: u64) -> String {
        let mut out = Vec::new();
        write(put, number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lengths_are_right() {
        for number in [0, 7, 10, 99_999, 100_000] {
            for (write, put) in [(DEFAULT, true), (ONE_COPY, true), (ETCD, true), (ETCD, false)] {
                let text = text(write, put, number);
                let (head, body) = text.split_once("\r\n\r\n").unwrap();
                let len = format!("Content-Length: {}", body.len());
                assert!(head.lines().any(|line| line == len), "{text}");
            }
        }
    }

    #[test]
    fn they_are_what_the_servers_take() {
        let get = "GET /v0/entity?id=key5 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert_eq!(text(DEFAULT, false, 5), get);
        assert!(text(ONE_COPY, true, 5).starts_with("PUT /v0/entity?ack=1&from=1&id=key5 HTTP"));
        assert!(text(ONE_COPY, true, 5).ends_with("\r\n\r\nvalue5"));
        assert!(text(ETCD, true, 5).ends_with(r#"{"key":"a2V5NQ==","value":"dmFsdWU1"}"#));
    }
}
