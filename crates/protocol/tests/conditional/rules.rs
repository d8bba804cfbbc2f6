//! The rules of the protocol. For each rule, a test switches it off and finds the failure that the
//! rule prevents.

/// The rules of replicas and coordinators.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A replica remembers the last conditional write's record that a plain write displaced. A
    /// coordinator looks there for the outcome of its earlier try.
    pub(crate) keep_displaced: bool,
    /// If a plain write has ended the base version of an earlier try, and replicas remember no
    /// displaced records, the coordinator leaves the outcome unknown. (The code does this instead
    /// of the first rule.)
    pub(crate) ended_is_unknown: bool,
    /// A later try is never based on an older base version than an earlier try.
    pub(crate) no_way_back: bool,
    /// A replica acknowledges a plain write as stored if it holds a conditional write's record that
    /// continues it.
    pub(crate) descendant_is_stored: bool,
    /// A replica's promise also applies to conditional writes' records from a reader.
    pub(crate) repair_obeys_promise: bool,
    /// After a restart, a replica promises nothing below its possible earlier promises.
    pub(crate) promise_outlives_restart: bool,
    /// After the loss of its disk, a replica promises nothing below its possible earlier promises.
    pub(crate) promise_outlives_disk: bool,
    /// A replica that is being rebuilt promises nothing.
    pub(crate) rebuilt_before_promising: bool,
    /// A replica that does not know yet which records it may have lost stores no conditional
    /// write's record.
    pub(crate) loss_known_before_storing: bool,
    /// Before a source streams its record to a replica that is being rebuilt, it promises the
    /// ballot that this replica has promised.
    pub(crate) sources_promise: bool,
    /// A conditional write's record that was streamed to a replica in a rebuild does not count in
    /// reads until all other replicas have streamed their records.
    pub(crate) streamed_is_not_held: bool,
    /// A replica that holds all acknowledged records, and is streamed records that it may have
    /// missed, accepts a conditional write's record only if a majority holds it.
    pub(crate) members_accept_only_chosen: bool,
    /// A read does not count a replica as a holder of a conditional write's record once the replica
    /// has a newer plain write.
    pub(crate) newer_is_not_held: bool,
    /// No coordinator prepares the ballot that follows a promised one: the coordinator with the
    /// promise may continue under it.
    pub(crate) room_to_go_on: bool,
    /// A replica in a rebuild stores no record of a coordinator that continues without new
    /// promises.
    pub(crate) rebuilt_before_going_on: bool,
    /// A coordinator that finds the value expired, and changes nothing, stores the absence of the
    /// value before it answers.
    pub(crate) end_is_stored: bool,
    /// A record names only its last operation (in the code, the last eight), and a replica notes
    /// the operations of all records that it stores. If the newest record does not name a
    /// coordinator's earlier try, the coordinator queries the replicas that have promised. (Not a
    /// rule, but the way of the code; in worlds without it, records name all operations.)
    pub(crate) short_history: bool,
    /// Before a coordinator pushes an operation out of a record's history, a majority must hold
    /// that record.
    pub(crate) noted_before_forgotten: bool,
}

/// The protocol with all rules.
pub(crate) const RULES: Rules = Rules {
    keep_displaced: true,
    ended_is_unknown: false,
    no_way_back: true,
    descendant_is_stored: true,
    repair_obeys_promise: true,
    promise_outlives_restart: true,
    promise_outlives_disk: true,
    rebuilt_before_promising: true,
    loss_known_before_storing: true,
    sources_promise: true,
    streamed_is_not_held: true,
    members_accept_only_chosen: true,
    newer_is_not_held: true,
    room_to_go_on: true,
    rebuilt_before_going_on: true,
    end_is_stored: true,
    short_history: false,
    noted_before_forgotten: true,
};
