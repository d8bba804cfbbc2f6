//! Due times of requests. Each thread computes the due times of its own requests, without
//! synchronization.
//!
//! ```text
//!  even      slot      0   1   2   3   4   5   6   7      due at slot / rate, from one start
//!            connection 0  1   2   3   0   1   2   3      slot mod connections
//!            thread     0  1   0   1   0   1   0   1      connection mod threads
//!
//!  poisson   each thread draws exponential intervals at its share of the rate (the sum of Poisson
//!            processes is a Poisson process); a slot goes to any free connection of the thread
//!
//!  closed    a request is due when its connection is free
//! ```
//!
//! Two cursors advance over a thread's slots: `due` advances with time, and `taken` with the
//! connections that take due slots. The slots between the two cursors are the backlog, which takes
//! no memory.

use std::time::Duration;

use crate::plan::{Arrival, Plan, TargetMode};

/// Nanoseconds in a second.
pub(crate) const SECOND: f64 = 1e9;

/// The request of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Number of the request over all threads. The number determines the request's key.
    pub(crate) number: u64,
    /// Due time in nanoseconds since the start. In a closed loop, the time since which the
    /// connection could have sent the request.
    pub(crate) intended: u64,
}

/// Result of advancing the time cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A slot is due: for this connection of the thread, or with `None` for any free connection.
    Due(Option<usize>),
    /// The next slot is due at this time.
    Later(u64),
    /// No further slot will be due.
    Never,
}

/// The slots of one thread.
#[derive(Debug)]
pub(crate) struct Schedule {
    kind: Kind,
    /// Index of the thread. `workers` is the number of threads.
    worker: u64,
    workers: u64,
    /// Number of requests per slot, which is more than one if a script pipelines.
    batch: u64,
    limit: u64,
    warmup: u64,
    end: u64,
    due: u64,
    taken: u64,
    /// Number of slots before `due` that count, because they are due after the warm-up.
    planned: u64,
}

#[derive(Debug)]
enum Kind {
    Even(Even),
    Poisson(Poisson),
    Closed,
}

#[derive(Debug)]
struct Even {
    rate: f64,
    /// Number of connections over all threads, which is the distance between two slots of a
    /// connection.
    stride: u64,
    /// The first slot of each of the thread's connections, ascending.
    first: Vec<u64>,
    /// The next slot that each connection takes.
    next: Vec<u64>,
    /// Position of the time cursor: the index of a connection. `round` is the number of completed
    /// rounds over all connections.
    turn: usize,
    round: u64,
}

#[derive(Debug)]
struct Poisson {
    due: DueTimes,
    taken: DueTimes,
}

/// Random due times, which are drawn one after another. Two sequences with the same seed yield the
/// same times.
#[derive(Debug, Clone)]
struct DueTimes {
    random: fastrand::Rng,
    mean: f64,
    at: f64,
}

impl DueTimes {
    fn advance(&mut self) {
        // 1 - [0, 1) is never 0, whose logarithm is infinite.
        self.at -= (1.0 - self.random.f64()).ln() * self.mean;
    }

    fn at(&self) -> u64 {
        self.at as u64
    }
}

impl Schedule {
    /// Creates the share of thread `worker`. The thread owns the connections with the numbers
    /// `owned` among all connections, and sends `batch` requests at once.
    pub(crate) fn new(plan: &Plan, worker: usize, owned: &[usize], batch: u64) -> Self {
        let rate = plan.rate().map(|rate| rate / batch as f64);
        let kind = match (rate, plan.arrival) {
            (None, _) => Kind::Closed,
            (Some(rate), Arrival::Even) => {
                let first: Vec<u64> = owned.iter().map(|&index| index as u64).collect();
                let stride = plan.all_connections() as u64;
                let next = first.clone();
                Kind::Even(Even { rate, stride, first, next, turn: 0, round: 0 })
            }
            (Some(rate), Arrival::Poisson) => {
                let share = owned.len() as f64 / plan.all_connections() as f64;
                let mut due = DueTimes {
                    random: fastrand::Rng::with_seed(crate::keys::mix(plan.seed, worker as u64)),
                    mean: SECOND / (rate * share),
                    at: 0.0,
                };
                due.advance();
                Kind::Poisson(Poisson { taken: due.clone(), due })
            }
        };
        let warmup = nanos(plan.warmup);
        Self {
            kind,
            worker: worker as u64,
            workers: plan.workers() as u64,
            batch,
            limit: plan.limit / batch,
            warmup,
            end: warmup.saturating_add(nanos(plan.duration)),
            due: 0,
            taken: 0,
            planned: 0,
        }
    }

    /// Ends the schedule at `now`.
    pub(crate) fn stop(&mut self, now: u64) {
        self.end = self.end.min(now);
    }

    /// Returns the end of the schedule in nanoseconds since the start. No slot is due later.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns true if a request with this intended start is past the warm-up.
    pub(crate) fn counts(&self, intended: u64) -> bool {
        intended >= self.warmup
    }

    /// Returns the number of requests due after the warm-up; in a closed loop, the number of
    /// requests sent after the warm-up.
    pub(crate) fn planned_requests(&self) -> u64 {
        self.planned * self.batch
    }

    /// Returns the number of requests that are due but not taken.
    pub(crate) fn backlog(&self) -> u64 {
        (self.due - self.taken) * self.batch
    }

    /// Returns true if no slot is left after `now`.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        let last = match &self.kind {
            Kind::Even(even) => even.cursor(),
            Kind::Poisson(_) => self.number(self.due),
            Kind::Closed => self.number(self.taken),
        };
        now >= self.end || last >= self.limit
    }

    /// Returns the number of the thread's n-th request, if slots belong to no connection.
    fn number(&self, n: u64) -> u64 {
        self.worker + n * self.workers
    }

    /// Returns true if any free connection may take a slot.
    pub(crate) fn assigns_any_free_connection(&self) -> bool {
        matches!(self.kind, Kind::Poisson(_))
    }

    /// Advances the time cursor by one slot, if that slot is due at `now`.
    pub(crate) fn step(&mut self, now: u64) -> Step {
        let (at, number) = match &self.kind {
            Kind::Even(even) => (even.at(even.cursor()), even.cursor()),
            Kind::Poisson(poisson) => (poisson.due.at(), self.number(self.due)),
            Kind::Closed => return Step::Never,
        };
        if at >= self.end || number >= self.limit {
            return Step::Never;
        }
        if at > now {
            return Step::Later(at);
        }
        self.due += 1;
        self.planned += u64::from(at >= self.warmup);
        match &mut self.kind {
            Kind::Even(even) => Step::Due(Some(even.advance())),
            Kind::Poisson(poisson) => {
                poisson.due.advance();
                Step::Due(None)
            }
            Kind::Closed => Step::Never,
        }
    }

    /// Returns the request that a free connection of the thread can send now, if any. In a closed
    /// loop, the request is due since `free`.
    pub(crate) fn take(&mut self, connection: usize, free: u64, now: u64) -> Option<Slot> {
        let slot = match &mut self.kind {
            Kind::Even(even) => {
                let number = even.next[connection];
                if number >= even.cursor() {
                    return None;
                }
                even.next[connection] += even.stride;
                Slot { number, intended: even.at(number) }
            }
            Kind::Poisson(poisson) => {
                if self.taken == self.due {
                    return None;
                }
                let intended = poisson.taken.at();
                poisson.taken.advance();
                Slot { number: self.number(self.taken), intended }
            }
            Kind::Closed => {
                let number = self.number(self.taken);
                if now >= self.end || number >= self.limit {
                    return None;
                }
                self.due += 1;
                self.planned += u64::from(free >= self.warmup);
                Slot { number, intended: free }
            }
        };
        self.taken += 1;
        Some(slot)
    }

    /// Skips up to `most` requests that [`Self::take`] would return. Returns the number of skipped
    /// requests.
    pub(crate) fn skip(&mut self, connection: usize, most: u64) -> u64 {
        let skipped = match &mut self.kind {
            Kind::Even(even) => {
                let left = even.cursor().saturating_sub(even.next[connection]);
                let skipped = most.min(left.div_ceil(even.stride));
                even.next[connection] += skipped * even.stride;
                skipped
            }
            Kind::Poisson(poisson) => {
                let skipped = most.min(self.due - self.taken);
                (0..skipped).for_each(|_| poisson.taken.advance());
                skipped
            }
            Kind::Closed => 0,
        };
        self.taken += skipped;
        skipped
    }
}

impl Even {
    /// Returns the next slot of the time cursor.
    fn cursor(&self) -> u64 {
        self.first[self.turn] + self.round * self.stride
    }

    fn at(&self, slot: u64) -> u64 {
        slot_at(slot, self.rate)
    }

    fn advance(&mut self) -> usize {
        let connection = self.turn;
        self.turn += 1;
        if self.turn == self.first.len() {
            self.turn = 0;
            self.round += 1;
        }
        connection
    }
}

/// Returns the due time of a slot, in nanoseconds since the start. A float holds 53 bits exactly,
/// and a day in nanoseconds takes 47.
fn slot_at(slot: u64, rate: f64) -> u64 {
    (slot as f64 * SECOND / rate) as u64
}

/// Converts a time to nanoseconds. A plan's times are at most a day, which fits into 64 bits.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the connections of a thread, each as its number among all connections and its target.
pub(crate) fn connections_of(plan: &Plan, worker: usize) -> Vec<(usize, usize)> {
    let targets = plan.targets.len();
    (0..plan.all_connections())
        .filter_map(|index| match plan.target_mode {
            TargetMode::Spread => {
                (index % plan.threads == worker).then_some((index, index % targets))
            }
            // The connections of the n targets are interleaved, so that each target has every n-th
            // slot.
            TargetMode::Each => {
                let (target, of_target) = (index % targets, index / targets);
                let owner = target * plan.threads + of_target % plan.threads;
                (owner == worker).then_some((index, target))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Pace, Target};

    fn plan(threads: usize, connections: usize, pace: Pace, arrival: Arrival) -> Plan {
        let target = Target::new("127.0.0.1:1".parse().unwrap(), "/");
        let duration = Duration::from_secs(10);
        Plan { threads, connections, pace, arrival, duration, ..Plan::new(target) }
    }

    fn schedules(plan: &Plan) -> Vec<Schedule> {
        let owned = |worker| -> Vec<usize> {
            connections_of(plan, worker).into_iter().map(|(index, _)| index).collect()
        };
        (0..plan.workers()).map(|worker| Schedule::new(plan, worker, &owned(worker), 1)).collect()
    }

    /// Takes all slots that are due by `now`, each as soon as it is due.
    fn all(schedule: &mut Schedule, now: u64) -> Vec<Slot> {
        let mut slots = Vec::new();
        while let Step::Due(connection) = schedule.step(now) {
            slots.extend(schedule.take(connection.unwrap_or(0), now, now));
        }
        slots
    }

    #[test]
    fn due_times_do_not_drift() {
        assert_eq!(slot_at(0, 60_000.0), 0);
        assert_eq!(slot_at(1, 3.0), 333_333_333);
        assert_eq!(slot_at(60_000 * 3600, 60_000.0), 3_600_000_000_000);
        assert_eq!(slot_at(3, 0.25), 12_000_000_000);
    }

    #[test]
    fn threads_share_the_slots_without_a_gap() {
        for (threads, connections) in [(1, 1), (1, 3), (2, 3), (3, 10), (4, 64)] {
            let plan = plan(threads, connections, Pace::Open(777.7), Arrival::Even);
            let mut slots: Vec<Slot> =
                schedules(&plan).iter_mut().flat_map(|s| all(s, u64::MAX)).collect();
            slots.sort_by_key(|slot| slot.number);
            assert_eq!(slots.len(), 7777, "{threads} threads, {connections} connections");
            for (number, slot) in slots.iter().enumerate() {
                let intended = slot_at(number as u64, 777.7);
                assert_eq!(*slot, Slot { number: number as u64, intended });
            }
        }
    }

    #[test]
    fn a_slot_waits_for_its_connection() {
        let plan = plan(1, 2, Pace::Open(10.0), Arrival::Even);
        let schedule = &mut schedules(&plan)[0];
        assert_eq!(schedule.take(0, 0, 0), None, "not due");
        assert_eq!(schedule.step(0), Step::Due(Some(0)));
        assert_eq!(schedule.step(0), Step::Later(100_000_000));
        assert_eq!(schedule.step(200_000_000), Step::Due(Some(1)));
        assert_eq!(schedule.step(200_000_000), Step::Due(Some(0)));
        assert_eq!(schedule.backlog(), 3);
        let numbers = |slot: Option<Slot>| slot.map(|slot| (slot.number, slot.intended));
        assert_eq!(numbers(schedule.take(0, 0, 0)), Some((0, 0)));
        assert_eq!(numbers(schedule.take(0, 0, 0)), Some((2, 200_000_000)));
        assert_eq!(schedule.take(0, 0, 0), None);
        assert_eq!(numbers(schedule.take(1, 0, 0)), Some((1, 100_000_000)));
        assert_eq!(schedule.backlog(), 0);
    }

    #[test]
    fn skipping_slots_equals_taking_them() {
        for arrival in [Arrival::Even, Arrival::Poisson] {
            let plan = plan(1, 3, Pace::Open(100.0), arrival);
            let [mut one, mut other] = [(); 2].map(|()| schedules(&plan).remove(0));
            for schedule in [&mut one, &mut other] {
                while let Step::Due(_) = schedule.step(u64::MAX) {}
            }
            (0..5).for_each(|_| assert!(one.take(1, 0, 0).is_some()));
            assert_eq!(other.skip(1, 5), 5);
            assert_eq!(one.take(1, 0, 0), other.take(1, 0, 0), "{arrival:?}");
            let left = other.skip(1, u64::MAX);
            assert!(left > 300);
            assert_eq!((other.take(1, 0, 0), one.backlog()), (None, other.backlog() + left));
        }
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_exponential_distances() {
        for threads in [1, 3] {
            let plan = plan(threads, 10, Pace::Open(10_000.0), Arrival::Poisson);
            let slots = schedules(&plan).iter_mut().flat_map(|s| all(s, u64::MAX)).collect();
            let slots: Vec<Slot> = slots;
            // A Poisson count of mean n has the standard deviation √n. Six standard deviations do
            // not happen by chance.
            let off = (slots.len() as f64 - 100_000.0).abs();
            assert!(off < 6.0 * 100_000_f64.sqrt(), "{} slots", slots.len());
            let mut times: Vec<u64> = slots.iter().map(|slot| slot.intended).collect();
            times.sort_unstable();
            let long = times.windows(2).filter(|w| w[1] - w[0] > 100_000).count() as f64;
            let share = long / times.len() as f64;
            assert!((share - (-1.0_f64).exp()).abs() < 0.01, "{share} are longer than the mean");
        }
    }

    #[test]
    fn the_backlog_of_poisson_arrivals_is_taken_in_order() {
        let plan = plan(1, 2, Pace::Open(1000.0), Arrival::Poisson);
        let mut direct = schedules(&plan);
        let expected = all(&mut direct[0], u64::MAX);
        let late = &mut schedules(&plan)[0];
        while let Step::Due(_) = late.step(u64::MAX) {}
        assert_eq!(late.backlog(), expected.len() as u64);
        let taken: Vec<Slot> = std::iter::from_fn(|| late.take(1, 0, 0)).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn the_warm_up_is_not_counted_and_the_limit_holds() {
        let warmup = Duration::from_secs(1);
        for arrival in [Arrival::Even, Arrival::Poisson] {
            let plan = Plan { warmup, ..plan(2, 4, Pace::Open(100.0), arrival) };
            let mut both = schedules(&plan);
            let slots: Vec<Slot> = both.iter_mut().flat_map(|s| all(s, u64::MAX)).collect();
            let counted = slots.iter().filter(|slot| slot.intended >= 1_000_000_000).count();
            assert!(counted < slots.len());
            assert_eq!(both.iter().map(Schedule::planned_requests).sum::<u64>(), counted as u64);
            let plan = Plan { limit: 7, ..plan };
            let slots = schedules(&plan).iter_mut().map(|s| all(s, u64::MAX).len()).sum::<usize>();
            assert_eq!(slots, 7);
        }
    }

    #[test]
    fn target_mode_each_gives_every_target_the_full_rate() {
        let mut plan = plan(2, 3, Pace::Open(100.0), Arrival::Even);
        plan.targets = vec![plan.targets[0].clone(); 3];
        plan.target_mode = TargetMode::Each;
        assert_eq!(plan.workers(), 6);
        let mut slots = [0; 3];
        for (worker, schedule) in schedules(&plan).iter_mut().enumerate() {
            let targets: Vec<usize> =
                connections_of(&plan, worker).iter().map(|&(_, t)| t).collect();
            assert!(targets.iter().all(|&target| target == worker / 2), "{targets:?}");
            slots[worker / 2] += all(schedule, u64::MAX).len();
        }
        assert_eq!(slots, [1000; 3]);
    }

    #[test]
    fn requests_sent_together_share_a_slot() {
        let plan = Plan { limit: 120, ..plan(1, 2, Pace::Open(100.0), Arrival::Even) };
        let mut schedule = Schedule::new(&plan, 0, &[0, 1], 5);
        let Step::Due(Some(0)) = schedule.step(0) else { panic!("the first is due at once") };
        assert_eq!(schedule.step(0), Step::Later(50_000_000));
        assert_eq!(schedule.backlog(), 5);
        assert_eq!(all(&mut schedule, u64::MAX).len(), 23, "of 24, and one is not taken");
        assert_eq!(schedule.planned_requests(), 120);
    }

    #[test]
    fn a_stopped_schedule_has_no_further_due_slots() {
        let plan = plan(1, 1, Pace::Open(10.0), Arrival::Even);
        let schedule = &mut schedules(&plan)[0];
        schedule.stop(250_000_000);
        assert_eq!(all(schedule, u64::MAX).len(), 3);
        assert_eq!(schedule.step(u64::MAX), Step::Never);
        assert!(schedule.is_over(250_000_000));
    }
}
