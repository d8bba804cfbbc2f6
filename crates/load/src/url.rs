//! Parses target URLs, `http[s]://HOST[:PORT][/PATH][?QUERY]`, as wrk does, and resolves their
//! addresses.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Default ports, in plain text and with TLS.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// The URL of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// The URL as given.
    pub text: String,
    /// True for `https`.
    pub secure: bool,
    /// Name or address of the host. An IPv6 address has no brackets here.
    pub host: String,
    /// Port, if the URL gives one.
    pub port: Option<u16>,
    /// Path and query, or `/` if there are none.
    pub path: String,
    /// True if the URL has a path or a query of its own.
    pub has_path: bool,
}

/// The reason why a URL is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scheme is missing or unknown.
    #[error("{0} is not a valid URL to send load to: say http://{host}", host = after_scheme(.0))]
    Scheme(String),
    /// The URL names no host.
    #[error("{0} names no host: say http://HOST:PORT/PATH")]
    Host(String),
    /// The port is invalid.
    #[error("{url}: the port {port:?} must be 1 to 65535")]
    Port {
        /// The URL as given.
        url: String,
        /// The invalid port.
        port: String,
    },
    /// The URL contains a character that can't be in a request line.
    #[error("{0:?} has a blank or control character: percent-encode it (%20 for a blank)")]
    Blank(String),
    /// The host has no address.
    #[error("can't find the address of {host}, nothing was sent: {cause}")]
    Resolve {
        /// Name of the host.
        host: String,
        /// The system's error.
        cause: io::Error,
    },
}

fn after_scheme(text: &str) -> &str {
    text.split_once("://").map_or(text, |(_, rest)| rest)
}

impl Url {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(Error::Blank(text.to_owned()));
        }
        let scheme =
            |name: &str| text.get(..name.len()).is_some_and(|s| s.eq_ignore_ascii_case(name));
        let secure = scheme("https://");
        if !secure && !scheme("http://") {
            return Err(Error::Scheme(text.to_owned()));
        }
        let rest = after_scheme(text);
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split_port(authority).ok_or_else(|| Error::Host(text.to_owned()))?;
        let port = match port {
            None => None,
            Some(digits) => match digits.parse() {
                Ok(port @ 1..) => Some(port),
                _ => return Err(Error::Port { url: text.to_owned(), port: digits.to_owned() }),
            },
        };
        Ok(Self {
            text: text.to_owned(),
            secure,
            host: host.to_owned(),
            port,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            has_path: !matches!(path, "" | "/"),
        })
    }

    /// Returns `HOST[:PORT]`, as in the `Host` header.
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }

    /// Returns scheme and authority: `http[s]://HOST[:PORT]`.
    pub fn origin(&self) -> String {
        origin(self.secure, &self.authority())
    }

    /// Resolves all addresses of the host, in the system's order.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, Error> {
        let failed = |cause| Error::Resolve { host: self.host.clone(), cause };
        let usual = if self.secure { HTTPS_PORT } else { HTTP_PORT };
        let port = self.port.unwrap_or(usual);
        let addresses: Vec<_> =
            (self.host.as_str(), port).to_socket_addrs().map_err(failed)?.collect();
        if addresses.is_empty() {
            return Err(failed(io::Error::other("it has none")));
        }
        Ok(addresses)
    }
}

/// Returns scheme and authority: `http[s]://HOST[:PORT]`.
pub(crate) fn origin(secure: bool, authority: &str) -> String {
    let scheme = if secure { "https" } else { "http" };
    format!("{scheme}://{authority}")
}

/// Splits `HOST:PORT`, `HOST`, `[V6]:PORT` or `[V6]` into host and port. Returns `None` without a
/// host.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return None,
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    (!host.is_empty()).then_some((host, port))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn urls_are_parsed_as_in_wrk() {
        for (text, host, port, path, authority) in [
            ("http://localhost:8080", "localhost", Some(8080), "/", "localhost:8080"),
            ("http://localhost", "localhost", None, "/", "localhost"),
            ("HTTP://h/", "h", None, "/", "h"),
            ("http://h:80/a/b?c=d&e", "h", Some(80), "/a/b?c=d&e", "h:80"),
            ("http://h?q=1", "h", None, "/?q=1", "h"),
            ("http://[::1]:8080/x#part", "::1", Some(8080), "/x", "[::1]:8080"),
            ("http://[::1]", "::1", None, "/", "[::1]"),
            ("http://user:word@h:1/", "h", Some(1), "/", "h:1"),
            ("https://h/a", "h", None, "/a", "h"),
            ("HTTPS://h:1", "h", Some(1), "/", "h:1"),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.host.as_str(), url.port, url.path.as_str()), (host, port, path));
            assert_eq!(url.authority(), authority);
            let scheme = if url.secure { "https" } else { "http" };
            assert!(text.to_lowercase().starts_with(&format!("{scheme}://")), "{url:?}");
            assert_eq!(url.origin(), format!("{scheme}://{authority}"));
        }
    }

    #[test]
    fn an_invalid_url_is_refused_with_a_correction() {
        for (text, says) in [
            ("localhost:8080", "say http://localhost:8080"),
            ("ftp://h/a", "say http://h/a"),
            ("http://", "names no host"),
            ("http://:8080/", "names no host"),
            ("http://[::1/", "names no host"),
            ("http://h:0/", "the port \"0\" must be 1 to 65535"),
            ("http://h:99999/", "the port \"99999\" must be 1 to 65535"),
            ("http://h:x/", "the port \"x\" must be 1 to 65535"),
            ("http://h/a b", "percent-encode"),
        ] {
            let error = Url::parse(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn localhost_has_an_address() {
        let url = Url::parse("http://127.0.0.1:81/").expect("a URL");
        assert_eq!(url.resolve().expect("an address"), ["127.0.0.1:81".parse().expect("one")]);
        let url = Url::parse("https://127.0.0.1/").expect("a URL");
        assert_eq!(url.resolve().expect("an address"), ["127.0.0.1:443".parse().expect("one")]);
        let url = Url::parse("http://no-such-host.invalid/").expect("a URL");
        let error = url.resolve().expect_err("it has none").to_string();
        assert!(error.starts_with("can't find the address of no-such-host.invalid"), "{error}");
    }
}
