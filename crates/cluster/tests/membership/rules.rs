//! The rules of a transition, each of which can be left out to see what it is for.

/// What replicas, receivers and coordinators do, and whoever decides the next layout.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A replica that has entered a layout refuses requests under an earlier one.
    pub(crate) earlier_is_refused: bool,
    /// The layout that a replica has entered outlives a restart.
    pub(crate) entering_is_durable: bool,
    /// A replica that is asked under a later layout enters that one first.
    pub(crate) later_is_entered: bool,
    /// A request bears the layout that it counts its answers by. If not, the one that its
    /// coordinator has entered by the time that it is sent.
    pub(crate) requests_bear_their_layout: bool,
    /// All requests of a conditional write's round bear one layout.
    pub(crate) rounds_keep_their_layout: bool,
    /// Acknowledgements are counted in the old and in the new set, each by itself. If not, by their
    /// sum.
    pub(crate) acks_are_counted_in_sets: bool,
    /// As long as the old set is read, writes need the new one too, …
    pub(crate) writes_need_new: bool,
    /// … and once the new one is read, they need the old one too.
    pub(crate) writes_need_old: bool,
    /// As long as the old set is read, a reader makes sure that the new one holds what it tells, …
    pub(crate) reads_confirm_new: bool,
    /// … and once the new one is read, that the old one does.
    pub(crate) reads_confirm_old: bool,
    /// Promises are of the set that is read: those of who has not taken all do not show what
    /// was written before, …
    pub(crate) promises_are_of_read_set: bool,
    /// … and of the other set too, also by nodes that have not taken all: each set by itself keeps
    /// ballots apart, for later one of them is alone.
    pub(crate) promises_are_of_both_sets: bool,
    /// A conditional write that a receiver refuses, for it holds something newer, goes on from
    /// that.
    pub(crate) newer_is_gone_on_from: bool,
    /// A receiver takes only from those that have entered the transition.
    pub(crate) sources_have_entered: bool,
    /// A receiver has taken what a majority of the old set holds, …
    pub(crate) majority_is_taken: bool,
    /// … and what each of those holds that leave the set, unless it is declared lost.
    pub(crate) leavers_are_taken: bool,
    /// If the new set is smaller, those that stay take all that too.
    pub(crate) stayers_take_if_fewer: bool,
    /// Of conditional records it takes those that a majority of the old set holds.
    pub(crate) chosen_is_taken: bool,
    /// What a receiver took is durable before it notes that it took it.
    pub(crate) data_before_cursor: bool,
    /// The new set is read when all receivers have taken all.
    pub(crate) switch_waits: bool,
    /// What a receiver has taken is noted on its own disk. If not, whoever drives the transition
    /// keeps that, and tells it.
    pub(crate) progress_is_on_receiver: bool,
    /// … and names the transition.
    pub(crate) progress_names_transition: bool,
    /// A receiver begins with nothing of the partition, whatever it held before.
    pub(crate) receiver_begins_empty: bool,
    /// A receiver takes nothing from before its beginning but from its sources.
    pub(crate) receiver_is_sealed: bool,
    /// The old set is given up when a majority of it has entered the layout by which the new one is
    /// read.
    pub(crate) end_waits: bool,
    /// A transition is aborted only as long as the old set is read.
    pub(crate) abort_before_switch: bool,
    /// Nothing is proven during a transition, …
    pub(crate) no_proof_meanwhile: bool,
    /// … and a repair round goes on under the layout that it began with, …
    pub(crate) proofs_bear_a_layout: bool,
}

/// All of them.
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
