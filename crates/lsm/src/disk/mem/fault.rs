//! Which calls fail, and how.

use std::io;

/// A kind of call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is named like the call that it stands for")]
pub enum Op {
    Create,
    Open,
    Read,
    Write,
    Allocate,
    Sync,
    Rename,
    Remove,
    List,
    SyncDir,
    Find,
}

impl Op {
    /// Every kind, for tests that go through all of them.
    pub const ALL: [Self; 11] = [
        Self::Create,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Allocate,
        Self::Sync,
        Self::Rename,
        Self::Remove,
        Self::List,
        Self::SyncDir,
        Self::Find,
    ];

    /// Whether it changes what is, or what is durable.
    pub(super) fn mutates(self) -> bool {
        !matches!(self, Self::Open | Self::Read | Self::List | Self::Find)
    }

    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Allocate => "allocate",
            Self::Sync => "sync",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::List => "list",
            Self::SyncDir => "sync directory",
            Self::Find => "find",
        }
    }
}

/// Calls to fail: those of one kind, on files whose name begins and ends so, after letting some
/// pass. A rename goes by its new name, `List` and `SyncDir` have the empty one.
#[derive(Debug, Clone)]
pub struct Fault {
    op: Op,
    errno: i32,
    prefix: String,
    suffix: String,
    passes: u64,
    forever: bool,
}

impl Fault {
    /// Fails the next such call with this `errno`, for instance 5 (EIO).
    pub fn once(op: Op, errno: i32) -> Self {
        let (prefix, suffix) = (String::new(), String::new());
        Self { op, errno, prefix, suffix, passes: 0, forever: false }
    }

    /// Fails every such call from the next one on.
    pub fn forever(op: Op, errno: i32) -> Self {
        Self { forever: true, ..Self::once(op, errno) }
    }

    /// Only files whose name begins so.
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// Only files whose name ends so.
    pub fn suffix(self, suffix: &str) -> Self {
        Self { suffix: suffix.to_owned(), ..self }
    }

    /// Lets this many matching calls pass first.
    pub fn after(self, passes: u64) -> Self {
        Self { passes, ..self }
    }
}

/// The faults still to come.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn pending(&self) -> usize {
        self.0.len()
    }

    /// The error that this call is to end with, if any. Counts it.
    pub(super) fn strike(&mut self, op: Op, name: &str) -> io::Result<()> {
        let mut struck = None;
        self.0.retain_mut(|fault| {
            let hit =
                fault.op == op && name.starts_with(&fault.prefix) && name.ends_with(&fault.suffix);
            if !hit || struck.is_some() {
                return true;
            }
            if fault.passes > 0 {
                fault.passes -= 1;
                return true;
            }
            struck = Some(fault.errno);
            fault.forever
        });
        struck.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}
