//! The rules of the protocol. A test leaves out each rule, to show the failure that it prevents.

/// The behavior of replicas and coordinators.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A replica remembers the last conditional record that a plain write displaced, and a
    /// coordinator looks there for the outcome of its earlier try.
    pub(crate) keep_displaced: bool,
    /// A coordinator leaves the outcome unknown if a plain write has ended the base version of its
    /// earlier try, and no replica remembers displaced records. (The code does this, in place of
    /// the first rule.)
    pub(crate) ended_is_unknown: bool,
    /// A later try is not based on an older base version than an earlier one.
    pub(crate) no_way_back: bool,
    /// A replica that holds a conditional record acknowledges the plain write that this record
    /// continues as stored.
    pub(crate) descendant_is_stored: bool,
    /// A reader that brings a conditional record to a replica is subject to the replica's promise.
    pub(crate) repair_obeys_promise: bool,
    /// A replica that restarts promises nothing below what it may have promised before.
    pub(crate) promise_outlives_restart: bool,
    /// A replica that lost its disk promises nothing below what it may have promised before.
    pub(crate) promise_outlives_disk: bool,
    /// A replica that is being rebuilt promises nothing.
    pub(crate) rebuilt_before_promising: bool,
    /// A replica that does not know yet which records it may have lost stores no conditional
    /// record.
    pub(crate) loss_known_before_storing: bool,
    /// A source first promises the ballot that the replica being rebuilt has promised, and then
    /// streams its record.
    pub(crate) sources_promise: bool,
    /// A conditional record that was streamed to a replica being rebuilt does not count in reads
    /// until all other replicas have streamed their records.
    pub(crate) sent_is_not_held: bool,
    /// A replica that holds everything it acknowledged, and is streamed records that it may have
    /// missed, accepts only those conditional records that a majority holds.
    pub(crate) members_take_what_is_chosen: bool,
    /// A read does not count a replica as a holder of a conditional record if the replica has a
    /// newer plain write by then.
    pub(crate) newer_is_not_held: bool,
    /// No coordinator requests promises under the ballot that follows one promised by a majority,
    /// because the promised coordinator may continue under that ballot.
    pub(crate) room_to_go_on: bool,
    /// A replica that is being rebuilt stores nothing for a coordinator that continues.
    pub(crate) rebuilt_before_going_on: bool,
    /// A coordinator that finds the value expired, and changes nothing, stores the absence before
    /// it answers.
    pub(crate) end_is_stored: bool,
    /// A record names its last operation only, as the code's records name the last eight, and a
    /// replica notes each operation of the records that it stores. A coordinator whose earlier try
    /// the newest record does not name asks the replicas that have promised. (Not a rule, but the
    /// way of the code; the worlds without it have records that name all operations.)
    pub(crate) short_history: bool,
    /// A coordinator that would push an operation out of a record's history has a majority store
    /// that record first, unless a majority holds it.
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
    sent_is_not_held: true,
    members_take_what_is_chosen: true,
    newer_is_not_held: true,
    room_to_go_on: true,
    rebuilt_before_going_on: true,
    end_is_stored: true,
    short_history: false,
    noted_before_forgotten: true,
};
