//! The configuration of a node: merges the settings (flag over variable over file over default) and
//! checks them against each other.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use protocol::RoundConfig;
use tracing_subscriber::filter::Targets;

use crate::settings::error::ConfigError;
use crate::settings::list::{ServeArgs, Settings};
use crate::settings::log;
use crate::settings::machine;
use crate::settings::members::{Members, ServingAddress, UnlistedArgs};
use crate::settings::memory::{self, MemoryPlan, RESERVE_SLOTS};
use crate::settings::secret::{self, Secret, SecretKind};
use crate::settings::units::{Every, Size, Ttl};
use crate::settings::values::LogFormat;

/// Upper limit of `--max-value`. A WAL batch has room for several records of this size.
pub(crate) const MAX_VALUE: Size = Size(8 << 20);

/// The longest value is at most 1/`VALUE_SHARE` of `--memory`, so the memory for bodies has room
/// for several values.
const VALUE_SHARE: u64 = 64;

/// A node's configuration, complete and consistent.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Address to serve on.
    pub(crate) listen: SocketAddr,
    /// The data directory.
    pub(crate) data: PathBuf,
    /// The cluster's members.
    pub(crate) members: Members,
    /// Secret by which the cluster's nodes authenticate each other.
    pub(crate) secret: Option<Secret>,
    /// Files of the cluster's secret, of a second accepted secret and of the admin token. The node
    /// rereads them while it runs.
    pub(crate) secret_files: SecretFiles,
    /// Files of the node's certificates; `None` = the node serves plaintext.
    pub(crate) tls: Option<TlsFiles>,
    /// Token that permits every request. If it is set, admin requests need a token even from
    /// loopback.
    pub(crate) admin_token: Option<Secret>,
    /// Clients that may read and write without a token.
    pub(crate) open_to: OpenTo,
    /// True if the node may serve plaintext on addresses that other machines can reach.
    pub(crate) insecure: bool,
    /// Additional host names of a node on loopback.
    pub(crate) allow_host: Vec<String>,
    /// Origins of other pages that may send requests to this node, spelled as browsers send them.
    pub(crate) allow_origin: Vec<String>,
    /// Maximum time by which another node's clock may be ahead of this node's.
    pub(crate) max_clock_skew: Duration,
    /// The sync mode, which decides when a write is acknowledged.
    pub(crate) sync: lsm::SyncMode,
    /// The division of `--memory`.
    pub(crate) memory: MemoryPlan,
    /// Number of replicas of a key if a request does not specify `from`.
    pub(crate) replicas: u8,
    /// Time after which a waiting request is answered with 504.
    pub(crate) deadline: Duration,
    /// Longest value in bytes.
    pub(crate) max_value: usize,
    /// Longest time to live of a value.
    pub(crate) max_ttl: Ttl,
    /// Schedule of repair rounds.
    pub(crate) rounds: RoundConfig,
    /// Maximum number of bytes per second of partitions that this node receives; `None` =
    /// unlimited.
    pub(crate) stream_rate: Option<u64>,
    /// Number of event loops.
    pub(crate) loops: usize,
    /// Number of threads of the read pool.
    pub(crate) read_threads: usize,
    /// Maximum number of reads that wait for a thread of the read pool.
    pub(crate) queue: usize,
    /// Maximum number of client connections.
    pub(crate) connections: usize,
    /// Number of reserve slots, in addition to the slots of clients.
    pub(crate) reserve_slots: usize,
    /// True if the node prints its address and first commands to stdout. With the JSON log format
    /// only `--greet` sets it, so all other output is JSON.
    pub(crate) greets: bool,
    /// Warnings for the operator, logged when logging starts.
    pub(crate) warnings: Vec<String>,
}

/// Clients that may read and write without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenTo {
    /// No client: `--require-auth`.
    Nobody,
    /// Clients on loopback.
    Loopback,
    /// All clients that reach the port: `--insecure`.
    All,
}

impl OpenTo {
    /// Returns the clients that `--require-auth` and `--insecure` select. `--require-auth` takes
    /// precedence.
    fn of(require_auth: bool, insecure: bool) -> Self {
        match (require_auth, insecure) {
            (true, _) => Self::Nobody,
            (false, true) => Self::All,
            (false, false) => Self::Loopback,
        }
    }
}

/// Files of secrets, which the node rereads while it runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecretFiles {
    /// The secret with which the node proves its membership.
    pub(crate) own: Option<PathBuf>,
    /// A second secret that is accepted from other nodes.
    pub(crate) also: Option<PathBuf>,
    /// The file of the admin token.
    pub(crate) admin: Option<PathBuf>,
}

/// Files of a node's certificates, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The node's certificate, then the intermediate certificates up to its CA.
    pub(crate) cert: PathBuf,
    /// The certificate's private key.
    pub(crate) key: PathBuf,
    /// CAs of clients' certificates; `None` = clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
    /// Host under which clients reach the node, a name or an address; `None` if the settings do not
    /// have it.
    pub(crate) host: Option<String>,
}

impl Config {
    /// Returns the address and protocol of the node. `address` is the address that it listens on.
    pub(crate) fn at(&self, address: SocketAddr) -> ServingAddress {
        ServingAddress { address, tls: self.tls.is_some() }
    }
}

/// The logging configuration.
#[derive(Debug, Clone)]
pub(crate) struct Logging {
    /// Minimum log level of each module.
    pub(crate) filter: Targets,
    /// Format of log lines.
    pub(crate) format: LogFormat,
}

/// Builds the configuration from `args`, and from the file that `args` names, if any. The text of
/// an error is one line.
pub(crate) fn load(args: ServeArgs) -> Result<(Config, Logging), ConfigError> {
    let greets = args.greet;
    let [cluster, admin] = [&secret::CLUSTER, &secret::ADMIN].map(SecretKind::variable);
    let (mut config, logging) = complete(merge_sources(args)?, cluster, admin)?;
    config.greets |= greets;
    Ok((config, logging))
}

/// Merges the settings of flags and variables with those of the file that `args` names, if any.
pub(crate) fn merge_sources(args: ServeArgs) -> Result<Settings, ConfigError> {
    let file = match &args.config {
        Some(path) => read_file(path)?,
        None => Settings::default(),
    };
    let settings = args.settings.or(file);
    if settings.data.as_ref().is_some_and(|data| data.as_os_str().is_empty()) {
        return Err(ConfigError::NoData);
    }
    Ok(settings)
}

fn read_file(file: &Path) -> Result<Settings, ConfigError> {
    let path = || file.to_owned();
    let text = fs::read_to_string(file)
        .map_err(|source| ConfigError::Unreadable { path: path(), source })?;
    toml::from_str(&text).map_err(|source| {
        let line = source.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        let text = text.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
        ConfigError::Line { path: path(), line, text, source: Box::new(source) }
    })
}

fn complete(
    settings: Settings,
    secret_variable: Option<OsString>,
    token_variable: Option<OsString>,
) -> Result<(Config, Logging), ConfigError> {
    let (has_full, settings) = (settings.repair_full_interval.is_some(), settings.with_defaults());
    let (listen, replicas) = (settings.listen.0, settings.replicas.0 as u8);
    let (cluster, advertise) = (settings.cluster.as_deref(), settings.advertise.as_deref());
    let lone = UnlistedArgs {
        join: settings.join.as_deref(),
        name: settings.name.as_deref(),
        zone: settings.zone.as_deref(),
        weight: settings.weight.0,
    };
    let tls = tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)?;
    let at = ServingAddress { address: listen, tls: tls.is_some() };
    let members = Members::parse(cluster, advertise, lone, at, replicas)?;
    let tls = tls.map(|files| TlsFiles { host: host(&members, listen), ..files });
    let (secret_file, token_file) =
        (settings.cluster_secret_file.as_deref(), settings.admin_token_file.as_deref());
    let (secret, warning) = secret::CLUSTER.load(secret_file, secret_variable)?;
    let (admin_token, token_warning) = secret::ADMIN.load(token_file, token_variable)?;
    let unprotected = check_secret(&members, listen, secret.as_ref())?;
    let open_to = OpenTo::of(settings.require_auth, settings.insecure);
    let open = require_tls(&members, at, settings.insecure, open_to)?;
    if open_to == OpenTo::Nobody && secret.is_none() && !is_alone(&members) {
        return Err(ConfigError::NodesProve);
    }
    let limit = machine::memory_limit();
    let budget = settings.memory.unwrap_or_else(|| memory::usual_budget(limit.as_ref()));
    let over_limit = memory::over_limit_warning(budget, limit.as_ref());
    let memory = MemoryPlan::of(budget, settings.memtable, tls.is_some())?;
    let max_value = max_value(settings.max_value, budget)?;
    let connections = settings.connections.map_or(memory.connections as usize, |n| n.0 as usize);
    let closed = no_admin_warning(listen, open_to, admin_token.is_some());
    let warnings = [warning, token_warning, unprotected, open, closed, over_limit].into_iter();
    let config = Config {
        listen,
        data: settings.data,
        members,
        secret,
        secret_files: SecretFiles {
            own: settings.cluster_secret_file,
            also: settings.cluster_secret_also_file,
            admin: settings.admin_token_file,
        },
        tls,
        admin_token,
        open_to,
        insecure: settings.insecure,
        allow_host: names(settings.allow_host.as_deref())?,
        allow_origin: parse_origins(settings.allow_origin.as_deref())?,
        max_clock_skew: settings.max_clock_skew.0,
        sync: settings.sync.0,
        memory,
        replicas,
        deadline: settings.deadline.0,
        max_value,
        max_ttl: settings.max_ttl,
        rounds: repair_schedule(
            (settings.repair_interval, settings.repair_full_interval, has_full),
            u64::from(settings.repair_share.0),
            settings.deadline.0 + settings.max_clock_skew.0,
        ),
        stream_rate: settings.stream_rate.0,
        loops: settings.loops.map_or_else(cpus, |n| n.0 as usize),
        read_threads: settings.read_threads.0 as usize,
        queue: settings.queue.0 as usize,
        connections,
        reserve_slots: RESERVE_SLOTS,
        greets: settings.log_format == LogFormat::Text,
        warnings: warnings.flatten().collect(),
    };
    let filter = log::parse_filter(&settings.log)?;
    Ok((config, Logging { filter, format: settings.log_format }))
}

/// Requires TLS for addresses and URLs beyond loopback, of this node and of other nodes, because
/// plaintext can be read on a network. `--insecure` waives the requirement; then this function
/// returns a warning.
fn require_tls(
    members: &Members,
    at: ServingAddress,
    insecure: bool,
    open_to: OpenTo,
) -> Result<Option<String>, ConfigError> {
    let listens = (!at.tls && !at.address.ip().to_canonical().is_loopback())
        .then(|| format!("--listen {}", at.address));
    let place = listens.or_else(|| {
        // This node's own URL may be that of a proxy which terminates TLS.
        let beyond = members.beyond_loopback().into_iter();
        let mut others = beyond.filter(|url| members.own_url() != Some(url));
        others.find(|url| url.starts_with("http://")).map(str::to_owned)
    });
    match (place, insecure) {
        (None, _) => Ok(None),
        (Some(place), true) if open_to == OpenTo::Nobody => Ok(Some(format!(
            "INSECURE: {place} is in clear: whoever can listen there has the tokens (--insecure)"
        ))),
        (Some(place), true) => Ok(Some(format!(
            "INSECURE: {place} is in clear, and whoever reaches this node may read and write \
             everything (--insecure)"
        ))),
        (Some(place), false) => Err(ConfigError::InClear { place }),
    }
}

/// Returns true if requests from loopback reach a node that listens on this address. The source of
/// a request to another address of this machine is that address, unless the client binds its
/// socket.
pub(crate) fn receives_loopback(listen: SocketAddr) -> bool {
    let ip = listen.ip().to_canonical();
    ip.is_loopback() || ip.is_unspecified()
}

/// Returns a warning if every request needs a token, but this node has no admin token with which
/// tokens could be created.
fn no_admin_warning(listen: SocketAddr, open_to: OpenTo, has_admin: bool) -> Option<String> {
    let (why, way_out) = match open_to {
        OpenTo::Nobody => ("--require-auth is set".to_owned(), ""),
        OpenTo::Loopback if !receives_loopback(listen) => (
            format!(
                "only requests from 127.0.0.1 and ::1 need no token, and to --listen {listen} none \
                 come from there, unless their client binds its socket to it"
            ),
            ", or listen on 0.0.0.0 or [::], and administer from this machine by 127.0.0.1",
        ),
        OpenTo::Loopback | OpenTo::All => return None,
    };
    (!has_admin).then(|| {
        format!(
            "nobody can use or administer this node before a token is created, which takes an \
             admin token, and it has none: {why}. Set --admin-token-file (a node of the same \
             cluster with one can create tokens for all){way_out}"
        )
    })
}

/// Returns the host under which clients reach the node; `None` if the settings do not have it.
fn host(members: &Members, listen: SocketAddr) -> Option<String> {
    let uri = members.own_url().and_then(|url| url.parse::<Uri>().ok());
    let named = uri.and_then(|uri| uri.host().map(str::to_owned));
    let ip = listen.ip().to_canonical();
    named.or_else(|| (!ip.is_unspecified()).then(|| ip.to_string()))
}

/// Returns the certificate files; `None` if the settings do not name any.
fn tls(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Result<Option<TlsFiles>, ConfigError> {
    match (cert, key, client_ca) {
        (Some(cert), Some(key), client_ca) => {
            Ok(Some(TlsFiles { cert, key, client_ca, host: None }))
        }
        (None, None, None) => Ok(None),
        (Some(_), None, _) => Err(ConfigError::CertWithoutKey),
        (None, Some(_), _) => Err(ConfigError::KeyWithoutCert),
        (None, None, Some(_)) => Err(ConfigError::ClientCaAlone),
    }
}

/// Parses the names of `--allow-host`.
fn names(list: Option<&str>) -> Result<Vec<String>, ConfigError> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let names = list.iter().flat_map(|list| list.split(','));
    names
        .map(|name| match !name.is_empty() && name.bytes().all(known) {
            true => Ok(name.to_owned()),
            false => Err(ConfigError::Host(name.to_owned())),
        })
        .collect()
}

/// Parses the origins of `--allow-origin`.
fn parse_origins(list: Option<&str>) -> Result<Vec<String>, ConfigError> {
    list.iter().flat_map(|list| list.split(',')).map(normalize_origin).collect()
}

/// Converts an origin to the spelling of browsers: in lower case, without the scheme's default
/// port.
fn normalize_origin(text: &str) -> Result<String, ConfigError> {
    match text {
        "*" => Err(ConfigError::AnyOrigin),
        "null" => Err(ConfigError::NullOrigin),
        _ => {
            let written = spell_as_browsers(&text.to_ascii_lowercase());
            written.ok_or_else(|| ConfigError::Origin(text.to_owned()))
        }
    }
}

fn spell_as_browsers(text: &str) -> Option<String> {
    let (scheme, authority) = text.split_once("://")?;
    let standard = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse::<u16>().ok()?)),
        _ => (authority, None),
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(known),
    };
    let port = port.filter(|port| *port != standard);
    let is_good = is_host && port != Some(0);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    is_good.then(|| format!("{scheme}://{host}{port}"))
}

/// Returns the number of CPUs in this process's affinity mask.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Factor for the age below which a record may still be in transit. The age is this factor times
/// the sum of `--deadline` and `--max-clock-skew`.
const TRANSIT_FACTOR: u32 = 2;

/// Returns the schedule of repair rounds. A full round includes an incremental round. If full
/// rounds are due more often, or incremental rounds are off, every round is full. `wants_full` is
/// true if `--repair-full-interval` was given. Its default alone causes no rounds.
fn repair_schedule(
    (interval, full_interval, wants_full): (Every, Every, bool),
    share: u64,
    unsettled: Duration,
) -> RoundConfig {
    let micros = |every: Duration| every.as_micros() as u64;
    let [interval, full] = [interval.0.map(micros), full_interval.0.map(micros)];
    let interval = [interval, full.filter(|_| wants_full)].into_iter().flatten().min();
    RoundConfig {
        interval_micros: interval.unwrap_or(0),
        full_interval_micros: full.unwrap_or(u64::MAX),
        share,
        settled_micros: (unsettled * TRANSIT_FACTOR).as_micros() as u64,
    }
}

/// Returns the longest value in bytes. Fails if it is too long for the memory.
fn max_value(asked: Size, memory: Size) -> Result<usize, ConfigError> {
    let most = MAX_VALUE.min(Size(memory.0 / VALUE_SHARE));
    if asked.0 == 0 || asked > most {
        return Err(ConfigError::MaxValue { asked, most, memory });
    }
    Ok(asked.0 as usize)
}

/// Returns true if the settings neither list other nodes, nor name a node to join.
fn is_alone(members: &Members) -> bool {
    members.nodes() == 1 && members.joins().is_empty()
}

/// Requires that nodes without a secret are reachable only from this machine, because without a
/// secret a node can't distinguish another node from a stranger. If they are, returns a warning.
fn check_secret(
    members: &Members,
    listen: SocketAddr,
    secret: Option<&Secret>,
) -> Result<Option<String>, ConfigError> {
    if is_alone(members) || secret.is_some() {
        return Ok(None);
    }
    let beyond = members.beyond_loopback().first().map(|url| (*url).to_owned());
    let beyond =
        beyond.or_else(|| (!listen.ip().is_loopback()).then(|| format!("--listen {listen}")));
    match beyond {
        None => Ok(Some(format!(
            "no cluster secret: any process on this machine can pose as a node; see \
             --cluster-secret-file and {}",
            secret::CLUSTER.variable
        ))),
        Some(place) => Err(ConfigError::NoSecret { place }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::values::{Switch, UpTo};

    fn listen() -> SocketAddr {
        "127.0.0.1:8080".parse().unwrap()
    }

    #[test]
    fn the_earlier_source_wins() {
        let first = Settings { queue: Some(UpTo(1)), ..Settings::default() };
        let (queue, loops) = (Some(UpTo(2)), Some(UpTo(3)));
        let second = Settings { queue, loops, ..Settings::default() };
        let (config, _) = complete(first.or(second), None, None).unwrap();
        assert_eq!((config.queue, config.loops), (1, 3));
    }

    #[test]
    fn defaults_are_complete() {
        let (config, logging) = complete(Settings::default(), None, None).unwrap();
        assert_eq!(config.listen, listen());
        assert_eq!(config.sync, lsm::SyncMode::Always);
        assert_eq!((config.replicas, config.max_value), (3, 1 << 20));
        assert!(matches!(config.members, Members::Unlisted(_)));
        assert_eq!(config.max_clock_skew, Duration::from_millis(500));
        assert!(config.secret.is_none() && config.warnings.is_empty());
        assert_eq!(logging.filter, log::parse_filter("info").unwrap());
    }

    #[test]
    fn settings_must_fit_each_other() {
        let small = Some(Size(64 << 20));
        for bad in [
            Settings { max_value: Some(Size(0)), ..Settings::default() },
            Settings { max_value: Some(Size(9 << 20)), ..Settings::default() },
            Settings { max_value: Some(Size(2 << 20)), memory: small, ..Settings::default() },
            Settings { memory: Some(Size(1 << 20)), ..Settings::default() },
        ] {
            let error = complete(bad, None, None).unwrap_err().to_string();
            assert!(error.starts_with("--") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_given_full_interval_causes_rounds_even_without_an_interval() {
        let schedule = |interval: Option<&str>, full: Option<&str>| {
            let every = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            let (repair_interval, repair_full_interval) = (every(interval), every(full));
            let settings =
                Settings { repair_interval, repair_full_interval, ..Settings::default() };
            let rounds = complete(settings, None, None).unwrap().0.rounds;
            [rounds.interval_micros, rounds.full_interval_micros].map(|micros| micros / 1_000_000)
        };
        const NEVER: u64 = u64::MAX / 1_000_000;
        const WEEK: u64 = 7 * 86_400;
        for (interval, full, expected) in [
            (None, None, [3600, WEEK]),
            (None, Some("1d"), [3600, 86_400]),
            (None, Some("10s"), [10, 10]),
            (Some("off"), Some("1d"), [86_400, 86_400]),
            (Some("off"), None, [0, WEEK]),
            (Some("off"), Some("off"), [0, NEVER]),
            (Some("30d"), None, [30 * 86_400, WEEK]),
            (Some("1h"), Some("off"), [3600, NEVER]),
        ] {
            assert_eq!(schedule(interval, full), expected, "{interval:?} {full:?}");
        }
    }

    #[test]
    fn several_nodes_need_a_secret_unless_all_are_on_loopback() {
        let secret = || Some(OsString::from("sixteen letters."));
        let cluster = |list: &str, listen: &str, secret| {
            let settings = Settings {
                cluster: Some(list.to_owned()),
                advertise: Some("http://127.0.0.1:1".to_owned()),
                listen: Some(listen.parse().unwrap()),
                insecure: Some(Switch(true)),
                ..Settings::default()
            };
            let loud = |warning: &String| !warning.starts_with("INSECURE: ");
            complete(settings, secret, None)
                .map(|(config, _)| config.warnings.into_iter().filter(loud).collect::<Vec<_>>())
        };
        let local = "http://127.0.0.1:1,http://localhost:2,http://[::1]:3";
        let warnings = cluster(local, "127.0.0.1:1", None).unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("no cluster secret"), "{warnings:?}");
        assert!(cluster(local, "127.0.0.1:1", secret()).unwrap().is_empty());
        assert!(cluster("http://127.0.0.1:1", "0.0.0.0:1", None).unwrap().is_empty(), "one node");
        let remote = "http://127.0.0.1:1,http://10.0.0.1:2";
        for (list, listen, named) in
            [(remote, "127.0.0.1:1", "http://10.0.0.1:2"), (local, "0.0.0.0:1", "0.0.0.0:1")]
        {
            let error = cluster(list, listen, None).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("--cluster-secret-file"), "{error}");
            assert!(!error.contains('\n'), "{error}");
            assert!(cluster(list, listen, secret()).unwrap().is_empty());
        }
    }

    #[test]
    fn addresses_beyond_loopback_require_tls_or_insecure() {
        let certs = Some((PathBuf::from("c"), PathBuf::from("k")));
        let secret = || Some(OsString::from("sixteen letters."));
        let node = |list: &str, listen: &str, insecure, certs: Option<(PathBuf, PathBuf)>| {
            let (tls_cert, tls_key) = certs.unzip();
            let settings = Settings {
                cluster: Some(list.to_owned()),
                advertise: Some(list.split(',').next().unwrap().to_owned()),
                listen: Some(listen.parse().unwrap()),
                insecure: Some(Switch(insecure)),
                tls_cert,
                tls_key,
                ..Settings::default()
            };
            complete(settings, secret(), None).map(|(config, _)| config.warnings)
        };
        let clear = "http://10.0.0.1:1,http://10.0.0.2:1";
        let mixed = "https://10.0.0.1:1,http://10.0.0.2:1";
        for (list, certs, named) in
            [(clear, None, "0.0.0.0:1"), (mixed, certs.clone(), "http://10.0.0.2:1")]
        {
            let error = node(list, "0.0.0.0:1", false, certs.clone()).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("--tls-cert"), "{error}");
            let loud = node(list, "0.0.0.0:1", true, certs).unwrap();
            assert!(loud.len() == 1 && loud[0].contains("INSECURE"), "{loud:?}");
        }
        let all = "https://10.0.0.1:1,https://10.0.0.2:1";
        assert!(node(all, "0.0.0.0:1", false, certs).unwrap().is_empty());
    }

    #[test]
    fn a_file_error_names_the_key_and_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.toml");
        for (text, line, said) in [
            ("queue = 5\nqueu = 6\n", 2, "queu"),
            ("queue = 0\n", 1, "queue = 0: 0 is out of range 1..1000000"),
            ("loops = 1\ndeadline = \"249ms\"\n", 2, "249ms is out of range 250ms..60s"),
            ("queue = \"x\"\n", 1, "invalid type"),
            ("memory = \"5\"\n", 1, "\"5\" is not a valid size"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read_file(&path).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
            assert!(error.contains(&format!("line {line}")), "{error}");
        }
    }
}
