//! The rules of a transition. For each rule, a test switches it off and finds the failure that the
//! rule prevents.

/// Rules for replicas, receivers, coordinators and the decisions on the next layout.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A replica that has entered a layout refuses requests under earlier layouts.
    pub(crate) earlier_is_refused: bool,
    /// The layout that a replica has entered survives a restart.
    pub(crate) entering_is_durable: bool,
    /// A replica that receives a request under a later layout enters that layout first.
    pub(crate) later_is_entered: bool,
    /// A request carries the layout under which its answers are counted. If the rule is off, it
    /// carries the layout of its coordinator at the time of sending.
    pub(crate) requests_bear_their_layout: bool,
    /// All requests of a conditional write's round carry the same layout.
    pub(crate) rounds_keep_their_layout: bool,
    /// Acknowledgements are counted separately in the old and in the new set. If the rule is off,
    /// they are counted as a sum over both sets.
    pub(crate) acks_are_counted_in_sets: bool,
    /// While the old set is read, writes need the new set too.
    pub(crate) writes_need_new: bool,
    /// Once the new set is read, writes need the old set too.
    pub(crate) writes_need_old: bool,
    /// While the old set is read, a reader confirms that the new set holds the returned value.
    pub(crate) reads_confirm_new: bool,
    /// Once the new set is read, a reader confirms that the old set holds the returned value.
    pub(crate) reads_confirm_old: bool,
    /// Promises come from the read set: the promise of a node that has not pulled all records does
    /// not show earlier writes.
    pub(crate) promises_are_of_read_set: bool,
    /// Promises come from the other set too, also from nodes that have not pulled all records. Each
    /// set must order ballots by itself, because later only one of the sets is left.
    pub(crate) promises_are_of_both_sets: bool,
    /// If a receiver refuses a conditional write because it holds a newer record, the write
    /// continues from that record.
    pub(crate) refused_write_continues: bool,
    /// A receiver pulls only from nodes that have entered the layout of the transition.
    pub(crate) sources_have_entered: bool,
    /// A receiver pulls the records of a majority of the old set.
    pub(crate) majority_is_pulled: bool,
    /// A receiver pulls the records of each node that leaves the set, except a node declared lost.
    pub(crate) leavers_are_pulled: bool,
    /// If the new set is smaller, the nodes that stay in it pull like receivers.
    pub(crate) stayers_pull_if_fewer: bool,
    /// A receiver pulls the record of a conditional write only if a majority of the old set holds
    /// it.
    pub(crate) only_chosen_is_pulled: bool,
    /// Pulled records are durable before the receiver notes the source as done.
    pub(crate) data_before_cursor: bool,
    /// The new set is read only after all receivers have pulled all records.
    pub(crate) switch_waits: bool,
    /// A receiver stores its progress on its own disk. If the rule is off, the driver of the
    /// transition stores the progress and reports it to the receiver.
    pub(crate) progress_is_on_receiver: bool,
    /// Stored progress names the transition.
    pub(crate) progress_names_transition: bool,
    /// A receiver begins without records of the partition, even if it held some before.
    pub(crate) receiver_begins_empty: bool,
    /// A receiver has a repair fence: records from before its start are accepted only from its
    /// sources.
    pub(crate) receiver_is_sealed: bool,
    /// The old set is dropped only after a majority of it has entered the layout under which the
    /// new set is read.
    pub(crate) end_waits: bool,
    /// A transition is aborted only while the old set is read.
    pub(crate) abort_before_switch: bool,
    /// No repair round proves anything during a transition.
    pub(crate) no_proof_meanwhile: bool,
    /// A repair round continues only under the layout with which it began.
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
    refused_write_continues: true,
    sources_have_entered: true,
    majority_is_pulled: true,
    leavers_are_pulled: true,
    stayers_pull_if_fewer: true,
    only_chosen_is_pulled: true,
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
