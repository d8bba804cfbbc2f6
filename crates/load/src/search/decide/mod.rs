//! Chooses the next trial, as a pure function of the earlier trials, without access to servers or
//! clocks.
//!
//! ```text
//!  ceiling   a closed loop measures the ceiling: the first rate is half its throughput. With --to
//!            no closed loop runs, because it could exceed --to: the first rate is --to / 8
//!  bracket   doubles the rate while trials pass, halves it         ──●────●────────○──▶ rate
//!            while trials fail                                       ● passes      ○ fails
//!  bisect    the middle on a logarithmic scale, until the          ────────●──○────○──▶
//!            gap is within the precision                                   ▲  ▲
//!  confirm   both edges until a majority of the repeats agrees       holds ┘  └ breaks
//! ```
//!
//! Every trial is a vote for its rate, and the majority decides. If a noisy vote makes its rate an
//! edge, the repeats there outvote it, and the search continues. The first trials of a search are
//! short. The vote of a short trial counts only until its rate has a trial of full length. A rate
//! that fails below a rate that passes is tried again at once. If the rate fails again, the server
//! breaks there, even if higher rates passed. A rate without a verdict (the client was the limit)
//! bounds the search as a failing rate does, but is never reported as failing.

/// Maximum number of trials of one search, which then ends with its results so far. Even with
/// noise, no search has needed more than a third of this number.
const MAX_TRIALS: usize = 60;

/// Divisor of the ceiling for the default of `--from`. A server that fails at that rate has no
/// useful rate.
const DEFAULT_FROM_DIVISOR: u64 = 100;

/// Divisor of `--to` for the first rate without a ceiling, three doublings below `--to`.
const FIRST_RATE_DIVISOR: u64 = 8;

/// Factor on the ceiling for the default of `--to`. An open loop can't pass far above the ceiling.
const DEFAULT_TO_FACTOR: u64 = 2;

/// A trial has full length if its gap needs at most this many bisections to reach the precision.
const FULL_LENGTH_BISECTIONS: i32 = 2;

/// Verdict of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepVerdict {
    Pass,
    Fail,
    /// The figures do not show whether the server met the objective.
    Inconclusive,
}

/// Purpose of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Ceiling,
    Bracket,
    Bisect,
    Confirm,
    /// A trial in which the server records a profile of itself. Such a trial has no vote.
    Profile,
}

/// Bounds and thoroughness of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) from: Option<u64>,
    pub(crate) to: Option<u64>,
    /// Maximum distance of the edges at the end, as a share of the lower edge: 0.05.
    pub(crate) precision: f64,
    /// Number of trials at each edge. A majority of them must agree.
    pub(crate) repeats: u32,
}

/// The trials so far, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct History {
    /// Requests per second in a closed loop, once measured. Never measured with `--to`.
    pub(crate) ceiling: Option<u64>,
    pub(crate) tried: Vec<TrialResult>,
}

/// Result of one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrialResult {
    pub(crate) rate: u64,
    /// True for a trial of full length.
    pub(crate) full: bool,
    pub(crate) verdict: StepVerdict,
}

/// The next step of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SearchStep {
    Ceiling,
    Try { rate: u64, role: Role, full: bool },
    Done(SearchBounds),
}

/// Results of the search.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SearchBounds {
    /// The highest rate that passed and below which every tried rate passed.
    pub(crate) passes: Option<u64>,
    /// The lowest rate above `passes` that failed.
    pub(crate) fails: Option<u64>,
    /// The lowest rate between `passes` and `fails` that has no verdict.
    pub(crate) unclear: Option<u64>,
    /// The highest rate above `fails` that passed.
    pub(crate) passes_above: Option<u64>,
    /// True if both edges have their majority.
    pub(crate) confirmed: bool,
}

/// The votes on one rate.
#[derive(Debug, Clone, Copy)]
struct Votes {
    rate: u64,
    passes: u32,
    fails: u32,
    unclear: u32,
    /// True if the votes are of trials of full length.
    full: bool,
}

impl Votes {
    /// Returns the majority's verdict, or `None` if passes and fails are equal in number.
    fn majority(&self) -> Option<StepVerdict> {
        match self.passes.cmp(&self.fails) {
            std::cmp::Ordering::Greater => Some(StepVerdict::Pass),
            std::cmp::Ordering::Less => Some(StepVerdict::Fail),
            std::cmp::Ordering::Equal if self.passes == 0 => Some(StepVerdict::Inconclusive),
            std::cmp::Ordering::Equal => None,
        }
    }

    /// Returns true if further trials would not change the verdict.
    fn is_settled(&self, repeats: u32) -> bool {
        let majority = repeats / 2 + 1;
        let most = self.passes.max(self.fails).max(self.unclear);
        self.full && (most >= majority || self.count() >= repeats)
    }

    fn count(&self) -> u32 {
        self.passes + self.fails + self.unclear
    }

    fn has_passed(&self) -> bool {
        self.majority() == Some(StepVerdict::Pass)
    }
}

/// Returns the step that follows `history`. The same history always yields the same step.
pub(crate) fn next(bounds: &Bounds, history: &History) -> SearchStep {
    let Some((from, to)) = range(bounds, history.ceiling) else { return SearchStep::Ceiling };
    let votes = votes(history);
    if history.tried.len() >= MAX_TRIALS {
        return SearchStep::Done(find_bounds(bounds, history));
    }
    let again = |at: &Votes| SearchStep::Try { rate: at.rate, role: Role::Confirm, full: true };
    let unsettled = |at: &&Votes| !at.is_settled(bounds.repeats);
    if let Some(tied) = votes.iter().filter(unsettled).find(|at| at.majority().is_none()) {
        return again(tied);
    }
    let (low, high) = edges(&votes);
    let above = |at: &Votes| votes.iter().any(|other| other.has_passed() && other.rate > at.rate);
    if let Some(high) = high.filter(|high| above(high)).as_ref().filter(unsettled) {
        return again(high);
    }
    let begin = history.ceiling.map_or(to / FIRST_RATE_DIVISOR, |ceiling| ceiling / 2);
    let bracket = |rate| SearchStep::Try { rate, role: Role::Bracket, full: false };
    match (low, high) {
        (None, None) => return bracket(begin.clamp(from, to)),
        (Some(low), None) if low.rate < to => return bracket((low.rate * 2).min(to)),
        (None, Some(high)) if high.rate > from => return bracket((high.rate / 2).max(from)),
        (Some(low), Some(high)) => {
            if let Some(rate) = middle(low.rate, high.rate, bounds.precision) {
                let near = (1.0 + bounds.precision).powi(1 << FULL_LENGTH_BISECTIONS);
                let full = high.rate as f64 <= low.rate as f64 * near;
                return SearchStep::Try { rate, role: Role::Bisect, full };
            }
        }
        _ => {}
    }
    // Alternates between the edges, so that changes of the machine over time affect both.
    let edges = [low, high].into_iter().flatten();
    let open = edges.filter(|at| !at.is_settled(bounds.repeats));
    match open.min_by_key(|at| if at.full { at.count() } else { 0 }) {
        Some(edge) => again(&edge),
        None => SearchStep::Done(find_bounds(bounds, history)),
    }
}

/// Returns the results of `history`, which may be incomplete.
pub(crate) fn find_bounds(bounds: &Bounds, history: &History) -> SearchBounds {
    let votes = votes(history);
    let (low, high) = edges(&votes);
    let lowest = |verdict| {
        let above = votes.iter().filter(|at| low.is_none_or(|low| at.rate > low.rate));
        above.filter(|at| at.majority() == Some(verdict)).map(|at| at.rate).min()
    };
    let fails = lowest(StepVerdict::Fail);
    let unclear = lowest(StepVerdict::Inconclusive)
        .into_iter()
        .chain(votes.iter().filter(|at| at.majority().is_none()).map(|at| at.rate))
        .filter(|rate| fails.is_none_or(|fails| *rate < fails))
        .min();
    let passed_above =
        votes.iter().filter(|at| at.has_passed() && high.is_some_and(|high| at.rate > high.rate));
    SearchBounds {
        passes: low.map(|low| low.rate),
        fails,
        unclear,
        passes_above: passed_above.map(|at| at.rate).max(),
        confirmed: (low.is_some() || high.is_some())
            && [low, high].into_iter().flatten().all(|at| at.is_settled(bounds.repeats)),
    }
}

/// Returns the lowest and the highest rate of the search. Without `--to`, returns `None` until the
/// ceiling is measured.
pub(crate) fn range(bounds: &Bounds, ceiling: Option<u64>) -> Option<(u64, u64)> {
    let to = bounds.to.or(ceiling.map(|ceiling| ceiling * DEFAULT_TO_FACTOR))?.max(1);
    let default_from = (ceiling.unwrap_or(to) / DEFAULT_FROM_DIVISOR).clamp(1, to);
    let from = bounds.from.unwrap_or(default_from);
    // If a given bound and a default bound contradict each other, the given bound applies.
    Some((from, to.max(from)))
}

/// Returns the edges: the highest rate below all rates that did not pass, and the lowest rate that
/// did not pass.
fn edges(votes: &[Votes]) -> (Option<Votes>, Option<Votes>) {
    let high = votes.iter().find(|at| !at.has_passed()).copied();
    let below = |at: &&Votes| high.is_none_or(|high| at.rate < high.rate);
    (votes.iter().take_while(below).last().copied(), high)
}

/// Returns the votes of each rate, sorted by rate.
fn votes(history: &History) -> Vec<Votes> {
    let mut rates: Vec<u64> = history.tried.iter().map(|tried| tried.rate).collect();
    rates.sort_unstable();
    rates.dedup();
    rates.into_iter().map(|rate| votes_of(rate, &history.tried)).collect()
}

fn votes_of(rate: u64, tried: &[TrialResult]) -> Votes {
    let of = |tried: &&TrialResult| tried.rate == rate;
    let full = tried.iter().filter(of).any(|tried| tried.full);
    let mut votes = Votes { rate, passes: 0, fails: 0, unclear: 0, full };
    for tried in tried.iter().filter(of).filter(|tried| tried.full == full) {
        match tried.verdict {
            StepVerdict::Pass => votes.passes += 1,
            StepVerdict::Fail => votes.fails += 1,
            StepVerdict::Inconclusive => votes.unclear += 1,
        }
    }
    votes
}

/// Returns the middle of a gap on a logarithmic scale, or `None` if the gap is within the
/// precision. The middle is rounded to three digits if the rounded rate is inside the gap.
fn middle(low: u64, high: u64, precision: f64) -> Option<u64> {
    if high <= low + 1 || high as f64 <= low as f64 * (1.0 + precision) {
        return None;
    }
    let exact = (low as f64 * high as f64).sqrt();
    let unit = 10_f64.powi((exact.log10().floor() as i32 - 2).max(0));
    let short = ((exact / unit).round() * unit) as u64;
    let between = |rate: &u64| *rate > low && *rate < high;
    Some(short).filter(between).or(Some(exact.round() as u64).filter(between))
}

#[cfg(test)]
mod tests;
