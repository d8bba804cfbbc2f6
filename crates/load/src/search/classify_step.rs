//! The verdict on one trial. The first of these rules that applies decides:
//!
//! ```text
//!  the server died, or errors above the objective      fail: no slow client could cause this
//!  a thread of the client was out of CPU               inconclusive
//!  too few samples for the objective's percentile      inconclusive
//!  objective met, ≥ 99 % of the plan, no backlog       pass
//!  objective missed by at most the client's lateness   inconclusive
//!  objective missed by more                            fail
//! ```
//!
//! A client that was merely late (its thread had CPU to spare, but other processes used its core)
//! reports worse figures than the true ones, never better. Therefore every pass is valid. A failure
//! is valid if the trial would also fail without the lateness.

use super::decide::StepVerdict;
use super::slo::{Quantity, Slo, SloTime};
use crate::trial::TrialFigures;

/// Share of time on a CPU above which a client's thread counts as the limit.
pub(crate) const CPU_LIMIT: f64 = 0.95;

/// Minimum share of the plan that a passing trial must answer in time.
const MIN_ACHIEVED: f64 = 0.99;

/// A verdict and its reason.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassifiedStep {
    pub(crate) verdict: StepVerdict,
    /// The reason in words. May be empty.
    pub(crate) why: String,
}

pub(crate) fn classify(slo: &Slo, figures: &TrialFigures) -> ClassifiedStep {
    let classified = |verdict, why: String| ClassifiedStep { verdict, why };
    if let Some(died) = &figures.died {
        return classified(StepVerdict::Fail, format!("the server died: {died}"));
    }
    let missed: Vec<_> =
        slo.terms.iter().filter(|term| figures.value(term.what) >= term.limit).collect();
    if missed.iter().any(|term| term.what == Quantity::Errors) {
        let share = figures.value(Quantity::Errors) * 100.0;
        let why = format!("{share:.2} % errors{}", figures.format_redirects(": "));
        return classified(StepVerdict::Fail, why);
    }
    if figures.client_busy > CPU_LIMIT {
        let busy = figures.client_busy * 100.0;
        let why = format!("client limited: its busiest thread took {busy:.0} % of a CPU");
        return classified(StepVerdict::Inconclusive, why);
    }
    if figures.intended.len() < slo.samples() {
        let (have, need) = (figures.intended.len(), slo.samples());
        let why = format!("{have} samples, the objective needs {need}: a longer -d");
        return classified(StepVerdict::Inconclusive, why);
    }
    let mut whys: Vec<String> = missed
        .iter()
        .map(|term| format!("{} {}", term.what, SloTime(figures.value(term.what))))
        .collect();
    let achieved = figures.achieved_share();
    if achieved < MIN_ACHIEVED {
        whys.push(format!("{:.0} % of the plan", (achieved * 100.0).floor()));
    }
    if let Some(backlog) = figures.backlog {
        whys.push(format!("backlog grew to {backlog}"));
    }
    if whys.is_empty() {
        return classified(StepVerdict::Pass, String::new());
    }
    let without_lateness = |what| figures.value(what) - figures.lateness(what);
    let only_late = achieved >= MIN_ACHIEVED
        && figures.backlog.is_none()
        && missed.iter().all(|term| without_lateness(term.what) < term.limit);
    if only_late {
        let late = SloTime(figures.lateness(slo.terms[0].what));
        whys.push(format!("of which the client's own lateness is {late}"));
        return classified(StepVerdict::Inconclusive, whys.join(", "));
    }
    classified(StepVerdict::Fail, whys.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::trial_figures::tests::figures;

    fn slo() -> Slo {
        "p99<10ms,errors<0.1%".parse().unwrap()
    }

    fn verdict(figures: &TrialFigures) -> (StepVerdict, String) {
        let ClassifiedStep { verdict, why } = classify(&slo(), figures);
        (verdict, why)
    }

    #[test]
    fn a_good_trial_passes_despite_requests_in_flight() {
        assert_eq!(verdict(&figures(1000, 2.0)), (StepVerdict::Pass, String::new()));
        let in_flight = TrialFigures { in_time: 9930, ..figures(1000, 2.0) };
        assert_eq!(verdict(&in_flight).0, StepVerdict::Pass);
    }

    #[test]
    fn a_missed_objective_fails_with_its_value() {
        let slow = figures(1000, 12.0);
        assert_eq!(verdict(&slow), (StepVerdict::Fail, "p99 12ms".to_owned()));
        let behind = TrialFigures { in_time: 8000, backlog: Some(2000), ..figures(1000, 12.0) };
        let why = "p99 12ms, 80 % of the plan, backlog grew to 2000";
        assert_eq!(verdict(&behind), (StepVerdict::Fail, why.to_owned()));
        let refused = TrialFigures { errors: 20, ..figures(1000, 2.0) };
        assert_eq!(verdict(&refused), (StepVerdict::Fail, "0.20 % errors".to_owned()));
        let redirects = "1 % of the answers were redirects (302)".to_owned();
        let (_, why) = verdict(&TrialFigures { redirects, ..refused });
        assert_eq!(why, "0.20 % errors: 1 % of the answers were redirects (302)");
        let died =
            TrialFigures { died: Some("signal 9 ended it".to_owned()), ..figures(1000, 2.0) };
        assert_eq!(verdict(&died).0, StepVerdict::Fail);
    }

    #[test]
    fn a_client_out_of_cpu_makes_latencies_inconclusive() {
        for ms in [2.0, 12.0] {
            let limited = TrialFigures { client_busy: 0.97, ..figures(1000, ms) };
            assert_eq!(verdict(&limited).0, StepVerdict::Inconclusive);
        }
        let errors = TrialFigures { client_busy: 0.97, errors: 100, ..figures(1000, 2.0) };
        assert_eq!(verdict(&errors).0, StepVerdict::Fail, "errors are the server's");
    }

    #[test]
    fn a_late_client_fails_a_trial_only_beyond_its_own_lateness() {
        let late = |late_ms: u64, ms| {
            let mut figures = figures(1000, ms);
            figures.late.clear();
            figures.late.record_n(late_ms * 1_000_000, 10_000).unwrap();
            verdict(&figures).0
        };
        assert_eq!(late(5, 8.0), StepVerdict::Pass);
        assert_eq!(late(5, 12.0), StepVerdict::Inconclusive);
        assert_eq!(late(5, 30.0), StepVerdict::Fail);
    }

    #[test]
    fn too_few_samples_are_inconclusive() {
        let mut few = figures(1000, 2.0);
        few.intended.clear();
        few.intended.record_n(1_000_000, 999).unwrap();
        assert_eq!(verdict(&few).0, StepVerdict::Inconclusive);
        few.intended.record(1_000_000).unwrap();
        assert_eq!(verdict(&few).0, StepVerdict::Pass);
    }
}
