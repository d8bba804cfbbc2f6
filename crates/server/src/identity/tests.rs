use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lsm::{MemDisk, Options, SyncMode};
use protocol::layout::{VoteReply, VoteRequest, VoterId};
use protocol::{Logs, Mark, Member, Membership, Reported, RoundId, View};

use super::*;

fn engine(disk: &MemDisk) -> Engine {
    Engine::open(Arc::new(disk.clone()), Options::default()).unwrap()
}

/// A cluster as listed in settings (name, zone, weight), and this node's place in it.
struct List {
    topology: Topology,
    own: NodeId,
    named: bool,
}

impl List {
    fn new(members: &[(&str, &str, u32)], replicas: u8, own: &str) -> Self {
        let member = |(name, zone, weight): &(&str, &str, u32)| Member {
            name: (*name).to_owned(),
            zone: (*zone).to_owned(),
            weight: *weight,
        };
        let topology = Topology::new(members.iter().map(member).collect(), replicas).unwrap();
        let own = topology.find(own).unwrap();
        Self { topology, own, named: true }
    }

    /// Returns the list of a single node that no setting names; its name is its address.
    fn new_unnamed(name: &str) -> Self {
        Self { named: false, ..Self::new(&[(name, "", 1)], 3, name) }
    }

    fn node_settings(&self) -> NodeSettings<'_> {
        NodeSettings { topology: &self.topology, own: self.own, named: self.named, urls: &[] }
    }
}

const THREE: [(&str, &str, u32); 3] = [("a", "", 1), ("b", "", 1), ("c", "", 1)];

fn three() -> List {
    List::new(&THREE, 3, "a")
}

fn open(
    engine: &Engine,
    list: &List,
    incarnation: u64,
    lost_before: u64,
) -> Result<Identity, StartError> {
    let incarnation = Incarnation(incarnation);
    let new = NewIdentity { incarnation, state: MembershipState::Joining, lost_before };
    Identity::open(engine, list.node_settings(), new)
}

/// Returns the error of an open with the settings `now`, of a directory created with the settings
/// `before`.
fn expect_refusal(before: &List, now: &List) -> String {
    let engine = engine(&MemDisk::new());
    open(&engine, before, 5, 5).unwrap();
    let error = open(&engine, now, 6, 6).unwrap_err().to_string();
    assert!(error.contains("Nothing was changed") && !error.contains('\n'), "{error}");
    assert_eq!(
        open(&engine, before, 7, 7).unwrap().incarnation(),
        Incarnation(5),
        "it still opens"
    );
    error
}

fn claim(incarnation: u64) -> Claim {
    let (life, position) = (Some(BootId(11)), LogPosition(12));
    let reported = Reported { life, position, late: LogPosition(incarnation / 2) };
    Claim { incarnation: Incarnation(incarnation), reported }
}

/// Returns the state shared by a node's state machines, as far as these tests need it.
fn new_shared(list: &List) -> Shared {
    let clock = Arc::new(Clock::start(1, 0, 0));
    let membership = Membership::new(MembershipState::Joining, 0, false);
    let logs = Arc::new(Logs::first(Incarnation(1)));
    Shared::new(list.topology.clone(), list.own, clock, membership, 0, logs)
}

/// Commits a batch and reports it as durable.
fn keep(
    engine: &Engine,
    identity: &Identity,
    shared: &Shared,
    (batch, keeps): (Batch, OwnRecords),
) {
    Store::commit(engine, batch).unwrap();
    identity.apply_durable(shared, &keeps);
}

#[test]
fn an_identity_is_created_once_and_kept() {
    let disk = MemDisk::new();
    let (engine, list) = (engine(&disk), three());
    let (first, shared) = (open(&engine, &list, 9, 77).unwrap(), new_shared(&list));
    assert_eq!(
        (first.incarnation(), first.lost_before(), first.state()),
        (Incarnation(9), 77, MembershipState::Joining)
    );
    assert_eq!((first.known_claim("b"), first.known_claim("c")), (None, None));
    let keep = |kept| keep(&engine, &first, &shared, kept);
    let (b, c) = (NodeId(1), NodeId(2));
    keep(first.keep_claim(&shared, b, claim(5)));
    keep(first.keep_claim(&shared, c, claim(u64::MAX)));
    keep(first.keep_claim(&shared, b, claim(6)));
    shared.transfer.missed.mark(list.own, Mark { partition: Some(9), since: 4 });
    keep(first.keep_state(&shared, MembershipState::Rebuilding));
    keep(first.keep_state(&shared, MembershipState::Member));
    assert!(!shared.transfer.missed.is_unsaved(list.own));
    engine.close().unwrap();
    let cluster = first.cluster();
    drop(engine);

    let engine = self::engine(&disk);
    let again = open(&engine, &list, 10, 99).unwrap();
    assert_eq!((again.incarnation(), again.cluster()), (Incarnation(9), cluster));
    assert_eq!((again.lost_before(), again.state()), (77, MembershipState::Member));
    assert_eq!(
        (again.known_claim("b"), again.known_claim("c")),
        (Some(claim(6)), Some(claim(u64::MAX)))
    );
    let fresh = self::new_shared(&list);
    again.load_missed(&engine, &fresh).unwrap();
    assert_eq!(fresh.transfer.missed.partitions(list.own), 1, "with the membership state");
}

#[test]
fn the_newest_batch_takes_effect_whatever_the_order_of_commits() {
    let disk = MemDisk::new();
    let (engine, list) = (engine(&disk), three());
    let (identity, shared) = (open(&engine, &list, 9, 0).unwrap(), new_shared(&list));
    let c = NodeId(2);
    let (first, first_keeps) = identity.keep_missed(&shared, c);
    shared.transfer.missed.mark(c, Mark { partition: Some(9), since: 4 });
    let (second, second_keeps) = identity.keep_missed(&shared, c);
    for (batch, keeps) in [(second, second_keeps), (first, first_keeps)] {
        keep(&engine, &identity, &shared, (batch, keeps));
    }
    assert!(!shared.transfer.missed.is_unsaved(c));
    let fresh = self::new_shared(&list);
    identity.load_missed(&engine, &fresh).unwrap();
    assert_eq!(fresh.transfer.missed.partitions(c), 1);
}

#[test]
fn a_record_that_could_not_be_stored_takes_no_effect() {
    let (engine, list) = (engine(&MemDisk::new()), three());
    let (identity, shared) = (open(&engine, &list, 9, 0).unwrap(), new_shared(&list));
    drop(identity.keep_state(&shared, MembershipState::Member));
    drop(identity.keep_claim(&shared, NodeId(1), claim(5)));
    assert_eq!((identity.state(), identity.known_claim("b")), (MembershipState::Joining, None));
    assert_eq!(shared.membership.logs.incarnation(NodeId(1)), None);
}

#[test]
fn cluster_ids_differ_and_an_incarnation_is_never_0() {
    let open = |list: &List, disk| open(&engine(&MemDisk::new()), list, disk, 0).unwrap();
    let alone = List::new(&THREE[..1], 3, "a");
    assert_eq!(open(&alone, 0).incarnation(), Incarnation(1));
    assert_ne!(open(&alone, 8).cluster(), open(&alone, 9).cluster());
    assert_eq!(open(&three(), 8).cluster(), None, "the nodes of a list agree on one");
}

#[test]
fn a_cluster_id_is_stored_despite_concurrent_batches() {
    let disk = MemDisk::new();
    let (engine, list) = (engine(&disk), three());
    let identity = open(&engine, &list, 9, 77).unwrap();
    let mut shared = new_shared(&list);
    shared.membership.cluster = Arc::new(identity.own_cluster());
    let id = ClusterId(5);
    let (first, first_keeps) = identity.keep_state(&shared, MembershipState::Member);
    let (second, second_keeps) = identity.keep_cluster(id);
    assert_eq!(
        (identity.cluster(), shared.membership.cluster.id()),
        (None, None),
        "it is not durable yet"
    );
    for (batch, keeps) in [(second, second_keeps), (first, first_keeps)] {
        keep(&engine, &identity, &shared, (batch, keeps));
    }
    assert_eq!((identity.cluster(), shared.membership.cluster.id()), (Some(id), Some(id)));
    let again = open(&engine, &list, 10, 99).unwrap();
    assert_eq!((again.cluster(), again.state()), (Some(id), MembershipState::Member));
}

#[test]
fn the_first_disk_of_a_peer_is_distinguished_from_later_disks() {
    let disk = MemDisk::new();
    let (engine, list) = (engine(&disk), three());
    let (identity, shared) = (open(&engine, &list, 9, 77).unwrap(), new_shared(&list));
    let b = NodeId(1);
    let knows_first = || open(&engine, &list, 9, 77).unwrap().has_only_incarnation("b");
    assert!(!knows_first());
    shared.membership.logs.note_boot(b, Incarnation(5), BootId(1));
    keep(&engine, &identity, &shared, identity.keep_claim(&shared, b, claim(5)));
    assert!(knows_first());
    shared.membership.logs.note_boot(b, Incarnation(6), BootId(1));
    keep(&engine, &identity, &shared, identity.keep_claim(&shared, b, claim(6)));
    assert!(!knows_first());
    shared.membership.logs.note_boot(b, Incarnation(5), BootId(2));
    keep(&engine, &identity, &shared, identity.keep_claim(&shared, b, claim(5)));
    assert!(!knows_first(), "it is back, and another one was there meanwhile");
}

#[test]
fn another_topology_or_name_is_refused_with_the_difference() {
    let three = three();
    let but = |place: usize, member| {
        let mut members = THREE;
        members[place] = member;
        List::new(&members, 3, "a")
    };
    let four = [&THREE[..], &[("d", "", 1)]].concat();
    for (now, said) in [
        (List::new(&THREE[..2], 3, "a"), "node c is in the data directory's list"),
        (List::new(&four, 3, "a"), "node d is in our list and not in"),
        (List::new(&THREE, 2, "a"), "replicas: 2 in our topology, 3 in the data directory's"),
        (but(1, ("b", "x", 1)), "node b has zone x in our list"),
        (but(1, ("b", "", 9)), "node b has weight 9 in our list"),
        (List::new(&THREE, 3, "b"), "this is node b"),
        (List::new(&THREE[..1], 3, "a"), "node b is in the data directory's list"),
        (List::new_unnamed("http://127.0.0.1:1"), "more differences"),
    ] {
        let error = expect_refusal(&three, &now);
        assert!(error.contains(said), "{error}");
    }
    let error = expect_refusal(&List::new(&THREE[..1], 3, "a"), &three);
    assert!(error.contains("node b is in our list and not in the data directory's"), "{error}");
}

#[test]
fn a_node_alone_may_move_and_change_its_copies() {
    let engine = engine(&MemDisk::new());
    let first = open(&engine, &List::new_unnamed("http://127.0.0.1:4711"), 9, 0).unwrap();
    assert_eq!(first.state(), MembershipState::Member);
    let kept = kept_name(&engine).unwrap().unwrap();
    assert_eq!(kept, "http://127.0.0.1:4711", "its versions go on under one name");
    assert_eq!(
        open(&engine, &List::new_unnamed(&kept), 8, 0).unwrap().incarnation(),
        Incarnation(9)
    );
    for (zone, replicas) in [("", 3), ("x", 1)] {
        let named = List::new(&[("a", zone, 1)], replicas, "a");
        assert!(open(&engine, &named, 8, 0).is_ok(), "it gets a name once");
    }
    let error = open(&engine, &List::new(&[("b", "", 1)], 3, "b"), 8, 0).unwrap_err().to_string();
    assert!(error.contains("this is node b, but the directory belongs to node a"), "{error}");
    assert_eq!(kept_name(&engine).unwrap().as_deref(), Some("a"), "it keeps the name");
    assert!(open(&engine, &List::new_unnamed("a"), 8, 0).is_ok());
    let other = List::new(&[("b", "", 1)], 3, "b");
    assert!(open(&engine, &other, 8, 0).is_err(), "for good");
}

#[test]
fn data_without_an_identity_is_refused() {
    for list in [List::new_unnamed("x"), three()] {
        let engine = engine(&MemDisk::new());
        let mut batch = Batch::new();
        batch.put(Space::Node, BOUND_KEY, Version { time: 1, origin: 1 }, &[0; 8]).unwrap();
        Store::commit(&engine, batch).unwrap();
        let error = open(&engine, &list, 9, 0).unwrap_err().to_string();
        assert!(error.contains("it holds data and does not say of which node"), "{error}");
    }
}

/// The marker files of a directory. The default value, without files, stands for a copy of another
/// directory, whose files have other inodes.
#[derive(Default)]
struct Files {
    settled: Cell<Option<Marker>>,
    next: Cell<Option<Marker>>,
    fails: Cell<bool>,
    unreadable: Cell<bool>,
}

impl Directory for Files {
    fn holds(&self, marker: &Marker) -> io::Result<bool> {
        if self.unreadable.get() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok([&self.settled, &self.next].iter().any(|file| file.get() == Some(*marker)))
    }

    fn make_next(&self, number: u64) -> io::Result<Marker> {
        if self.fails.get() {
            return Err(io::Error::other("no more inodes"));
        }
        let marker = Marker { inode: number, made: 1, number };
        self.next.set(Some(marker));
        Ok(marker)
    }

    fn settle(&self) -> io::Result<()> {
        if self.fails.get() {
            return Err(io::Error::other("no rename"));
        }
        self.settled.set(self.next.take());
        Ok(())
    }
}

fn begin(engine: &Engine, files: &Files, wall: u64) -> (Identity, BootHistory) {
    let identity = open(engine, &three(), 9, 0).unwrap();
    let recovered = RecoveredStore::of(engine);
    let boot_history = identity.record_boot(engine, files, recovered, wall, wall).unwrap();
    (identity, boot_history)
}

#[test]
fn a_member_with_a_copied_directory_becomes_verifying() {
    let (engine, files, shared) = (engine(&MemDisk::new()), Files::default(), new_shared(&three()));
    let (identity, first) = begin(&engine, &files, 100);
    assert_eq!(first.current().id, BootId(Clock::time_of(100)));
    keep(&engine, &identity, &shared, identity.keep_state(&shared, MembershipState::Member));
    let (identity, second) = begin(&engine, &files, 90);
    assert_eq!(identity.state(), MembershipState::Member, "the same directory");
    assert_eq!(
        second.current().id,
        BootId(first.current().id.0 + 1),
        "lives are counted up by any clock"
    );
    let (identity, _) = begin(&engine, &Files::default(), 200);
    assert_eq!(identity.state(), MembershipState::Verifying);
    assert_eq!(
        open(&engine, &three(), 9, 0).unwrap().state(),
        MembershipState::Verifying,
        "it is kept"
    );
}

/// Loads the layouts as the directory's next process start finds them.
fn layouts(engine: &Engine, identity: &Identity, boot_history: BootHistory) -> protocol::Layouts {
    let logs = Logs::new(identity.incarnation(), boot_history, &[]);
    identity.open_layouts(engine, three().node_settings(), &logs, identity.state()).unwrap()
}

/// A copy lacks the votes cast after it was made, whatever its membership state: a layout may have
/// made the node a voter while it was rebuilding.
#[test]
fn a_copy_is_another_voter() {
    use MembershipState::{Joining, Member, Rebuilding};
    for state in [Joining, Member, Rebuilding] {
        let (engine, files, shared) =
            (engine(&MemDisk::new()), Files::default(), new_shared(&three()));
        let (identity, first) = begin(&engine, &files, 100);
        let seated = layouts(&engine, &identity, first).voter().id;
        keep(&engine, &identity, &shared, identity.keep_state(&shared, state));
        let (batch, _) = identity.keep_layouts(&shared);
        Store::commit(&engine, batch).unwrap();
        let (identity, second) = begin(&engine, &files, 110);
        let kept = layouts(&engine, &identity, second).voter().id;
        let copy = Files::default();
        // The process ends before it has stored its new voter id.
        begin(&engine, &copy, 120);
        let (identity, fourth) = begin(&engine, &copy, 130);
        let voter = layouts(&engine, &identity, fourth).voter();
        assert!(
            voter.id != kept && voter.id != seated && voter.id.is_some(),
            "{state:?}: {voter:?}"
        );
        assert!(!voter.is_first, "{state:?}");
        let (identity, fifth) = begin(&engine, &copy, 140);
        if identity.state() != MembershipState::Verifying {
            assert_eq!(layouts(&engine, &identity, fifth).voter(), voter, "{state:?}: no copy");
        }
    }
}

#[test]
fn a_member_that_knows_no_layout_votes_about_the_second() {
    use MembershipState::{Joining, Member};
    for (state, is_first) in [(Member, true), (Joining, false)] {
        let (engine, files) = (engine(&MemDisk::new()), Files::default());
        let (identity, _) = begin(&engine, &files, 100);
        let kept = StoredIdentity { state, ..identity.lock().kept.clone() };
        let batch = identity.lock().batch(&[(KEY, &kept.encode())]);
        Store::commit(&engine, batch).unwrap();
        assert!(engine.read(Space::Node, layouts::KEY).unwrap().is_none());
        let (identity, second) = begin(&engine, &files, 110);
        let layouts = layouts(&engine, &identity, second);
        assert_eq!((layouts.known_layout().epoch, layouts.has_seat()), (1, is_first), "{state:?}");
    }
}

/// A node's address may change between two starts, whatever was voted before.
#[test]
fn another_url_changes_neither_the_first_layout_nor_a_vote_about_the_next() {
    let (engine, files, list) = (engine(&MemDisk::new()), Files::default(), three());
    let (identity, boot_history) = begin(&engine, &files, 100);
    let logs = Logs::new(identity.incarnation(), boot_history, &[]);
    let open = |urls: &[String]| {
        let named = NodeSettings { urls, ..list.node_settings() };
        identity.open_layouts(&engine, named, &logs, MembershipState::Member).unwrap()
    };
    let [before, after] =
        ["h", "i"].map(|host| ["1", "2", "3"].map(|port| format!("http://{host}:{port}")).to_vec());
    let was = open(&before);
    let (base, ballot) = (was.known_layout(), 3);
    let change =
        protocol::layout::PlanChange { council: Some(vec!["a".into()]), ..Default::default() };
    let next = Arc::new(base.plan_change(&change, |_| Some(VoterId(7))).unwrap());
    let prepare = VoteRequest::Prepare { base: Arc::clone(&base), ballot };
    let accept = VoteRequest::Accept { ballot, layout: Arc::clone(&next) };
    assert_eq!(was.handle_request(&prepare), (VoteReply::Promise(None), true));
    assert_eq!(was.handle_request(&accept), (VoteReply::Accepted, true));
    let view = was.view_after(&base, &View::first(list.topology.clone()));
    let shared = Shared::of(
        (list.own, "a".to_owned()),
        (view, was),
        Arc::new(Clock::start(1, 0, 0)),
        Membership::new(MembershipState::Joining, 0, false),
        0,
        Arc::new(Logs::first(Incarnation(1))),
    );
    keep(&engine, &identity, &shared, identity.keep_layouts(&shared));

    let is = open(&after);
    assert_eq!(is.known_layout().nodes[0].url, "http://i:1");
    assert_eq!(is.known_layout().id(), base.id());
    let prepare = VoteRequest::Prepare { base: is.known_layout(), ballot: 4 };
    assert_eq!(
        is.handle_request(&prepare),
        (VoteReply::Promise(Some((3, Arc::clone(&next)))), true)
    );
    let accept = VoteRequest::Accept { ballot: 4, layout: next };
    assert_eq!(
        is.handle_request(&accept),
        (VoteReply::Accepted, true),
        "whoever made it has others' URLs"
    );
}

#[test]
fn an_interrupted_start_does_not_make_the_directory_a_copy() {
    let (engine, files, shared) = (engine(&MemDisk::new()), Files::default(), new_shared(&three()));
    let (identity, _) = begin(&engine, &files, 100);
    keep(&engine, &identity, &shared, identity.keep_state(&shared, MembershipState::Member));
    // The store knows the new file, which is not renamed yet.
    let marker = files.make_next(7).unwrap();
    files.fails.set(true);
    let recovered = RecoveredStore::of(&engine);
    assert!(identity.record_boot(&engine, &files, recovered, 110, 8).is_err());
    files.fails.set(false);
    assert!(files.holds(&marker).unwrap());
    let (identity, _) = begin(&engine, &files, 120);
    assert_eq!(identity.state(), MembershipState::Member);
}

#[test]
fn an_unreadable_marker_file_does_not_make_the_directory_a_copy() {
    let (engine, files, shared) = (engine(&MemDisk::new()), Files::default(), new_shared(&three()));
    let (identity, _) = begin(&engine, &files, 100);
    keep(&engine, &identity, &shared, identity.keep_state(&shared, MembershipState::Member));
    files.unreadable.set(true);
    let recovered = RecoveredStore::of(&engine);
    let refused = identity.record_boot(&engine, &files, recovered, 110, 8).unwrap_err();
    assert!(refused.to_string().starts_with("cannot read LIFE, "), "{refused}");
    files.unreadable.set(false);
    let (identity, _) = begin(&engine, &files, 120);
    assert_eq!(identity.state(), MembershipState::Member);
}

#[test]
fn the_encoded_bytes_are_fixed() {
    let kept = StoredIdentity {
        state: MembershipState::Rebuilding,
        named: true,
        cluster: Some(ClusterId(0x0102_0304_0506_0708)),
        incarnation: Incarnation(0x1112_1314_1516_1718),
        lost_before: 0x2122_2324_2526_2728,
        digest: 0x3132_3334_3536_3738,
        name: "a".to_owned(),
        description: "text\n".to_owned(),
    };
    let mut bytes = vec![1, 2, 1, 0];
    for first in [0x01_u8, 0x11, 0x21, 0x31] {
        bytes.extend((first..first + 8).rev());
    }
    bytes.extend(b"\x01\x00atext\n");
    assert_eq!(kept.encode(), bytes);
    assert_eq!(StoredIdentity::decode(&bytes), Ok(kept.clone()));
    bytes[4..12].fill(0);
    assert_eq!(
        StoredIdentity::decode(&bytes),
        Ok(StoredIdentity { cluster: None, ..kept }),
        "no id yet"
    );
    let incarnation = Incarnation(0x0102_0304_0506_0708);
    let (life, position) = (Some(BootId(0x11)), LogPosition(0x12));
    let reported = Reported { life, position, late: LogPosition(0x13) };
    let claim = Claim { incarnation, reported };
    let mut peer = vec![1, 8, 7, 6, 5, 4, 3, 2, 1];
    for number in [0x11_u8, 0x12, 0x13] {
        peer.extend([number, 0, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(format::encode_peer(&claim), peer);
    assert_eq!(format::decode_peer(&peer), Ok(claim));
    let time = [1, 8, 7, 6, 5, 4, 3, 2, 1];
    assert_eq!(format::encode_time(0x0102_0304_0506_0708), time);
    assert_eq!(format::decode_time(&time), Ok(0x0102_0304_0506_0708));
    let marker = Marker { inode: 0x11, made: 0x12, number: 0x13 };
    assert_eq!(marker.encode(), peer[9..], "numbers of eight bytes");
    assert_eq!(Marker::decode(marker.encode()), marker);
}

#[test]
fn a_malformed_identity_is_distinguished_from_a_later_format() {
    let good = format::StoredIdentity::decode(&[&[1, 1, 0, 0][..], &[0; 34]].concat());
    assert!(good.is_ok(), "{good:?}");
    for damaged in [&[][..], &[1], &[1; 37], &[&[1, 4, 0, 0][..], &[0; 34]].concat(), &[1; 38]] {
        assert!(matches!(StoredIdentity::decode(damaged), Err(Unreadable::Damaged(_))));
    }
    for damaged in [&[][..], &[1], &[1; 10]] {
        assert!(matches!(format::decode_peer(damaged), Err(Unreadable::Damaged(_))));
    }
    assert!(matches!(format::decode_time(&[1; 8]), Err(Unreadable::Damaged(_))));
    assert_eq!(format::decode_time(&[2; 9]), Err(Unreadable::LaterFormat(2)));
    assert_eq!(StoredIdentity::decode(&[2; 38]), Err(Unreadable::LaterFormat(2)));
    assert_eq!(format::decode_peer(&[3; 9]), Err(Unreadable::LaterFormat(3)));
}

/// The record is durable whatever the settings' sync mode: a node reports a round as ready only
/// when the round's records are durable.
#[test]
fn a_stored_proof_and_all_earlier_writes_are_durable() {
    for seed in 0..8 {
        let (disk, sync) = (MemDisk::new(), SyncMode::Interval(Duration::from_secs(1)));
        let options = Options { sync, ..Options::default() };
        let engine = Engine::open(Arc::new(disk.clone()), options).unwrap();
        let identity = open(&engine, &three(), 5, 5).unwrap();
        let mut brought = Batch::new();
        brought.put(Space::Data, b"k", Version { time: 7, origin: 1 }, b"v").unwrap();
        Store::commit(&engine, brought).unwrap();
        let ready = RoundId { time: 9, node: NodeId(1) };
        let (batch, _) = identity.keep_proof(Proof { ready, ..Proof::default() });
        Store::commit(&engine, batch).unwrap();

        let engine = self::engine(&disk.crash(seed));
        assert!(engine.read(Space::Data, b"k").unwrap().is_some());
        assert_eq!(open(&engine, &three(), 6, 6).unwrap().proof().ready, ready);
    }
}

/// The fence prevents an earlier round, or another node, from bringing older records to the
/// directory.
#[test]
fn a_new_directory_has_a_repair_fence_from_its_creation_on() {
    let identity = open(&engine(&MemDisk::new()), &three(), 5, 7).unwrap();
    let Proof { seal, made, .. } = identity.proof();
    assert_eq!((seal.time, made), (7, 7));
}
