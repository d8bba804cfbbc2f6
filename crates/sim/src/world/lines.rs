//! Events and answers as lines of the journal.

use cluster::{Answer, Event, Record, Reply, Request};

/// An event in a line of the journal.
pub(super) fn brief(event: &Event) -> String {
    match event {
        Event::Get { client, key, quorum } => {
            format!("get {} {key:?} {}/{}", client.0, quorum.ack, quorum.from)
        }
        Event::Write { client, key, record, quorum } => {
            let Record { rank, copies, .. } = record;
            let (version, kind) = (rank.version, rank.kind);
            let time = version.time;
            format!(
                "write {} {key:?} {kind:?} {time:x} x{copies} {}/{}",
                client.0, quorum.ack, quorum.from
            )
        }
        Event::Request { connection, id, class, request, remaining_ms: _ } => {
            format!("request {}:{id:x} {class:?} {}", connection.0, request_line(request))
        }
        Event::Reply { peer, id, reply } => {
            format!("reply n{}:{id:x} {}", peer.0, reply_line(reply))
        }
        Event::Read { op, result } => {
            let held = result.as_ref().map(|r| r.as_ref().map(|r| r.rank.version.time));
            format!("read {op:?} {held:x?}")
        }
        Event::Paged { op, result } => {
            format!("paged {op:?} {:?}", result.as_ref().map(|page| page.items.len()))
        }
        other => format!("{other:?}"),
    }
}

fn request_line(request: &Request) -> String {
    match request {
        Request::Read { key, most } => format!("read {key:?} up to {most}"),
        Request::Write { key, record } => {
            format!("write {key:?} {:?} {:x}", record.rank.kind, record.rank.version.time)
        }
        Request::Writes { items } => format!("writes {}", items.len()),
        other => format!("{other:?}"),
    }
}

fn reply_line(reply: &Reply) -> String {
    match reply {
        Reply::Found { record, authoritative } => {
            format!(
                "found {:?} {:x} authoritative={authoritative}",
                record.rank.kind, record.rank.version.time
            )
        }
        Reply::Page(page) => format!("page of {}", page.items.len()),
        other => format!("{other:?}"),
    }
}

/// An answer in a line of the journal.
pub(super) fn answer_line(answer: &Answer) -> String {
    match answer {
        Answer::Found(record) => {
            format!("found {:x?}", record.as_ref().map(|r| (r.rank.kind, r.rank.version.time)))
        }
        Answer::Written(version) => format!("written {:x}", version.time),
        Answer::Done(done) => format!("{done:x?}"),
        Answer::Failed(failed) => format!("{failed:?}"),
    }
}
