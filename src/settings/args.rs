//! Each setting declared once: as a flag, a `KVORUM_*` variable and a key of the TOML file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer, de};

use crate::settings::units::{Size, Time};

/// Everything after `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// TOML file with any of these settings, named like the flags. Flags override KVORUM_*
    /// variables, which override the file
    #[arg(long, env = "KVORUM_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The settings.
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// The settings of a node, each as far as it was said.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    /// Address and port to listen on; localhost is 127.0.0.1, port 0 picks a free port [default:
    /// 127.0.0.1:8080]
    #[arg(long, env = "KVORUM_LISTEN", value_name = "ADDR:PORT", value_parser = listen_address)]
    #[serde(deserialize_with = "listen_in_file")]
    pub(crate) listen: Option<SocketAddr>,

    /// Data directory; created if missing [default: ./kvorum-data]
    #[arg(long, env = "KVORUM_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// All nodes of the cluster, including this one; the list must be the same on every node. NAME
    /// is the node's identity and defaults to its URL; the URL is its address and may change.
    /// Append ";zone=ZONE" to spread replicas over zones, ";weight=W" (1..1000, default 1) to set
    /// the node's share of the keys [default: this node alone]
    #[arg(long, env = "KVORUM_CLUSTER", value_name = "[NAME=]URL,...")]
    pub(crate) cluster: Option<String>,

    /// URL at which the other nodes reach this one; must be in --cluster [default: http://LISTEN]
    #[arg(long, env = "KVORUM_ADVERTISE", value_name = "URL")]
    pub(crate) advertise: Option<String>,

    /// File with the secret that all nodes of the cluster share, 16 to 4096 bytes;
    /// KVORUM_CLUSTER_SECRET can hold the secret itself instead. Required unless all nodes listen
    /// on loopback [default: none]
    #[arg(long, env = "KVORUM_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<PathBuf>,

    /// File with the token that admin requests (/admin/...) must send as `Authorization: Bearer
    /// TOKEN`, 16 to 4096 bytes; KVORUM_ADMIN_TOKEN can hold the token itself instead. Without a
    /// token, admin requests are accepted from loopback only [default: none]
    #[arg(long, env = "KVORUM_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// Additional host names, without port, that a node listening on loopback answers to, for
    /// example those of a proxy on this machine. IP addresses, localhost and the advertised name
    /// are always allowed [default: none]
    #[arg(long, env = "KVORUM_ALLOW_HOST", value_name = "NAME,...")]
    pub(crate) allow_host: Option<String>,

    /// Maximum clock skew between nodes, in ms or s, 1ms..60s; writes with timestamps further ahead
    /// of this node's clock are refused [default: 500ms]
    #[arg(long, env = "KVORUM_MAX_CLOCK_SKEW", value_name = "TIME")]
    pub(crate) max_clock_skew: Option<Time>,

    /// When a write is acknowledged: "always", after it is synced to disk; "interval" or
    /// "interval:MS", after it is written to the operating system, with a sync every MS
    /// milliseconds (1..60000, default 100); "never", the same without syncs [default: always]
    #[arg(long, env = "KVORUM_SYNC", value_name = "MODE")]
    pub(crate) sync: Option<Sync>,

    /// Memory for memtables, caches, connections and request bodies together, in KiB, MiB or GiB,
    /// at least 64MiB. The process stays below this plus 64MiB [default: 512MiB]
    #[arg(long, env = "KVORUM_MEMORY", value_name = "SIZE")]
    pub(crate) memory: Option<Size>,

    /// Replicas of a key if a request does not set `from`, 1..255; limited to the number of nodes
    /// [default: 3]
    #[arg(long, env = "KVORUM_REPLICAS", value_name = "N", value_parser = up_to(255))]
    pub(crate) replicas: Option<u32>,

    /// Time after which a waiting request is answered with 504, in ms or s, 250ms..60s
    /// [default: 1s]
    #[arg(long, env = "KVORUM_DEADLINE", value_name = "TIME")]
    pub(crate) deadline: Option<Time>,

    /// Maximum size of a value, in B, KiB or MiB, 1B..8MiB and at most 1/64 of --memory; larger
    /// values are answered with 413 [default: 1MiB]
    #[arg(long, env = "KVORUM_MAX_VALUE", value_name = "SIZE")]
    pub(crate) max_value: Option<Size>,

    /// Event loops (threads that serve connections), 1..256 [default: one per available CPU]
    #[arg(long, env = "KVORUM_LOOPS", value_name = "N", value_parser = up_to(256))]
    pub(crate) loops: Option<u32>,

    /// Threads for reads that wait for the disk, 1..256 [default: 8]
    #[arg(long, env = "KVORUM_READ_THREADS", value_name = "N", value_parser = up_to(256))]
    pub(crate) read_threads: Option<u32>,

    /// Maximum number of reads waiting for a read thread, 1..1000000; further ones are answered
    /// with 503 [default: 1024]
    #[arg(long, env = "KVORUM_QUEUE", value_name = "N", value_parser = up_to(1_000_000))]
    pub(crate) queue: Option<u32>,

    /// Size of a memtable, at least 1MiB; --memory holds four of them [default: 1/16 of
    /// --memory]
    #[arg(long, env = "KVORUM_MEMTABLE", value_name = "SIZE")]
    pub(crate) memtable: Option<Size>,

    /// Maximum number of client connections, 1..1000000, and at most half of the open-file limit;
    /// idle connections are closed to make room [default: 1/8 of --memory at 24KiB each, minus 64]
    #[arg(long, env = "KVORUM_CONNECTIONS", value_name = "N", value_parser = up_to(1_000_000))]
    pub(crate) connections: Option<u32>,

    /// Log level: error, warn, info, debug or trace, optionally per module as in "info,lsm=debug"
    /// [default: info]
    #[arg(long, env = "KVORUM_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<String>,

    /// Log format [default: text]
    #[arg(long, env = "KVORUM_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

/// Where to listen: an address, for a name may have several, or none any more tomorrow.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.split_once(':') {
        Some(("localhost", port)) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        _ => text.to_owned(),
    };
    numeric.parse().map_err(|_| {
        format!(
            "{text:?} is not a listen address: write IP:PORT, as in 127.0.0.1:8080, \
             0.0.0.0:8080 or [::1]:8080; the only name is localhost"
        )
    })
}

fn listen_in_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    listen_address(&text).map(Some).map_err(de::Error::custom)
}

/// A whole number from 1 to `most`.
fn up_to(most: i64) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Human-readable lines
    Text,
    /// One JSON object per line
    Json,
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Sync(pub(crate) lsm::SyncMode);

/// The interval of a bare `interval`.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(100);

impl FromStr for Sync {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = match text.split_once(':') {
            None if text == "always" => Some(lsm::SyncMode::Always),
            None if text == "never" => Some(lsm::SyncMode::Never),
            None if text == "interval" => Some(lsm::SyncMode::Interval(DEFAULT_INTERVAL)),
            Some(("interval", millis)) => millis
                .parse()
                .ok()
                .filter(|millis| (1..=60_000).contains(millis))
                .map(|millis| lsm::SyncMode::Interval(Duration::from_millis(millis))),
            _ => None,
        };
        mode.map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not a valid sync mode: write always, interval, interval:MS \
                 (1..60000) or never"
            )
        })
    }
}

impl TryFrom<String> for Sync {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_listens_on_an_address() {
        let local = Ok(SocketAddr::from(([127, 0, 0, 1], 80)));
        assert_eq!(listen_address("localhost:80"), local);
        assert_eq!(listen_address("127.0.0.1:80"), local);
        assert_eq!(listen_address("[::1]:80").map(|at| at.port()), Ok(80));
        for bad in ["", "localhost", "localhost:", "localhost:99999", "host:80", "::1:80", ":80"] {
            let error = listen_address(bad).unwrap_err();
            assert!(error.contains("IP:PORT") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn sync_modes() {
        let interval = |millis| Sync(lsm::SyncMode::Interval(Duration::from_millis(millis)));
        assert_eq!("always".parse(), Ok(Sync(lsm::SyncMode::Always)));
        assert_eq!("never".parse(), Ok(Sync(lsm::SyncMode::Never)));
        assert_eq!("interval".parse(), Ok(interval(100)));
        assert_eq!("interval:5".parse(), Ok(interval(5)));
        for bad in ["", "Always", "interval:", "interval:0", "interval:60001", "never:1", "5"] {
            assert!(bad.parse::<Sync>().is_err(), "{bad:?} was taken");
        }
    }
}
