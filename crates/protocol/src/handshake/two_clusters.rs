//! Tests of all cases in which two nodes decide, by their ids and by the disks that they know,
//! whether they belong to one cluster.

use super::*;
use crate::membership::adopted_layout::Layouts;
use crate::membership::cluster_id::OwnCluster;
use crate::membership::disk_ids::LogPosition;
use crate::membership::logs::{Boot, BootHistory, Logs, Reported};
use crate::placement::topology::{Member, Topology};
use crate::placement::view::Views;
use crate::repair::watermark::{Proof, Proofs};

const G: u64 = 5;
const H: u64 = 6;

/// A node's knowledge of the other side's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acquaintance {
    Nothing,
    Its,
    Another,
}

use Acquaintance::{Another, Its, Nothing};

/// One side of a handshake in the table below.
#[derive(Debug, Clone, Copy)]
struct Side {
    id: u64,
    knows: Acquaintance,
    is_data_shared: bool,
}

const fn side(id: u64, knows: Acquaintance) -> Side {
    Side { id, knows, is_data_shared: false }
}

const fn with_shared_data(side: Side) -> Side {
    Side { is_data_shared: true, ..side }
}

fn identity(side: Side, own: NodeId) -> Arc<HandshakeIdentity> {
    let member = |name: &str| Member { name: name.to_owned(), zone: String::new(), weight: 1 };
    let topology = Topology::new(["a", "b", "c"].map(member).into(), 3).unwrap();
    let disk = |node: NodeId| Incarnation(100 + u64::from(node.0));
    let other = NodeId(1 - own.0);
    let known = match side.knows {
        Nothing => None,
        Its => Some(disk(other)),
        Another => Some(Incarnation(999)),
    };
    let claim = |incarnation| (other, Claim { incarnation, reported: Reported::default() });
    let claims: Vec<_> = known.map(claim).into_iter().collect();
    let life = Boot { id: BootId(40), begins: LogPosition(7), newest: 0 };
    let logs = Arc::new(Logs::new(disk(own), BootHistory::new(Vec::new(), life), &claims));
    let cluster = OwnCluster::new(ClusterId::of_number(side.id));
    if side.is_data_shared {
        cluster.mark_data_shared();
    }
    let layouts = Arc::new(Layouts::new_fixed(&topology, own));
    let known = (logs, Arc::new(Proofs::new(Proof::default())), layouts);
    let secrets = Arc::new(Secrets::default());
    Arc::new(HandshakeIdentity::new(
        Views::new_fixed(topology),
        own,
        Arc::new(cluster),
        secrets,
        known,
    ))
}

/// Lets node `a` dial node `b`, and returns the outcomes of both sides.
fn shake(a: Side, b: Side) -> [Result<PeerSeen, HandshakeRefused>; 2] {
    let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
    let (a, b) = (identity(a, NodeId(0)), identity(b, NodeId(1)));
    let mut dialer = Handshake::dial(a, NodeId(1), ConnectionKind::Small, [1; 32], &mut to_b);
    let mut acceptor = Handshake::accept(b, [2; 32]);
    let (mut dialed, mut accepted) = (None, None);
    while dialed.is_none() || accepted.is_none() {
        let received = acceptor.receive(&std::mem::take(&mut to_b), &mut to_a);
        accepted = accepted.or(received.transpose());
        let received = dialer.receive(&std::mem::take(&mut to_a), &mut to_b);
        dialed = dialed.or(received.transpose());
    }
    [dialed.unwrap(), accepted.unwrap()]
}

#[test]
fn two_nodes_accept_each_other_only_within_one_cluster() {
    let cases = [
        // Ids decide, whichever disks are known, because disks are replaced.
        ("one id", side(G, Its), side(G, Its), true),
        ("one id, and both disks were replaced", side(G, Another), side(G, Another), true),
        ("two ids", side(G, Nothing), side(H, Nothing), false),
        ("two ids, and a copied directory", side(G, Its), side(H, Its), false),
        // Nodes of a new list.
        ("two new nodes meet", side(0, Nothing), side(0, Nothing), true),
        ("two new nodes meet again", side(0, Its), side(0, Its), true),
        ("one of them was killed early", side(0, Its), side(0, Nothing), true),
        ("its disk was replaced early", side(0, Another), side(0, Nothing), true),
        (
            "its disk was replaced early, and the other took data with a third node",
            with_shared_data(side(0, Another)),
            side(0, Nothing),
            true,
        ),
        // A replaced disk in a cluster that has an id.
        ("a replaced disk", side(G, Another), side(0, Nothing), true),
        ("a replaced disk that nobody knew", side(G, Nothing), side(0, Nothing), true),
        ("a replaced disk that met the node already", side(G, Another), side(0, Its), true),
        ("a replaced disk, and the node forgot it", side(G, Nothing), side(0, Its), true),
        ("another replaced disk is met first", side(0, Nothing), side(0, Nothing), true),
        ("two replaced disks met, and then the node", side(G, Another), side(0, Nothing), true),
        ("a node that missed the birth", side(G, Its), with_shared_data(side(0, Its)), true),
        (
            "a node that missed the birth meets a disk that was replaced since",
            side(G, Nothing),
            with_shared_data(side(0, Another)),
            true,
        ),
        // Two clusters, one or both without an id yet.
        ("each knows another one", side(G, Another), side(0, Another), false),
        ("each knows another one, without ids", side(0, Another), side(0, Another), false),
        (
            "one that took data with others, and did not know this node",
            side(G, Another),
            with_shared_data(side(0, Nothing)),
            false,
        ),
        ("the same, without ids", side(0, Another), with_shared_data(side(0, Nothing)), false),
    ];
    for (what, a, b, are_one) in cases {
        for (a, b) in [(a, b), (b, a)] {
            for outcome in shake(a, b) {
                match outcome {
                    Ok(_) => assert!(are_one, "{what}: taken in"),
                    Err(refused) => {
                        assert!(!are_one, "{what}: {refused}");
                        assert_eq!(refused.reason, Reason::Cluster, "{what}");
                        assert!(refused.text.contains("exchange nothing"), "{refused}");
                        let named = refused.text.contains("start b with an empty directory once");
                        let named_by_first = refused.text.contains("start a with an empty");
                        let one_knows = [a.knows, b.knows].into_iter().filter(|it| *it == Another);
                        let is_one = one_knows.count() == 1;
                        assert_eq!(named, is_one && a.knows == Another, "{what}: {refused}");
                        assert_eq!(named_by_first, is_one && b.knows == Another, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_node_reports_whether_it_knew_another_disk_of_the_peer() {
    let seen = |knows| shake(side(G, knows), side(G, Nothing))[1].clone().unwrap();
    assert!(!seen(Nothing).knew_only_this_disk && seen(Nothing).knows_us.is_none());
    assert!(!seen(Its).knew_only_this_disk, "it is not known to be the first");
    let (a, b) = (identity(side(G, Its), NodeId(0)), identity(side(G, Nothing), NodeId(1)));
    a.logs.mark_only_disk(NodeId(1));
    let mut out = Vec::new();
    let _dialer =
        Handshake::dial(Arc::clone(&a), NodeId(1), ConnectionKind::Small, [1; 32], &mut out);
    let hello = Hello::decode(&out[FRAME_HEAD..]).unwrap();
    assert!(hello.knows_you.is_some() && !hello.knew_another);
    a.logs.note_boot(NodeId(1), Incarnation(55), BootId(1));
    assert!(a.logs.had_another_disk(NodeId(1)), "{:?}", b.own());
}
