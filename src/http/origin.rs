//! Origin checks: a request must be meant for this node, and sent by a permitted page or by a
//! program. A web page can send requests to any address that its browser reaches. The address may
//! be another site, or a name of the page's own domain that resolves to the node (DNS rebinding).
//! In the second case the browser treats the node as a part of the page's site, and lets the page
//! read the answers. The node recognizes such requests by `Host`, `Origin` and `Sec-Fetch-Site`,
//! because no page can change these headers.
//!
//! ```text
//!  from this machine, plaintext ─▶ is `Host` a name of the node? ─no─▶ 421
//!  Origin ─▶ the node's own, or in --allow-origin? ─no─▶ 403
//!  no Origin ─▶ is Sec-Fetch-Site present, and another site's? ─yes─▶ 403
//! ```
//!
//! The name in `Host` is checked only for requests from this machine, because only such requests
//! may need no token. For other requests the check would add nothing. If a page's own name resolves
//! to a node with TLS, the browser refuses the connection, because the node's certificate lacks the
//! name. A node without TLS is open to any client that reaches it.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{HeaderValue, ORIGIN};
use hyper::{HeaderMap, Uri};

use super::problem::Problem;

/// The node's own names, and the origins of other pages that may send requests.
#[derive(Debug)]
pub(crate) struct OwnNames {
    /// True if the node listens on a loopback address, so only this machine reaches it.
    is_loopback_only: bool,
    own: Vec<String>,
    /// Permitted origins, spelled as browsers send them.
    listed: Vec<String>,
}

/// A request's destination and source, as its headers state them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Origin<'a> {
    /// `HOST[:PORT]` in the client's spelling; optional in HTTP/1.0.
    pub(super) authority: Option<&'a [u8]>,
    /// Origin of the page that sent the request, if the browser states it.
    pub(super) origin: Option<&'a [u8]>,
    /// Relation of the page's site to this node, if the browser states it.
    pub(super) site: Option<&'a [u8]>,
    /// True if the request navigates to the dashboard, which shows nothing to other sites.
    pub(super) is_navigation: bool,
    /// True if the request came from this machine, in plaintext.
    pub(super) is_local: bool,
    /// Scheme of the request, `http` or `https`.
    pub(super) scheme: &'static str,
}

impl OwnNames {
    /// Collects the names of a node with the address `listen` and the URL `url`.
    pub(crate) fn of(listen: SocketAddr, url: &str, allowed: &[String], listed: &[String]) -> Self {
        let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_lowercase));
        let mut own = vec!["localhost".to_owned()];
        own.extend(host);
        own.extend(allowed.iter().map(|name| name.to_lowercase()));
        // IP addresses are checked by other rules in `is_own_host`.
        own.retain(|name| name.parse::<IpAddr>().is_err());
        let is_loopback_only = listen.ip().to_canonical().is_loopback();
        Self { is_loopback_only, own, listed: listed.to_vec() }
    }

    /// Refuses requests from foreign pages, and requests under a foreign name.
    pub(super) fn admit(&self, request_origin: Origin<'_>) -> Result<(), Problem> {
        let Origin { authority, origin, site, is_navigation, is_local, scheme } = request_origin;
        let authority = authority.unwrap_or_default();
        let is_named = request_origin.authority.is_some() && (is_local || self.is_loopback_only);
        if is_named && !host_of(authority).is_some_and(|host| self.is_own_host(host)) {
            return Err(Problem::misdirected_request(&String::from_utf8_lossy(authority)));
        }
        if origin.is_some_and(|origin| self.lists(origin)) {
            return Ok(());
        }
        // A proxy that terminates TLS forwards requests of `https` pages in plaintext.
        // `same-origin` is the browser's own statement that the page's origin is the destination of
        // the request.
        let is_same = site == Some(b"same-origin");
        let is_own = |origin: &[u8]| {
            let page = page_of(origin, scheme).or(page_of(origin, "https").filter(|_| is_same));
            request_origin.authority.is_some()
                && page.is_some_and(|page| page.eq_ignore_ascii_case(authority))
        };
        if let Some(origin) = origin.filter(|origin| !is_own(origin)) {
            let origin: String = String::from_utf8_lossy(origin).chars().take(100).collect();
            return Err(Problem::foreign_page(&format!("a page from {origin:?}")));
        }
        // Another port of the host, and another host of the domain, belong to the "same site".
        let is_own = |site: &[u8]| [&b"same-origin"[..], b"none"].contains(&site);
        if site.is_some_and(|site| !is_own(site)) && !is_navigation {
            return Err(Problem::foreign_page("a page from another site"));
        }
        Ok(())
    }

    /// True if pages of some other origins are permitted.
    pub(super) fn has_pages(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Returns the origin of the page that sent the request; `None` if it is not a permitted other
    /// origin.
    pub(super) fn page(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        // Most nodes permit no other origin, so their requests save the header lookup.
        if !self.has_pages() {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        self.lists(origin.as_bytes()).then(|| origin.clone())
    }

    fn lists(&self, origin: &[u8]) -> bool {
        self.listed.iter().any(|listed| listed.as_bytes() == origin)
    }

    fn is_own_host(&self, host: &str) -> bool {
        if self.own.iter().any(|name| name.eq_ignore_ascii_case(host)) {
            return true;
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let address = match bare {
            Some(bare) => bare.parse().map(IpAddr::V6).ok(),
            None => host.parse().map(IpAddr::V4).ok(),
        };
        // An IP address in `Host` is safe, because a page whose host is an IP address was served
        // from this address. But unspecified and IPv4-mapped addresses lead to loopback. Browsers
        // treat them as addresses of the network, and do not state the page's origin in requests to
        // them.
        let is_alias =
            |address: IpAddr| address.is_unspecified() || address.to_canonical() != address;
        address.is_some_and(|address| !is_alias(address))
    }
}

/// Returns the host of `HOST[:PORT]`, an IPv6 address with its brackets; `None` if the port is
/// malformed.
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

/// Returns `HOST[:PORT]` of an `Origin`; `None` if the origin has another scheme.
fn page_of<'a>(origin: &'a [u8], scheme: &str) -> Option<&'a [u8]> {
    origin.strip_prefix(scheme.as_bytes())?.strip_prefix(b"://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> OwnNames {
        let listen = "127.0.0.1:8080".parse().unwrap();
        let listed = ["https://app.example".to_owned()];
        OwnNames::of(listen, "http://db.example:8080", &["Other".to_owned()], &listed)
    }

    fn request_origin<'a>(
        authority: &'a str,
        origin: Option<&'a str>,
        site: Option<&'a str>,
    ) -> Origin<'a> {
        Origin {
            authority: Some(authority.as_bytes()),
            origin: origin.map(str::as_bytes),
            site: site.map(str::as_bytes),
            scheme: "http",
            ..Origin::default()
        }
    }

    fn admits(authority: &str, origin: Option<&str>, site: Option<&str>) -> bool {
        names().admit(request_origin(authority, origin, site)).is_ok()
    }

    #[test]
    fn addresses_and_known_names_are_admitted() {
        for host in ["127.0.0.1", "10.0.0.1", "[::1]", "localhost", "LocalHost", "db.example"] {
            assert!(admits(host, None, None), "{host}");
            assert!(admits(&format!("{host}:8080"), None, None), "{host} with a port");
        }
        assert!(admits("other:1", None, None));
    }

    #[test]
    fn other_names_and_forms_are_refused() {
        for host in [
            "",
            ":8080",
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "localhost.",
            "127.0.0.1.",
            "[::1",
            "::1",
            "[[::1]]",
            "[127.0.0.1]",
            "[::1%lo]",
            "1.2.3",
            "0x7f.1",
            "2130706433",
            "127.0.0.1:80:80",
            "127.0.0.1:8080@evil.example",
            "a:b",
            "x@db",
            "x@127.0.0.1",
            "127.0.0.1 evil.example",
            "127.0.0.1\t",
            "0.0.0.0",
            "0.0.0.0:8080",
            "[::]:8080",
            "[::ffff:127.0.0.1]:8080",
            "[::ffff:7f00:1]",
        ] {
            assert!(!admits(host, None, None), "{host:?}");
        }
    }

    #[test]
    fn foreign_pages_are_refused() {
        let own = "127.0.0.1:8080";
        assert!(admits(own, Some("http://127.0.0.1:8080"), Some("same-origin")));
        assert!(admits(own, None, Some("none")));
        let proxied = Some("https://DB.example");
        assert!(admits("db.example", proxied, Some("same-origin")), "behind a proxy with TLS");
        assert!(!admits("db.example", proxied, None), "another scheme is another origin");
        let secured =
            |origin| names().admit(Origin { scheme: "https", ..request_origin(own, origin, None) });
        assert!(secured(Some("https://127.0.0.1:8080")).is_ok());
        assert!(secured(Some("http://127.0.0.1:8080")).is_err());
        for origin in [
            "http://evil.example",
            "null",
            "",
            "http://127.0.0.1:8081",
            "http://127.0.0.1",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1:8080 http://evil.example",
            "http://evil.example@127.0.0.1:8080",
            "ws://127.0.0.1:8080",
            "file://",
            "127.0.0.1:8080",
        ] {
            assert!(!admits(own, Some(origin), None), "{origin:?}");
        }
        for site in ["cross-site", "same-site", "Same-Origin", "x"] {
            assert!(!admits(own, None, Some(site)), "{site}");
            assert!(!admits(own, Some("http://127.0.0.1:8080"), Some(site)), "{site}");
        }
    }

    #[test]
    fn listed_origins_are_admitted_as_they_are_written() {
        let own = "127.0.0.1:8080";
        assert!(admits(own, Some("https://app.example"), Some("cross-site")));
        for origin in [
            "http://app.example",
            "https://app.example:443",
            "https://APP.example",
            "https://app.example.",
            "https://app.example/",
            "https://evil.app.example",
            "https://app.example.evil",
            "https://app.example, https://app.example",
        ] {
            assert!(!admits(own, Some(origin), None), "{origin}");
        }
        assert!(!admits("evil.example", Some("https://app.example"), None), "to another host");
    }

    #[test]
    fn remote_requests_may_use_any_host_but_foreign_pages_are_refused() {
        let names = |listen: &str| OwnNames::of(listen.parse().unwrap(), "http://a:1", &[], &[]);
        let far = names("0.0.0.0:1");
        assert!(far.admit(request_origin("any.example", None, None)).is_ok());
        assert!(far.admit(request_origin("any.example", Some("http://any.example"), None)).is_ok());
        assert!(
            far.admit(request_origin("any.example", Some("http://evil.example"), None)).is_err()
        );
        let is_local = Origin { is_local: true, ..request_origin("any.example", None, None) };
        assert!(far.admit(is_local).is_err(), "what asks from its machine may need no token");
        assert!(
            names("[::ffff:127.0.0.1]:1").admit(request_origin("any.example", None, None)).is_err()
        );
        assert!(
            far.admit(Origin { authority: None, ..request_origin("", Some("http://"), None) })
                .is_err()
        );
        assert!(far.admit(Origin::default()).is_ok(), "HTTP/1.0");
    }
}
