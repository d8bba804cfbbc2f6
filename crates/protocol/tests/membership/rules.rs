//! The rules of a transition. A test switches off each rule, to show the failure that it prevents.

/// Rules for replicas, receivers, coordinators and the decisions on the next layout.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A replica that has entered a layout refuses requests under an earlier one.
    pub(crate) earlier_is_refused: bool,
    /// The layout that a replica has entered survives a restart.
    pub(crate) entering_is_durable: bool,
    /// A replica that receives a request under a later layout enters that layout first.
    pub(crate) later_is_entered: bool,
    /// A request bears the layout by which its answers are counted. If the rule is off, the request
    /// bears the layout that its coordinator has entered when the request is sent.
    pub(crate) requests_bear_their_layout: bool,
    /// All requests of a conditional write's round bear one layout.
    pub(crate) rounds_keep_their_layout: bool,
    /// Acknowledgements are counted separately in the old and in the new set. If the rule is off,
    /// only the sum of both sets' acknowledgements counts.
    pub(crate) acks_are_counted_in_sets: bool,
    /// As long as the old set is read, writes need the new set too.
    pub(crate) writes_need_new: bool,
    /// Once the new set is read, writes need the old set too.
    pub(crate) writes_need_old: bool,
    /// As long as the old set is read, a reader confirms that the new set holds the returned value.
    pub(crate) reads_confirm_new: bool,
    /// Once the new set is read, a reader confirms that the old set holds the returned value.
    pub(crate) reads_confirm_old: bool,
    /// Promises come from the set that is read: promises of a node that has not pulled all do not
    /// show what was written before.
    pub(crate) promises_are_of_read_set: bool,
    /// Promises come from the other set too, even from nodes that have not pulled all. Each set
    /// must order ballots by itself, because one of the sets is alone later.
    pub(crate) promises_are_of_both_sets: bool,
    /// A conditional write that a receiver refuses because of a newer record continues from that
    /// record.
    pub(crate) newer_is_gone_on_from: bool,
    /// A receiver pulls only from nodes that have entered the transition.
    pub(crate) sources_have_entered: bool,
    /// A receiver pulls the records of a majority of the old set.
    pub(crate) majority_is_taken: bool,
    /// A receiver pulls the records of each node that leaves the set, unless it is declared lost.
    pub(crate) leavers_are_taken: bool,
    /// If the new set is smaller, the nodes that stay pull the same records too.
    pub(crate) stayers_take_if_fewer: bool,
    /// A receiver pulls a conditional record only if a majority of the old set holds it.
    pub(crate) chosen_is_taken: bool,
    /// Pulled records are durable before the receiver notes the source as done.
    pub(crate) data_before_cursor: bool,
    /// The new set is read once all receivers have pulled all.
    pub(crate) switch_waits: bool,
    /// A receiver notes its progress on its own disk. If the rule is off, the driver of the
    /// transition keeps the progress, and tells it to the receiver.
    pub(crate) progress_is_on_receiver: bool,
    /// The noted progress names the transition.
    pub(crate) progress_names_transition: bool,
    /// A receiver begins with nothing of the partition, whatever it held before.
    pub(crate) receiver_begins_empty: bool,
    /// A receiver has a repair fence: it accepts records from before its beginning only from its
    /// sources.
    pub(crate) receiver_is_sealed: bool,
    /// The old set is given up once a majority of it has entered the layout by which the new one is
    /// read.
    pub(crate) end_waits: bool,
    /// A transition is aborted only as long as the old set is read.
    pub(crate) abort_before_switch: bool,
    /// No repair round proves anything during a transition.
    pub(crate) no_proof_meanwhile: bool,
    /// A repair round goes on only under the layout that it began with.
    pub(crate) proofs_bear_a_layout: bool,
}

/// All rules switched on.
pub(crate) const RULES: Rules = Rules {
    earlier_is_refused: true,
    entering_is_durable: true,
    later_is_entered: true,
    requests_bear_their_layout: true,
    rounds_keep_their_layout: true,
    acks_are_counted_in_sets: true,
    writes_need_new: true,
    writes_need_old: true,
    reads_confirm_new: true,
    reads_confirm_old: true,
    promises_are_of_read_set: true,
    promises_are_of_both_sets: true,
    newer_is_gone_on_from: true,
    sources_have_entered: true,
    majority_is_taken: true,
    leavers_are_taken: true,
    stayers_take_if_fewer: true,
    chosen_is_taken: true,
    data_before_cursor: true,
    switch_waits: true,
    progress_is_on_receiver: true,
    progress_names_transition: true,
    receiver_begins_empty: true,
    receiver_is_sealed: true,
    end_waits: true,
    abort_before_switch: true,
    no_proof_meanwhile: true,
    proofs_bear_a_layout: true,
};
