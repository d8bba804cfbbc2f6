//! What a series sends: one plan but for rate and duration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Ask, Error, Figures};
use crate::control::Control;
use crate::keys::{KeyOrder, Keys};
use crate::outcome::Outcome;
use crate::plan::{Pace, Plan};
use crate::record::{self, Run};
use crate::server::Usage;
use crate::tally::Latencies;
use crate::warning::Warning;

/// How long filling may take.
const FILL_LIMIT: Duration = Duration::from_secs(3600);

/// What is sent.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// As it was given: `put=100`.
    pub(crate) name: String,
    pub(crate) plan: Plan,
}

impl Workload {
    /// Of the servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses: Vec<SocketAddr> =
            self.plan.targets.iter().flat_map(|target| target.addresses.clone()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Sends it as asked.
    pub(crate) fn send(&self, ask: &Ask, stop: &Arc<AtomicBool>) -> Result<Outcome, crate::Error> {
        let pace = ask.rate.map_or(Pace::Closed, |rate| Pace::Open(rate as f64));
        let (warmup, duration) = (ask.warmup, ask.duration);
        let plan = Plan { pace, warmup, duration, ..self.plan.clone() };
        crate::run_under(&plan, &mut [], &Control::new(Arc::clone(stop)))
    }

    /// Writes each of its keys once.
    pub(crate) fn fill(&self, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        let keys = Keys { order: KeyOrder::Scattered, ..self.plan.keys };
        let plan = Plan {
            pace: Pace::Closed,
            duration: FILL_LIMIT,
            limit: keys.count,
            put_percent: 100,
            delete_percent: 0,
            keys,
            ..self.plan.clone()
        };
        let outcome = crate::run_under(&plan, &mut [], &Control::new(Arc::clone(stop)))?;
        let (written, all) = (outcome.tally.statuses.success(), keys.count);
        if written < all && !outcome.interrupted {
            return Err(Error::Prepare(format!(
                "{written} of {all} keys were written: of the answers {} were no 2xx, and {} \
                 requests were lost",
                outcome.answered() - written,
                outcome.tally.errors.read + outcome.tally.errors.write
            )));
        }
        Ok(())
    }

    pub(crate) fn figures(&self, outcome: &Outcome) -> Figures {
        let Latencies { intended, written, late } = outcome.both();
        let failed = &outcome.tally.errors;
        let backlog = outcome.warnings().into_iter().find_map(|warning| match warning {
            Warning::BacklogGrowing { backlog, .. } => Some(backlog),
            _ => None,
        });
        let refused = outcome.tally.statuses.refused();
        Figures {
            planned: outcome.planned,
            in_time: outcome.tally.in_time,
            throughput: outcome.throughput(),
            errors: refused + failed.connect + failed.read + failed.write,
            intended,
            written,
            late,
            backlog,
            client_busy: outcome.busy.iter().copied().fold(0.0, f64::max),
            client_cpus: outcome.client_cpu.as_secs_f64() / outcome.elapsed.as_secs_f64().max(1e-9),
            interrupted: outcome.interrupted,
            ..self.nothing()
        }
    }

    /// The figures of a trial that did not take place.
    pub(crate) fn nothing(&self) -> Figures {
        let Latencies { intended, written, late } = Latencies::new();
        Figures {
            planned: 0,
            in_time: 0,
            throughput: 0.0,
            errors: 0,
            intended,
            written,
            late,
            connections: self.plan.all_connections(),
            backlog: None,
            client_busy: 0.0,
            client_cpus: 0.0,
            servers: Vec::new(),
            metrics: Vec::new(),
            died: None,
            interrupted: false,
        }
    }

    pub(crate) fn record(&self, ask: &Ask, outcome: &Outcome, servers: &[Usage]) -> Run {
        Run {
            format: record::FORMAT,
            source: "load".to_owned(),
            argv: std::env::args().collect(),
            plan: record::Planned {
                targets: self.plan.targets.iter().map(|target| target.name.clone()).collect(),
                threads: self.plan.threads,
                connections: outcome.connections,
                rate: outcome.rate,
                closed: ask.rate.is_none(),
                arrival: "even".to_owned(),
                warmup_s: ask.warmup.as_secs_f64(),
                duration_s: ask.duration.as_secs_f64(),
                requests: self.name.clone(),
                seed: self.plan.seed,
                ..record::Planned::default()
            },
            interrupted: outcome.interrupted,
            elapsed_s: outcome.elapsed.as_secs_f64(),
            throughput: outcome.throughput(),
            counts: outcome.counts(),
            latency: outcome.latencies(),
            backlog: outcome.backlog.clone(),
            client_cpu_s: outcome.client_cpu.as_secs_f64(),
            servers: servers
                .iter()
                .map(|usage| record::Server {
                    cpu_s: Some(usage.cpu_s),
                    rss: Some(usage.rss),
                    ..record::Server::default()
                })
                .collect(),
            warnings: outcome.warnings().iter().map(Warning::record).collect(),
            ..Run::default()
        }
    }
}
