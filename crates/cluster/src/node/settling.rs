//! Pages with records that conditional writes made: what of them a majority holds is found out
//! before they are stored.

use bytes::Bytes;

use crate::event::FailureKind;
use crate::message::Reply;
use crate::record::Record;

/// Keys of a page that a node is asked about at once: so many reads it does at the same time for
/// each node that it streams to.
const SETTLING: usize = 16;

/// How often a node is asked about a key, if it is contended so that it can't tell. A page is asked
/// for again otherwise, with all its other keys.
const TRIES: u8 = 5;

/// Such a page.
#[derive(Debug)]
pub(super) struct Settling {
    /// What is to be written.
    pub(super) items: Vec<(Bytes, Record)>,
    /// Keys that are asked about, in their order.
    keys: Vec<Bytes>,
    /// How many of them were asked about so far, and how many replies are awaited.
    asked: usize,
    open: usize,
    /// Those that are to be asked about again, and how often each was asked about.
    again: Vec<usize>,
    tries: Vec<u8>,
    /// Whether there was no reply for one of them.
    failed: bool,
    /// Where the next page begins.
    pub(super) next: Option<Bytes>,
}

impl Settling {
    pub(super) fn new(items: Vec<(Bytes, Record)>, keys: Vec<Bytes>, next: Option<Bytes>) -> Self {
        let (again, tries) = (Vec::new(), vec![0; keys.len()]);
        Self { items, keys, asked: 0, open: 0, again, tries, failed: false, next }
    }

    /// The next key to ask about now, and its place.
    pub(super) fn next_key(&mut self) -> Option<(usize, Bytes)> {
        if self.failed || self.open == SETTLING {
            return None;
        }
        let at = self.again.pop().unwrap_or_else(|| {
            self.asked += 1;
            self.asked - 1
        });
        let key = self.keys.get(at).cloned();
        self.asked = self.asked.min(self.keys.len());
        let key = key?;
        self.tries[at] += 1;
        self.open += 1;
        Some((at, key))
    }

    /// Whether replies are awaited.
    pub(super) fn is_open(&self) -> bool {
        self.open > 0
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// What a majority holds of a key is known, or not. Returns what is to be stored of it.
    pub(super) fn settled(
        &mut self,
        at: usize,
        result: Result<Reply, FailureKind>,
    ) -> Option<(Bytes, Record)> {
        self.open -= 1;
        match result {
            Ok(Reply::Found { record, .. }) if record.rank.ballot > 0 => {
                Some((self.keys[at].clone(), record))
            }
            // A plain write has come: it need not belong here, and some node streams it if it does.
            Ok(Reply::Found { .. } | Reply::Absent { .. }) => None,
            _ => {
                if self.tries[at] < TRIES {
                    self.again.push(at);
                } else {
                    self.failed = true;
                }
                None
            }
        }
    }
}
