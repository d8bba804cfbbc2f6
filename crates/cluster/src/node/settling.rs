//! Pages with records that conditional writes made: what of them a majority holds is found out
//! before they are stored.
//!
//! ```text
//!  ReadQuorum, without content ─┬─ what the page has ──▶ that is stored, as it came
//!                               ├─ another record ─────▶ ReadQuorum, with room for it ──▶ stored
//!                               └─ a plain one, or none ▶ nothing is
//! ```

use bytes::Bytes;

use crate::event::FailureKind;
use crate::message::{Reply, Request};
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
    /// What is asked about, in its order.
    unsettled: Vec<Unsettled>,
    /// How many of them were asked about so far, and how many replies are awaited.
    asked: usize,
    open: usize,
    /// Those that are to be asked about again.
    again: Vec<usize>,
    /// Whether there was no reply for one of them.
    failed: bool,
    /// Where the next page begins.
    pub(super) next: Option<Bytes>,
}

/// A record of the page.
#[derive(Debug)]
struct Unsettled {
    key: Bytes,
    record: Record,
    /// How often its key was asked about.
    tries: u8,
    /// Bytes of another record that there is to be room for.
    most: u32,
}

impl Settling {
    pub(super) fn new(
        items: Vec<(Bytes, Record)>,
        unsettled: Vec<(Bytes, Record)>,
        next: Option<Bytes>,
    ) -> Self {
        let unsettled = unsettled
            .into_iter()
            .map(|(key, record)| Unsettled { key, record, tries: 0, most: 0 })
            .collect();
        Self { items, unsettled, asked: 0, open: 0, again: Vec::new(), failed: false, next }
    }

    /// What is to be asked now, and about which one.
    pub(super) fn next_request(&mut self) -> Option<(usize, Request)> {
        if self.failed || self.open == SETTLING {
            return None;
        }
        let at = self.again.pop().unwrap_or(self.asked);
        let asked = self.unsettled.get_mut(at)?;
        asked.tries += 1;
        self.asked = self.asked.max(at + 1);
        self.open += 1;
        Some((at, Request::ReadQuorum { key: asked.key.clone(), most: asked.most }))
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
        assert!(self.open > 0, "each request is answered once");
        self.open -= 1;
        let asked = &mut self.unsettled[at];
        match result {
            // A plain write has come: it need not belong here, and some node streams it if it does.
            Ok(Reply::Absent { .. }) => return None,
            Ok(Reply::Found { record, .. }) if record.rank.ballot == 0 => return None,
            Ok(Reply::Long { outline, .. }) if outline.rank.ballot == 0 => return None,
            Ok(Reply::Found { record, .. }) => return Some((asked.key.clone(), record)),
            Ok(Reply::Long { outline, .. }) if outline.rank == asked.record.rank => {
                return Some((asked.key.clone(), asked.record.clone()));
            }
            Ok(Reply::Long { outline, .. }) => asked.most = outline.bytes,
            _ => {}
        }
        if asked.tries < TRIES {
            self.again.push(at);
        } else {
            self.failed = true;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Version;
    use crate::record::{Kind, Rank};

    fn record(ballot: u64, bytes: &'static str) -> Record {
        let version = Version { time: 5, origin: 1 };
        let rank = Rank { version, ballot, kind: Kind::Value, check: 1 };
        Record { rank, copies: 0, bytes: Bytes::from(bytes) }
    }

    fn page(ballots: &[u64]) -> Settling {
        let item = |ballot: &u64| (Bytes::from(ballot.to_string()), record(*ballot, "of the page"));
        Settling::new(Vec::new(), ballots.iter().map(item).collect(), None)
    }

    fn long(ballot: u64, bytes: &'static str) -> Result<Reply, FailureKind> {
        Ok(Reply::Long { outline: record(ballot, bytes).outline(), authoritative: true })
    }

    /// Which record it asks about, and the room that there is for another one.
    fn asks(page: &mut Settling) -> (usize, u32) {
        match page.next_request() {
            Some((at, Request::ReadQuorum { most, .. })) => (at, most),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_that_a_majority_holds_is_not_sent_again() {
        let mut page = page(&[3, 4]);
        assert_eq!([asks(&mut page), asks(&mut page)], [(0, 0), (1, 0)]);
        assert_eq!(page.settled(1, long(4, "as long")).unwrap().1, record(4, "of the page"));
        assert!(page.next_request().is_none() && page.is_open());
        assert_eq!(page.settled(0, long(3, "as long")).unwrap().1, record(3, "of the page"));
        assert!(!page.is_open() && !page.has_failed());
    }

    #[test]
    fn another_one_is_sent_once_there_is_room_for_it() {
        let mut page = page(&[3]);
        assert_eq!(asks(&mut page), (0, 0));
        assert_eq!(page.settled(0, long(8, "longer")), None);
        assert_eq!(asks(&mut page), (0, 6));
        let found = Reply::Found { record: record(9, "newest"), authoritative: true };
        assert_eq!(page.settled(0, Ok(found)).unwrap().1, record(9, "newest"));
        assert!(page.next_request().is_none() && !page.is_open() && !page.has_failed());
    }

    #[test]
    fn plain_writes_are_left_to_whoever_streams_them() {
        let mut page = page(&[3, 4, 5]);
        let asked = [asks(&mut page), asks(&mut page), asks(&mut page)];
        assert_eq!(asked, [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(page.settled(0, long(0, "plain")), None);
        let found = Reply::Found { record: record(0, ""), authoritative: true };
        assert_eq!(page.settled(1, Ok(found)), None);
        assert_eq!(page.settled(2, Ok(Reply::Absent { authoritative: true })), None);
        assert!(page.next_request().is_none() && !page.has_failed());
    }

    #[test]
    fn a_page_fails_with_a_key_of_which_nothing_is_told() {
        let mut page = page(&[3]);
        for _ in 0..TRIES {
            assert_eq!(asks(&mut page), (0, 0));
            assert_eq!(page.settled(0, Ok(Reply::Busy)), None);
        }
        assert!(page.has_failed() && page.next_request().is_none());
    }
}
