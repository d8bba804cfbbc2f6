//! Finds the resource that limits a server at the rate where it breaks. The first of these rules
//! that applies to the figures of the lowest failed rate decides:
//!
//! ```text
//!  died          the server ended
//!  client        no verdict because a thread of the client was out of CPU
//!  disk          the server says that it delayed writes or refused them for flushes and
//!                compactions; or tasks waited for the disk for half of the time while the server
//!                had CPU to spare
//!  cpu           the server's process took ≥ 90 % of its CPUs, or one of its threads ≥ 90 % of
//!                one CPU; or server and client together left the machine < 10 % idle
//!  connections   answers take hardly longer than at the lowest rates, but all connections are
//!                busy (Little's law: rate × answer time = busy connections)
//!  lock          answers take several times as long as at the lowest rates, while the machine
//!                has CPU to spare, other processes (and the host of a virtual machine) take
//!                < 10 % of it, no thread of the server was runnable without a CPU for ≥ 10 % of
//!                the time, and the client was not held up: so requests must wait for one
//!                another in the server, for a lock, a queue or a pool of threads
//!  unknown       none of these
//! ```
//!
//! Disk comes before CPU, because a server that delays writes names the cause. CPU comes before
//! connections, because a server that is out of CPU keeps all connections waiting, too.

use super::slo::{Quantity, SloTime};
use crate::trial::TrialFigures;

/// Share of a CPU, or of a process's CPUs, above which the CPU counts as used up.
const CPU_LIMIT: f64 = 0.9;

/// Idle share of the machine's CPU time below which the machine's CPUs count as used up.
const IDLE_LIMIT: f64 = 0.1;

/// Share of the time with tasks waiting for the disk above which the disk counts as the limit.
const IO_LIMIT: f64 = 0.5;

/// Share of the connections' greatest throughput above which the connections count as used up.
const CONNECTIONS_LIMIT: f64 = 0.8;

/// Ratio of the answer time to the answer time at the lowest rate, above which requests must wait
/// for one another.
const SLOWDOWN_LIMIT: f64 = 3.0;

/// Share of the CPU used by other processes above which server and client lack CPU.
const OTHERS_LIMIT: f64 = 0.3;

/// Share of the machine that other processes use, or of the time that a server's thread was
/// runnable without a CPU, above which answers may have waited for a CPU.
const TAKEN_LIMIT: f64 = 0.1;

/// Maximum share of the slowdown that the client's lateness may account for. The client needs only
/// part of its CPU: if it is late, the kernel did not run it.
const LATE_LIMIT: f64 = 0.1;

/// [`Limit::what`] of a server that ended.
pub(crate) const DIED: &str = "died";

/// The limiting resource and the evidence for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limit {
    /// `died`, `cpu`, `disk`, `lock`, `connections`, `client` or `unknown`.
    pub(crate) what: &'static str,
    pub(crate) why: String,
}

/// Returns the limit in a trial that did not pass. `write_stall_counters` are the metrics that grow
/// while the server delays writes. `unloaded` is the mean time in milliseconds from the write to
/// the answer at the lowest rate.
pub(crate) fn limit(figures: &TrialFigures, write_stall_counters: &[&str], unloaded: f64) -> Limit {
    let died = figures.died.clone().map(|why| Limit { what: DIED, why });
    died.or_else(|| client(figures))
        .or_else(|| disk(figures, write_stall_counters))
        .or_else(|| cpu(figures))
        .or_else(|| connections(figures, unloaded))
        .or_else(|| lock(figures, unloaded))
        .unwrap_or_else(|| Limit { what: "unknown", why: supporting_figures(figures) })
}

fn client(figures: &TrialFigures) -> Option<Limit> {
    let busy = figures.client_busy;
    let why = || format!("the client's busiest thread took {} of a CPU", percent(busy));
    (busy > super::classify_step::CPU_LIMIT).then(|| Limit { what: "client", why: why() })
}

fn disk(figures: &TrialFigures, write_stall_counters: &[&str]) -> Option<Limit> {
    let held = write_stall_counters.iter().find_map(|name| {
        let grown = figures.metric(name);
        (grown > 0.0).then(|| format!("{name} grew by {grown:.0}"))
    });
    let idle = figures.servers.iter().all(|usage| usage.cpu_share() < CPU_LIMIT);
    let waiting = figures.servers.iter().find_map(|usage| {
        let stalled = usage.io_stalled.filter(|share| *share >= IO_LIMIT && idle)?;
        let written = usage.written_per_s / 1e6;
        Some(
            format!("tasks waited for the disk {} of the time", percent(stalled))
                + &format!(", {written:.1} MB/s were written"),
        )
    });
    held.or(waiting).map(|why| Limit { what: "disk", why })
}

fn cpu(figures: &TrialFigures) -> Option<Limit> {
    let all = figures.servers.iter().find(|usage| usage.cpu_share() >= CPU_LIMIT);
    let all = all.map(|usage| {
        format!("the server took {} of its {} CPUs", percent(usage.cpu_share()), usage.cpus)
    });
    let one = || {
        let mut busiest = figures.servers.iter().filter_map(|usage| usage.busiest.as_ref());
        let full = busiest.find(|busiest| busiest.share >= CPU_LIMIT)?;
        Some(format!("its thread {} took {} of a CPU", full.name, percent(full.share)))
    };
    let shared = || {
        let usage = figures.servers.iter().find(|usage| usage.idle < IDLE_LIMIT)?;
        let (server, client) = (usage.cpu_s / usage.seconds, figures.client_cpus);
        let theirs = server + client >= (1.0 - OTHERS_LIMIT) * usage.machine_cpus;
        theirs.then(|| {
            format!(
                "server ({server:.2} CPUs) and client ({client:.2}) left the machine {} of its CPU",
                percent(usage.idle)
            )
        })
    };
    all.or_else(one).or_else(shared).map(|why| Limit { what: "cpu", why })
}

fn connections(figures: &TrialFigures, unloaded: f64) -> Option<Limit> {
    let all = figures.connections;
    let most = all as f64 / unloaded * 1e3;
    let slowed = figures.answer_ms() >= SLOWDOWN_LIMIT * unloaded;
    if slowed || figures.throughput < CONNECTIONS_LIMIT * most {
        return None;
    }
    let why = format!(
        "{all} connections at {} an answer carry at most {most:.0}/s, and the server is no slower \
         than without load: more of them would carry more",
        SloTime(unloaded)
    );
    Some(Limit { what: "connections", why })
}

fn lock(figures: &TrialFigures, unloaded: f64) -> Option<Limit> {
    let now = figures.answer_ms();
    // Without idle CPU, answers may have waited for a CPU.
    let rested = figures.servers.iter().any(|usage| usage.idle >= IDLE_LIMIT);
    if !rested || now < SLOWDOWN_LIMIT * unloaded || cpu_was_taken(figures, now - unloaded) {
        return None;
    }
    let why = format!(
        "an answer takes {}, {} at the lowest rate, while {}: requests wait for each other in the \
         server, for a lock, a queue or a pool of threads",
        SloTime(now),
        SloTime(unloaded),
        supporting_figures(figures)
    );
    Some(Limit { what: "lock", why })
}

/// Returns true if CPU use by other processes may explain why answers took `longer` milliseconds
/// more. An idle average does not exclude this, because the use may have come in bursts.
fn cpu_was_taken(figures: &TrialFigures, longer: f64) -> bool {
    let by_others = figures.servers.first().is_some_and(|usage| {
        let machine = usage.machine_cpus / (1.0 - usage.idle).max(1e-9);
        figures.others_cpus().is_some_and(|others| others > TAKEN_LIMIT * machine)
    });
    let long = |share: f64| share >= TAKEN_LIMIT;
    let kept_waiting = figures.servers.iter().any(|usage| usage.waited.is_some_and(long));
    by_others || kept_waiting || figures.lateness(Quantity::Mean) >= LATE_LIMIT * longer
}

/// Describes the figures that support the limit.
fn supporting_figures(figures: &TrialFigures) -> String {
    let Some(usage) = figures.servers.first() else {
        return "the server's process can't be looked at".to_owned();
    };
    let others = figures.others_cpus().unwrap_or(0.0);
    let shown = |share: Option<f64>| share.map_or("unknown".to_owned(), percent);
    format!(
        "the server took {} of its CPUs and waited for one {} of the time, others than it and the \
         client took {others:.2} CPUs, and the disk was waited for {} of the time",
        percent(usage.cpu_share()),
        shown(usage.waited),
        shown(usage.io_stalled)
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Busiest, Metrics};
    use crate::trial::trial_figures::tests::figures;

    fn of(change: impl FnOnce(&mut TrialFigures)) -> Limit {
        let mut figures = figures(1000, 12.0);
        change(&mut figures);
        limit(&figures, &["slowed"], 1.2)
    }

    #[test]
    fn each_rule_is_met_by_its_figures() {
        assert_eq!(of(|_| {}).what, "unknown");
        assert_eq!(of(|f| f.client_busy = 0.99).what, "client");
        assert_eq!(of(|f| f.servers[0].cpu_s = 19.0).what, "cpu");
        let busiest = Busiest { name: "loop-0".to_owned(), share: 0.97 };
        let thread = of(|f| f.servers[0].busiest = Some(busiest));
        assert_eq!((thread.what, thread.why.contains("loop-0")), ("cpu", true));
        let shared = of(|f| {
            let usage = &mut f.servers[0];
            (usage.idle, usage.cpu_s, usage.machine_cpus) = (0.02, 15.0, 2.0);
        });
        assert_eq!((shared.what, shared.why.contains("client")), ("cpu", true));
        let others = of(|f| (f.servers[0].idle, f.servers[0].machine_cpus) = (0.02, 2.0));
        assert_eq!(others.what, "unknown", "somebody else had the CPU");
        let held = of(|f| f.metrics[0] = Metrics::parse("slowed_total 12\n"));
        assert_eq!((held.what, held.why.as_str()), ("disk", "slowed grew by 12"));
        assert_eq!(of(|f| f.servers[0].io_stalled = Some(0.7)).what, "disk");
        // 64 connections at 1.2 ms carry at most 53,333 requests per second.
        let full = of(|f| f.throughput = 50_000.0);
        assert_eq!((full.what, full.why.contains("53333/s")), ("connections", true), "{full:?}");
        let queued = of(|f| {
            f.throughput = 50_000.0;
            f.written.clear();
            f.written.record_n(9_000_000, 100).unwrap();
        });
        assert_eq!((queued.what, queued.why.contains("9ms")), ("lock", true), "{queued:?}");
        let starved = of(|f| {
            f.written.clear();
            f.written.record_n(9_000_000, 100).unwrap();
            (f.servers[0].idle, f.servers[0].machine_cpus) = (0.02, 2.0);
        });
        assert_eq!(
            (starved.what, starved.why.contains("1.50 CPUs")),
            ("unknown", true),
            "{starved:?}"
        );
    }

    #[test]
    fn cpu_taken_by_other_processes_is_not_reported_as_a_lock() {
        let slow = |change: fn(&mut TrialFigures)| {
            of(|f| {
                f.written.clear();
                f.written.record_n(9_000_000, 100).unwrap();
                f.servers[0].machine_cpus = 1.0;
                f.servers[0].cpu_s = 7.0;
                change(f);
            })
            .what
        };
        assert_eq!(slow(|_| {}), "lock");
        assert_eq!(slow(|f| f.servers[0].waited = Some(0.02)), "lock");
        assert_eq!(slow(|f| f.servers[0].cpu_s = 3.0), "unknown", "others took 0.4 of 2 CPUs");
        assert_eq!(slow(|f| f.servers[0].waited = Some(0.3)), "unknown");
        let late = slow(|f| {
            f.late.clear();
            f.late.record_n(3_000_000, 100).unwrap();
        });
        assert_eq!(late, "unknown", "the client, which had nothing else to do, was held up, too");
    }

    #[test]
    fn a_server_that_ended_has_the_limit_died() {
        let died = of(|f| f.died = Some("signal 9 ended it".to_owned()));
        assert_eq!((died.what, died.why.as_str()), (DIED, "signal 9 ended it"));
    }

    #[test]
    fn an_unobserved_server_has_an_unknown_limit() {
        let unseen = of(|f| f.servers.clear());
        assert_eq!(unseen.what, "unknown");
        assert!(unseen.why.contains("can't be looked at"), "{}", unseen.why);
    }

    #[test]
    fn the_limit_cpu_precedes_the_limit_connections() {
        let both = of(|f| {
            f.servers[0].cpu_s = 19.5;
            f.throughput = 50_000.0;
        });
        assert_eq!(both.what, "cpu");
    }
}
