//! Lines of the journal for events and answers.

use protocol::{Answer, Change, Event, Rank, Reply, Request};

/// Formats an event.
pub(super) fn event_line(event: &Event) -> String {
    match event {
        Event::Get { client, key, quorum } => {
            format!("get {} {key:?} {quorum}", client.0)
        }
        Event::Write { client, key, record, quorum } => {
            let (version, kind, copies) = (record.version(), record.kind(), record.copies());
            let time = version.time;
            format!("write {} {key:?} {kind:?} {time:x} x{copies} {quorum}", client.0)
        }
        Event::Change { client, key, conditional, quorum, .. } => {
            let change = match &conditional.change {
                Change::Put(value) => format!("put of {} bytes", value.len()),
                other => format!("{other:?}"),
            };
            let condition = &conditional.condition;
            format!("change {} {key:?} {change} if {condition:x?} {quorum}", client.0)
        }
        Event::Request { connection, id, class, request, remaining_ms: _, under: _ } => {
            format!("request {}:{id:x} {class:?} {}", connection.0, request_line(request))
        }
        Event::Reply { peer, id, reply } => {
            format!("reply n{}:{id:x} {}", peer.0, reply_line(reply))
        }
        Event::Read { op, result } => {
            let held = result.as_ref().map(|r| r.as_ref().map(|r| rank_line(&r.rank())));
            format!("read {op:?} {held:?}")
        }
        Event::PageRead { op, result } => {
            format!("paged {op:?} {:?}", result.as_ref().map(|page| page.items.len()))
        }
        other => format!("{other:?}"),
    }
}

fn request_line(request: &Request) -> String {
    match request {
        Request::Read { key, most } => format!("read {key:?} up to {most}"),
        Request::ReadQuorum { key, most } => format!("read {key:?} by quorum up to {most}"),
        Request::Write { key, record } => {
            format!("write {key:?} {}", rank_line(&record.rank()))
        }
        Request::AcceptNext { key, record } => {
            format!("accept next {key:?} {}", rank_line(&record.rank()))
        }
        Request::Writes { items } => format!("writes {}", items.len()),
        other => format!("{other:?}"),
    }
}

fn reply_line(reply: &Reply) -> String {
    match reply {
        Reply::Found { record, authoritative } => {
            format!("found {} authoritative={authoritative}", rank_line(&record.rank()))
        }
        Reply::Page(page) => format!("page of {}", page.items.len()),
        other => format!("{other:?}"),
    }
}

fn rank_line(rank: &Rank) -> String {
    let Rank { version, ballot, kind, .. } = rank;
    let time = version.time;
    if *ballot == 0 {
        format!("{kind:?} {time:x}")
    } else {
        format!("{kind:?} {time:x}+{ballot:x}")
    }
}

/// Formats an answer.
pub(super) fn answer_line(answer: &Answer) -> String {
    match answer {
        Answer::Found(record) => {
            format!("found {:?}", record.as_ref().map(|r| rank_line(&r.rank())))
        }
        Answer::Written(version, _) => format!("written {:x}", version.time),
        Answer::Done(done, _) => format!("{done:x?}"),
        Answer::Failed(failed) => format!("{failed:?}"),
    }
}
