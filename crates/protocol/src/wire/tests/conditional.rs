//! Example messages for the tests, one for each kind of conditional write.

use super::*;

/// Returns one message of each kind, and its name in the fixture.
pub(super) fn conditional_writes() -> Vec<(&'static str, Item)> {
    let version = Version { time: 0x0908, origin: 0x0a };
    let (plain, tag) = (Tag { version, last: None }, Tag { version, last: Some((3, 5)) });
    let put = Change::Put(Bytes::from_static(b"value"));
    let asked = |condition, change, expiry_ms, digest| {
        let conditional = Conditional { condition, change, expiry_ms, digest };
        let request =
            Request::Change { key: Bytes::from_static(b"key"), id: 0x0b0c, ack: 2, conditional };
        let (class, remaining_ms) = (Class::Client, 0x01f4);
        let body = Body::Request { remaining_ms, class, request };
        Item::Message(Message { id: 0x0807_0605_0403_0201, body })
    };
    let expiring = |condition, change, expiry_ms| asked(condition, change, expiry_ms, 0);
    let change = |condition, change| expiring(condition, change, 0);
    let reply = |reply| Item::Message(Message { id: 9, body: Body::Reply(reply) });
    let done = |done| reply(Reply::Done { by: ReplicaSet(0b101), done });
    let recalled = |recalled| reply(Reply::Recalled(recalled));
    let fenced = |result, expiry_ms, fence| Done::Changed { tag, result, expiry_ms, fence };
    let changed = |result, expiry_ms| fenced(result, expiry_ms, 0);
    let recall = |digest| {
        let key = Bytes::from_static(b"key");
        let request = Request::Recall { key, id: 0x0b0c, since: 6, digest };
        let body = Body::Request { class: Class::Client, remaining_ms: 100, request };
        Item::Message(Message { id: 9, body })
    };
    let stored = |ballots: &[u64]| {
        let (ballots, done) = (ballots.iter().copied().collect(), changed(None, 0));
        recalled(OpLookup::Stored { ballots, done })
    };
    vec![
        ("change, one of", change(Condition::OneOf(vec![plain, tag]), put.clone())),
        ("change, absent", change(Condition::Absent, Change::Delete)),
        ("change, exists", change(Condition::Exists, Change::Delete)),
        ("change, any", change(Condition::Any, Change::Add(-2))),
        ("change, of a request", asked(Condition::Any, put.clone(), 0x0102, 0x0d0e)),
        ("change, expires", expiring(Condition::Any, put, 0x0102)),
        ("change, sum expires", expiring(Condition::Any, Change::Add(-2), 0x0102)),
        ("done, changed", done(changed(None, 0))),
        ("done, added", done(changed(Some(-2), 0))),
        ("done, expires", done(changed(None, 0x0102))),
        ("done, sum expires", done(changed(Some(-2), 0x0102))),
        ("done, fenced", done(fenced(None, 0, 0x0d0e))),
        ("done, expires, fenced", done(fenced(None, 0x0102, 0x0d0e))),
        ("done, unmet", done(Done::Unmet { current: Some(plain) })),
        ("done, unmet, none", done(Done::Unmet { current: None })),
        ("done, no number", done(Done::Impossible(Impossible::NotANumber))),
        ("done, overflow", done(Done::Impossible(Impossible::Overflow))),
        ("done, forgotten", done(Done::Forgotten)),
        ("done, reused", done(Done::Reused)),
        ("recall", recall(0)),
        ("recall, of a request", recall(0x0d0e)),
        ("recalled, never", recalled(OpLookup::Never)),
        ("recalled, forgotten", recalled(OpLookup::Forgotten)),
        ("recalled, reused", recalled(OpLookup::Reused)),
        ("recalled, stored", stored(&[6])),
        ("recalled, stored under two ballots", stored(&[6, 9])),
        ("recalled, chosen", recalled(OpLookup::Chosen { done: changed(None, 0) })),
    ]
}
