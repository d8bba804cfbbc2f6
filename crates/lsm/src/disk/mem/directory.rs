//! The directory: current names, durable names, and the journal of changes between them.

use std::collections::BTreeMap;

use super::random::Random;

/// Current and durable names with the unsynced changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Directory {
    names: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    journal: Vec<NameChange>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Link { name: String, inode: u64 },
    Rename { from: String, to: String },
    Unlink { name: String },
}

impl NameChange {
    fn links(&self, inode: u64) -> bool {
        matches!(self, Self::Link { inode: of, .. } if *of == inode)
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Link { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            // The name may no longer exist, because `put` and `delete` bypass the journal.
            Self::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Unlink { name } => {
                names.remove(name);
            }
        }
    }
}

impl Directory {
    pub(super) fn get(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, u64)> {
        self.names.iter().map(|(name, inode)| (name, *inode))
    }

    pub(super) fn link(&mut self, name: &str, inode: u64) {
        self.change(NameChange::Link { name: name.to_owned(), inode });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned() });
    }

    pub(super) fn unlink(&mut self, name: &str) {
        self.change(NameChange::Unlink { name: name.to_owned() });
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.journal.push(change);
    }

    pub(super) fn sync(&mut self) {
        self.journal.clear();
        self.durable.clone_from(&self.names);
    }

    /// Links a name durably, without a journal entry.
    pub(super) fn put(&mut self, name: &str, inode: u64) {
        self.names.insert(name.to_owned(), inode);
        self.durable.insert(name.to_owned(), inode);
    }

    /// Unlinks a name durably, without a journal entry. Returns true if the name existed.
    pub(super) fn delete(&mut self, name: &str) -> bool {
        self.durable.remove(name);
        self.names.remove(name).is_some()
    }

    /// Returns true if the inode has a name, or may have one after a crash.
    pub(super) fn is_reachable(&self, inode: u64) -> bool {
        self.names.values().chain(self.durable.values()).any(|of| *of == inode)
            || self.journal.iter().any(|change| change.links(inode))
    }

    /// The directory after a power cut: the durable names and a prefix of the journal.
    pub(super) fn crash(&self, random: &mut Random) -> Self {
        let kept = match random.below(4) {
            0 => 0,
            1 => self.journal.len(),
            _ => random.between(0, self.journal.len()),
        };
        let mut names = self.durable.clone();
        for entry in &self.journal[..kept] {
            entry.apply(&mut names);
        }
        Self { durable: names.clone(), names, journal: Vec::new() }
    }
}
