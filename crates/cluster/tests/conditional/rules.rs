//! The rules of the protocol, each of which can be left out to see what it is for.

/// What the replicas and coordinators do.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A replica remembers the last conditional record that a plain write displaced, and a
    /// coordinator looks there for what became of its earlier try.
    pub(crate) keep_displaced: bool,
    /// A coordinator that finds its earlier try's family ended, and has no such memory to look
    /// into, leaves the outcome unknown. (What the code does as yet, in place of the first rule.)
    pub(crate) ended_is_unknown: bool,
    /// A later try is not based on an older family than an earlier one.
    pub(crate) no_way_back: bool,
    /// A plain write is stored where a conditional record that continues it is held.
    pub(crate) descendant_is_stored: bool,
    /// Who brings a conditional record to a replica is held to its promise.
    pub(crate) repair_obeys_promise: bool,
    /// A replica that starts again promises nothing below what it may have promised before.
    pub(crate) promise_outlives_restart: bool,
    /// The same for one that lost its disk.
    pub(crate) promise_outlives_disk: bool,
    /// A replica that is rebuilt promises nothing.
    pub(crate) rebuilt_first: bool,
    /// A replica that does not know yet what it may have lost stores no conditional record.
    pub(crate) loss_known_first: bool,
    /// Who sends a rebuilt replica its records promises first what that one promises.
    pub(crate) sources_promise: bool,
    /// A conditional record that a replica was sent, to be rebuilt, does not count in reads until
    /// that one was sent all that the others hold.
    pub(crate) sent_is_not_held: bool,
    /// A replica that is whole, and is sent what it may lack, takes of conditional records those
    /// that a majority holds.
    pub(crate) members_take_what_is_chosen: bool,
    /// A read does not count a replica as one that holds a conditional record if that has a newer
    /// plain write by now.
    pub(crate) newer_is_not_held: bool,
    /// Nobody asks for promises under the ballot that follows one which a majority has promised: a
    /// coordinator may go on under it.
    pub(crate) room_to_go_on: bool,
    /// A replica that is rebuilt stores nothing for a coordinator that goes on.
    pub(crate) rebuilt_before_going_on: bool,
    /// A coordinator that finds the value expired, and changes nothing, stores that there is none
    /// before it says so.
    pub(crate) end_is_stored: bool,
}

/// All of them.
pub(crate) const RULES: Rules = Rules {
    keep_displaced: true,
    ended_is_unknown: false,
    no_way_back: true,
    descendant_is_stored: true,
    repair_obeys_promise: true,
    promise_outlives_restart: true,
    promise_outlives_disk: true,
    rebuilt_first: true,
    loss_known_first: true,
    sources_promise: true,
    sent_is_not_held: true,
    members_take_what_is_chosen: true,
    newer_is_not_held: true,
    room_to_go_on: true,
    rebuilt_before_going_on: true,
    end_is_stored: true,
};
