//! A node for tests: a store in memory, and a driver that records all requests.

use std::sync::Arc;

use lsm::{
    Batch, Engine, Fields, Kind, Lookup, MemDisk, Options, PurgeRule, ReadMode, Record, Space,
    Version,
};
use protocol::{
    Answer, CallId, Class, ClientId, Clock, CompareRequest, Config, ConnectionId, Damage, Demand,
    FailureKind, Incarnation, Logs, Member, Membership, MembershipState, Message, NodeId, Now,
    OpId, PageRequest, Reply, Request, Shared, Topology, View, ViewId,
};

use crate::Loop;
use crate::driver::{
    Driver, HintQuery, Outcome, StoreRead, TaskDriver, WriteBatcher, WriteError, WritePurpose,
};
use crate::identity::{Identity, NewIdentity, NodeSettings, OwnRecords};
use crate::store::{Store, purge_rule};
use crate::task::TaskEvent;

/// The wall clock of the test node, in microseconds.
pub(crate) const WALL: u64 = 1_700_000_000_000_000;

/// Length in bytes above which the loop reports a record's outline instead of the record.
pub(crate) const BRIEF: u32 = 1000;

pub(crate) const DEADLINE: u64 = 1_000_000;

/// A request to the driver, other than a write.
#[derive(Debug)]
pub(crate) enum Done {
    Read(OpId, StoreRead),
    Page,
    Keep(Option<OpId>, Batch, OwnRecords),
    Send,
    Respond(u64, Reply),
    Answer(Answer),
    Returned,
    ToTask(TaskEvent),
    Call(CallId),
    ReadHints(HintQuery),
    After(u64, TaskEvent),
}

/// Node `a` of `a`, `b` and `c`, a member.
pub(crate) struct TestNode {
    pub(crate) disk: Arc<MemDisk>,
    pub(crate) engine: Engine,
    pub(crate) shared: Arc<Shared>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) mono: u64,
    /// The error with which all writes are refused; `None` = they are accepted.
    pub(crate) refusal: Option<WriteError>,
    /// True if only writes of hints are refused, as busy.
    pub(crate) refuses_hints: bool,
    /// True if every read has to wait for the disk.
    pub(crate) cold: bool,
    /// True if every read fails.
    pub(crate) unreadable: bool,
    pub(crate) done: Vec<Done>,
    /// Number and result of the last requested compaction; `None` = that compaction has not ended.
    pub(crate) compaction: (u64, Option<bool>),
    batch: Batch,
    purposes: Vec<WritePurpose>,
}

/// The cluster's nodes, unless a test names others.
const USUAL: [&str; 3] = ["a", "b", "c"];

fn topology(names: &[&str]) -> Topology {
    let member = |name: &&str| Member { name: (*name).to_owned(), zone: String::new(), weight: 1 };
    Topology::new(names.iter().map(member).collect(), 3).unwrap()
}

/// Returns the id of the first view of the usual nodes.
pub(crate) fn under() -> ViewId {
    View::first(topology(&USUAL)).id()
}

impl TestNode {
    pub(crate) fn new() -> Self {
        Self::of(&USUAL)
    }

    pub(crate) fn of(names: &[&str]) -> Self {
        let topology = topology(names);
        let own = NodeId(0);
        let disk = Arc::new(MemDisk::new());
        let purge = Arc::new(purge_rule(|| WALL));
        let engine = Engine::open(disk.clone(), Options { purge, ..Options::default() }).unwrap();
        let named = NodeSettings { topology: &topology, own, named: true, urls: &[] };
        let new = NewIdentity {
            incarnation: Incarnation(9),
            state: MembershipState::Member,
            lost_before: 0,
        };
        let identity = Arc::new(Identity::open(&engine, named, new).unwrap());
        let clock = Arc::new(Clock::start(1, 0, 0));
        let membership = Membership::new(MembershipState::Member, 0, true);
        let logs = Arc::new(Logs::first(Incarnation(9)));
        let newest = Clock::time_of(WALL);
        let shared = Arc::new(Shared::new(topology, own, clock, membership, newest, logs));
        Self {
            disk,
            engine,
            shared,
            identity,
            mono: 1,
            refusal: None,
            refuses_hints: false,
            cold: false,
            unreadable: false,
            done: Vec::new(),
            compaction: (0, None),
            batch: Batch::new(),
            purposes: Vec::new(),
        }
    }

    /// Returns a loop on this node.
    pub(crate) fn event_loop(&self) -> Loop {
        let config =
            Config { deadline_micros: DEADLINE, max_skew_micros: 500_000, brief_bytes: BRIEF };
        Loop::new(Arc::clone(&self.shared), Arc::clone(&self.identity), config, 1 << 20)
    }

    /// Commits the writes of a turn; returns their purposes.
    pub(crate) fn commit(&mut self) -> Vec<WritePurpose> {
        Store::commit(&self.engine, std::mem::take(&mut self.batch)).unwrap();
        std::mem::take(&mut self.purposes)
    }

    /// Commits the writes of a turn and reports them to a loop.
    pub(crate) fn write(&mut self, own: &mut Loop) {
        for purpose in self.commit() {
            own.on_write_result(self, purpose, &Ok(()));
        }
    }

    /// Removes and returns the requests made since the last call.
    pub(crate) fn take(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    /// Removes the requests made since the last call; returns the replies to other nodes among
    /// them, each with its request id.
    pub(crate) fn replies(&mut self) -> Vec<(u64, Reply)> {
        let reply = |done| match done {
            Done::Respond(id, reply) => Some((id, reply)),
            _ => None,
        };
        self.take().into_iter().filter_map(reply).collect()
    }
}

/// Returns a value of `len` bytes, written `age` microseconds before the node's time.
pub(crate) fn value(key: &[u8], age: u64, len: usize) -> Record {
    let version = Version { time: Clock::time_of(WALL - age), origin: 7 };
    Record::new(key, &Fields::new(Kind::Value, version), &vec![b'v'; len])
}

/// Returns the record of a conditional write with `ballot` that is based on a `value` of this age.
pub(crate) fn conditional(key: &[u8], age: u64, ballot: u64) -> Record {
    let family = Version { time: Clock::time_of(WALL - age), origin: 7 };
    Record::new(key, &Fields { ballot, ..Fields::new(Kind::Value, family) }, b"v")
}

impl WriteBatcher for TestNode {
    fn now(&self) -> Now {
        Now { mono: self.mono, wall: WALL }
    }

    fn write(
        &mut self,
        _bytes: usize,
        purpose: WritePurpose,
        fill: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        if self.refuses_hints && matches!(purpose, WritePurpose::Hint(_)) {
            return Err(WriteError::Busy);
        }
        fill(&mut self.batch).map_err(WriteError::Store)?;
        self.purposes.push(purpose);
        Ok(())
    }
}

impl Driver for TestNode {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn try_get(&mut self, space: Space, key: &[u8]) -> Result<Lookup, lsm::Error> {
        if self.cold {
            return Ok(Lookup::WouldBlock);
        }
        if self.unreadable {
            let (file, what) = ("a table".to_owned(), "a block's checksum".to_owned());
            return Err(lsm::Error::Corrupt { file, offset: 0, what });
        }
        self.engine.get(space, key, ReadMode::NonBlocking)
    }

    fn read(&mut self, op: OpId, wanted: StoreRead, _demand: Demand) {
        self.done.push(Done::Read(op, wanted));
    }

    fn page(&mut self, _op: OpId, _request: PageRequest, _demand: Demand) {
        self.done.push(Done::Page);
    }

    fn compare(&mut self, _op: OpId, _request: CompareRequest, _demand: Demand) {
        unreachable!("no round is driven here");
    }

    fn discard(&mut self, _op: OpId, _ranges: Vec<Damage>) {
        unreachable!("no round is driven here");
    }

    fn keep(&mut self, op: OpId, batch: Batch, keeps: OwnRecords) {
        self.done.push(Done::Keep(Some(op), batch, keeps));
    }

    fn send(&mut self, _peer: NodeId, _message: Message) {
        self.done.push(Done::Send);
    }

    fn respond(&mut self, _connection: ConnectionId, id: u64, reply: Reply) {
        self.done.push(Done::Respond(id, reply));
    }

    fn answer(&mut self, _client: ClientId, answer: Answer) {
        self.done.push(Done::Answer(answer));
    }

    fn return_call(&mut self, _call: CallId, _result: Result<Reply, FailureKind>) {
        self.done.push(Done::Returned);
    }

    fn send_to_task(&mut self, event: TaskEvent) {
        self.done.push(Done::ToTask(event));
    }
}

impl TaskDriver for TestNode {
    fn call(&mut self, call: CallId, _node: NodeId, _class: Class, _request: Request) {
        self.done.push(Done::Call(call));
    }

    fn read_hints(&mut self, wanted: HintQuery) {
        self.done.push(Done::ReadHints(wanted));
    }

    fn keep(&mut self, batch: Batch, keeps: OwnRecords) {
        self.done.push(Done::Keep(None, batch, keeps));
    }

    fn report_outdated(&mut self, _proven: u64) {
        unreachable!("no other node proves anything");
    }

    fn purge_rule(&self) -> &PurgeRule {
        self.engine.purge_rule()
    }

    fn compact(&mut self) -> u64 {
        self.compaction = (self.compaction.0 + 1, None);
        self.compaction.0
    }

    fn compaction_succeeded(&self, number: u64) -> Option<bool> {
        assert_eq!(number, self.compaction.0);
        self.compaction.1
    }

    fn after(&mut self, micros: u64, event: TaskEvent) {
        self.done.push(Done::After(micros, event));
    }
}
