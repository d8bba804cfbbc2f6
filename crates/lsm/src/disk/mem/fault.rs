//! Fault injection: the calls that fail, and their errors.

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

    /// Returns true if the call changes files or names, or makes changes durable.
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

/// A rule that makes calls of one kind fail, on files whose names have a given prefix and suffix,
/// after a given number of matching calls. A rename matches by its new name; `List` and `SyncDir`
/// have an empty name.
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
    /// Fails the next call of this kind with this `errno`, for example 5 (EIO).
    pub fn once(op: Op, errno: i32) -> Self {
        let (prefix, suffix) = (String::new(), String::new());
        Self { op, errno, prefix, suffix, passes: 0, forever: false }
    }

    /// Fails every call of this kind with this `errno`.
    pub fn forever(op: Op, errno: i32) -> Self {
        Self { forever: true, ..Self::once(op, errno) }
    }

    /// Restricts the fault to files whose name has this prefix.
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// Restricts the fault to files whose name has this suffix.
    pub fn suffix(self, suffix: &str) -> Self {
        Self { suffix: suffix.to_owned(), ..self }
    }

    /// Lets this many matching calls succeed first.
    pub fn after(self, passes: u64) -> Self {
        Self { passes, ..self }
    }
}

/// The pending faults.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn pending_count(&self) -> usize {
        self.0.len()
    }

    /// Counts a call, and fails if a fault applies to the call.
    pub(super) fn check_call(&mut self, op: Op, name: &str) -> io::Result<()> {
        let mut matched_errno = None;
        self.0.retain_mut(|fault| {
            let hit =
                fault.op == op && name.starts_with(&fault.prefix) && name.ends_with(&fault.suffix);
            if !hit || matched_errno.is_some() {
                return true;
            }
            if fault.passes > 0 {
                fault.passes -= 1;
                return true;
            }
            matched_errno = Some(fault.errno);
            fault.forever
        });
        matched_errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}
