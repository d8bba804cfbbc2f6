//! The cluster's members and their URLs, parsed from `--cluster`, `--advertise` and `--join`.
//!
//! ```text
//!  --cluster a=http://10.0.0.1:8080;zone=x;weight=2,http://10.0.0.2:8080
//!            │ └ address: may change  └ zone and weight         └ URL, also its name
//!            └ name: the identity, kept on disk
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use protocol::layout::MAX_URL;
use protocol::{Member, NodeId, Topology, TopologyError};

/// Reason why the settings do not result in members.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MembersError {
    #[error("{flag}: {source}")]
    Node { flag: &'static str, source: NodeError },
    #[error("--cluster: {0} is listed twice: two nodes cannot have the same address")]
    Twice(String),
    #[error("{flags}: {source}")]
    Topology { flags: &'static str, source: TopologyError },
    #[error(
        "{0} is for a node that joins a cluster, or begins alone: --cluster says it of those that \
         it lists"
    )]
    BesideAList(&'static str),
    #[error(
        "--name {0:?} has a comma, which stands between names in `kvorum cluster plan`: choose one \
         without"
    )]
    Comma(String),
    #[error(
        "--cluster does not contain this node, {0}: add it, or set --advertise to this node's URL \
         in the list"
    )]
    NotListed(String),
}

/// Reason why a text is not a valid node of `--cluster`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("{0:?} has more than {MAX_URL} bytes")]
    LongUrl(String),
    #[error("{0:?} is not a node URL: write http://HOST:PORT or https://HOST:PORT")]
    Url(String),
    #[error("weight {weight:?} of node {node} is not a number")]
    Weight { node: String, weight: String },
    #[error("{option:?} of node {node} is neither zone=ZONE nor weight=1..1000")]
    Option { node: String, option: String },
}

/// The members, according to the settings.
#[derive(Debug, Clone)]
pub(crate) enum Members {
    /// The settings list no members. The only member is this node, or the members are those of its
    /// stored layout.
    Unlisted(Unlisted),
    /// The members listed in the settings.
    Listed(Membership),
}

/// The settings of this node, if they list no members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unlisted {
    /// The node's URL; `None` = the URL of the address that the node listens on.
    pub(crate) url: Option<String>,
    /// URLs of the nodes that this node asks to join their cluster; empty = the node starts alone.
    pub(crate) join: Vec<String>,
    /// The node's name; `None` = the settings do not have it.
    name: Option<String>,
    zone: String,
    weight: u32,
}

/// The unparsed settings of [`Unlisted`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnlistedArgs<'a> {
    /// See [`Unlisted::join`]; URLs separated by commas.
    pub(crate) join: Option<&'a str>,
    /// Name of the node.
    pub(crate) name: Option<&'a str>,
    /// Zone of the node.
    pub(crate) zone: Option<&'a str>,
    /// Weight of the node.
    pub(crate) weight: u32,
}

impl UnlistedArgs<'_> {
    /// The default settings.
    #[cfg(test)]
    pub(crate) const DEFAULT: Self = Self { join: None, name: None, zone: None, weight: 1 };

    fn parse_unlisted(self, url: Option<&str>) -> Result<Unlisted, MembersError> {
        let urls = self.join.into_iter().flat_map(|urls| urls.split(','));
        let join = urls.map(|url| node_url(url).map(str::to_owned)).collect::<Result<_, _>>();
        let join = join.map_err(|source| MembersError::Node { flag: "--join", source })?;
        let (name, zone) = (self.name.map(str::to_owned), self.zone.unwrap_or("").to_owned());
        let new = Unlisted { url: url.map(str::to_owned), join, name, zone, weight: self.weight };
        // Commas separate the names in `--add` and `--remove`.
        if let Some(name) = new.name.as_ref().filter(|name| name.contains(','))
            && !new.join.is_empty()
        {
            return Err(MembersError::Comma(name.clone()));
        }
        let flags = "--name, --zone";
        new.member("n").check().map_err(|source| MembersError::Topology { flags, source })?;
        Ok(new)
    }

    /// Returns a given flag that can't be combined with a list of members; `None` if there is none.
    fn flag_beside_list(self) -> Option<&'static str> {
        let given = [
            ("--join", self.join.is_some()),
            ("--name", self.name.is_some()),
            ("--zone", self.zone.is_some()),
            ("--weight", self.weight != 1),
        ];
        given.iter().find(|(_, is_given)| *is_given).map(|(flag, _)| *flag)
    }
}

impl Unlisted {
    /// Returns this node's URL for the other nodes. `at` is the address that the node listens on.
    pub(crate) fn own_url(&self, at: ServingAddress) -> String {
        self.url.clone().unwrap_or_else(|| at.url())
    }

    /// Returns the node as a member, with the name `name` unless the settings have a name.
    pub(crate) fn member(&self, name: &str) -> Member {
        let name = self.name.as_deref().unwrap_or(name).to_owned();
        Member { name, zone: self.zone.clone(), weight: self.weight }
    }
}

/// The members of the cluster, their URLs, and this node's id.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    /// The placement of keys.
    pub(crate) topology: Topology,
    /// The id of this node.
    pub(crate) own: NodeId,
    /// URL of each node, `http://HOST:PORT`, indexed by id.
    pub(crate) urls: Vec<String>,
    /// True if the settings name this node. Otherwise the name of a single node comes from its
    /// address or its data directory, and has no meaning.
    pub(crate) named: bool,
}

/// The address and protocol that a node serves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServingAddress {
    /// The address that the node listens on.
    pub(crate) address: SocketAddr,
    /// True if the node serves TLS.
    pub(crate) tls: bool,
}

impl ServingAddress {
    /// Returns the node's default URL.
    pub(crate) fn url(self) -> String {
        format!("{}://{}", self.scheme(), self.address)
    }

    fn scheme(self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl Members {
    /// Parses and checks the settings. The text of an error is one line.
    pub(crate) fn parse(
        cluster: Option<&str>,
        advertise: Option<&str>,
        lone: UnlistedArgs<'_>,
        at: ServingAddress,
        replicas: u8,
    ) -> Result<Self, MembersError> {
        let bad = |source| MembersError::Node { flag: "--advertise", source };
        let advertise = advertise.map(node_url).transpose().map_err(bad)?;
        let own = advertise.map_or_else(|| at.url(), str::to_owned);
        let list = match (cluster, advertise) {
            (None, url) => return lone.parse_unlisted(url).map(Self::Unlisted),
            (Some(list), _) => parse_list(list)?,
        };
        if let Some(flag) = lone.flag_beside_list() {
            return Err(MembersError::BesideAList(flag));
        }
        let find = |own: &str| list.iter().position(|(_, url)| url == own);
        // `--listen` resolves localhost to 127.0.0.1, but a URL in the list may still have
        // localhost.
        let localhost = format!("{}://localhost:{}", at.scheme(), at.address.port());
        let by_name = advertise.is_none() && at.address.ip() == Ipv4Addr::LOCALHOST;
        let place = find(&own).or_else(|| find(&localhost).filter(|_| by_name));
        let Some(place) = place else { return Err(MembersError::NotListed(own)) };
        Membership::of(list, place, replicas, true)
            .map(Self::Listed)
            .map_err(|source| MembersError::Topology { flags: "--cluster", source })
    }

    /// Returns the members for a node that serves at `at`. `kept` is the name in its data
    /// directory. `layout_rules` is true if a stored layout is in force; then a list of members
    /// only provides URLs.
    pub(crate) fn settle(
        &self,
        at: ServingAddress,
        kept: Option<String>,
        replicas: u8,
        layout_rules: bool,
    ) -> Result<Membership, TopologyError> {
        let unlisted = match self {
            Self::Listed(membership) => return Ok(membership.clone()),
            Self::Unlisted(unlisted) => unlisted,
        };
        let url = unlisted.url.clone().unwrap_or_else(|| at.url());
        // A node that was always alone takes its name from its URL, unless the settings have a
        // name. A node that has joined keeps its name, because the name in its settings only
        // applied to its first start.
        let asks = !unlisted.join.is_empty();
        let named = (unlisted.url.is_some() && !layout_rules || unlisted.name.is_some()) && !asks;
        let member = match kept.filter(|_| !named) {
            Some(kept) => Member { name: kept, ..unlisted.member(&url) },
            None => unlisted.member(&url),
        };
        Membership::of(vec![(member, url)], 0, replicas, named)
    }

    /// Returns the name that the settings give to a joining node, if its data directory already has
    /// another name; otherwise `None`. The given name only applied to the node's first start.
    pub(crate) fn unused_name(&self, kept: Option<&str>) -> Option<&str> {
        let Self::Unlisted(unlisted) = self else { return None };
        let given = unlisted.name.as_deref().filter(|_| !unlisted.join.is_empty());
        given.filter(|given| kept.is_some_and(|kept| kept != *given))
    }

    /// Returns the URLs of the nodes that this node asks to join.
    pub(crate) fn joins(&self) -> &[String] {
        match self {
            Self::Unlisted(unlisted) => &unlisted.join,
            Self::Listed(_) => &[],
        }
    }

    /// Returns the nodes' URLs whose host is not a loopback address.
    pub(crate) fn beyond_loopback(&self) -> Vec<&str> {
        let urls: Vec<&String> = match self {
            Self::Unlisted(unlisted) => {
                let own = unlisted.url.iter().filter(|_| !unlisted.join.is_empty());
                own.chain(&unlisted.join).collect()
            }
            Self::Listed(membership) => membership.urls.iter().collect(),
        };
        urls.into_iter().filter(|url| !is_loopback(url)).map(String::as_str).collect()
    }

    /// Returns the number of listed nodes; 1 if no nodes are listed.
    pub(crate) fn nodes(&self) -> usize {
        match self {
            Self::Unlisted(_) => 1,
            Self::Listed(membership) => membership.topology.nodes(),
        }
    }

    /// Returns the listed URLs by node name.
    pub(crate) fn listed_urls(&self) -> HashMap<String, String> {
        let Self::Listed(Membership { topology, urls, .. }) = self else { return HashMap::new() };
        let names = topology.ids().map(|id| topology.member(id).name.clone());
        names.zip(urls.iter().cloned()).collect()
    }

    /// Returns the URL of this node; `None` if the settings do not have it.
    pub(crate) fn own_url(&self) -> Option<&str> {
        match self {
            Self::Unlisted(unlisted) => unlisted.url.as_deref(),
            Self::Listed(membership) => {
                Some(membership.urls[usize::from(membership.own.0)].as_str())
            }
        }
    }
}

impl Membership {
    /// Creates the membership of `list`, which is sorted by name. `own` is this node's index.
    fn of(
        list: Vec<(Member, String)>,
        own: usize,
        replicas: u8,
        named: bool,
    ) -> Result<Self, TopologyError> {
        let (members, urls) = list.into_iter().unzip();
        let topology = Topology::new(members, replicas)?;
        Ok(Self { topology, own: NodeId(own as u16), urls, named })
    }

    /// Returns the name of this node.
    #[cfg(test)]
    pub(crate) fn name(&self) -> &str {
        &self.topology.member(self.own).name
    }
}

/// Returns a member with the default zone and weight.
fn member(name: &str) -> Member {
    Member { name: name.to_owned(), zone: String::new(), weight: 1 }
}

/// Parses a list of nodes, and sorts it by name. The order is that of the node ids.
fn parse_list(list: &str) -> Result<Vec<(Member, String)>, MembersError> {
    let mut nodes: Vec<(Member, String)> = Vec::new();
    for node in list.split(',') {
        let bad = |source| MembersError::Node { flag: "--cluster", source };
        let (member, url) = parse_node(node).map_err(bad)?;
        if nodes.iter().any(|(_, other)| *other == url) {
            return Err(MembersError::Twice(url));
        }
        nodes.push((member, url));
    }
    nodes.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    Ok(nodes)
}

/// Parses a node of `--cluster`: `[NAME=]URL[;zone=Z][;weight=W]`.
pub(crate) fn parse_node(node: &str) -> Result<(Member, String), NodeError> {
    // A name precedes the "://". A '=' after the "://" belongs to an option.
    let (name, rest) = match node.split_once('=') {
        Some((name, rest)) if !name.contains("://") => (Some(name), rest),
        _ => (None, node),
    };
    let mut parts = rest.split(';');
    let url = node_url(parts.next().unwrap_or_default())?;
    let mut member = member(name.unwrap_or(url));
    for option in parts {
        let node = || member.name.clone();
        match option.split_once('=') {
            Some(("zone", zone)) if !zone.is_empty() => zone.clone_into(&mut member.zone),
            Some(("weight", weight)) => {
                let bad = |_| NodeError::Weight { node: node(), weight: weight.to_owned() };
                member.weight = weight.parse().map_err(bad)?;
            }
            _ => return Err(NodeError::Option { node: node(), option: option.to_owned() }),
        }
    }
    Ok((member, url.to_owned()))
}

/// Checks the URL of a node, `http://HOST:PORT` or `https://HOST:PORT`. Removes a trailing slash,
/// because copied URLs often have one.
pub(crate) fn node_url(text: &str) -> Result<&str, NodeError> {
    let url = text.strip_suffix('/').unwrap_or(text);
    let parsed: Option<hyper::Uri> = url.parse().ok();
    let good = parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.port_u16().is_some()
            && uri.path() == "/"
            && uri.query().is_none()
            && !url.contains(['@', '#'])
            && !url.ends_with('/')
    });
    if url.len() > MAX_URL {
        return Err(NodeError::LongUrl(text.to_owned()));
    }
    if good { Ok(url) } else { Err(NodeError::Url(text.to_owned())) }
}

/// Returns `HOST:PORT` of a node's URL.
pub(crate) fn authority_of(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, authority)| authority)
}

pub(crate) fn is_loopback(url: &str) -> bool {
    let parsed: Option<hyper::Uri> = url.parse().ok();
    let host = parsed.as_ref().and_then(hyper::Uri::host).unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> ServingAddress {
        ServingAddress { address: address.parse().unwrap(), tls: false }
    }

    fn listen() -> ServingAddress {
        at("127.0.0.1:8080")
    }

    fn parse_list(cluster: &str, advertise: Option<&str>) -> Membership {
        match Members::parse(Some(cluster), advertise, UnlistedArgs::DEFAULT, listen(), 3).unwrap()
        {
            Members::Listed(membership) => membership,
            Members::Unlisted(_) => panic!("{cluster:?} is a list"),
        }
    }

    #[test]
    fn a_node_is_found_by_its_url_and_known_by_its_name() {
        let named = parse_list("a=http://127.0.0.1:8080", None);
        assert_eq!((named.name(), named.named), ("a", true));
        let url = parse_list("http://127.0.0.1:8080", None);
        assert_eq!(url.name(), "http://127.0.0.1:8080");
        let three = parse_list("c=http://h:1,a=http://h:3,b=http://h:2", Some("http://h:2"));
        assert_eq!((three.name(), three.own), ("b", NodeId(1)));
        assert_eq!(three.urls, ["http://h:3", "http://h:2", "http://h:1"]);
        assert_eq!(parse_list("http://[::1]:1", Some("http://[::1]:1")).urls, ["http://[::1]:1"]);
        let slashed = parse_list("http://127.0.0.1:8080/,b=http://h:2/;zone=z", None);
        assert_eq!(
            slashed.urls,
            ["b", "http://127.0.0.1:8080"].map(|name| match name {
                "b" => "http://h:2".to_owned(),
                url => url.to_owned(),
            })
        );
        assert_eq!(slashed.name(), "http://127.0.0.1:8080", "the same name as without the slash");
        assert_eq!(parse_list("a=http://h:1,b=http://h:2", Some("http://h:2/")).name(), "b");
        assert_eq!(parse_list("a=http://h:1,b=http://localhost:8080", None).name(), "b");
    }

    #[test]
    fn zones_and_weights_follow_the_url() {
        let own = Some("http://h:1");
        let cluster =
            parse_list("http://h:1;zone=x,b=http://h:2;weight=20;zone=y,c=http://h:3", own);
        let facts = |name: &str| {
            let id = cluster.topology.find(name).unwrap();
            let member = cluster.topology.member(id);
            (member.zone.as_str(), member.weight)
        };
        assert_eq!(facts("http://h:1"), ("x", 1));
        assert_eq!(facts("b"), ("y", 20));
        assert_eq!(facts("c"), ("", 1));
    }

    #[test]
    fn an_invalid_cluster_list_is_an_error_of_one_line() {
        let own = "http://127.0.0.1:8080";
        let long = format!("{}={own}", "n".repeat(256));
        let far = format!("{own},b=http://{}:1", "h.".repeat(124) + "h");
        for (cluster, advertise, said) in [
            ("a=http://h:1", None, "does not contain this node, http://127.0.0.1:8080"),
            ("a=http://127.0.0.1:8080,a=http://h:2", None, "two nodes are named a"),
            ("a=http://127.0.0.1:8080,b=http://127.0.0.1:8080", None, "listed twice"),
            ("ftp://127.0.0.1:8080", None, "not a node URL"),
            ("", None, "not a node URL"),
            ("http://127.0.0.1:8080,", None, "not a node URL"),
            ("http://127.0.0.1:8080//", None, "not a node URL"),
            ("http://127.0.0.1:8080/v0", None, "not a node URL"),
            ("http://me@127.0.0.1:8080", None, "not a node URL"),
            ("http://127.0.0.1", None, "not a node URL"),
            ("http://h:1", Some("h:1"), "--advertise: \"h:1\" is not a node URL"),
            ("=http://127.0.0.1:8080", None, "empty name"),
            ("a b=http://127.0.0.1:8080", None, "is not a valid name"),
            (&long, None, "up to 255 bytes"),
            (&far, None, "has more than 255 bytes"),
            ("a=http://127.0.0.1:8080;weight=0", None, "weight 0 is out of range 1..1000"),
            ("a=http://127.0.0.1:8080;weight=x", None, "weight \"x\" of node a"),
            ("a=http://127.0.0.1:8080;zone=", None, "neither zone=ZONE nor weight"),
            ("a=http://127.0.0.1:8080;color=red", None, "\"color=red\" of node a"),
        ] {
            let refused =
                Members::parse(Some(cluster), advertise, UnlistedArgs::DEFAULT, listen(), 3);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(said), "{cluster}: {error}");
            assert!(error.starts_with("--") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_single_node_keeps_the_name_in_its_data_directory() {
        let alone = Members::parse(None, None, UnlistedArgs::DEFAULT, listen(), 3).unwrap();
        let first = alone.settle(at("127.0.0.1:4711"), None, 3, false).unwrap();
        assert_eq!((first.name(), first.named), ("http://127.0.0.1:4711", false));
        let kept = Some(first.name().to_owned());
        let again = alone.settle(at("127.0.0.1:4712"), kept, 3, false).unwrap();
        assert_eq!(again.name(), "http://127.0.0.1:4711");
        assert_eq!(again.urls, ["http://127.0.0.1:4712"]);
        let advertised =
            Members::parse(None, Some("http://h:1"), UnlistedArgs::DEFAULT, listen(), 3).unwrap();
        let named = advertised.settle(listen(), None, 3, false).unwrap();
        assert_eq!((named.name(), named.named), ("http://h:1", true));
        let joined = advertised.settle(listen(), Some("n4".to_owned()), 3, true).unwrap();
        assert_eq!((joined.name(), joined.named), ("n4", false), "its layout says who it is");
        assert_eq!((alone.nodes(), advertised.nodes()), (1, 1));
    }

    #[test]
    fn an_unlisted_node_may_set_its_name_zone_and_weight() {
        let said =
            UnlistedArgs { name: Some("n4"), zone: Some("z"), weight: 3, ..UnlistedArgs::DEFAULT };
        let parse = |cluster, lone| Members::parse(cluster, None, lone, listen(), 3);
        let alone = parse(None, said).unwrap().settle(listen(), None, 3, false).unwrap();
        let member = alone.topology.member(alone.own);
        assert_eq!((member.name.as_str(), member.zone.as_str(), member.weight), ("n4", "z", 3));
        assert!(alone.named);
        let joins = UnlistedArgs { join: Some("http://h:1,http://h:2/"), ..said };
        let asks = parse(None, joins).unwrap();
        assert_eq!(asks.joins(), ["http://h:1", "http://h:2"]);
        assert_eq!(asks.beyond_loopback(), ["http://h:1", "http://h:2"]);
        let placed = asks.settle(listen(), Some("n7".to_owned()), 3, true).unwrap();
        assert_eq!((placed.name(), placed.named), ("n7", false), "what it asked for before");

        let own = Some("http://127.0.0.1:8080");
        for (cluster, lone, says) in [
            (own, joins, "--join is for a node that joins"),
            (own, said, "--name is for a node that joins"),
            (
                own,
                UnlistedArgs { weight: 2, ..UnlistedArgs::DEFAULT },
                "--weight is for a node that joins",
            ),
            (None, UnlistedArgs { join: Some("h:1"), ..said }, "--join: \"h:1\" is not a node URL"),
            (
                None,
                UnlistedArgs { name: Some("a b"), ..said },
                "--name, --zone: \"a b\" is not a valid name",
            ),
        ] {
            let error = parse(cluster, lone).unwrap_err().to_string();
            assert!(error.starts_with(says) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for local in ["http://127.0.0.1:1", "http://127.9.9.9:1", "http://[::1]:1"] {
            assert!(is_loopback(local), "{local}");
        }
        assert!(is_loopback("http://localhost:1"));
        for remote in ["http://10.0.0.1:1", "http://example.org:1", "http://0.0.0.0:1"] {
            assert!(!is_loopback(remote), "{remote}");
        }
        let own = Some("http://127.0.0.1:1");
        let cluster = Some("http://127.0.0.1:1,http://10.0.0.1:1");
        let mixed = Members::parse(cluster, own, UnlistedArgs::DEFAULT, listen(), 3).unwrap();
        assert_eq!(mixed.beyond_loopback(), ["http://10.0.0.1:1"]);
    }
}
