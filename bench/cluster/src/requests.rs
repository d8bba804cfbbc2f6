//! Functions that encode requests. Keys are `key0`, `key1` … and values `value0`, `value1` …, as in
//! the scripts of the published load tests that some sections repeat
//! (`crates/load/tests/scripts/put.lua`).

use std::fmt::Arguments;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use load::Write;

/// Requests with the cluster's default `ack` and `from`: 2 of 3, or 1 of 1.
pub(crate) const DEFAULT: Write = |put, number, out| entity("", put, number, out);

/// Requests with long values, which all have the same length and are hardly compressible.
pub(crate) const LONG_VALUES: Write = |put, number, out| {
    if put { long("", number, out) } else { entity("", put, number, out) }
};

/// Spacing of the late keys, which are overwritten after all keys were written.
pub(crate) const LATE_SPACING: u64 = 100;

/// Number of the first late key; the next late keys follow at the spacing of [`LATE_SPACING`].
pub(crate) const FIRST_LATE: u64 = 42;

/// Writes the late key with this index, with a long value, to all replicas.
pub(crate) const LATE_VALUES: Write = |_, number, out| {
    long("ack=3&from=3&", number * LATE_SPACING + FIRST_LATE, out);
};

fn long(query: &str, number: u64, out: &mut Vec<u8>) {
    say(out, format_args!("PUT /v0/entity?{query}id=key{number} HTTP/1.1\r\n"));
    say(out, format_args!("Host: localhost\r\nContent-Length: {LONG_LEN}\r\n\r\n"));
    long_value(number, out);
}

/// Appends the long value of a key.
pub(crate) fn long_value(number: u64, out: &mut Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(number);
    for _ in 0..LONG_LEN / HEX {
        say(out, format_args!("{:0HEX$x}", random.u64(..)));
    }
}

/// Deletes a key.
pub(crate) const DELETE: Write = |_, number, out| {
    let head = format_args!("DELETE /v0/entity?id=key{number} HTTP/1.1\r\nHost: localhost\r\n");
    say(out, head);
    say(out, format_args!("Content-Length: 0\r\n\r\n"));
};

/// Length of a long value in bytes.
pub(crate) const LONG_LEN: usize = 144;

/// Number of hexadecimal digits of a random `u64`.
const HEX: usize = 16;

/// Requests with `ack=1&from=1`, which one replica must answer.
pub(crate) const ONE_COPY: Write = |put, number, out| entity("ack=1&from=1&", put, number, out);

/// Requests for etcd's gateway: JSON over HTTP, with keys and values in base64. Reads are
/// linearizable, which is etcd's default.
pub(crate) const ETCD: Write = |put, number, out| {
    let key = STANDARD.encode(format!("key{number}"));
    let (path, body) = if put {
        let value = STANDARD.encode(format!("value{number}"));
        ("put", format!(r#"{{"key":"{key}","value":"{value}"}}"#))
    } else {
        ("range", format!(r#"{{"key":"{key}"}}"#))
    };
    gateway(path, &body, out);
};

/// The value of all measured writes in the section on conditional writes, ten bytes long.
pub(crate) const VALUE: &str = "0123456789";

/// An unconditional write of [`VALUE`].
pub(crate) const PLAIN: Write = |_, number, out| {
    change("PUT", format_args!("id=key{number}"), "", VALUE, out);
};

/// A write on condition that the key exists, which is true.
pub(crate) const IF_MATCH: Write = |_, number, out| {
    change("PUT", format_args!("id=key{number}"), "If-Match: *\r\n", VALUE, out);
};

/// A write on condition that the key does not exist, which is false. The answer is 412.
pub(crate) const IF_NONE_MATCH: Write = |_, _, out| {
    change("PUT", format_args!("id=key0"), "If-None-Match: *\r\n", VALUE, out);
};

/// An addition of 1 to one number, the same in all requests.
pub(crate) const ADD: Write = |_, _, out| {
    change("POST", format_args!("id={HOT_KEY}&add=1"), "", "", out);
};

/// The key of the number to which [`ADD`] adds.
pub(crate) const HOT_KEY: &str = "hot";

/// etcd's conditional write: a transaction that compares the key's `mod_revision`, which always
/// succeeds for these keys, and then puts.
pub(crate) const ETCD_IF: Write = |_, number, out| {
    let key = STANDARD.encode(format!("key{number}"));
    let value = STANDARD.encode(VALUE);
    let compare =
        format!(r#"{{"key":"{key}","target":"MOD","result":"GREATER","mod_revision":"-1"}}"#);
    let put = format!(r#"{{"request_put":{{"key":"{key}","value":"{value}"}}}}"#);
    gateway("txn", &format!(r#"{{"compare":[{compare}],"success":[{put}]}}"#), out);
};

fn change(method: &str, query: Arguments<'_>, header: &str, value: &str, out: &mut Vec<u8>) {
    let len = value.len();
    say(out, format_args!("{method} /v0/entity?{query} HTTP/1.1\r\nHost: localhost\r\n{header}"));
    say(out, format_args!("Content-Length: {len}\r\n\r\n{value}"));
}

fn gateway(path: &str, body: &str, out: &mut Vec<u8>) {
    let len = body.len();
    say(out, format_args!("POST /v3/kv/{path} HTTP/1.1\r\nHost: localhost\r\n"));
    say(out, format_args!("Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"));
}

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

fn say(out: &mut Vec<u8>, text: Arguments<'_>) {
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
    fn content_length_is_the_length_of_the_body() {
        let entities = [(DEFAULT, true), (ONE_COPY, true), (PLAIN, true), (IF_MATCH, true)];
        let long = [(LONG_VALUES, true), (LATE_VALUES, true)];
        let others = [(IF_NONE_MATCH, true), (ADD, true), (DELETE, true)];
        let etcd = [(ETCD, true), (ETCD, false), (ETCD_IF, true)];
        for number in [0, 7, 10, 99_999, 100_000] {
            for (write, put) in entities.into_iter().chain(long).chain(others).chain(etcd) {
                let text = text(write, put, number);
                let (head, body) = text.split_once("\r\n\r\n").unwrap();
                let len = format!("Content-Length: {}", body.len());
                assert!(head.lines().any(|line| line == len), "{text}");
            }
        }
    }

    #[test]
    fn requests_are_encoded_as_kvorum_and_etcd_expect() {
        let get = "GET /v0/entity?id=key5 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert_eq!(text(DEFAULT, false, 5), get);
        assert!(text(ONE_COPY, true, 5).starts_with("PUT /v0/entity?ack=1&from=1&id=key5 HTTP"));
        assert!(text(ONE_COPY, true, 5).ends_with("\r\n\r\nvalue5"));
        assert!(text(ETCD, true, 5).ends_with(r#"{"key":"a2V5NQ==","value":"dmFsdWU1"}"#));
        let unless = "PUT /v0/entity?id=key0 HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n";
        assert!(text(IF_NONE_MATCH, true, 5).starts_with(unless));
        assert!(
            text(IF_MATCH, true, 5)
                .contains("?id=key5 HTTP/1.1\r\nHost: localhost\r\nIf-Match: *\r\n")
        );
        assert!(text(ADD, true, 5).starts_with("POST /v0/entity?id=hot&add=1 HTTP/1.1\r\n"));
        let body = text(ETCD_IF, true, 5);
        let body = body.split_once("\r\n\r\n").unwrap().1;
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["success"][0]["request_put"]["key"], "a2V5NQ==");
        assert_eq!(body["compare"][0]["key"], "a2V5NQ==");
    }
}
