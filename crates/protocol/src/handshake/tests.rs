use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::membership::cluster_id::OwnCluster;
use crate::membership::disk_ids::LogPosition;
use crate::membership::layout::{Joiner, PlanChange, Voter};
use crate::membership::logs::{Boot, BootHistory, Logs, Reported};
use crate::placement::topology::{Member, Topology};
use crate::placement::view::Views;
use crate::repair::watermark::{Proof, Proofs};

struct HandshakeNode {
    versions: (u16, u16),
    name: &'static str,
    nodes: [&'static str; 3],
    replicas: u8,
    secret: &'static str,
    also: Option<&'static str>,
    channel: Option<Channel>,
    cluster: Option<ClusterId>,
    life: BootId,
    proof: Proof,
}

impl Default for HandshakeNode {
    fn default() -> Self {
        let nodes = ["a", "b", "c"];
        let (secret, proof) = ("open sesame", Proof::default());
        let (also, channel) = (None, None);
        let (cluster, life) = (Some(ClusterId(5)), BootId(40));
        let versions = VERSIONS;
        let (name, replicas) = ("a", 3);
        Self { versions, name, nodes, replicas, secret, also, channel, cluster, life, proof }
    }
}

impl HandshakeNode {
    fn identity(&self) -> Arc<HandshakeIdentity> {
        /// The topology is made once, because placing all keys takes milliseconds.
        static USUAL: LazyLock<Topology> = LazyLock::new(|| topology(["a", "b", "c"], 3));
        let usual = self.nodes == ["a", "b", "c"] && self.replicas == 3;
        let topology = if usual { USUAL.clone() } else { topology(self.nodes, self.replicas) };
        let own = topology.find(self.name).unwrap();
        let incarnation = Incarnation(100 + u64::from(own.0));
        let also = self.also.map(|also| Secret::new(also.into()));
        let secrets = Arc::new(Secrets::new(Secret::new(self.secret.into()), also));
        let life = Boot { id: self.life, begins: LogPosition(7), newest: 0 };
        let boot_history = BootHistory::new(Vec::new(), life);
        let logs = Arc::new(Logs::new(incarnation, boot_history, &[]));
        let layouts =
            Arc::new(crate::membership::adopted_layout::Layouts::new_fixed(&topology, own));
        let known = (logs, Arc::new(Proofs::new(self.proof)), layouts);
        let cluster = Arc::new(OwnCluster::new(self.cluster));
        let mut identity =
            HandshakeIdentity::new(Views::new_fixed(topology), own, cluster, secrets, known);
        identity.versions = self.versions;
        Arc::new(identity)
    }
}

fn topology(nodes: [&str; 3], replicas: u8) -> Topology {
    let member = |name: &str| Member { name: name.to_owned(), zone: String::new(), weight: 1 };
    Topology::new(nodes.map(member).into(), replicas).unwrap()
}

fn node_named(name: &'static str) -> HandshakeNode {
    HandshakeNode { name, ..HandshakeNode::default() }
}

const TO_B: NodeId = NodeId(1);

/// The outcome of a side of a handshake.
type Outcome = Result<PeerSeen, HandshakeRefused>;

fn shake_in_steps(
    dialer: Arc<HandshakeIdentity>,
    acceptor: Arc<HandshakeIdentity>,
    to: NodeId,
    step: usize,
) -> (Outcome, Outcome) {
    let mut out = Vec::new();
    let dialing = Handshake::dial(dialer, to, ConnectionKind::Bulk, [1; 32], &mut out);
    let accepting = Handshake::accept(acceptor, [2; 32]);
    between((dialing, out), accepting, step)
}

fn between(
    (mut dialing, mut to_acceptor): (Handshake, Vec<u8>),
    mut accepting: Handshake,
    step: usize,
) -> (Outcome, Outcome) {
    let mut to_dialer = Vec::new();
    let (mut dialed, mut accepted) = (None, None);
    while dialed.is_none() || accepted.is_none() {
        assert!(!(to_acceptor.is_empty() && to_dialer.is_empty()), "both wait");
        for bytes in std::mem::take(&mut to_acceptor).chunks(step) {
            if accepted.is_none() {
                accepted = accepting.receive(bytes, &mut to_dialer).transpose();
            }
        }
        for bytes in std::mem::take(&mut to_dialer).chunks(step) {
            if dialed.is_none() {
                dialed = dialing.receive(bytes, &mut to_acceptor).transpose();
            }
        }
        if dialed.as_ref().is_some_and(Result::is_err) && to_acceptor.is_empty() {
            accepted = accepted.or(Some(Err(unheard())));
        }
    }
    (dialed.unwrap(), accepted.unwrap())
}

/// The error of a side whose connection was closed.
fn unheard() -> HandshakeRefused {
    HandshakeRefused { reason: Reason::Malformed("closed"), text: String::new() }
}

fn shake(dialer: &HandshakeNode, acceptor: &HandshakeNode) -> (Outcome, Outcome) {
    let mut out = Vec::new();
    let identity = dialer.identity();
    let dialing = Handshake::dial(identity, TO_B, ConnectionKind::Bulk, [1; 32], &mut out);
    let accepting =
        Handshake::accept(acceptor.identity(), [2; 32]).bind_to_channel(acceptor.channel);
    between((dialing.bind_to_channel(dialer.channel), out), accepting, usize::MAX)
}

#[test]
fn two_secrets_are_accepted_while_one_replaces_the_other() {
    let (old, new) = ("open sesame", "open barley!");
    let with = |name, secret, also| HandshakeNode { secret, also, ..node_named(name) };
    // The steps of a secret's rotation, which an operator takes node by node.
    let steps = [(old, None), (old, Some(new)), (new, Some(old)), (new, None)];
    for pair in steps.windows(2) {
        for (of_a, of_b) in [(pair[0], pair[1]), (pair[1], pair[0]), (pair[0], pair[0])] {
            let (a, b) = (with("a", of_a.0, of_a.1), with("b", of_b.0, of_b.1));
            let (dialed, accepted) = shake(&a, &b);
            assert!(dialed.is_ok() && accepted.is_ok(), "{of_a:?} dials {of_b:?}");
        }
    }
    let (dialed, accepted) = shake(&with("a", old, None), &with("b", new, None));
    assert_eq!(dialed.unwrap_err().reason, Reason::Secret);
    assert_eq!(accepted.unwrap_err().reason, Reason::Secret);
}

#[test]
fn secrets_can_be_replaced_while_the_node_runs() {
    let b = node_named("b").identity();
    let secret = |text: &str| Secret::new(text.into());
    assert!(b.secrets.replace(secret("open barley!"), Some(secret("another one"))));
    assert!(!b.secrets.replace(secret("open barley!"), Some(secret("another one"))));
    let shake = |secret| {
        let a = HandshakeNode { secret, ..node_named("a") }.identity();
        shake_in_steps(a, Arc::clone(&b), TO_B, usize::MAX)
    };
    assert_eq!(shake("open sesame").0.unwrap_err().reason, Reason::Secret);
    assert!(shake("open barley!").0.is_ok() && shake("another one").1.is_ok());
}

#[test]
fn a_proof_is_valid_on_its_own_channel_only() {
    let over = |name, channel| HandshakeNode { channel, ..node_named(name) };
    let good = Some([7; 32]);
    let (dialed, accepted) = shake(&over("a", good), &over("b", good));
    assert!(dialed.is_ok() && accepted.is_ok());
    // A man in the middle has two connections, or removes TLS from one of them.
    for (of_a, of_b) in [(good, Some([8; 32])), (good, None), (None, good)] {
        let (dialed, accepted) = shake(&over("a", of_a), &over("b", of_b));
        assert_eq!(dialed.unwrap_err().reason, Reason::Secret, "{of_a:?} {of_b:?}");
        assert_eq!(accepted.unwrap_err().reason, Reason::Secret, "{of_a:?} {of_b:?}");
    }
}

#[test]
fn two_matching_nodes_complete_the_handshake() {
    let proven = RoundId { time: 70, node: NodeId(2) };
    let proof = Proof { seal: proven, proven, ..Proof::default() };
    let (a, b) =
        (node_named("a").identity(), HandshakeNode { proof, ..node_named("b") }.identity());
    let (disk, life, position) = (Incarnation(99), BootId(30), LogPosition(12));
    b.logs.note_boot(NodeId(0), disk, life);
    b.logs.know(NodeId(0), disk);
    assert!(b.logs.note_envelope(NodeId(0), disk, life, position));
    let knows_us = b.logs.claim(NodeId(0));
    let reported = Reported { life: Some(life), position, late: LogPosition::START };
    assert_eq!(knows_us.unwrap().reported, reported);
    for step in [1, 7, usize::MAX] {
        let (dialed, accepted) = shake_in_steps(a.clone(), b.clone(), TO_B, step);
        let connection = ConnectionKind::Bulk;
        let (node, incarnation, life) = (TO_B, Incarnation(101), BootId(40));
        let cluster = Some(ClusterId(5));
        let (voter, version) = (Some(VoterId(1)), VERSIONS.1);
        let met = PeerSeen {
            node,
            incarnation,
            life,
            knows_us,
            knew_only_this_disk: true,
            proven,
            voter,
            cluster,
            connection,
            version,
        };
        assert_eq!(dialed, Ok(met));
        let (node, proven) = (NodeId(0), RoundId::default());
        let incarnation = Incarnation(100);
        let (knows_us, knew_only_this_disk) = (None, false);
        let met = PeerSeen { node, incarnation, knows_us, knew_only_this_disk, proven, ..met };
        assert_eq!(accepted, Ok(met));
    }
}

#[test]
fn another_disk_of_a_connected_node_is_refused_with_a_text() {
    let (a, b) = (node_named("a").identity(), node_named("b").identity());
    b.logs.note_boot(NodeId(0), Incarnation(99), BootId(30));
    b.logs.note_connection(NodeId(0), true);
    let meet = || shake_in_steps(a.clone(), b.clone(), TO_B, usize::MAX);
    let (dialed, accepted) = meet();
    let (dialed, accepted) = (dialed.unwrap_err(), accepted.unwrap_err());
    assert_eq!((dialed.reason, accepted.reason), (Reason::Replaced, Reason::Taken));
    assert!(dialed.text.contains("b is connected to another process that runs as this node, a"));
    assert!(accepted.text.contains("another process runs as a with another data directory"));
    b.logs.note_connection(NodeId(0), false);
    assert!(meet().1.is_ok(), "the first one is gone");
}

#[test]
fn of_two_processes_with_one_disk_the_later_one_is_accepted() {
    let (older, later) = (node_named("a"), HandshakeNode { life: BootId(41), ..node_named("a") });
    let b = node_named("b").identity();
    let meets = |someone: &HandshakeNode| {
        let (dialed, accepted) = shake_in_steps(someone.identity(), b.clone(), TO_B, usize::MAX);
        if let Ok(met) = &accepted {
            b.logs.note_boot(met.node, met.incarnation, met.life);
        }
        (dialed, accepted)
    };
    assert!(meets(&older).1.is_ok() && meets(&later).1.is_ok() && meets(&later).0.is_ok());
    let (dialed, accepted) = meets(&older);
    assert_eq!(accepted.unwrap_err().reason, Reason::Outlived);
    let refused = dialed.unwrap_err();
    assert_eq!(refused.reason, Reason::Fenced);
    assert!(refused.text.contains("no longer serves requests"), "{refused}");
}

#[test]
fn a_node_without_a_cluster_id_matches_any_cluster() {
    let (dialed, accepted) =
        shake(&HandshakeNode { cluster: None, ..node_named("a") }, &node_named("b"));
    assert_eq!((dialed.unwrap().cluster, accepted.unwrap().cluster), (Some(ClusterId(5)), None));
}

#[test]
fn a_mismatch_is_explained_on_both_sides() {
    let nodes = ["a", "b", "x"];
    let cases = [
        (
            HandshakeNode { secret: "", ..node_named("a") },
            TO_B,
            Reason::Secret,
            "different cluster secrets",
        ),
        (
            HandshakeNode { cluster: Some(ClusterId(6)), ..node_named("a") },
            TO_B,
            Reason::Cluster,
            "0000000000000006",
        ),
        (
            HandshakeNode { nodes, ..node_named("a") },
            TO_B,
            Reason::Topology,
            "different topologies: node ",
        ),
        (node_named("a"), NodeId(2), Reason::Name, "which URL belongs to which name"),
        (node_named("b"), NodeId(2), Reason::Itself, "this node, b, itself"),
    ];
    for (dialer, to, reason, said) in cases {
        let (dialer, acceptor) = (dialer.identity(), node_named("b").identity());
        let (dialed, accepted) = shake_in_steps(dialer, acceptor, to, usize::MAX);
        for outcome in [dialed, accepted] {
            let refused = outcome.unwrap_err();
            assert_eq!(refused.reason, reason);
            assert!(refused.text.contains(said), "{refused}");
            assert!(!refused.text.contains('\n'), "{refused}");
        }
    }
}

#[test]
fn a_topology_difference_is_described_from_both_sides() {
    let (dialed, accepted) =
        shake(&HandshakeNode { replicas: 2, ..node_named("a") }, &node_named("b"));
    let dialed = dialed.unwrap_err().text;
    assert!(dialed.contains("2 in our topology, 3 in b's"), "{dialed}");
    let accepted = accepted.unwrap_err().text;
    assert!(accepted.contains("3 in our topology, 2 in a's"), "{accepted}");
}

/// Returns the frames of a whole, good handshake: the dialer's and the acceptor's.
fn record_handshake(nonces: [u8; 2]) -> (Vec<u8>, Vec<u8>) {
    let (a, b) = (node_named("a").identity(), node_named("b").identity());
    let (mut dialer, mut acceptor) = (Vec::new(), Vec::new());
    let mut dialing = Handshake::dial(a, TO_B, ConnectionKind::Small, [nonces[0]; 32], &mut dialer);
    let mut accepting = Handshake::accept(b, [nonces[1]; 32]);
    let (mut at, mut back_at) = (0, 0);
    while at < dialer.len() || back_at < acceptor.len() {
        let said = dialer[at..].to_vec();
        at = dialer.len();
        accepting.receive(&said, &mut acceptor).unwrap();
        let said = acceptor[back_at..].to_vec();
        back_at = acceptor.len();
        dialing.receive(&said, &mut dialer).unwrap();
    }
    (dialer, acceptor)
}

fn accepts(nonce: u8, bytes: &[u8]) -> (Result<Option<PeerSeen>, HandshakeRefused>, Vec<u8>) {
    let mut out = Vec::new();
    let outcome =
        Handshake::accept(node_named("b").identity(), [nonce; 32]).receive(bytes, &mut out);
    (outcome, out)
}

#[test]
fn a_replayed_proof_is_refused() {
    let (dialer, _) = record_handshake([1, 2]);
    assert!(accepts(2, &dialer).0.unwrap().is_some(), "the recording itself is good");
    let (outcome, out) = accepts(3, &dialer);
    assert_eq!(outcome.unwrap_err().reason, Reason::Secret);
    assert!(!out.windows(32).any(|bytes| bytes == proof(&dialer)), "nothing is proved to it");
}

/// Returns the PROOF in a side's bytes: the second frame.
fn proof(sent: &[u8]) -> &[u8] {
    let hello = u32::from_le_bytes(sent[..4].try_into().unwrap()) as usize;
    &sent[FRAME_HEAD + hello + FRAME_HEAD..][..PROOF_LEN]
}

#[test]
fn a_replayed_acceptor_is_refused() {
    let (_, acceptor) = record_handshake([1, 2]);
    let mut out = Vec::new();
    let a = node_named("a").identity();
    let mut dialing = Handshake::dial(a, TO_B, ConnectionKind::Small, [9; 32], &mut out);
    assert_eq!(dialing.receive(&acceptor, &mut out).unwrap_err().reason, Reason::Secret);
}

#[test]
fn a_reflected_proof_is_refused() {
    let mut sent = Vec::new();
    let a = node_named("a").identity();
    let mut dialing = Handshake::dial(a, TO_B, ConnectionKind::Small, [9; 32], &mut sent);
    let thrown_back = sent.clone();
    let refused = dialing.receive(&thrown_back, &mut sent).unwrap_err();
    assert_eq!(refused.reason, Reason::Malformed("both sides have one role"));

    // With a changed role in the HELLO, the reflected proof is one of the wrong role.
    let mut sent = Vec::new();
    let a = node_named("a").identity();
    let mut dialing = Handshake::dial(a, TO_B, ConnectionKind::Small, [9; 32], &mut sent);
    let mut hello = sent.clone();
    hello[FRAME_HEAD + 20] = 1;
    let begin = sent.len();
    dialing.receive(&hello, &mut sent).unwrap();
    let own_proof = sent[begin..].to_vec();
    let refused = dialing.receive(&own_proof, &mut sent).unwrap_err();
    assert_eq!(refused.reason, Reason::Secret);
}

/// Shakes hands between releases that speak these versions, and returns the outcomes of both sides.
fn shake_between(dialer: (u16, u16), acceptor: (u16, u16)) -> (Outcome, Outcome) {
    let (a, b) = (node_named("a"), node_named("b"));
    let speaking = |who: HandshakeNode, versions| HandshakeNode { versions, ..who }.identity();
    shake_in_steps(speaking(a, dialer), speaking(b, acceptor), TO_B, usize::MAX)
}

#[test]
fn the_lack_of_a_common_version_is_reported() {
    for (a, b, its, others) in [
        ((3, 4), (1, 2), "versions 1 to 2", "versions 3 to 4"),
        ((1, 1), (2, 2), "version 2", "version 1"),
        ((1, 1), (3, 4), "versions 3 to 4", "version 1"),
    ] {
        let (dialed, accepted) = shake_between(a, b);
        let (dialed, accepted) = (dialed.unwrap_err(), accepted.unwrap_err());
        let said = |who, theirs, own, ours| {
            format!(
                "{who} supports {theirs} of the peer protocol, this node, {own}, {ours}: upgrade"
            )
        };
        assert_eq!((dialed.reason, accepted.reason), (Reason::Version, Reason::Version));
        assert!(dialed.text.contains(&said("b", its, "a", others)), "{dialed}");
        assert!(accepted.text.contains(&said("a", others, "b", its)), "{accepted}");
    }
}

/// The refusing node sends no HELLO.
#[test]
fn a_node_that_sends_no_versions_is_refused_with_reason_version() {
    let (a, out) = (node_named("a").identity(), &mut Vec::new());
    let mut dialing = Handshake::dial(a, TO_B, ConnectionKind::Small, [9; 32], out);
    let verdict = [1, 0, 0, 0, frame::VERDICT, Reason::Version.code()];
    let heard = dialing.receive(&verdict, &mut Vec::new()).unwrap_err();
    let theirs = "b supports other versions of the peer protocol, this node, a, version 1";
    assert!(heard.reason == Reason::Version && heard.text.contains(theirs), "{heard}");
}

/// A cluster of three is upgraded, node by node, from a release that speaks version 1 to a release
/// that also speaks version 2, and downgraded again. (No release speaks version 2 yet.)
#[test]
fn a_cluster_is_upgraded_and_downgraded_node_by_node() {
    let (older, later) = ((1, 1), (1, 2));
    let up = [[later, older, older], [later, later, older], [later, later, later]];
    let down = [[later, later, older], [later, older, older], [older, older, older]];
    for releases in up.into_iter().chain(down) {
        let nodes = ["a", "b", "c"].into_iter().zip(releases);
        for (dialer, speaks) in nodes.clone() {
            for (place, (acceptor, other)) in nodes.clone().enumerate() {
                if dialer == acceptor {
                    continue;
                }
                let of = |name, versions| HandshakeNode { versions, ..node_named(name) }.identity();
                let (dialer, acceptor) = (of(dialer, speaks), of(acceptor, other));
                let to = NodeId(place as u16);
                let (dialed, accepted) = shake_in_steps(dialer, acceptor, to, usize::MAX);
                let spoken = (dialed.unwrap().version, accepted.unwrap().version);
                let expected = speaks.1.min(other.1);
                assert_eq!(spoken, (expected, expected), "{releases:?}");
            }
        }
    }
}

/// A later version may add fields to the HELLO after those that this version knows.
#[test]
fn the_hello_of_a_later_version_is_read() {
    let mut sent = Vec::new();
    Handshake::dial(node_named("a").identity(), TO_B, ConnectionKind::Small, [9; 32], &mut sent);
    let hello = Hello::decode(&sent[FRAME_HEAD..]).unwrap();
    sent.extend_from_slice(b"more");
    assert_eq!(Hello::decode(&sent[FRAME_HEAD..]), Ok(hello));
    assert!(Hello::decode(&sent[FRAME_HEAD..sent.len() - 5]).is_err(), "one byte less");
}

fn first_layout() -> Layout {
    Layout::first(&topology(["a", "b", "c"], 3), |_| String::new())
}

/// Makes node `name` of a cluster whose first layout was changed.
fn identity_after_change(name: &str, change: &PlanChange) -> Arc<HandshakeIdentity> {
    let mut layout = first_layout().plan_change(change, |_| Some(VoterId(1))).unwrap();
    while let Some(next) = layout.next_stage() {
        layout = next;
    }
    with_layout(name, layout)
}

/// Makes node `name` with this layout in force.
fn with_layout(name: &str, layout: Layout) -> Arc<HandshakeIdentity> {
    let (settled, epoch) = (layout.topology().unwrap(), layout.epoch);
    let own = settled.find(name).unwrap();
    let view = View::new_settled(epoch, layout.placement_epoch, settled);
    let view = match layout.decrees.last() {
        Some(decree) => view.with_forced_layout(decree.number),
        None => view,
    };
    let voter = Voter { node: own, id: Some(VoterId(1)), is_first: true };
    let layouts = Arc::new(crate::membership::adopted_layout::Layouts::first(voter, layout));
    let logs = Arc::new(Logs::first(Incarnation(100 + u64::from(own.0))));
    let known = (logs, Arc::new(Proofs::new(Proof::default())), layouts);
    let secrets = Arc::new(Secrets::new(Secret::new("open sesame".into()), None));
    let cluster = Arc::new(OwnCluster::new(Some(ClusterId(5))));
    Arc::new(HandshakeIdentity::new(Arc::new(Views::new(view)), own, cluster, secrets, known))
}

fn d_joins() -> PlanChange {
    let member = Member { name: "d".to_owned(), zone: String::new(), weight: 1 };
    let joiner = Joiner { member, url: "http://d".to_owned(), disk: Some(Incarnation(7)) };
    PlanChange { add: vec![joiner], ..PlanChange::default() }
}

#[test]
fn a_node_that_was_away_learns_of_a_joiner_from_the_joiner() {
    for d_dials in [true, false] {
        let (b, d) = (node_named("b").identity(), identity_after_change("d", &d_joins()));
        // B does not know D: B dials other nodes only, and A is at D's address.
        let (dialer, acceptor, to) = if d_dials { (&d, &b, TO_B) } else { (&b, &d, NodeId(0)) };
        let (dialed, accepted) = shake_in_steps(dialer.clone(), acceptor.clone(), to, 7);
        let refused = if d_dials { accepted } else { dialed };
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason, Reason::Name);
        assert!(refused.text.contains("d is not a member of the cluster"), "{refused}");
        assert_eq!(b.layouts.known_layout().id(), d.layouts.known_layout().id(), "{d_dials}");
    }
}

#[test]
fn a_removed_node_learns_that_it_was_removed() {
    let change =
        PlanChange { remove: vec!["a".into()], replicas: Some(2), ..PlanChange::default() };
    let (a, b) = (node_named("a").identity(), identity_after_change("b", &change));
    let (dialed, accepted) = shake_in_steps(a.clone(), b.clone(), TO_B, usize::MAX);
    let dialed = dialed.unwrap_err();
    assert_eq!(dialed.reason, Reason::Removed);
    assert!(dialed.text.contains("b refuses this node, a, which was removed"), "{dialed}");
    let refused = accepted.unwrap_err();
    assert_eq!(refused.reason, Reason::Removed);
    assert!(refused.text.contains("a was removed from the cluster: to add it again"), "{refused}");
    assert_eq!(a.layouts.known_layout().id(), b.layouts.known_layout().id());
    assert!(a.layouts.known_layout().is_retired(NodeId(0)));
}

#[test]
fn a_stranger_to_the_cluster_learns_no_layout() {
    let change =
        PlanChange { remove: vec!["a".into()], replicas: Some(2), ..PlanChange::default() };
    for stranger in [
        HandshakeNode { cluster: Some(ClusterId(6)), ..node_named("a") },
        HandshakeNode { cluster: None, ..node_named("a") },
        HandshakeNode { secret: "open barley", ..node_named("a") },
    ] {
        let (a, b) = (stranger.identity(), identity_after_change("b", &change));
        let (dialed, accepted) = shake_in_steps(a.clone(), b, TO_B, usize::MAX);
        assert!(dialed.is_err() && accepted.is_err());
        assert_eq!(a.layouts.known_layout().epoch, 1, "it is told nothing, and takes nothing");
    }
}

/// A removed node whose disk was lost has no cluster id, and learns no layout.
#[test]
fn a_removed_node_without_its_disk_is_told_that_it_was_removed() {
    let change =
        PlanChange { remove: vec!["a".into()], replicas: Some(2), ..PlanChange::default() };
    let a = HandshakeNode { cluster: None, ..node_named("a") }.identity();
    let (dialed, _) = shake_in_steps(a.clone(), identity_after_change("b", &change), TO_B, 7);
    let refused = dialed.unwrap_err();
    assert_eq!(refused.reason, Reason::Removed);
    assert!(refused.text.contains("b refuses this node, a, which was removed"), "{refused}");
    assert_eq!(a.layouts.known_layout().epoch, 1);
}

/// Returns the layout that node `own` forced alone after `base`.
fn forced_layout(base: &Layout, own: u16, voter: u64) -> Layout {
    base.plan_forced_layout(NodeId(own), VoterId(voter), &[]).unwrap()
}

fn of_council(base: &Layout, name: &str) -> Layout {
    let council = Some(vec![name.to_owned()]);
    base.plan_change(&PlanChange { council, ..PlanChange::default() }, |_| Some(VoterId(1)))
        .unwrap()
}

/// A node that is behind learns of a forced layout. A node that knows a later layout, or another
/// forced layout, is on a fork. Whichever side dials, at least one side then reports the fork, and
/// neither side learns a layout.
#[test]
fn a_node_on_a_fork_is_refused_and_a_node_that_is_behind_learns_the_layout() {
    let later = of_council(&first_layout(), "b");
    let by_a = forced_layout(&first_layout(), 0, 70);
    let by_b = forced_layout(&first_layout(), 1, 71);
    let next = of_council(&by_b, "a");
    for (ours, theirs, is_fork) in [
        (&by_a, &first_layout(), false),
        (&by_a, &later, true),
        (&by_a, &by_b, true),
        (&by_a, &next, true),
        (&of_council(&by_a, "b"), &by_a, false),
    ] {
        for a_dials in [true, false] {
            let (a, b) = (with_layout("a", ours.clone()), with_layout("b", theirs.clone()));
            let (dialer, acceptor, to) = if a_dials { (&a, &b, TO_B) } else { (&b, &a, NodeId(0)) };
            let (one, other) = shake_in_steps(dialer.clone(), acceptor.clone(), to, 7);
            let epochs = (ours.epoch, theirs.epoch);
            if is_fork {
                let reasons = [one, other].map(|side| side.err().map(|refused| refused.reason));
                assert!(reasons.contains(&Some(Reason::Forked)), "{epochs:?}: {reasons:?}");
                assert_eq!(a.layouts.known_layout().id(), ours.id(), "{epochs:?}");
                assert_eq!(b.layouts.known_layout().id(), theirs.id(), "{epochs:?}");
            } else {
                assert!(one.is_ok() && other.is_ok(), "{epochs:?}: {one:?} {other:?}");
                assert_eq!(b.layouts.known_layout().id(), ours.id(), "{epochs:?}");
            }
        }
    }
}

/// A HELLO with a member's name but another id does not come from that member: it may come from a
/// removed node of the same name.
#[test]
fn a_removed_node_is_not_confused_with_a_later_node_of_its_name() {
    let hello = |node| Hello { node, ..sample("c") };
    let b = node_named("b").identity();
    let accepting = Handshake::accept(b, [2; 32]);
    assert_eq!(accepting.node_of(&hello(NodeId(2))), Some(NodeId(2)));
    assert_eq!(accepting.node_of(&hello(NodeId(0))), None, "that is A's");
    assert_eq!(accepting.node_of(&hello(NodeId(9))), None);
}

/// Returns the HELLO of a node of this name.
fn sample(name: &'static str) -> Hello {
    let mut sent = Vec::new();
    Handshake::dial(node_named(name).identity(), TO_B, ConnectionKind::Small, [9; 32], &mut sent);
    Hello::decode(&sent[FRAME_HEAD..]).unwrap()
}

#[test]
fn a_peer_without_the_secret_gets_neither_topology_nor_proof() {
    let (dialer, _) = record_handshake([1, 2]);
    let mut forged = dialer;
    let hello = u32::from_le_bytes(forged[..4].try_into().unwrap()) as usize;
    forged[FRAME_HEAD + hello + FRAME_HEAD] ^= 1;
    let (outcome, out) = accepts(2, &forged);
    assert_eq!(outcome.unwrap_err().reason, Reason::Secret);
    assert!(!out.windows(6).any(|bytes| bytes == b"node c"));
    assert!(out.len() < 200, "a HELLO and a verdict: {} bytes", out.len());
}

#[test]
fn a_long_frame_is_refused_before_it_arrives() {
    let (outcome, _) = accepts(1, &[0xff; FRAME_HEAD]);
    assert!(matches!(outcome.unwrap_err().reason, Reason::Malformed(_)));
    let head = [(HELLO_MAX as u32 + 1).to_le_bytes().as_slice(), &[frame::HELLO]].concat();
    assert!(accepts(1, &head).0.is_err());
}

#[test]
fn bytes_after_the_handshake_are_kept() {
    let (mut dialer, _) = record_handshake([1, 2]);
    dialer.extend_from_slice(b"first envelope");
    let mut accepting = Handshake::accept(node_named("b").identity(), [2; 32]);
    assert!(accepting.receive(&dialer, &mut Vec::new()).unwrap().is_some());
    assert_eq!(accepting.remaining_bytes(), b"first envelope");
}

/// Pins the layout of the bytes: if this test fails, the protocol needs a new version.
#[test]
fn a_handshake_sends_the_documented_bytes() {
    let (dialer, acceptor) = record_handshake([0xd1, 0xac]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let dialer_expected = [
        "97000000 01 6b766f72756d0001 0100 0100 0000000000000000 00 00",
        "0500000000000000 6400000000000000 0000000000000000 4ea0e06ea0f511f1",
        &"d1".repeat(32),
        "01 61 01 62 2800000000000000",
        &"00".repeat(24),
        "0100000000000000",
        "00000000000000000000",
        "0100000000000000 0000 00",
        "20000000 02 f8edafb4a9bf9b3425223ef2bdd1865279ef5912ca3168d02f383fb950ebf2de",
        "01000000 03 00",
    ];
    assert_eq!(hex(&dialer), dialer_expected.concat().replace(' ', ""));
    let acceptor_expected = [
        "97000000 01 6b766f72756d0001 0100 0100 0000000000000000 01 00",
        "0500000000000000 6500000000000000 0000000000000000 4ea0e06ea0f511f1",
        &"ac".repeat(32),
        "01 62 01 61 2800000000000000",
        &"00".repeat(24),
        "0100000000000000",
        "00000000000000000000",
        "0100000000000000 0100 00",
        "20000000 02 b28034008d0e3740a6df9736ff74a41503661158bce5cf2c20ce7583c0280176",
        "01000000 03 00",
    ];
    assert_eq!(hex(&acceptor), acceptor_expected.concat().replace(' ', ""));
}

proptest! {
    #[test]
    fn garbage_never_completes_a_handshake(bytes in vec(any::<u8>(), 0..3000)) {
        let (outcome, out) = accepts(1, &bytes);
        prop_assert!(!matches!(outcome, Ok(Some(_))));
        prop_assert!(out.len() <= 2 * HELLO_MAX);
    }

    #[test]
    fn a_flipped_bit_is_never_accepted(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let (mut dialer, _) = record_handshake([1, 2]);
        // The last frame is the verdict, which proves nothing and can only refuse.
        let proved = dialer.len() - FRAME_HEAD - 1;
        dialer[at.index(proved)] ^= 1_u8 << bit;
        prop_assert!(!matches!(accepts(2, &dialer).0, Ok(Some(_))));
    }
}
