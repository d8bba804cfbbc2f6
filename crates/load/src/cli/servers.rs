//! Observes the servers during a run: scrapes their metrics once a second, and reads the resource
//! usage of server processes on this machine.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::plan::Target;
use crate::record;
use crate::server::{self, Endpoint, Metrics, ServerSnapshot, fetch, listens};
use crate::server_profile::ServerProfile;

/// Interval between two scrapes of a server.
const PERIOD: Duration = Duration::from_secs(1);

/// Time limit of a scrape. A busy server answers late, and a dead server must not delay the end of
/// the run.
const LIMIT: Duration = Duration::from_secs(1);

/// Longest metrics text in bytes: about ten thousand series.
const MAX_LEN: usize = 8 << 20;

type LatestMetrics = Arc<Mutex<Vec<Option<Metrics>>>>;

/// All servers of a run.
pub(crate) struct Servers {
    known: ServerProfile,
    all: Vec<WatchedServer>,
    latest: LatestMetrics,
    scraper: Option<(SyncSender<()>, JoinHandle<()>)>,
}

struct WatchedServer {
    name: String,
    origin: String,
    endpoint: Endpoint,
    pid: Option<u32>,
    snapshot: Option<ServerSnapshot>,
    /// True if the server answered the first request for its metrics.
    answers: bool,
    metrics: Option<Metrics>,
}

impl Servers {
    /// Takes a first snapshot of all servers, and starts to scrape those that have metrics.
    pub(crate) fn snapshot(known: &ServerProfile, targets: &[Target]) -> Self {
        // In parallel, because each silent server takes the whole time limit.
        let all: Vec<WatchedServer> = std::thread::scope(|scope| {
            let snapshots =
                targets.iter().map(|target| scope.spawn(|| WatchedServer::snapshot(known, target)));
            let snapshots: Vec<_> = snapshots.collect();
            let looked = snapshots.into_iter().map(|snapshot| snapshot.join());
            looked
                .filter_map(|server| server.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let latest =
            Arc::new(Mutex::new(all.iter().map(|server| server.metrics.clone()).collect()));
        let scraper = ask(known, &all, &latest);
        Self { known: *known, all, latest, scraper }
    }

    /// Returns the names of the values that [`Self::take_scraped_values`] returns.
    pub(crate) fn columns(&self) -> Vec<String> {
        let reported =
            self.all.iter().filter_map(|server| Some((server, server.metrics.as_ref()?)));
        let names = reported.flat_map(|(server, metrics)| {
            let names = self.known.timeline.iter();
            names.map(move |name| format!("{} {}", server.name, metrics.column(name)))
        });
        names.collect()
    }

    /// Returns the values of the scrapes since the last call. A server without a new scrape has
    /// `None`, because an older value belongs to an earlier second.
    pub(crate) fn take_scraped_values(&self) -> Vec<Option<f64>> {
        let mut latest = self.latest.lock();
        let reported = self.all.iter().zip(latest.iter_mut());
        let reported = reported.filter(|(first, _)| first.metrics.is_some());
        let values = reported.flat_map(|(_, metrics)| {
            let (names, metrics) = (self.known.timeline.iter(), metrics.take());
            names.map(move |name| metrics.as_ref().and_then(|metrics| metrics.total(name)))
        });
        values.collect()
    }

    /// Stops the scrapes, takes the last snapshot of all servers, and returns their records.
    pub(crate) fn finish(mut self) -> Vec<record::Server> {
        if let Some((stop, thread)) = self.scraper.take() {
            drop(stop);
            // Only a bug can make the thread fail. The figures don't depend on the thread.
            let _ = thread.join();
        }
        self.all.iter().map(|server| server.record(&self.known)).collect()
    }
}

impl WatchedServer {
    fn snapshot(known: &ServerProfile, target: &Target) -> Option<Self> {
        let address = *target.addresses.first()?;
        let pid = target.addresses.iter().find_map(|&address| listens(address));
        let endpoint = target.endpoint(address);
        let first = scrape(known, &endpoint);
        Some(Self {
            name: target.name.clone(),
            origin: target.origin(),
            endpoint,
            pid,
            snapshot: pid.and_then(ServerSnapshot::at),
            answers: first.is_some(),
            metrics: first.filter(|metrics| !metrics.series().is_empty()),
        })
    }

    fn record(&self, known: &ServerProfile) -> record::Server {
        let usage = self.snapshot.as_ref().zip(self.pid.and_then(ServerSnapshot::at));
        let usage = usage.map(|(before, now)| now.since(before));
        let now = self.metrics.as_ref().map(|then| (then, scrape(known, &self.endpoint)));
        // A server that did not answer is not queried again.
        let answers = self.answers && now.as_ref().is_none_or(|(_, now)| now.is_some());
        let grown = now.and_then(|(then, now)| Some((then, now?)));
        let grown = grown.filter(|(_, now)| !now.series().is_empty());
        record::Server {
            url: self.origin.clone(),
            about: if answers { about(known, &self.endpoint) } else { BTreeMap::new() },
            cpu_s: usage.as_ref().map(|usage| usage.cpu_s),
            rss: usage.map(|usage| usage.rss),
            metrics: grown.map(|(then, now)| now.since(then).series().clone()).unwrap_or_default(),
        }
    }
}

/// Scrapes a server's metrics. Returns empty metrics if the server has none, and `None` if the
/// server does not answer.
fn scrape(known: &ServerProfile, endpoint: &Endpoint) -> Option<Metrics> {
    if known.metrics_path.is_empty() {
        return Some(Metrics::default());
    }
    let (status, text) = server::ask(endpoint, known.metrics_path, LIMIT, MAX_LEN).ok()?;
    // Metrics are optional: any other status means a server without metrics.
    Some(if (200..300).contains(&status) { Metrics::parse(&text) } else { Metrics::default() })
}

/// Returns the strings, numbers and booleans of the JSON object in which a server describes itself,
/// and of the objects directly in it. Leaves out lists.
fn about(known: &ServerProfile, endpoint: &Endpoint) -> BTreeMap<String, String> {
    if known.about_path.is_empty() {
        return Default::default();
    }
    let text = fetch(endpoint, known.about_path, LIMIT).unwrap_or_default();
    let all: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).unwrap_or_default();
    let (inner, outer): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, value)| value.is_object());
    let inner = inner.into_iter().filter_map(|(_, value)| match value {
        serde_json::Value::Object(inner) => Some(inner),
        _ => None,
    });
    let plain = inner.flatten().chain(outer).filter_map(|(name, value)| match value {
        serde_json::Value::String(text) => Some((name, text)),
        serde_json::Value::Number(_) | serde_json::Value::Bool(_) => {
            Some((name, value.to_string()))
        }
        _ => None,
    });
    plain.collect()
}

/// Starts a thread that scrapes until the sender is dropped. Returns `None` if no server has
/// metrics.
fn ask(
    known: &ServerProfile,
    all: &[WatchedServer],
    latest: &LatestMetrics,
) -> Option<(SyncSender<()>, JoinHandle<()>)> {
    let asked: Vec<(usize, Endpoint)> = (0..)
        .zip(all)
        .filter(|(_, server)| server.metrics.is_some())
        .map(|(index, server)| (index, server.endpoint.clone()))
        .collect();
    if asked.is_empty() || known.timeline.is_empty() {
        return None;
    }
    let (stop, stopped) = sync_channel(1);
    let (known, latest) = (*known, Arc::clone(latest));
    let thread = std::thread::Builder::new().name("load-servers".to_owned()).spawn(move || {
        // Scrapes at fixed times. With a fixed pause between scrapes, the duration of a scrape
        // would stretch the period, and some seconds would have no value.
        let mut next = Instant::now() + PERIOD;
        while stopped.recv_timeout(next.saturating_duration_since(Instant::now()))
            == Err(RecvTimeoutError::Timeout)
        {
            next = (next + PERIOD).max(Instant::now());
            for (index, endpoint) in &asked {
                let reported = Metrics::scrape(endpoint, known.metrics_path, LIMIT).ok();
                latest.lock()[*index] = reported;
            }
        }
    });
    thread.ok().map(|thread| (stop, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_without_a_scrape_has_no_value() {
        let metrics = Metrics::parse("# TYPE kv_x counter\nkv_x_total 7\n");
        let target = Target::new(([127, 0, 0, 1], 1).into(), "/");
        let reported = Some(metrics);
        let server = WatchedServer {
            name: "h:1".to_owned(),
            origin: target.origin(),
            endpoint: target.endpoint(target.addresses[0]),
            pid: None,
            snapshot: None,
            answers: true,
            metrics: reported.clone(),
        };
        let servers = Servers {
            known: ServerProfile { timeline: &["kv_x"], ..ServerProfile::default() },
            all: vec![server],
            latest: Arc::new(Mutex::new(vec![reported])),
            scraper: None,
        };
        assert_eq!(servers.columns(), ["h:1 kv_x_total"]);
        assert_eq!(servers.take_scraped_values(), [Some(7.0)]);
        assert_eq!(servers.take_scraped_values(), [None], "it told nothing since");
    }
}
