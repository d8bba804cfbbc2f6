//! What a series sends: one plan but for rate and duration.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Ask, Error, Figures};
use crate::keys::KeyOrder;
use crate::outcome::{Outcome, Warning};
use crate::plan::{Pace, Plan};
use crate::record::{self, Run};
use crate::server::Usage;

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
        std::iter::once(self.plan.target).chain(self.plan.others.iter().copied()).collect()
    }

    /// Sends it for that long.
    pub(crate) fn send(
        &self,
        rate: Option<u64>,
        duration: Duration,
    ) -> Result<Outcome, crate::Error> {
        let pace = rate.map_or(Pace::Closed, Pace::Open);
        crate::run(&Plan { pace, duration, ..self.plan.clone() })
    }

    /// Writes each of its keys once.
    pub(crate) fn fill(&self) -> Result<(), Error> {
        let keys = crate::Keys { order: KeyOrder::Scattered, ..self.plan.keys };
        let plan = Plan {
            pace: Pace::Closed,
            duration: FILL_LIMIT,
            limit: keys.count,
            put_percent: 100,
            keys,
            ..self.plan.clone()
        };
        let outcome = crate::run(&plan)?;
        let (written, all) = (outcome.statuses.success, keys.count);
        if written < all {
            return Err(Error::Prepare(format!(
                "{written} of {all} keys were written ({} answers were no 2xx, {} connections \
                 broke)",
                outcome.statuses.all() - written,
                outcome.errors.read + outcome.errors.write
            )));
        }
        Ok(())
    }

    pub(crate) fn figures(&self, outcome: &Outcome) -> Figures {
        let both = outcome.both();
        let failed = &outcome.errors;
        let refused = outcome.statuses.all() - outcome.statuses.success;
        let cpu = outcome.client_cpu.as_secs_f64() / outcome.elapsed.as_secs_f64().max(1e-9);
        let backlog = outcome.warnings().into_iter().find_map(|warning| match warning {
            Warning::BacklogGrowing { backlog } => Some(backlog),
            _ => None,
        });
        Figures {
            planned: outcome.planned,
            in_time: outcome.in_time,
            throughput: outcome.throughput(),
            errors: refused + failed.connect + failed.read + failed.write,
            intended: both.intended,
            written: both.written,
            late: both.late,
            backlog,
            client_busy: cpu,
            client_cpus: cpu,
            ..self.nothing()
        }
    }

    /// The figures of a trial that did not take place.
    pub(crate) fn nothing(&self) -> Figures {
        let none = crate::outcome::Latencies::new();
        Figures {
            planned: 0,
            in_time: 0,
            throughput: 0.0,
            errors: 0,
            intended: none.intended,
            written: none.written,
            late: none.late,
            connections: self.plan.connections,
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
                targets: vec![format!("http://{}{}", self.plan.target, self.plan.path)],
                threads: 1,
                connections: self.plan.connections,
                rate: ask.rate.map(|rate| rate as f64),
                closed: ask.rate.is_none(),
                duration_s: ask.duration.as_secs_f64(),
                warmup_s: ask.warmup.as_secs_f64(),
                requests: self.name.clone(),
                seed: self.plan.seed,
                ..record::Planned::default()
            },
            elapsed_s: outcome.elapsed.as_secs_f64(),
            throughput: outcome.throughput(),
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
            ..Run::default()
        }
    }
}
