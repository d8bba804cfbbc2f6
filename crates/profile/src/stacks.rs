//! The stacks of a recording, added up by address while it runs, and given names when it is over.

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

use crate::Event;
use crate::folded::Folded;
use crate::place::{Place, WaitKind};
use crate::ring::State;
use crate::symbols::Symbols;

/// Addresses that all different stacks of a recording may have together: 16 MiB. What comes after
/// is counted as lost.
const MAX_ADDRESSES: usize = 2 << 20;

/// Calls that a thread sleeps in when it has nothing to do.
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

/// Below these, every thread looks the same.
const ROOTS: [&str; 2] = ["__rust_begin_short_backtrace", "std::rt::lang_start"];

/// Above these, every sample of the allocator or of a place looks the same.
const LEAVES: [&str; 5] = ["profile::", "<profile::", "__rust_", "__rustc::__rust_", "__rg_"];

/// What makes two samples one stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Stack {
    pub(crate) event: Event,
    pub(crate) thread: String,
    pub(crate) state: State,
    pub(crate) place: Option<&'static Place>,
    /// The thread that held what was waited for, and where it took it.
    pub(crate) holder: Option<i32>,
    pub(crate) site: Option<&'static Location<'static>>,
    /// From the leaf.
    pub(crate) frames: Vec<u64>,
}

/// The sum of equal samples.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    weight: u64,
    count: u64,
    samples: u64,
}

/// All stacks of a recording.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    places: HashMap<Stack, usize>,
    sums: Vec<Sum>,
    addresses: usize,
    lost: BTreeMap<Event, u64>,
}

/// One event, with names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// Stacks by weight.
    pub folded: Folded,
    /// The same by how many events they are of.
    pub counts: Folded,
    /// Samples that they are made of.
    pub samples: u64,
    /// Samples that were lost.
    pub lost: u64,
    /// Weight of what is left out because it is idle.
    pub idle: u64,
}

impl Stacks {
    /// The number of this stack; none if there is no room for another.
    pub(crate) fn number(&mut self, stack: Stack) -> Option<usize> {
        if let Some(number) = self.places.get(&stack) {
            return Some(*number);
        }
        if self.addresses + stack.frames.len() > MAX_ADDRESSES {
            self.lose(stack.event, 1);
            return None;
        }
        self.addresses += stack.frames.len();
        self.sums.push(Sum::default());
        self.places.insert(stack, self.sums.len() - 1);
        Some(self.sums.len() - 1)
    }

    /// Adds to a stack; `samples` is 0 for what was not looked at anew.
    pub(crate) fn add(&mut self, number: usize, weight: u64, count: u64, samples: u64) {
        let sum = &mut self.sums[number];
        sum.weight += weight;
        sum.count += count;
        sum.samples += samples;
    }

    pub(crate) fn lose(&mut self, event: Event, samples: u64) {
        if samples > 0 {
            *self.lost.entry(event).or_default() += samples;
        }
    }

    /// Gives names, stack by stack, as long as `go_on` says so; `name_of` knows the threads'.
    pub(crate) fn name(
        &self,
        symbols: &mut Symbols,
        idle: bool,
        name_of: impl Fn(i32) -> String,
        mut go_on: impl FnMut() -> bool,
    ) -> Option<BTreeMap<Event, Named>> {
        let mut named: BTreeMap<Event, Named> = BTreeMap::new();
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
    /// Its frames from the root in words, and whether the thread had nothing to do.
    fn words(
        &self,
        symbols: &mut Symbols,
        name_of: &impl Fn(i32) -> String,
    ) -> (Vec<String>, bool) {
        let mut names: Vec<String> = Vec::new();
        for (depth, address) in self.frames.iter().enumerate() {
            // A return address is after the call, which may be the last of its function.
            let at = if depth == 0 && self.is_interrupted() { *address } else { address - 1 };
            let found = symbols.at(at);
            if found.is_empty() {
                // Not code: the walk has lost its way.
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
        names.extend(self.place.map(Place::frame).filter(|_| self.event != Event::Cpu));
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

    /// Whether the first address is where the thread was, not where a call returns to.
    fn is_interrupted(&self) -> bool {
        matches!(self.event, Event::Cpu | Event::Wall)
    }
}

/// Whether a frame is of the recording itself.
fn is_hook(name: &str) -> bool {
    LEAVES.iter().any(|leaf| name.starts_with(leaf))
}
