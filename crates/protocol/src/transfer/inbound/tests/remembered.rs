//! Tests of the history pull: after all records, the node pulls the sources' history of writes with
//! an idempotency key.

use super::*;
use crate::paxos::accepted_ballots::AcceptedBallots;
use crate::paxos::recent::Via;
use crate::transfer::SOURCE_TIMEOUT_MICROS;

const VIAS: [Via; 3] = [Via::Accept, Via::Replica, Via::Chosen];

/// Parses an entry made by [`item`].
pub(super) fn parse_item(name: &[u8], entry: &Record) -> Option<Remembered> {
    let (hash, id) = name.split_first_chunk()?;
    let (key_hash, id) = (u64::from_be_bytes(*hash), u64::from_be_bytes(id.try_into().ok()?));
    let via = *VIAS.get(usize::from(entry.copies()))?;
    let Rank { version, ballot, .. } = entry.rank();
    let (time, family) = (version.time, Version { time: 3, origin: 1 });
    let ballots = AcceptedBallots::one(ballot);
    Some(Remembered { key_hash, id, time, via, ballots, family, step: 1, result: None, digest: 0 })
}

fn item(it: &Remembered) -> (Bytes, Record) {
    let version = Version { time: it.time, origin: it.via as u32 };
    let (name, ballot, copies) = (it.name(), it.ballots.greatest(), it.via as u8);
    let fields = Fields { ballot, copies, ..Fields::new(Kind::Value, version) };
    (Bytes::copy_from_slice(&name), Record::new(&name, &fields, &[]))
}

fn history_page(traces: &[Remembered], next: Option<&Remembered>) -> Reply {
    let next = next.map(|next| Bytes::copy_from_slice(&next.name()));
    Reply::Page(Page { items: traces.iter().map(item).collect(), next, authoritative: true })
}

/// Returns an accepted write of a partition that moves from nodes 1, 2 and 3 to node 0.
fn accepted_write(own: &Own, id: u64) -> Remembered {
    let view = own.shared.view();
    let moves = |partition: &u16| {
        view.must_take_over(*partition, NodeId(0)) && !view.topology.holds(NodeId(0), *partition, 0)
    };
    let key_hash = u64::from((0..=u16::MAX).find(moves).unwrap()) << 48;
    let family = Version { time: 3, origin: 1 };
    let (via, time, ballots) = (Via::Accept, 40 + id, AcceptedBallots::one(40 + id));
    Remembered { key_hash, id, time, via, ballots, family, step: 1, result: None, digest: 0 }
}

fn chosen_write(accepted: Remembered) -> Remembered {
    Remembered { via: Via::Chosen, ..accepted }
}

/// Pulls all records; returns the requests for the history.
fn asks() -> (Own, Vec<CallId>) {
    let mut own = Own::new();
    for (call, _) in own.raise_fence() {
        own.reply(call, page(Vec::new(), None));
    }
    let call = own.only(page_of(0, false, ""));
    own.reply(call, page(Vec::new(), None));
    for (call, _) in own.take_requests() {
        own.reply(call, page(Vec::new(), None));
    }
    let calls = is_asked(&mut own, &[0, 1, 2, 3], &Bytes::new());
    (own, calls)
}

fn is_asked(own: &mut Own, nodes: &[u16], start: &Bytes) -> Vec<CallId> {
    let (calls, asked): (Vec<_>, Vec<_>) = own.take_requests().into_iter().unzip();
    let expected: Vec<_> =
        nodes.iter().map(|node| ObservedRequest::Recollections(*node, start.clone())).collect();
    assert_eq!(asked, expected);
    calls
}

fn has_all(own: &mut Own) -> bool {
    own.store_layouts();
    own.after(1);
    own.store_layouts();
    own.state().has_all
}

fn forgets(own: &Own, of: &Remembered) -> bool {
    own.shared.membership.layouts.recallable_from(Some(of.partition())) > 0
}

#[test]
fn the_pull_ends_once_the_history_of_a_majority_is_stored() {
    let (mut own, calls) = asks();
    let [one, two, three] = [1, 2, 3].map(|id| accepted_write(&own, id));
    own.reply(calls[0], history_page(&[], None));
    own.reply(calls[1], history_page(&[one, two], Some(&three)));
    own.reply(calls[2], history_page(&[one, three], None));
    assert_eq!(own.take_requests(), [], "the third has yet to tell");
    own.reply(calls[3], history_page(&[], None));
    let keep = own.only(ObservedRequest::Keep(vec![chosen_write(one)]));
    assert!(!has_all(&mut own), "what it is to remember is not durable");
    own.reply(keep, Reply::Stored);
    let more = is_asked(&mut own, &[1], &Bytes::copy_from_slice(&three.name()));
    assert!(!has_all(&mut own), "the first has not told all");
    own.reply(more[0], history_page(&[three], None));
    let keep = own.only(ObservedRequest::Keep(vec![chosen_write(three)]));
    own.reply(keep, Reply::Stored);
    assert!(has_all(&mut own));
    assert!(!forgets(&own, &one), "it knows of all others that nobody has done them");
}

#[test]
fn a_failed_store_of_the_history_is_retried() {
    let (mut own, calls) = asks();
    let one = accepted_write(&own, 1);
    for (call, traces) in calls.iter().zip([vec![], vec![one], vec![one], vec![one]]) {
        own.reply(*call, history_page(&traces, None));
    }
    let keep = own.only(ObservedRequest::Keep(vec![chosen_write(one)]));
    own.fails(keep);
    let keep = own.only(ObservedRequest::Keep(vec![chosen_write(one)]));
    assert!(!has_all(&mut own));
    own.reply(keep, Reply::Stored);
    assert!(has_all(&mut own));
}

#[test]
fn an_incomplete_history_of_a_source_is_marked() {
    let (mut own, calls) = asks();
    let one = accepted_write(&own, 1);
    own.reply(calls[0], history_page(&[], None));
    own.reply(calls[1], history_page(&[one], None));
    own.reply(calls[2], history_page(&[one], None));
    own.reply(calls[3], Reply::Page(Page { items: Vec::new(), next: None, authoritative: false }));
    let keep = own.only(ObservedRequest::Keep(vec![chosen_write(one)]));
    own.reply(keep, Reply::Stored);
    assert!(has_all(&mut own));
    assert!(forgets(&own, &one));
    let (bytes, _) = own.shared.membership.layouts.encode();
    let known = (*own.shared.membership.layouts.known_layout()).clone();
    let again = crate::membership::adopted_layout::Layouts::decode(&bytes, known).unwrap();
    assert!(again.recallable_from(Some(one.partition())) > 0, "also after a restart");
    let stays = (0..=u16::MAX).find(|partition| {
        let view = own.shared.view();
        !view.must_take_over(*partition, NodeId(0))
    });
    assert_eq!(own.shared.membership.layouts.recallable_from(stays), 0, "it had that one before");
}

#[test]
fn a_source_of_history_that_fails_is_retried_then_given_up() {
    let (mut own, calls) = asks();
    let one = accepted_write(&own, 1);
    for call in &calls[..3] {
        own.reply(*call, history_page(&[], None));
    }
    own.fails(calls[3]);
    assert_eq!(own.take_requests(), []);
    own.after(RETRY_MICROS);
    let again = is_asked(&mut own, &[3], &Bytes::new());
    // A page out of order is refused.
    own.reply(again[0], history_page(&[accepted_write(&own, 2), one], None));
    own.after(RETRY_MICROS);
    let again = is_asked(&mut own, &[3], &Bytes::new());
    assert!(!has_all(&mut own));
    own.fails(again[0]);
    own.after(SOURCE_TIMEOUT_MICROS);
    let last = is_asked(&mut own, &[3], &Bytes::new());
    assert!(!has_all(&mut own));
    own.fails(last[0]);
    assert!(has_all(&mut own), "it goes on without it");
    assert!(forgets(&own, &one));
}

#[test]
fn the_history_is_pulled_again_from_other_sources() {
    let (mut own, calls) = asks();
    own.reply(calls[0], history_page(&[accepted_write(&own, 1)], None));
    let known = own.shared.membership.layouts.known_layout();
    let mut layout = Layout { epoch: known.epoch + 1, base: 9, ..(*known).clone() };
    layout.before.as_mut().unwrap().nodes[2].is_lost = true;
    own.learns(layout);
    own.after(1);
    let calls = is_asked(&mut own, &[0, 1, 3], &Bytes::new());
    let one = accepted_write(&own, 1);
    own.reply(calls[0], history_page(&[], None));
    own.reply(calls[1], history_page(&[one], None));
    own.reply(calls[2], history_page(&[], None));
    // The replica that is declared lost may have accepted the write too.
    let keep = own.only(ObservedRequest::Keep(vec![Remembered {
        via: Via::Replica,
        ballots: AcceptedBallots::NONE,
        ..one
    }]));
    own.reply(keep, Reply::Stored);
    assert!(has_all(&mut own));
    assert!(!forgets(&own, &one));
}

/// Two of three replicas are lost: no other node remembers a write that only those two accepted.
#[test]
fn a_history_without_a_majority_is_marked_incomplete() {
    let (mut own, calls) = asks();
    let one = accepted_write(&own, 1);
    drop(calls);
    let known = own.shared.membership.layouts.known_layout();
    let mut layout = Layout { epoch: known.epoch + 1, base: 9, ..(*known).clone() };
    layout.before.as_mut().unwrap().nodes[2].is_lost = true;
    layout.before.as_mut().unwrap().nodes[3].is_lost = true;
    own.learns(layout);
    own.after(1);
    for call in is_asked(&mut own, &[0, 1], &Bytes::new()) {
        own.reply(call, history_page(&[], None));
    }
    assert!(has_all(&mut own));
    assert!(forgets(&own, &one));
}

/// The walk ends with a tick, without any further answer.
#[test]
fn a_rebuilt_node_becomes_a_member_although_a_source_fails() {
    let mut own = Own::new_settled(MembershipState::Rebuilding, None);
    own.shared.membership.state.mark_lost(9);
    own.after(1);
    own.after(1);
    for (call, asked) in std::mem::take(&mut own.open) {
        if matches!(asked, ObservedRequest::Lacking(_)) {
            own.reply(call, page(Vec::new(), None));
        }
    }
    own.after(1);
    let mut failing = None;
    for (call, asked) in std::mem::take(&mut own.open) {
        match asked {
            ObservedRequest::Recollections(1, _) => failing = Some(call),
            ObservedRequest::Recollections(..) => own.reply(call, history_page(&[], None)),
            _ => {}
        }
    }
    own.fails(failing.expect("each source is asked"));
    assert!(!own.stored_states.contains(&MembershipState::Member));
    own.after(SOURCE_TIMEOUT_MICROS);
    let mut asked = std::mem::take(&mut own.open).into_iter();
    let last = asked.find(|(_, asked)| matches!(asked, ObservedRequest::Recollections(1, _)));
    own.fails(last.expect("it is asked once more").0);
    own.after(1);
    assert!(own.stored_states.contains(&MembershipState::Member), "it goes on without it");
}
