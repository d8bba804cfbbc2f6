//! The state of a disk in memory: files, names, power, faults, capacity, and counts of calls.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

use super::content::Content;
use super::directory::Directory;
use super::fault::{Faults, Op};
use super::position;
use super::random::Random;

#[derive(Debug, Clone, Default)]
pub(super) struct DiskState {
    directory: Directory,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    off: bool,
    /// Number of further mutating calls before a power cut; `None` = no cut is scheduled.
    calls_until_cut: Option<u64>,
    operations: u64,
    sites: BTreeMap<String, u64>,
    cut_site: Option<String>,
    pub(super) faults: Faults,
    pub(super) capacity: Option<u64>,
    pub(super) cold: bool,
}

#[derive(Debug, Clone)]
struct Inode {
    /// The last name of the file, for faults and statistics.
    name: String,
    linked: bool,
    content: Content,
}

/// Crashes, and the state after them.
impl DiskState {
    pub(super) fn power_off(&mut self) {
        self.off = true;
    }

    pub(super) fn crash_after(&mut self, operations: u64) {
        self.calls_until_cut = Some(operations);
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    pub(super) fn sites(&self) -> &BTreeMap<String, u64> {
        &self.sites
    }

    pub(super) fn cut_site(&self) -> Option<&str> {
        self.cut_site.as_deref()
    }

    pub(super) fn after_power_cut(&self, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let directory = self.directory.crash(&mut random);
        let mut inodes = BTreeMap::new();
        for (name, inode) in directory.iter() {
            let content = self.inodes[&inode].content.crash(&mut random);
            inodes.insert(inode, Inode { name: name.clone(), linked: true, content });
        }
        self.restart_with(directory, inodes)
    }

    pub(super) fn after_kill(&self) -> Self {
        self.restart_with(self.directory.clone(), self.inodes.clone())
    }

    fn restart_with(&self, directory: Directory, inodes: BTreeMap<u64, Inode>) -> Self {
        Self {
            directory,
            inodes,
            next_inode: self.next_inode,
            capacity: self.capacity,
            cold: self.cold,
            ..Self::default()
        }
    }

    /// Begins a call: counts it, and fails if the power is off or a fault applies to the call.
    fn begin(&mut self, op: Op, name: &str) -> io::Result<()> {
        self.check_powered()?;
        if op.mutates() {
            let site = match kind(name) {
                "" => op.verb().to_owned(),
                kind => format!("{} {kind}", op.verb()),
            };
            self.operations += 1;
            if self.calls_until_cut == Some(0) {
                self.off = true;
                self.cut_site = Some(site.clone());
            }
            *self.sites.entry(site).or_default() += 1;
            self.calls_until_cut = self.calls_until_cut.map(|left| left.saturating_sub(1));
            self.check_powered()?;
        }
        self.faults.check_call(op, name)
    }

    fn check_powered(&self) -> io::Result<()> {
        if self.off {
            return Err(io::Error::other("the disk is powered off"));
        }
        Ok(())
    }
}

/// Operations on names of the directory.
impl DiskState {
    pub(super) fn create(&mut self, name: &str) -> io::Result<u64> {
        self.begin(Op::Create, name)?;
        if self.directory.get(name).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        if self.room() == 0 {
            return Err(ErrorKind::StorageFull.into());
        }
        let inode = self.add(name, Content::default());
        self.directory.link(name, inode);
        Ok(inode)
    }

    pub(super) fn open(&mut self, name: &str) -> io::Result<u64> {
        self.begin(Op::Open, name)?;
        self.directory.get(name).ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.begin(Op::Rename, to)?;
        let inode = self.directory.get(from).ok_or(ErrorKind::NotFound)?;
        if from == to {
            return Ok(());
        }
        let replaced = self.directory.get(to);
        self.directory.rename(from, to);
        to.clone_into(&mut self.inode_mut(inode).name);
        if let Some(replaced) = replaced {
            self.mark_unlinked(replaced);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.begin(Op::Remove, name)?;
        let inode = self.directory.get(name).ok_or(ErrorKind::NotFound)?;
        self.directory.unlink(name);
        self.mark_unlinked(inode);
        Ok(())
    }

    pub(super) fn list(&mut self) -> io::Result<Vec<String>> {
        self.begin(Op::List, "")?;
        Ok(self.directory.iter().map(|(name, _)| name.clone()).collect())
    }

    pub(super) fn sync_dir(&mut self) -> io::Result<()> {
        self.begin(Op::SyncDir, "")?;
        self.directory.sync();
        self.inodes.retain(|_, inode| inode.linked);
        Ok(())
    }

    pub(super) fn find(&mut self, name: &str) -> io::Result<()> {
        self.begin(Op::Find, name)?;
        self.directory.get(name).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>) {
        self.delete(name);
        let inode = self.add(name, Content::durable(bytes));
        self.directory.put(name, inode);
    }

    pub(super) fn delete(&mut self, name: &str) -> bool {
        let inode = self.directory.get(name);
        if let Some(inode) = inode {
            self.mark_unlinked(inode);
        }
        self.directory.delete(name);
        inode.is_some()
    }

    fn add(&mut self, name: &str, content: Content) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, Inode { name: name.to_owned(), linked: true, content });
        inode
    }

    /// Marks an inode whose name was removed, and drops it unless a crash may restore the name.
    fn mark_unlinked(&mut self, inode: u64) {
        self.inode_mut(inode).linked = false;
        if !self.directory.is_reachable(inode) {
            self.inodes.remove(&inode);
        }
    }

    fn inode_mut(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("a linked name leads to an inode")
    }
}

/// Operations on the content of files.
impl DiskState {
    pub(super) fn content_mut(&mut self, name: &str) -> Option<&mut Content> {
        let inode = self.directory.get(name)?;
        Some(&mut self.inode_mut(inode).content)
    }

    pub(super) fn len(&self, inode: u64) -> io::Result<u64> {
        self.check_powered()?;
        Ok(self.linked_inode(inode)?.content.bytes().len() as u64)
    }

    pub(super) fn read(&mut self, inode: u64, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.begin_on(inode, Op::Read)?;
        let bytes = self.linked_inode(inode)?.content.bytes();
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= bytes.len() as u64);
        let end = end.ok_or(ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(&bytes[position(offset)..position(end)]);
        Ok(())
    }

    pub(super) fn write(&mut self, inode: u64, buf: &[u8], offset: u64) -> io::Result<()> {
        let was_off = self.off;
        if let Err(error) = self.begin_on(inode, Op::Write) {
            if !was_off && self.linked_inode(inode).is_ok() {
                let part = Random::new(self.operations).between(0, buf.len());
                let _ = self.write_within_capacity(inode, &buf[..part], offset);
            }
            return Err(error);
        }
        self.write_within_capacity(inode, buf, offset)
    }

    /// Writes as many bytes as the capacity permits, and fails if some do not fit.
    fn write_within_capacity(&mut self, inode: u64, buf: &[u8], offset: u64) -> io::Result<()> {
        let len = self.linked_inode(inode)?.content.bytes().len() as u64;
        let limit = len.saturating_add(self.room());
        let fits = position(limit.saturating_sub(offset).min(buf.len() as u64));
        self.inode_mut(inode).content.write(&buf[..fits], position(offset));
        if fits < buf.len() {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn allocate(&mut self, inode: u64, len: u64) -> io::Result<()> {
        self.begin_on(inode, Op::Allocate)?;
        let before = self.linked_inode(inode)?.content.bytes().len() as u64;
        if len.saturating_sub(before) > self.room() {
            return Err(ErrorKind::StorageFull.into());
        }
        self.inode_mut(inode).content.allocate(position(len));
        Ok(())
    }

    pub(super) fn sync(&mut self, inode: u64) -> io::Result<()> {
        let begun = self.begin_on(inode, Op::Sync);
        if !self.off && self.linked_inode(inode).is_ok() {
            let inode = self.inode_mut(inode);
            match begun {
                Ok(()) => inode.content.sync(),
                Err(_) => inode.content.fail_sync(),
            }
        }
        begun
    }

    fn begin_on(&mut self, inode: u64, op: Op) -> io::Result<()> {
        let name = self.linked_inode(inode).map(|inode| inode.name.clone());
        match name {
            Ok(name) => self.begin(op, &name),
            Err(removed) => self.check_powered().and(Err(removed)),
        }
    }

    fn linked_inode(&self, inode: u64) -> io::Result<&Inode> {
        let removed = || io::Error::new(ErrorKind::NotFound, "the file was removed");
        self.inodes.get(&inode).filter(|inode| inode.linked).ok_or_else(removed)
    }

    /// Free bytes of the disk.
    fn room(&self) -> u64 {
        let Some(capacity) = self.capacity else { return u64::MAX };
        capacity.saturating_sub(self.used_bytes())
    }

    /// Total length of all files.
    pub(super) fn used_bytes(&self) -> u64 {
        let len = |(_, inode)| self.inodes[&inode].content.bytes().len() as u64;
        self.directory.iter().map(len).sum()
    }
}

/// Kind of a file: the extension of its name, or the name without digits.
fn kind(name: &str) -> &str {
    let kind = name.rsplit_once('.').map_or(name, |(_, ending)| ending);
    kind.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-')
}
