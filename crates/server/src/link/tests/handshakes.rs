//! Tests of handshakes: mismatched peers are refused, and accepted peers are recorded.

use protocol::handshake::Reason;
use protocol::{Claim, Proof, Reported, RoundId};

use super::*;

/// Returns the reasons for which A, the dialer, and B refuse each other.
fn reasons(a: &Setup, b: &Setup) -> [Reason; 2] {
    let outcomes = do_handshake(&a.table(A), &b.table(B), B);
    outcomes.map(|outcome| outcome.unwrap_err().reason)
}

#[test]
fn incompatible_peers_refuse_each_other() {
    let b = Setup::of(B);
    let usual = || Setup::of(A);
    let both = |reason| [reason, reason];
    assert_eq!(reasons(&Setup { secret: "another", ..usual() }, &b), both(Reason::Secret));
    assert_eq!(reasons(&Setup { replicas: 2, ..usual() }, &b), both(Reason::Topology));
    assert_eq!(reasons(&Setup { cluster: ClusterId(6), ..usual() }, &b), both(Reason::Cluster));
    let a = usual().table(A);
    let itself = do_handshake(&a, &a, A).map(|outcome| outcome.unwrap_err().reason);
    assert_eq!(itself, both(Reason::Itself));
    let twin = Setup { incarnation: Incarnation(999), ..usual() }.table(A);
    let namesake = do_handshake(&a, &twin, B).map(|outcome| outcome.unwrap_err().reason);
    assert_eq!(namesake, both(Reason::Namesake));
    let wrong_place = do_handshake(&b.table(B), &a, B).map(|outcome| outcome.unwrap_err().reason);
    assert_eq!(wrong_place, both(Reason::Name));
}

#[test]
fn an_earlier_process_of_a_node_is_refused_and_fenced_once() {
    let b = Setup::of(B).table(B);
    let later = Setup { life: BootId(50), ..Setup::of(A) }.table(A);
    let [_, seen_peer] = do_handshake(&later, &b, B).map(Result::unwrap);
    b.record_handshake(&seen_peer);
    let a = Setup::of(A).table(A);
    let [ours, theirs] = do_handshake(&a, &b, B).map(Result::unwrap_err);
    assert_eq!((ours.reason, theirs.reason), (Reason::Fenced, Reason::Outlived));
    assert!(!b.is_fenced_by(Some(A), &theirs), "it is not b that is fenced");
    assert!(a.is_fenced_by(Some(B), &ours) && a.shared.membership.state.is_fenced());
    assert!(!a.is_fenced_by(Some(B), &ours), "that is no news");
}

#[test]
fn a_removed_node_does_not_count_a_peer_that_refuses_it_as_unreachable() {
    let a = Setup::of(A).table(A);
    let known_disk = &a.shared.membership.known_disk;
    let refusal = |reason| HandshakeRefused { reason, text: String::new() };
    for (reason, acknowledges) in [(Reason::Name, true), (Reason::Removed, false)] {
        assert!(!a.is_fenced_by(Some(B), &refusal(reason)));
        known_disk.mark_away(B, 0);
        known_disk.update_waiting(false, &[B]);
        assert_eq!(known_disk.acknowledges(), acknowledges, "{reason:?}");
    }
}

#[test]
fn a_node_that_learns_of_another_disk_with_its_name_is_not_authoritative() {
    let b = Setup::of(B).table(B);
    let [_, mut seen_peer] = do_handshake(&Setup::of(A).table(A), &b, B).map(Result::unwrap);
    b.record_handshake(&seen_peer);
    assert_eq!(b.observations(A).incarnation(), Some(Incarnation(100)));
    assert!(b.shared.membership.state.is_authoritative(None), "nobody knows better");
    seen_peer.knows_us =
        Some(Claim { incarnation: Incarnation(101), reported: Reported::default() });
    b.record_handshake(&seen_peer);
    assert!(b.shared.membership.state.is_authoritative(None), "that is its disk");
    assert!(!b.shared.membership.logs.is_in_doubt());
    seen_peer.knows_us =
        Some(Claim { incarnation: Incarnation(555), reported: Reported::default() });
    b.record_handshake(&seen_peer);
    assert!(!b.shared.membership.state.is_authoritative(None), "it had another one");
    assert!(
        b.shared.membership.logs.is_in_doubt(),
        "nor does it vote before it has looked at that"
    );
}

#[test]
fn a_node_that_learns_of_a_later_proof_is_not_authoritative() {
    let b = Setup::of(B).table(B);
    let [_, mut seen_peer] = do_handshake(&Setup::of(A).table(A), &b, B).map(Result::unwrap);
    assert_eq!(seen_peer.proven, RoundId::default(), "nothing is proven yet");
    b.record_handshake(&seen_peer);
    let seal = RoundId { time: 70, node: A };
    b.shared.repair.proofs.put_in_force(Proof { seal, ready: seal, ..Proof::default() });
    seen_peer.proven = seal;
    b.record_handshake(&seen_peer);
    assert!(b.shared.membership.state.is_authoritative(None), "it was ready for that");
    seen_peer.proven.time += 1;
    b.record_handshake(&seen_peer);
    assert!(!b.shared.membership.state.is_authoritative(None), "it may hold what is purged");
}
