use super::*;
use crate::background::task::Tasks;
use crate::background::task::tests::{requests, tasks};
use crate::event::{CallId, FailureKind};
use record::{Fields, Kind, Version};

const SOURCE: NodeId = NodeId(1);

fn record(ballot: u64, value: &str) -> Record {
    let version = Version { time: 5, origin: 1 };
    let fields = Fields { ballot, ..Fields::new(Kind::Value, version) };
    Record::new(b"k", &fields, value.as_bytes())
}

/// A page under test, whose records have the given ballots.
struct Choosing {
    tasks: Tasks,
    chosen: Rc<RefCell<Option<Result<PageDivision, PageFailure>>>>,
    /// Unanswered calls, each with its limit (`most`) on a returned record's length.
    open: Vec<(CallId, u32)>,
}

impl Choosing {
    fn of(ballots: &[u64]) -> Self {
        let (mut tasks, chosen) = (tasks(), Rc::new(RefCell::new(None)));
        let (context, told) = (tasks.context().clone(), Rc::clone(&chosen));
        let item = |ballot: &u64| (Bytes::from(ballot.to_string()), record(*ballot, "of the page"));
        let items: Items = ballots.iter().map(item).collect();
        tasks.spawn("choosing", async move {
            let is_plain = |_: &Bytes, record: &Record| record.ballot() == 0;
            let left_ahead = PartitionsAhead::default();
            *told.borrow_mut() = Some(choose(&context, SOURCE, items, &left_ahead, is_plain).await);
        });
        let mut choosing = Self { tasks, chosen, open: Vec::new() };
        choosing.note_calls();
        choosing
    }

    fn note_calls(&mut self) {
        for (node, call, request) in requests(&self.tasks) {
            let Request::ReadQuorum { most, .. } = request else { panic!("{request:?}") };
            assert_eq!(node, SOURCE);
            self.open.push((call, most));
        }
    }

    /// Answers the open call at this index.
    fn answer(&mut self, at: usize, result: Result<Reply, FailureKind>) {
        let (call, _) = self.open.remove(at);
        assert!(self.tasks.complete_call(call, result));
        self.note_calls();
    }

    /// Returns the length limit of each open call.
    fn room(&self) -> Vec<u32> {
        self.open.iter().map(|(_, most)| *most).collect()
    }

    /// Returns the stored records; `None` = the page failed.
    fn take_records(&self) -> Option<Vec<Record>> {
        assert!(self.open.is_empty());
        let chosen = self.chosen.borrow_mut().take().expect("all calls were answered");
        Some(chosen.ok()?.items.into_iter().map(|(_, record)| record).collect())
    }
}

fn long(ballot: u64, value: &str) -> Result<Reply, FailureKind> {
    Ok(Reply::Long { outline: record(ballot, value).outline(), authoritative: true })
}

fn found_reply(record: Record) -> Result<Reply, FailureKind> {
    Ok(Reply::Found { record, authoritative: true })
}

#[test]
fn a_record_that_a_majority_holds_is_not_sent_again() {
    let mut page = Choosing::of(&[0, 3, 4]);
    assert_eq!(page.room(), [0, 0], "the plain record is not asked about");
    page.answer(1, long(4, "of the page"));
    page.answer(0, long(3, "of the page"));
    let records = [0, 3, 4].map(|ballot| record(ballot, "of the page"));
    assert_eq!(page.take_records().unwrap(), records);
}

#[test]
fn another_record_is_sent_once_there_is_room_for_it() {
    let mut page = Choosing::of(&[3]);
    page.answer(0, long(8, "longer"));
    assert_eq!(page.room(), [record(8, "longer").outline().bytes]);
    page.answer(0, found_reply(record(9, "newest")));
    assert_eq!(page.take_records().unwrap(), [record(9, "newest")]);
}

#[test]
fn plain_writes_are_left_to_the_nodes_that_stream_them() {
    let mut page = Choosing::of(&[3, 4, 5]);
    page.answer(0, long(0, "plain"));
    page.answer(0, found_reply(record(0, "")));
    page.answer(0, Ok(Reply::Absent { authoritative: true }));
    assert_eq!(page.take_records().unwrap(), []);
}

#[test]
fn a_page_fails_if_a_key_stays_busy() {
    let mut page = Choosing::of(&[3]);
    for _ in 0..MAX_QUERIES {
        assert_eq!(page.room(), [0]);
        page.answer(0, Ok(Reply::Busy));
    }
    assert_eq!(page.take_records(), None);
}

#[test]
fn a_source_is_asked_about_a_few_keys_at_once() {
    let ballots: Vec<u64> = (1..=40).collect();
    let mut page = Choosing::of(&ballots);
    assert_eq!(page.room().len(), MAX_CONCURRENT_CHOICES);
    for answered in 1..=40 {
        page.answer(0, Ok(Reply::Absent { authoritative: true }));
        assert_eq!(page.room().len(), MAX_CONCURRENT_CHOICES.min(40 - answered));
    }
    assert_eq!(page.take_records().unwrap(), []);
}
