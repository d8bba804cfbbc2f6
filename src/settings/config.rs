//! The settings put together (flag over variable over file over default) and checked against each
//! other.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::filter::Targets;

use crate::node::places::GUESTS;
use crate::settings::args::{LogFormat, ServeArgs, Settings, Sync};
use crate::settings::members::Members;
use crate::settings::memory::MemoryPlan;
use crate::settings::secret::{self, Kind, Secret};
use crate::settings::units::{Size, Time};

/// Longest value that can be asked for; a record with it fits a WAL batch many times.
pub(crate) const MAX_VALUE: Size = Size(8 << 20);

/// A value takes at most this part of the memory: several must fit what is set aside for bodies.
const VALUE_SHARE: u64 = 64;

const DEADLINE: Duration = Duration::from_secs(1);
const DEADLINE_RANGE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

/// Far more than clocks that are kept by NTP differ, far less than what makes a write a surprise.
const SKEW: Duration = Duration::from_millis(500);
const SKEW_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));

/// A node's configuration, complete and consistent.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Where to serve.
    pub(crate) listen: SocketAddr,
    /// The data directory.
    pub(crate) data: PathBuf,
    /// Who is in the cluster.
    pub(crate) members: Members,
    /// What its nodes know each other by.
    pub(crate) secret: Option<Secret>,
    /// What admin requests must carry; none = they must come from loopback.
    pub(crate) admin_token: Option<Secret>,
    /// Names, besides its own, by which a node on loopback may be asked.
    pub(crate) allow_host: Vec<String>,
    /// How far ahead of this node's clock another's may be.
    pub(crate) max_clock_skew: Duration,
    /// When a write is acknowledged.
    pub(crate) sync: lsm::SyncMode,
    /// The memory ledger.
    pub(crate) memory: MemoryPlan,
    /// Default number of copies.
    pub(crate) replicas: u8,
    /// How long a request may wait for the store.
    pub(crate) deadline: Duration,
    /// Longest value in bytes.
    pub(crate) max_value: usize,
    /// Event loops.
    pub(crate) loops: usize,
    /// Threads of the read pool.
    pub(crate) read_threads: usize,
    /// Reads that may wait for one.
    pub(crate) queue: usize,
    /// Connections of clients at once.
    pub(crate) connections: usize,
    /// Connections of others besides.
    pub(crate) guests: usize,
    /// What to tell whoever runs the node once it can log.
    pub(crate) warnings: Vec<String>,
}

/// How to log.
#[derive(Debug, Clone)]
pub(crate) struct Logging {
    /// Which modules log from which level on.
    pub(crate) filter: Targets,
    /// Text or JSON.
    pub(crate) format: LogFormat,
}

/// Reads the file that `args` names, if any, and puts everything together. An error is one line.
pub(crate) fn load(args: ServeArgs) -> Result<(Config, Logging), String> {
    let file = match &args.config {
        Some(path) => read_file(path)?,
        None => Settings::default(),
    };
    let [cluster, admin] = [&secret::CLUSTER, &secret::ADMIN].map(Kind::variable);
    complete(args.settings.or(file), cluster, admin)
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
            cluster_secret_file: self.cluster_secret_file.or(other.cluster_secret_file),
            admin_token_file: self.admin_token_file.or(other.admin_token_file),
            allow_host: self.allow_host.or(other.allow_host),
            max_clock_skew: self.max_clock_skew.or(other.max_clock_skew),
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

fn complete(
    settings: Settings,
    secret_variable: Option<OsString>,
    token_variable: Option<OsString>,
) -> Result<(Config, Logging), String> {
    let listen = settings.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080)));
    let replicas = settings.replicas.map_or(3, |replicas| replicas as u8);
    let (cluster, advertise) = (settings.cluster.as_deref(), settings.advertise.as_deref());
    let members = Members::parse(cluster, advertise, listen, replicas)?;
    let (secret, warning) =
        secret::CLUSTER.load(settings.cluster_secret_file.as_deref(), secret_variable)?;
    let (admin_token, token_warning) =
        secret::ADMIN.load(settings.admin_token_file.as_deref(), token_variable)?;
    let unprotected = without_secret(&members, listen, secret.as_ref())?;
    let budget = settings.memory.unwrap_or(Size(512 << 20));
    let memory = MemoryPlan::of(budget, settings.memtable)?;
    let max_value = settings.max_value.unwrap_or(Size(1 << 20));
    let most = MAX_VALUE.min(Size(budget.0 / VALUE_SHARE));
    if max_value.0 == 0 || max_value > most {
        return Err(format!(
            "--max-value {max_value} is not within 1B..{most}, which --memory {budget} allows"
        ));
    }
    let deadline = time("deadline", settings.deadline, DEADLINE, DEADLINE_RANGE)?;
    let max_clock_skew = time("max-clock-skew", settings.max_clock_skew, SKEW, SKEW_RANGE)?;
    let connections = settings.connections.map_or(memory.connections as usize, |n| n as usize);
    let config = Config {
        listen,
        data: settings.data.unwrap_or_else(|| PathBuf::from("./kvorum-data")),
        members,
        secret,
        admin_token,
        allow_host: names(settings.allow_host.as_deref())?,
        max_clock_skew,
        sync: settings.sync.unwrap_or(Sync(lsm::SyncMode::Always)).0,
        memory,
        replicas,
        deadline,
        max_value: max_value.0 as usize,
        loops: settings.loops.map_or_else(cpus, |n| n as usize),
        read_threads: settings.read_threads.unwrap_or(8) as usize,
        queue: settings.queue.unwrap_or(1024) as usize,
        connections,
        guests: GUESTS,
        warnings: [warning, token_warning, unprotected].into_iter().flatten().collect(),
    };
    let filter = settings.log.unwrap_or_else(|| "info".to_owned());
    let logging = Logging {
        filter: log_filter(&filter)?,
        format: settings.log_format.unwrap_or(LogFormat::Text),
    };
    Ok((config, logging))
}

/// The filter of `--log`: `LEVEL`, `MODULE=LEVEL` or `MODULE`, between commas. Nothing between two
/// of them is nothing, not the level `error` that `Targets` would take it for.
fn log_filter(text: &str) -> Result<Targets, String> {
    let directives = text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let directives = directives.collect::<Vec<_>>().join(",");
    directives.parse().map_err(|error| format!("--log {text}: {error}"))
}

/// The names of `--allow-host`.
fn names(list: Option<&str>) -> Result<Vec<String>, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let names = list.iter().flat_map(|list| list.split(','));
    names
        .map(|name| match !name.is_empty() && name.bytes().all(known) {
            true => Ok(name.to_owned()),
            false => Err(format!("--allow-host: {name:?} is no host name (without port)")),
        })
        .collect()
}

/// CPUs of this process's affinity mask.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn time(
    name: &str,
    set: Option<Time>,
    default: Duration,
    (least, most): (Duration, Duration),
) -> Result<Duration, String> {
    let time = set.map_or(default, |Time(time)| time);
    if time < least || time > most {
        let [time, least, most] = [time, least, most].map(Time);
        return Err(format!("--{name} {time} is not within {least}..{most}"));
    }
    Ok(time)
}

/// Without a secret a node can't tell another one from a stranger: several nodes must then be where
/// no stranger is. That they are is worth a warning.
fn without_secret(
    members: &Members,
    listen: SocketAddr,
    secret: Option<&Secret>,
) -> Result<Option<String>, String> {
    if members.nodes() == 1 || secret.is_some() {
        return Ok(None);
    }
    let beyond = members.beyond_loopback().map(str::to_owned);
    let beyond =
        beyond.or_else(|| (!listen.ip().is_loopback()).then(|| format!("--listen {listen}")));
    match beyond {
        None => Ok(Some(format!(
            "no cluster secret: every process on this machine can pass for one of the nodes; see \
             --cluster-secret-file and {}",
            secret::CLUSTER.variable
        ))),
        Some(place) => Err(format!(
            "{place} can be reached from other machines, and the cluster has no secret: write one \
             of 16 bytes or more into a file, the same on all nodes, and name it by \
             --cluster-secret-file"
        )),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn listen() -> SocketAddr {
        "127.0.0.1:8080".parse().unwrap()
    }

    #[test]
    fn the_earlier_source_wins() {
        let first = Settings { queue: Some(1), ..Settings::default() };
        let second = Settings { queue: Some(2), loops: Some(3), ..Settings::default() };
        let (config, _) = complete(first.or(second), None, None).unwrap();
        assert_eq!((config.queue, config.loops), (1, 3));
    }

    #[test]
    fn defaults_are_complete() {
        let (config, logging) = complete(Settings::default(), None, None).unwrap();
        assert_eq!(config.listen, listen());
        assert_eq!(config.sync, lsm::SyncMode::Always);
        assert_eq!((config.replicas, config.max_value), (3, 1 << 20));
        assert!(matches!(config.members, Members::Alone));
        assert_eq!(config.max_clock_skew, Duration::from_millis(500));
        assert!(config.secret.is_none() && config.warnings.is_empty());
        assert_eq!(logging.filter, log_filter("info").unwrap());
    }

    #[test]
    fn modules_log_from_the_level_that_is_said_for_them() {
        let info =
            |text: &str, module| log_filter(text).unwrap().would_enable(module, &Level::INFO);
        let debug =
            |text: &str, module| log_filter(text).unwrap().would_enable(module, &Level::DEBUG);
        for text in ["info,lsm=debug", "info, lsm=debug,", "INFO,,lsm=DEBUG", "lsm=debug,info"] {
            assert!(info(text, "kvorum::http") && !debug(text, "kvorum::http"), "{text}");
            assert!(debug(text, "lsm") && debug(text, "lsm::wal"), "{text}");
        }
        assert!(!info("lsm", "kvorum") && debug("lsm", "lsm::wal"));
        assert!(!info("off", "lsm") && !info("info,lsm=warn", "lsm"));
        for (text, says) in [
            ("foo=bar", "--log foo=bar: error parsing level filter: expected one of \"off\""),
            ("a=b=info", "--log a=b=info: "),
        ] {
            let error = log_filter(text).unwrap_err();
            assert!(error.starts_with(says) && !error.contains('\n'), "{error}");
        }
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
            Settings { max_clock_skew: Some(Time(Duration::ZERO)), ..Settings::default() },
        ] {
            let error = complete(bad, None, None).unwrap_err();
            assert!(error.starts_with("--") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn several_nodes_need_a_secret_unless_nobody_else_can_reach_them() {
        let secret = || Some(OsString::from("sixteen letters."));
        let cluster = |list: &str, listen: &str, secret| {
            let settings = Settings {
                cluster: Some(list.to_owned()),
                advertise: Some("http://127.0.0.1:1".to_owned()),
                listen: Some(listen.parse().unwrap()),
                ..Settings::default()
            };
            complete(settings, secret, None).map(|(config, _)| config.warnings)
        };
        let local = "http://127.0.0.1:1,http://localhost:2,http://[::1]:3";
        let warnings = cluster(local, "127.0.0.1:1", None).unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("no cluster secret"), "{warnings:?}");
        assert_eq!(cluster(local, "127.0.0.1:1", secret()), Ok(vec![]));
        assert_eq!(cluster("http://127.0.0.1:1", "0.0.0.0:1", None), Ok(vec![]), "one node");
        let remote = "http://127.0.0.1:1,http://10.0.0.1:2";
        for (list, listen, named) in
            [(remote, "127.0.0.1:1", "http://10.0.0.1:2"), (local, "0.0.0.0:1", "0.0.0.0:1")]
        {
            let error = cluster(list, listen, None).unwrap_err();
            assert!(error.contains(named) && error.contains("--cluster-secret-file"), "{error}");
            assert!(!error.contains('\n'), "{error}");
            assert_eq!(cluster(list, listen, secret()), Ok(vec![]));
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
