//! What a node's word is worth: whether it can vouch for what it does not hold.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// What a node's word is worth about records that it does *not* hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// An empty data directory, and not all nodes have said yet that they never met another under
    /// this name. Like an amnesiac's, its absences don't count.
    New = 0,
    /// It holds everything that it ever acknowledged.
    Member = 1,
    /// Its disk was wiped or replaced, or its log has lost its end: its absences don't count until
    /// the others have streamed back what it held.
    Amnesiac = 2,
    /// Its directory was copied or moved, and may be an older copy: its absences don't count until
    /// the others have streamed what is newer than it.
    Copied = 3,
}

impl Standing {
    /// As it is kept.
    pub fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::New,
            1 => Self::Member,
            2 => Self::Amnesiac,
            3 => Self::Copied,
            _ => return None,
        })
    }

    /// As one word.
    pub fn label(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Member => "member",
            Self::Amnesiac => "amnesiac",
            Self::Copied => "copied",
        }
    }
}

/// A node's standing, and since when it holds what it was given.
#[derive(Debug)]
pub struct Vouching {
    standing: AtomicU8,
    /// Greatest time of a stamp that a former life of this node may have acknowledged.
    born: AtomicU64,
    /// Whether the others that can be reached have been heard since the start.
    confirmed: AtomicBool,
    /// Whether what one of them knows of this node's log contradicts the standing.
    doubted: AtomicBool,
    /// Whether the standing will be settled soon: it is worth asking again.
    settling: AtomicBool,
    /// Whether a later life of this node's disk serves in its place.
    fenced: AtomicBool,
}

impl Vouching {
    /// As it was kept on disk. `born` is a stamp's time: none that an earlier life of this node
    /// acknowledged is greater. Its word counts once it is confirmed, or if there is nobody to
    /// confirm it.
    pub fn new(standing: Standing, born: u64, alone: bool) -> Self {
        Self {
            standing: AtomicU8::new(standing as u8),
            born: AtomicU64::new(born),
            confirmed: AtomicBool::new(alone),
            doubted: AtomicBool::new(false),
            settling: AtomicBool::new(!alone),
            fenced: AtomicBool::new(false),
        }
    }

    /// The node's standing.
    pub fn standing(&self) -> Standing {
        let code = self.standing.load(Ordering::Acquire);
        Standing::of_code(code).expect("only what is one is stored")
    }

    /// Changes it.
    pub fn set(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Release);
        self.doubted.store(false, Ordering::Release);
    }

    /// The node lost something: what it acknowledged up to that time may be lost.
    pub fn lose(&self, until: u64) {
        self.born.fetch_max(until, Ordering::Relaxed);
        self.set(Standing::Amnesiac);
    }

    /// Another node knows more of this one's log than there is: nothing is vouched for until the
    /// standing says so.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// All who can be reached have been heard.
    pub fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }

    /// Whether they have.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Whether the standing will be settled soon.
    pub fn settles(&self, soon: bool) {
        self.settling.store(soon, Ordering::Relaxed);
    }

    /// Whether it is worth asking this node again.
    pub fn is_settling(&self) -> bool {
        self.settling.load(Ordering::Relaxed)
    }

    /// A later life of this node's disk was met: this one serves nobody any more.
    pub fn fence(&self) -> bool {
        !self.fenced.swap(true, Ordering::AcqRel)
    }

    /// Whether it is fenced.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Whether the node can vouch that it never acknowledged a newer record of a key than one of
    /// this `time`; `None`: than none at all. What a former life acknowledged is older than this
    /// one, so a record that is younger hides nothing.
    pub fn sure(&self, time: Option<u64>) -> bool {
        self.is_whole() || time.is_some_and(|time| time > self.born())
    }

    /// Whether the node holds all that it ever acknowledged.
    pub(crate) fn is_whole(&self) -> bool {
        self.standing() == Standing::Member
            && self.is_confirmed()
            && !self.doubted.load(Ordering::Acquire)
    }

    /// The greatest time of a stamp that a former life of this node may have acknowledged.
    pub(crate) fn born(&self) -> u64 {
        self.born.load(Ordering::Relaxed)
    }
}
