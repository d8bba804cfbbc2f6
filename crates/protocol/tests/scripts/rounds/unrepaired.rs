//! Rounds that bring a record to a node that does not store it.

use super::*;

/// Drives a round in which only node 0 holds the newest record of a key, which is brought to the
/// other nodes. `OTHER` stores the record, and `SICK` replies with `reply`.
fn round_with_bring_to_sick(reply: Option<Reply>) -> RoundReport {
    let (older, newest) = (record_written_at(1, 3), record_written_at(2, 3));
    let driven = Driver::new().round(true, |node, request| match request {
        Request::Compare(request) => {
            let record = if node == NodeId(0) { &newest } else { &older };
            let (bucket, place) = (topology(3, 3).buckets().of(b"k"), node.0 as u8);
            let sum = u128::from(record.version().time);
            let mut compared = Compared::default();
            match request.detail {
                Detail::Sums => compared.sums.push(Sum { bucket, place, copies: 3, sum }),
                Detail::Outlines { .. } => {
                    compared.outlines.push((Bytes::from("k"), record.outline()))
                }
            }
            Some(Reply::Compared(compared))
        }
        Request::Read { .. } => Some(Reply::Found { record: newest.clone(), authoritative: true }),
        Request::Bring { .. } if node == SICK => reply.clone(),
        Request::Bring { .. } => Some(Reply::Stored),
        request => Some(willing_reply(request)),
    });
    driven.report
}

#[test]
fn a_report_names_the_nodes_that_did_not_store_a_record_with_the_reason() {
    for (reply, why) in [
        (Some(Reply::NoSpace), Unrepaired::NoSpace),
        (Some(Reply::Busy), Unrepaired::Busy),
        (Some(Reply::BallotRefused { promise: 9 }), Unrepaired::Busy),
        (Some(Reply::Failed), Unrepaired::Failed),
        (None, Unrepaired::Silent),
    ] {
        let report = round_with_bring_to_sick(reply);
        assert_eq!((report.differing, report.repaired, report.failed), (1, 0, 1), "{report:?}");
        assert_eq!(report.unrepaired, [((SICK, why), 1)].into());
        assert!(!report.is_equal() && report.stopped.is_none(), "{report:?}");
    }
    let report = round_with_bring_to_sick(Some(Reply::Stored));
    assert_eq!((report.repaired, report.failed), (1, 0), "{report:?}");
    assert!(report.unrepaired.is_empty() && report.is_equal(), "{report:?}");
}

/// The node's repair fence belongs to another round by then, which brings the records itself.
#[test]
fn a_round_ends_once_a_node_refuses_a_record_because_another_node_drives_a_round() {
    let report = round_with_bring_to_sick(Some(Reply::TopologyMismatch));
    assert_eq!(report.stopped, Some("another node drives a round"), "{report:?}");
    assert_eq!((report.failed, report.is_equal()), (0, false), "{report:?}");
}
