//! Whether a request was meant for this node by somebody who may. Any page that a browser on this
//! machine shows can send requests to loopback: across sites, or under a name of its own that it
//! has pointed there (DNS rebinding), after which the browser takes the node for a part of the
//! page's site and lets it read. Such requests give themselves away by `Host`, `Origin` and
//! `Sec-Fetch-Site`, which no page can change.
//!
//! Only a node that listens on loopback looks at them: whoever else is to be kept out of one that
//! other machines reach, must be kept out by the network.

use std::net::{IpAddr, SocketAddr};

use hyper::Uri;

use super::problem::Problem;

/// What a node on loopback is called.
#[derive(Debug)]
pub(crate) struct Names(Vec<String>);

/// Where a request says that it goes to and comes from.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Origin<'a> {
    /// `HOST[:PORT]` as the client wrote it, in lower case or not.
    pub(super) authority: &'a [u8],
    /// The page that sent it, if the browser says.
    pub(super) origin: Option<&'a [u8]>,
    /// How that page is related to this node.
    pub(super) site: Option<&'a [u8]>,
    /// Whether somebody followed a link to the dashboard, which shows nothing to other sites.
    pub(super) followed: bool,
}

impl Names {
    /// The names of a node that listens there; `None` = any, for it is not on loopback.
    pub(crate) fn of(listen: SocketAddr, url: &str, allowed: &[String]) -> Option<Self> {
        if !listen.ip().to_canonical().is_loopback() {
            return None;
        }
        let own = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_lowercase));
        let mut names = vec!["localhost".to_owned()];
        names.extend(own);
        names.extend(allowed.iter().map(|name| name.to_lowercase()));
        Some(Self(names))
    }

    /// Refuses what somebody else's page sends.
    pub(super) fn admit(&self, asked: Origin<'_>) -> Result<(), Problem> {
        let Origin { authority, origin, site, followed } = asked;
        let host = host_of(authority);
        if !host.is_some_and(|host| self.is_ours(host)) {
            return Err(Problem::misdirected(&String::from_utf8_lossy(authority)));
        }
        let foreign = |origin: &[u8]| !page_of(origin).eq_ignore_ascii_case(authority);
        if let Some(origin) = origin.filter(|origin| foreign(origin)) {
            let origin = String::from_utf8_lossy(origin);
            return Err(Problem::foreign(&format!("a page from {origin:?}")));
        }
        if site.is_some_and(|site| site == b"cross-site") && !followed {
            return Err(Problem::foreign("a page from another site"));
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        // No page can be served from an address that is not its server's.
        host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || self.0.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The host of `HOST[:PORT]`; an IPv6 address keeps its brackets.
fn host_of(authority: &[u8]) -> Option<&str> {
    let authority = str::from_utf8(authority).ok()?;
    let (host, port) = match authority.rfind(':') {
        Some(colon) if !authority.ends_with(']') => authority.split_at(colon),
        _ => (authority, ""),
    };
    let port = port.strip_prefix(':').unwrap_or_default();
    let good = port.bytes().all(|byte| byte.is_ascii_digit());
    good.then_some(host)
}

/// `HOST[:PORT]` of an `Origin`.
fn page_of(origin: &[u8]) -> &[u8] {
    let page = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    page.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let listen = "127.0.0.1:8080".parse().unwrap();
        Names::of(listen, "http://db.example:8080", &["Other".to_owned()]).unwrap()
    }

    fn admits(authority: &str, origin: Option<&str>, site: Option<&str>) -> bool {
        let asked = Origin {
            authority: authority.as_bytes(),
            origin: origin.map(str::as_bytes),
            site: site.map(str::as_bytes),
            followed: false,
        };
        names().admit(asked).is_ok()
    }

    #[test]
    fn addresses_and_known_names_are_admitted() {
        for host in ["127.0.0.1", "10.0.0.1", "[::1]", "localhost", "LocalHost", "db.example"] {
            assert!(admits(host, None, None), "{host}");
            assert!(admits(&format!("{host}:8080"), None, None), "{host} with a port");
        }
        assert!(admits("other:1", None, None));
        for host in
            ["", ":8080", "evil.example", "localhost.evil.example", "[::1", "1.2.3", "a:b", "x@db"]
        {
            assert!(!admits(host, None, None), "{host:?}");
        }
    }

    #[test]
    fn foreign_pages_are_not() {
        let own = "127.0.0.1:8080";
        assert!(admits(own, Some("http://127.0.0.1:8080"), Some("same-origin")));
        assert!(admits(own, None, Some("none")));
        assert!(admits("db.example", Some("https://DB.example"), None), "behind a proxy with TLS");
        for origin in ["http://evil.example", "null", "", "http://127.0.0.1:8081", "127.0.0.1:8080"]
        {
            assert!(!admits(own, Some(origin), None), "{origin:?}");
        }
        assert!(!admits(own, None, Some("cross-site")));
    }

    #[test]
    fn a_node_that_others_reach_has_any_name() {
        assert!(Names::of("0.0.0.0:1".parse().unwrap(), "http://a:1", &[]).is_none());
        assert!(Names::of("[::ffff:127.0.0.1]:1".parse().unwrap(), "http://a:1", &[]).is_some());
    }
}
