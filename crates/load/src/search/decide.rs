//! What to try next, as a pure function of what was tried: nothing here knows servers or clocks.
//!
//! ```text
//!  ceiling   one closed loop says where to begin: half of it. With --to there is none, for it
//!            would send more than that: then an eighth of --to is where to begin
//!  bracket   ×2 up while it passes, ÷2 down while it fails         ──●────●────────○──▶ rate
//!  bisect    the middle on a logarithmic scale, until the          ────────●──○────○──▶
//!            gap is within the precision                                   ▲  ▲
//!  confirm   both edges until a majority of the repeats agrees       holds ┘  └ breaks
//! ```
//!
//! Every trial is a vote for its rate; a rate is what most of its votes say, so a vote that was
//! noise is outvoted when its rate turns out to be an edge, and the search goes on from there. The
//! first trials are short, and their votes count only until the rate has a trial of full length. A
//! rate that fails below one that passes is repeated at once: if it keeps failing, that is where
//! the server breaks, whatever passed above. A rate at which there is no verdict (the client was
//! the limit) bounds the search as a failing one does, but is never called one.

/// Trials in one search after which it ends with what it has: three times what noise was ever seen
/// to need.
const MAX_TRIALS: usize = 60;

/// Without `--from`: this part of the ceiling. A server that fails there has no useful rate.
const FROM_PART: u64 = 100;

/// Without a ceiling: this part of `--to`, three doublings below it.
const BEGIN_PART: u64 = 8;

/// Without `--to`: this many times the ceiling. An open loop can't pass far above a closed one.
const TO_TIMES: u64 = 2;

/// Gaps of fewer bisections than this are bisected with trials of full length.
const NEAR: i32 = 2;

/// What a trial said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Fail,
    /// The figures say nothing about the server.
    Inconclusive,
}

/// What a trial is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Ceiling,
    Bracket,
    Bisect,
    Confirm,
    /// The server records itself: votes for nothing.
    Profile,
}

/// Where to search, and how thoroughly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) from: Option<u64>,
    pub(crate) to: Option<u64>,
    /// How far apart the edges may be in the end, as a share of the lower: 0.05.
    pub(crate) precision: f64,
    /// Trials of which a majority must agree at both edges.
    pub(crate) repeats: u32,
}

/// What was tried, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct History {
    /// Requests a second in a closed loop, once that was measured: never with `--to`.
    pub(crate) ceiling: Option<u64>,
    pub(crate) tried: Vec<Tried>,
}

/// What one trial found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tried {
    pub(crate) rate: u64,
    /// Of full length.
    pub(crate) full: bool,
    pub(crate) verdict: Verdict,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Ceiling,
    Try { rate: u64, role: Role, full: bool },
    Done(Found),
}

/// What is known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Found {
    /// The highest rate that passed with all that were tried below it.
    pub(crate) passes: Option<u64>,
    /// The lowest rate above it that failed.
    pub(crate) fails: Option<u64>,
    /// The lowest rate above `passes`, and below `fails`, at which there was no verdict.
    pub(crate) unclear: Option<u64>,
    /// The highest rate that passed in spite of `fails`.
    pub(crate) passes_above: Option<u64>,
    /// Whether both edges have their majority.
    pub(crate) confirmed: bool,
}

/// What the trials of one rate say.
#[derive(Debug, Clone, Copy)]
struct Votes {
    rate: u64,
    passes: u32,
    fails: u32,
    unclear: u32,
    /// Whether these are of trials of full length.
    full: bool,
}

impl Votes {
    /// What most say; nothing if as many say pass as fail.
    fn says(&self) -> Option<Verdict> {
        match self.passes.cmp(&self.fails) {
            std::cmp::Ordering::Greater => Some(Verdict::Pass),
            std::cmp::Ordering::Less => Some(Verdict::Fail),
            std::cmp::Ordering::Equal if self.passes == 0 => Some(Verdict::Inconclusive),
            std::cmp::Ordering::Equal => None,
        }
    }

    /// Whether further trials would not change it.
    fn settled(&self, repeats: u32) -> bool {
        let majority = repeats / 2 + 1;
        let most = self.passes.max(self.fails).max(self.unclear);
        self.full && (most >= majority || self.count() >= repeats)
    }

    fn count(&self) -> u32 {
        self.passes + self.fails + self.unclear
    }

    fn passed(&self) -> bool {
        self.says() == Some(Verdict::Pass)
    }
}

/// What to do after `history`. The same history gives the same step.
pub(crate) fn next(bounds: &Bounds, history: &History) -> Step {
    let Some((from, to)) = range(bounds, history.ceiling) else { return Step::Ceiling };
    let votes = votes(history);
    if history.tried.len() >= MAX_TRIALS {
        return Step::Done(found(bounds, history));
    }
    let again = |at: &Votes| Step::Try { rate: at.rate, role: Role::Confirm, full: true };
    let unsettled = |at: &&Votes| !at.settled(bounds.repeats);
    if let Some(tied) = votes.iter().filter(unsettled).find(|at| at.says().is_none()) {
        return again(tied);
    }
    let (low, high) = edges(&votes);
    let above = |at: &Votes| votes.iter().any(|other| other.passed() && other.rate > at.rate);
    if let Some(high) = high.filter(|high| above(high)).as_ref().filter(unsettled) {
        return again(high);
    }
    let begin = history.ceiling.map_or(to / BEGIN_PART, |ceiling| ceiling / 2);
    let bracket = |rate| Step::Try { rate, role: Role::Bracket, full: false };
    match (low, high) {
        (None, None) => return bracket(begin.clamp(from, to)),
        (Some(low), None) if low.rate < to => return bracket((low.rate * 2).min(to)),
        (None, Some(high)) if high.rate > from => return bracket((high.rate / 2).max(from)),
        (Some(low), Some(high)) => {
            if let Some(rate) = middle(low.rate, high.rate, bounds.precision) {
                let near = (1.0 + bounds.precision).powi(1 << NEAR);
                let full = high.rate as f64 <= low.rate as f64 * near;
                return Step::Try { rate, role: Role::Bisect, full };
            }
        }
        _ => {}
    }
    // Turn by turn, so that what changes with time meets both.
    let edges = [low, high].into_iter().flatten();
    let open = edges.filter(|at| !at.settled(bounds.repeats));
    match open.min_by_key(|at| if at.full { at.count() } else { 0 }) {
        Some(edge) => again(&edge),
        None => Step::Done(found(bounds, history)),
    }
}

/// What is known after `history`, also when it was ended early.
pub(crate) fn found(bounds: &Bounds, history: &History) -> Found {
    let votes = votes(history);
    let (low, high) = edges(&votes);
    let lowest = |verdict| {
        let above = votes.iter().filter(|at| low.is_none_or(|low| at.rate > low.rate));
        above.filter(|at| at.says() == Some(verdict)).map(|at| at.rate).min()
    };
    let fails = lowest(Verdict::Fail);
    let unclear = lowest(Verdict::Inconclusive)
        .into_iter()
        .chain(votes.iter().filter(|at| at.says().is_none()).map(|at| at.rate))
        .filter(|rate| fails.is_none_or(|fails| *rate < fails))
        .min();
    let passed_above =
        votes.iter().filter(|at| at.passed() && high.is_some_and(|high| at.rate > high.rate));
    Found {
        passes: low.map(|low| low.rate),
        fails,
        unclear,
        passes_above: passed_above.map(|at| at.rate).max(),
        confirmed: (low.is_some() || high.is_some())
            && [low, high].into_iter().flatten().all(|at| at.settled(bounds.repeats)),
    }
}

/// Where the search goes at most; unknown before the ceiling is, unless `--to` says it.
pub(crate) fn range(bounds: &Bounds, ceiling: Option<u64>) -> Option<(u64, u64)> {
    let to = bounds.to.or(ceiling.map(|ceiling| ceiling * TO_TIMES))?.max(1);
    let from = bounds.from.unwrap_or((ceiling.unwrap_or(to) / FROM_PART).clamp(1, to));
    // A bound that was not given gives way to the one that was.
    Some((from, to.max(from)))
}

/// The highest rate that passes below all that don't, and the lowest that does not.
fn edges(votes: &[Votes]) -> (Option<Votes>, Option<Votes>) {
    let high = votes.iter().find(|at| !at.passed()).copied();
    let below = |at: &&Votes| high.is_none_or(|high| at.rate < high.rate);
    (votes.iter().take_while(below).last().copied(), high)
}

/// The votes of each rate, in order of rates.
fn votes(history: &History) -> Vec<Votes> {
    let mut rates: Vec<u64> = history.tried.iter().map(|tried| tried.rate).collect();
    rates.sort_unstable();
    rates.dedup();
    rates.into_iter().map(|rate| votes_of(rate, &history.tried)).collect()
}

fn votes_of(rate: u64, tried: &[Tried]) -> Votes {
    let of = |tried: &&Tried| tried.rate == rate;
    let full = tried.iter().filter(of).any(|tried| tried.full);
    let mut votes = Votes { rate, passes: 0, fails: 0, unclear: 0, full };
    for tried in tried.iter().filter(of).filter(|tried| tried.full == full) {
        match tried.verdict {
            Verdict::Pass => votes.passes += 1,
            Verdict::Fail => votes.fails += 1,
            Verdict::Inconclusive => votes.unclear += 1,
        }
    }
    votes
}

/// The rate in the middle on a logarithmic scale, if the gap is wider than the precision; with
/// three digits where that is enough to tell it from both.
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
