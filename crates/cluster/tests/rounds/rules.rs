//! The rules of the protocol, each of which can be left out to see what it is for.

/// What the nodes, the coordinators and the rounds do.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A seal is durable before its node answers the round.
    pub(crate) seal_is_durable: bool,
    /// A sealed node refuses a client's plain write up to the seal, …
    pub(crate) seal_refuses_writes: bool,
    /// … and a hint, …
    pub(crate) seal_refuses_hints: bool,
    /// … and what a reader found elsewhere, …
    pub(crate) seal_refuses_repair: bool,
    /// … and promises no ballot up to it, nor stores one.
    pub(crate) seal_refuses_ballots: bool,
    /// A coordinator that is told of a seal gives its write a new version. If not, it takes that
    /// for "stored", as for a write that is overtaken.
    pub(crate) refused_is_reissued: bool,
    /// A reader that can't bring what it found to a majority does so under a ballot.
    pub(crate) refused_read_takes_ballot: bool,
    /// A round proves something when all nodes take part to its end.
    pub(crate) all_take_part: bool,
    /// A node that is sealed by a later round does nothing for an earlier one.
    pub(crate) later_round_ends_earlier: bool,
    /// Of two rounds that have sealed some nodes each, the one whose driver comes later lets go.
    pub(crate) later_lets_go: bool,
    /// A node that missed a commit takes it over before it is compared.
    pub(crate) lagging_takes_over: bool,
    /// What may be purged is not compared, nor brought to who does not hold it.
    pub(crate) sums_skip_purgeable: bool,
    /// A round brings the newest record of a key, even if it is newer than the seal.
    pub(crate) exchange_brings_newest: bool,
    /// What a conditional write made is read as by a client before a round brings it. If not, it
    /// is brought as if it were chosen.
    pub(crate) minority_is_completed: bool,
    /// What is read then is brought if it is not older than what differed.
    pub(crate) read_is_not_older: bool,
    /// A node that can't read a record says so. If not, it takes it for absent.
    pub(crate) damage_is_told: bool,
    /// What can't be read is given up when all others have told what they hold.
    pub(crate) healing_waits: bool,
    /// What comes up where something newer can't be read, and others have purged, is deleted.
    pub(crate) risen_is_deleted: bool,
    /// What a round brought is durable before its node is ready.
    pub(crate) ready_is_durable: bool,
    /// A node is ready in the life in which it was sealed; …
    pub(crate) ready_in_sealed_life: bool,
    /// … and who drives the round looks whether it has that still.
    pub(crate) lives_are_compared: bool,
    /// What was equal by the last round is compared again after a restart of any node.
    pub(crate) equal_needs_lives: bool,
    /// Nothing is purged before a commit.
    pub(crate) purge_waits_for_commit: bool,
    /// A commit is durable before anything is purged.
    pub(crate) commit_is_durable: bool,
    /// A commit raises promises to the greatest that a node had given when it was ready, …
    pub(crate) commit_raises_promises: bool,
    /// … or to those that follow it, under which a coordinator may go on that was promised it; …
    pub(crate) commit_outbids_following: bool,
    /// … and hints of conditional writes obey that, though they are chosen.
    pub(crate) hints_obey_commit: bool,
    /// A conditional write goes by promises of replicas with its coordinator's watermark.
    pub(crate) promises_of_one_watermark: bool,
    /// What is found of a family that a watermark has ended goes on in one above that.
    pub(crate) what_ended_goes_on_in_another: bool,
    /// What a conditional write makes of an absent key is newer than what may have been purged.
    pub(crate) absent_is_watermark: bool,
    /// A reader passes over what a replica that is not authoritative holds up to its watermark.
    pub(crate) reads_heed_watermark: bool,
    /// An acknowledgement from a disk that is lost while the write is under way does not count.
    pub(crate) lost_votes_are_dropped: bool,
    /// A node whose directory is an older copy is not authoritative at first.
    pub(crate) rollback_is_noticed: bool,
    /// A directory that was not ready for what was proven since takes that over not, …
    pub(crate) outdated_is_noticed: bool,
    /// … but is set aside, and its node rebuilt as one with a new disk.
    pub(crate) outdated_is_set_aside: bool,
    /// A node that is not authoritative takes no part in rounds.
    pub(crate) rebuilt_does_not_count: bool,
    /// A new directory is sealed from its beginning on, …
    pub(crate) new_is_sealed: bool,
    /// … and takes over what was proven before.
    pub(crate) new_takes_over: bool,
}

/// All of them.
pub(crate) const RULES: Rules = Rules {
    seal_is_durable: true,
    seal_refuses_writes: true,
    seal_refuses_hints: true,
    seal_refuses_repair: true,
    seal_refuses_ballots: true,
    refused_is_reissued: true,
    refused_read_takes_ballot: true,
    all_take_part: true,
    later_round_ends_earlier: true,
    later_lets_go: true,
    lagging_takes_over: true,
    sums_skip_purgeable: true,
    exchange_brings_newest: true,
    minority_is_completed: true,
    read_is_not_older: true,
    damage_is_told: true,
    healing_waits: true,
    risen_is_deleted: true,
    ready_is_durable: true,
    ready_in_sealed_life: true,
    lives_are_compared: true,
    equal_needs_lives: true,
    purge_waits_for_commit: true,
    commit_is_durable: true,
    commit_raises_promises: true,
    commit_outbids_following: true,
    hints_obey_commit: true,
    promises_of_one_watermark: true,
    what_ended_goes_on_in_another: true,
    absent_is_watermark: true,
    reads_heed_watermark: true,
    lost_votes_are_dropped: true,
    rollback_is_noticed: true,
    outdated_is_noticed: true,
    outdated_is_set_aside: true,
    rebuilt_does_not_count: true,
    new_is_sealed: true,
    new_takes_over: true,
};
