//! The settings put together (flag over variable over file over default) and checked against each
//! other.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::{LogFormat, ServeArgs, Settings, Sync};
use crate::memory::MemoryPlan;
use crate::units::{Size, Time};

/// Longest value that can be asked for; a record with it fits a WAL batch many times.
pub(crate) const MAX_VALUE: Size = Size(8 << 20);

/// A value takes at most this part of the memory: several must fit what is set aside for bodies.
const VALUE_SHARE: u64 = 64;

const DEADLINE_RANGE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

/// A node's configuration, complete and consistent.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Where to serve.
    pub(crate) listen: SocketAddr,
    /// The data directory.
    pub(crate) data: PathBuf,
    /// Who else there is.
    pub(crate) topology: Topology,
    /// When a write is acknowledged.
    pub(crate) sync: lsm::SyncMode,
    /// The memory ledger.
    pub(crate) memory: MemoryPlan,
    /// Default number of copies.
    pub(crate) replicas: u32,
    /// How long a request may wait for the store.
    pub(crate) deadline: Duration,
    /// How far another node's clock may be ahead.
    pub(crate) max_clock_skew: Duration,
    /// Longest value in bytes.
    pub(crate) max_value: usize,
    /// Event loops.
    pub(crate) loops: usize,
    /// Threads of the read pool.
    pub(crate) read_threads: usize,
    /// Reads that may wait for one.
    pub(crate) queue: usize,
    /// Connections at once.
    pub(crate) connections: usize,
}

/// The names of the cluster's nodes. (One, in this release.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// This node's name, its identity; `None` = its URL, known once the port is.
    pub(crate) name: Option<String>,
    /// Number of nodes.
    pub(crate) nodes: u32,
}

/// How to log.
#[derive(Debug, Clone)]
pub(crate) struct Logging {
    /// A filter as tracing-subscriber reads it.
    pub(crate) filter: String,
    /// Text or JSON.
    pub(crate) format: LogFormat,
}

/// Reads the file that `args` names, if any, and puts everything together. An error is one line.
pub(crate) fn load(args: ServeArgs) -> Result<(Config, Logging), String> {
    let file = match &args.config {
        Some(path) => read_file(path)?,
        None => Settings::default(),
    };
    complete(args.settings.or(file))
}

fn read_file(path: &Path) -> Result<Settings, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("config file {shown}: {error}"))?;
    let settings: Settings = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        let said = error.message().replace('\n', " ");
        format!("config file {shown}, line {line}: {said}")
    })?;
    settings.check_ranges().map_err(|error| format!("config file {shown}: {error}"))?;
    Ok(settings)
}

impl Settings {
    fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            data: self.data.or(other.data),
            cluster: self.cluster.or(other.cluster),
            advertise: self.advertise.or(other.advertise),
            sync: self.sync.or(other.sync),
            memory: self.memory.or(other.memory),
            replicas: self.replicas.or(other.replicas),
            deadline: self.deadline.or(other.deadline),
            max_value: self.max_value.or(other.max_value),
            loops: self.loops.or(other.loops),
            read_threads: self.read_threads.or(other.read_threads),
            queue: self.queue.or(other.queue),
            memtable: self.memtable.or(other.memtable),
            connections: self.connections.or(other.connections),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
        }
    }

    /// The ranges that the command line checks by itself, for settings from a file.
    fn check_ranges(&self) -> Result<(), String> {
        for (name, value, most) in [
            ("replicas", self.replicas, 255),
            ("loops", self.loops, 256),
            ("read-threads", self.read_threads, 256),
            ("queue", self.queue, 1_000_000),
            ("connections", self.connections, 1_000_000),
        ] {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(format!("{name} = {value} is not within 1..{most}"));
            }
        }
        Ok(())
    }
}

fn complete(settings: Settings) -> Result<(Config, Logging), String> {
    let listen = settings.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080)));
    let topology = topology(settings.cluster.as_deref(), settings.advertise.as_deref(), listen)?;
    let budget = settings.memory.unwrap_or(Size(512 << 20));
    let memory = MemoryPlan::of(budget, settings.memtable)?;
    let max_value = settings.max_value.unwrap_or(Size(1 << 20));
    let most = MAX_VALUE.min(Size(budget.0 / VALUE_SHARE));
    if max_value.0 == 0 || max_value > most {
        return Err(format!(
            "--max-value {max_value} is not within 1B..{most}, which --memory {budget} allows"
        ));
    }
    let Time(deadline) = settings.deadline.unwrap_or(Time(Duration::from_secs(1)));
    if deadline < DEADLINE_RANGE.0 || deadline > DEADLINE_RANGE.1 {
        return Err(format!("--deadline {} is not within 250ms..60s", Time(deadline)));
    }
    let connections = settings.connections.map_or(memory.connections as usize, |n| n as usize);
    let config = Config {
        listen,
        data: settings.data.unwrap_or_else(|| PathBuf::from("./kvorum-data")),
        topology,
        sync: settings.sync.unwrap_or(Sync(lsm::SyncMode::Always)).0,
        memory,
        replicas: settings.replicas.unwrap_or(3),
        deadline,
        max_clock_skew: Duration::from_millis(500),
        max_value: max_value.0 as usize,
        loops: settings.loops.map_or_else(cpus, |n| n as usize),
        read_threads: settings.read_threads.unwrap_or(8) as usize,
        queue: settings.queue.unwrap_or(1024) as usize,
        connections,
    };
    let logging = Logging {
        filter: settings.log.unwrap_or_else(|| "info".to_owned()),
        format: settings.log_format.unwrap_or(LogFormat::Text),
    };
    Ok((config, logging))
}

/// CPUs of this process's affinity mask.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn topology(
    cluster: Option<&str>,
    advertise: Option<&str>,
    listen: SocketAddr,
) -> Result<Topology, String> {
    if let Some(url) = advertise {
        check_url(url)?;
    }
    let Some(cluster) = cluster else {
        return Ok(Topology { name: advertise.map(str::to_owned), nodes: 1 });
    };
    let own = advertise.map_or_else(|| format!("http://{listen}"), str::to_owned);
    let mut nodes: Vec<(&str, &str)> = Vec::new();
    for node in cluster.split(',') {
        // A URL may hold '=' only after its "://", a name is before it.
        let (name, url) = match node.split_once('=') {
            Some((name, url)) if !name.contains("://") => (name, url),
            _ => (node, node),
        };
        check_url(url)?;
        if name.is_empty() || nodes.iter().any(|(n, u)| *n == name || *u == url) {
            return Err(format!(
                "--cluster: {node:?} has no name, or its name or URL is not unique"
            ));
        }
        nodes.push((name, url));
    }
    let Some((name, _)) = nodes.iter().find(|(_, url)| *url == own) else {
        return Err(format!(
            "--cluster {cluster} does not contain this node, {own}: add it, or say --advertise"
        ));
    };
    if nodes.len() > 1 {
        return Err(format!(
            "--cluster names {} nodes: this release serves one node; leave the others out",
            nodes.len()
        ));
    }
    Ok(Topology { name: Some((*name).to_owned()), nodes: 1 })
}

/// Whether nodes can be reached at such a URL.
pub(crate) fn check_url(url: &str) -> Result<(), String> {
    let parsed: Option<hyper::Uri> = url.parse().ok();
    let good = parsed.is_some_and(|uri| {
        uri.scheme_str() == Some("http")
            && uri.port_u16().is_some()
            && uri.path() == "/"
            && uri.query().is_none()
            && !url.ends_with('/')
    });
    if good { Ok(()) } else { Err(format!("{url:?} is no node URL: write http://HOST:PORT")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen() -> SocketAddr {
        "127.0.0.1:8080".parse().unwrap()
    }

    #[test]
    fn the_earlier_source_wins() {
        let first = Settings { queue: Some(1), ..Settings::default() };
        let second = Settings { queue: Some(2), loops: Some(3), ..Settings::default() };
        let (config, _) = complete(first.or(second)).unwrap();
        assert_eq!((config.queue, config.loops), (1, 3));
    }

    #[test]
    fn defaults_are_complete() {
        let (config, logging) = complete(Settings::default()).unwrap();
        assert_eq!(config.listen, listen());
        assert_eq!(config.sync, lsm::SyncMode::Always);
        assert_eq!((config.replicas, config.max_value), (3, 1 << 20));
        assert_eq!(config.topology, Topology { name: None, nodes: 1 });
        assert_eq!(logging.filter, "info");
    }

    #[test]
    fn settings_must_fit_each_other() {
        let small = Some(Size(64 << 20));
        for bad in [
            Settings { max_value: Some(Size(0)), ..Settings::default() },
            Settings { max_value: Some(Size(9 << 20)), ..Settings::default() },
            Settings { max_value: Some(Size(2 << 20)), memory: small, ..Settings::default() },
            Settings { deadline: Some(Time(Duration::from_millis(249))), ..Settings::default() },
            Settings { memory: Some(Size(1 << 20)), ..Settings::default() },
        ] {
            let error = complete(bad).unwrap_err();
            assert!(error.starts_with("--") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_cluster_must_contain_this_node_and_no_other_yet() {
        let named = topology(Some("a=http://127.0.0.1:8080"), None, listen()).unwrap();
        assert_eq!(named.name.as_deref(), Some("a"));
        let url = topology(Some("http://127.0.0.1:8080"), None, listen()).unwrap();
        assert_eq!(url.name.as_deref(), Some("http://127.0.0.1:8080"));
        let advertised = topology(Some("a=http://h:1"), Some("http://h:1"), listen()).unwrap();
        assert_eq!(advertised.name.as_deref(), Some("a"));
        for (cluster, advertise, said) in [
            ("a=http://h:1", None, "does not contain this node"),
            ("http://127.0.0.1:8080,http://h:2", None, "this release serves one node"),
            ("a=http://127.0.0.1:8080,a=http://h:2", None, "not unique"),
            ("ftp://127.0.0.1:8080", None, "no node URL"),
            ("", None, "no node URL"),
            ("http://127.0.0.1:8080/", None, "no node URL"),
            ("http://h:1", Some("h:1"), "no node URL"),
        ] {
            let error = topology(Some(cluster), advertise, listen()).unwrap_err();
            assert!(error.contains(said), "{cluster}: {error}");
        }
    }

    #[test]
    fn a_file_error_names_the_key_and_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.toml");
        for (text, line, said) in [
            ("queue = 5\nqueu = 6\n", 2, "queu"),
            ("queue = 0\n", 0, "queue = 0"),
            ("queue = \"x\"\n", 1, "invalid type"),
            ("memory = \"5\"\n", 1, "\"5\" is no size"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read_file(&path).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
            assert!(line == 0 || error.contains(&format!("line {line}")), "{error}");
        }
    }
}
