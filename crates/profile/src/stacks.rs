//! The stacks of a recording, summed by address during the recording and symbolized at its end.

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

use crate::Event;
use crate::folded::Folded;
use crate::place::{WaitKind, WaitSite};
use crate::ring::State;
use crate::symbols::Symbols;

/// Maximum number of addresses in all distinct stacks of a recording (16 MiB). Samples of further
/// stacks count as lost.
const MAX_ADDRESSES: usize = 2 << 20;

/// System calls in which an idle thread sleeps.
const IDLE_CALLS: [&str; 8] = [
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "clock_nanosleep",
    "nanosleep",
    "__nanosleep",
    "sigtimedwait",
    "pause",
];

/// Functions in which all threads begin. These frames, and all frames towards the root, are the
/// same for all threads, and are left out.
const ROOTS: [&str; 2] = ["__rust_begin_short_backtrace", "std::rt::lang_start"];

/// Prefixes of the profiler's and the allocator's own functions. All samples of the allocator or of
/// a wait end in such frames, which are left out.
const LEAVES: [&str; 5] = ["profile::", "<profile::", "__rust_", "__rustc::__rust_", "__rg_"];

/// A stack, with all properties that distinguish stacks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Stack {
    pub(crate) event: Event,
    pub(crate) thread: String,
    pub(crate) state: State,
    pub(crate) place: Option<&'static WaitSite>,
    /// Id of the thread that held the awaited lock. `site` is the place in the code where it took
    /// the lock.
    pub(crate) holder: Option<i32>,
    pub(crate) site: Option<&'static Location<'static>>,
    /// Addresses, beginning with the leaf.
    pub(crate) frames: Vec<u64>,
}

/// The sum of all samples of a stack.
#[derive(Debug, Clone, Copy, Default)]
struct StackSum {
    weight: u64,
    count: u64,
    samples: u64,
}

/// All stacks of a recording.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    places: HashMap<Stack, usize>,
    sums: Vec<StackSum>,
    addresses: usize,
    lost: BTreeMap<Event, u64>,
}

/// The symbolized stacks of one event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedStacks {
    /// Stacks by weight.
    pub folded: Folded,
    /// The same stacks by number of events.
    pub counts: Folded,
    /// Number of samples.
    pub samples: u64,
    /// Number of lost samples.
    pub lost: u64,
    /// Weight of the idle stacks that were left out.
    pub idle: u64,
}

impl Stacks {
    /// Returns the number of a stack, and adds the stack if it is new. Returns `None` if the table
    /// is full.
    pub(crate) fn number(&mut self, stack: Stack) -> Option<usize> {
        if let Some(number) = self.places.get(&stack) {
            return Some(*number);
        }
        if self.addresses + stack.frames.len() > MAX_ADDRESSES {
            self.add_lost(stack.event, 1);
            return None;
        }
        self.addresses += stack.frames.len();
        self.sums.push(StackSum::default());
        self.places.insert(stack, self.sums.len() - 1);
        Some(self.sums.len() - 1)
    }

    /// Adds to the sum of a stack. `samples` is 0 for additional weight without a new sample.
    pub(crate) fn add(&mut self, number: usize, weight: u64, count: u64, samples: u64) {
        let sum = &mut self.sums[number];
        sum.weight += weight;
        sum.count += count;
        sum.samples += samples;
    }

    pub(crate) fn add_lost(&mut self, event: Event, samples: u64) {
        if samples > 0 {
            *self.lost.entry(event).or_default() += samples;
        }
    }

    /// Symbolizes all stacks. Returns `None` once `go_on` returns false. `name_of` returns the name
    /// of a thread.
    pub(crate) fn name(
        &self,
        symbols: &mut Symbols,
        idle: bool,
        name_of: impl Fn(i32) -> String,
        mut go_on: impl FnMut() -> bool,
    ) -> Option<BTreeMap<Event, NamedStacks>> {
        let mut named: BTreeMap<Event, NamedStacks> = BTreeMap::new();
        for (stack, number) in &self.places {
            if !go_on() {
                return None;
            }
            let sum = self.sums[*number];
            let one = named.entry(stack.event).or_default();
            one.samples += sum.samples;
            if sum.weight == 0 {
                continue;
            }
            let (frames, is_idle) = stack.words(symbols, &name_of);
            if is_idle && !idle {
                one.idle += sum.weight;
                continue;
            }
            let thread = std::iter::once(stack.thread.as_str());
            let words = || thread.clone().chain(frames.iter().map(String::as_str));
            one.folded.add(words(), sum.weight);
            one.counts.add(words(), sum.count);
        }
        for (event, lost) in &self.lost {
            named.entry(*event).or_default().lost += lost;
        }
        Some(named)
    }
}

impl Stack {
    /// Returns the names of the frames, beginning with the root, and true if the thread was idle.
    fn words(
        &self,
        symbols: &mut Symbols,
        name_of: &impl Fn(i32) -> String,
    ) -> (Vec<String>, bool) {
        let mut names: Vec<String> = Vec::new();
        for (depth, address) in self.frames.iter().enumerate() {
            // A return address is the address of the instruction after the call, which may lie
            // outside the calling function.
            let at = if depth == 0 && self.is_interrupted() { *address } else { address - 1 };
            let found = symbols.at(at);
            if found.is_empty() {
                // The address is not code, so the rest of the walk is invalid too.
                break;
            }
            names.extend(found.iter().map(|name| name.to_string()));
        }
        let leaf = names.first().is_some_and(|name| IDLE_CALLS.contains(&name.as_str()));
        let hooked = matches!(self.event, Event::Alloc | Event::Live | Event::Lock);
        let skipped =
            if hooked { names.iter().take_while(|name| is_hook(name)).count() } else { 0 };
        names.drain(..skipped);
        let is_root = |name: &String| ROOTS.iter().any(|root| name.contains(root));
        if let Some(root) = names.iter().position(is_root) {
            names.truncate(root);
        }
        names.reverse();
        names.extend(self.place.map(WaitSite::frame).filter(|_| self.event != Event::Cpu));
        if let Some(holder) = self.holder {
            let holder = name_of(holder);
            let site = self
                .site
                .map_or(String::new(), |site| format!(" at {}:{}", site.file(), site.line()));
            names.push(format!("held by {holder}{site}"));
        }
        if self.event == Event::Wall {
            let state = match self.state {
                State::Unknown => "",
                State::Running => "[running]",
                State::InCall => "[in the kernel]",
                State::Waiting => "[waiting]",
            };
            names.extend((!state.is_empty()).then(|| state.to_owned()));
        }
        let idle_place = self.place.is_some_and(|place| place.kind() == WaitKind::Idle);
        (names, idle_place || leaf && self.event == Event::Wall)
    }

    /// Returns true if the first address is the interrupted instruction and not a return address.
    fn is_interrupted(&self) -> bool {
        matches!(self.event, Event::Cpu | Event::Wall)
    }
}

/// Returns true if the frame belongs to the profiler or the allocator itself.
fn is_hook(name: &str) -> bool {
    LEAVES.iter().any(|leaf| name.starts_with(leaf))
}
