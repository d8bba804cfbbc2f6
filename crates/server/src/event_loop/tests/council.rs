//! Tests of a voter of the metadata quorum: the voter replies once its vote is durable, and does
//! not vote before it knows which votes it may have lost.

use protocol::layout::{Layout, PlanChange, VoteReply, VoteRequest, VoterId};
use protocol::{Membership, MembershipState};

use super::*;

/// Returns the first layout and a possible next one.
fn layouts(stage: &TestNode) -> [Arc<Layout>; 2] {
    let first = stage.shared.membership.layouts.known_layout();
    let change = PlanChange { council: Some(vec!["a".to_owned()]), ..PlanChange::default() };
    let next = first.plan_change(&change, |_| Some(VoterId(5))).unwrap();
    [first, Arc::new(next)]
}

/// Sends a request about layouts; returns the loop's immediate actions.
fn ask(stage: &mut TestNode, own: &mut Loop, id: u64, request: VoteRequest) -> Vec<Done> {
    own.handle(stage, request_event(id, Request::Council(request)));
    stage.take()
}

/// Commits the batch of a `Done::Keep` if `result` is a success, then reports `result` to the loop.
fn keep(stage: &mut TestNode, own: &mut Loop, done: Vec<Done>, result: Result<(), lsm::Error>) {
    let [Done::Keep(Some(op), batch, keeps)] = &done[..] else { panic!("not kept: {done:?}") };
    if result.is_ok() {
        assert!(
            batch.forces_sync(),
            "whatever the settings say about when a write is acknowledged"
        );
        stage.engine.commit(std::iter::once(batch)).unwrap();
    }
    own.on_own_record_stored(stage, *op, keeps, result);
}

fn council_reply(id: u64, reply: VoteReply) -> [(u64, Reply); 1] {
    [(id, Reply::Council(reply))]
}

#[test]
fn a_vote_is_sent_once_it_is_durable() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let [base, layout] = layouts(&stage);
    let prepare = |ballot| VoteRequest::Prepare { base: Arc::clone(&base), ballot };
    let done = ask(&mut stage, &mut own, 1, prepare(3));
    // The vote can't be stored, so the reply is an error. The next reply reveals the vote, so this
    // reply waits until the vote is stored.
    let full = || lsm::Error::NoSpace { what: "tables" };
    keep(&mut stage, &mut own, done, Err(full()));
    assert_eq!(stage.replies(), [(1, Reply::NoSpace)]);
    let done = ask(&mut stage, &mut own, 2, prepare(2));
    keep(&mut stage, &mut own, done, Ok(()));
    assert_eq!(stage.replies(), council_reply(2, VoteReply::Outbid(3)));

    let accept = VoteRequest::Accept { ballot: 3, layout: Arc::clone(&layout) };
    let done = ask(&mut stage, &mut own, 3, accept);
    keep(&mut stage, &mut own, done, Ok(()));
    assert_eq!(stage.replies(), council_reply(3, VoteReply::Accepted));
    own.handle(&mut stage, request_event(4, Request::Council(prepare(1))));
    assert_eq!(
        stage.replies(),
        council_reply(4, VoteReply::Outbid(3)),
        "nothing has to be stored for that"
    );
}

#[test]
fn a_layout_is_in_force_once_it_is_durable() {
    let mut stage = TestNode::new();
    let mut own = stage.event_loop();
    let [_, layout] = layouts(&stage);
    let done = ask(&mut stage, &mut own, 1, VoteRequest::Decided(Arc::clone(&layout)));
    let epoch = |stage: &TestNode| stage.shared.membership.views.epoch();
    assert_eq!(epoch(&stage), 1);
    let full = lsm::Error::NoSpace { what: "tables" };
    keep(&mut stage, &mut own, done, Err(full));
    assert_eq!((epoch(&stage), stage.replies()), (1, vec![(1, Reply::NoSpace)]));
    let done = ask(&mut stage, &mut own, 2, VoteRequest::Ask);
    keep(&mut stage, &mut own, done, Ok(()));
    assert_eq!(epoch(&stage), 2);
    assert_eq!(stage.replies(), council_reply(2, VoteReply::Known(layout)));
}

/// The directory may be an older copy, without the latest promises.
#[test]
fn a_node_does_not_vote_while_its_directory_is_in_doubt() {
    let mut stage = TestNode::new();
    Arc::get_mut(&mut stage.shared).unwrap().membership.state =
        Membership::new(MembershipState::Member, 0, false);
    let mut own = stage.event_loop();
    let [base, layout] = layouts(&stage);
    let mut votes = |stage: &mut TestNode, ballot| {
        let base = Arc::clone(&base);
        let done = ask(stage, &mut own, ballot, VoteRequest::Prepare { base, ballot });
        match &done[..] {
            [Done::Respond(_, Reply::Busy)] => false,
            [Done::Keep(..)] => true,
            _ => panic!("{done:?}"),
        }
    };
    assert!(!votes(&mut stage, 1));
    stage.shared.membership.state.confirm();
    assert!(votes(&mut stage, 2));
    stage.shared.membership.logs.mark_doubted(NodeId(1));
    assert!(!votes(&mut stage, 3));
    // The node may still learn a decided layout.
    let done = ask(&mut stage, &mut own, 4, VoteRequest::Decided(layout));
    assert!(matches!(&done[..], [Done::Keep(..)]), "{done:?}");
}
