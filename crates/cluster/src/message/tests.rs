use super::*;
use crate::conditional::{Change, Condition, Tag};
use record::Version;

/// It does not know that filter: its answer shows that it is there, and that it can't tell.
#[test]
fn an_older_node_is_asked_for_a_sign_of_life_in_place_of_what_it_remembers() {
    let page = |lost| {
        let filter = Filter::Remembered { node: NodeId(7), lost };
        Request::Page(PageRequest { start: Bytes::new(), end: None, filter, max_bytes: 9 })
    };
    let asks = |request| {
        let body = Body::Request { remaining_ms: 500, class: Class::Stream, request };
        Message { id: 9, body }
    };
    for (lost, version, is_known) in [
        (false, 8, false),
        (false, 10, false),
        (false, 11, true),
        (true, 12, false),
        (true, 13, true),
    ] {
        let mut message = asks(page(lost));
        assert!(message.suit(version));
        let expected = if is_known { page(lost) } else { Request::Ping };
        assert_eq!(message, asks(expected), "{version}");
    }
}

/// It knows no digests, and judges a request with an idempotency key by that key alone.
#[test]
fn an_older_node_is_sent_no_digest() {
    let key = Bytes::from_static(b"k");
    let conditional = |digest| {
        let (condition, change) = (Condition::Any, Change::Delete);
        Conditional { condition, change, expiry_ms: 0, digest }
    };
    let change = |digest| {
        let conditional = conditional(digest);
        Request::Change { key: key.clone(), id: 5, ack: 0, conditional }
    };
    let recall = |digest| Request::Recall { key: key.clone(), id: 5, since: 0, digest };
    for asks in [&change as &dyn Fn(u64) -> Request, &recall] {
        for (version, digest) in [(12, 0), (13, 9)] {
            let body = |request| Body::Request { remaining_ms: 5, class: Class::Client, request };
            let mut message = Message { id: 9, body: body(asks(9)) };
            assert!(message.suit(version));
            assert_eq!(message.body, body(asks(digest)), "{version}");
        }
    }
}

#[test]
fn an_older_node_is_told_no_fence() {
    let told = |fence| {
        let tag = Tag { version: Version { time: 7, origin: 1 }, last: Some((1, 2)) };
        let done = Done::Changed { tag, result: None, expiry_ms: 8, fence };
        Message { id: 9, body: Body::Reply(Reply::Done { by: ReplicaSet(1), done }) }
    };
    for (version, fence) in [(12, 0), (13, 77)] {
        let mut message = told(77);
        assert!(message.suit(version));
        assert_eq!(message, told(fence), "{version}");
    }
}
