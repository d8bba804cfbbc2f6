//! The rules of the protocol of repair rounds. A test leaves out each rule, to show the failure
//! that it prevents.

/// The behavior of nodes, coordinators and repair rounds.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A repair fence (`seal`) is durable before its node answers the round.
    pub(crate) seal_is_durable: bool,
    /// A fenced node refuses a client's plain write up to the fence.
    pub(crate) seal_refuses_writes: bool,
    /// A fenced node refuses a hint up to the fence.
    pub(crate) seal_refuses_hints: bool,
    /// A fenced node refuses a record up to the fence that a reader found elsewhere.
    pub(crate) seal_refuses_repair: bool,
    /// A fenced node promises no ballot up to the fence, and stores none.
    pub(crate) seal_refuses_ballots: bool,
    /// A coordinator whose write is refused for a fence gives the write a new version. Without the
    /// rule, the refusal counts as "stored", as for a write that is overtaken.
    pub(crate) refused_is_reissued: bool,
    /// A reader that cannot bring its record to a majority brings it under a ballot.
    pub(crate) refused_read_takes_ballot: bool,
    /// A round proves something only if all nodes take part to its end.
    pub(crate) all_take_part: bool,
    /// A node fenced by a later round does no step of an earlier one.
    pub(crate) later_round_ends_earlier: bool,
    /// If two rounds have fenced some nodes each, the round whose driver has the greater id backs
    /// off.
    pub(crate) greater_id_backs_off: bool,
    /// A node that missed a commit adopts the proof before the node is compared.
    pub(crate) lagging_takes_over: bool,
    /// A record that may be purged is not compared, nor brought to a node without it.
    pub(crate) sums_skip_purgeable: bool,
    /// A round brings the newest record of a key, even if it is newer than the fence.
    pub(crate) exchange_brings_newest: bool,
    /// A conditional record is read as a client reads it before a round brings it. Without the
    /// rule, the record is brought as if it were chosen.
    pub(crate) minority_is_completed: bool,
    /// The record read in this way is brought only if it is not older than the differing one.
    pub(crate) read_is_not_older: bool,
    /// A node reports that it cannot read a record. Without the rule, the node reports absence.
    pub(crate) damage_is_told: bool,
    /// An unreadable record is discarded once all other nodes have reported what they hold.
    pub(crate) healing_waits: bool,
    /// A record is deleted if it surfaced because a newer one is unreadable, and other nodes have
    /// purged it.
    pub(crate) risen_is_deleted: bool,
    /// Records brought by a round are durable before their node is ready.
    pub(crate) ready_is_durable: bool,
    /// A node is ready only in the process in which it was fenced.
    pub(crate) ready_in_sealed_life: bool,
    /// The driver of a round checks whether a ready node still runs the process that was fenced.
    pub(crate) lives_are_compared: bool,
    /// Records found equal by the last round are compared again after a restart of any node.
    pub(crate) equal_needs_lives: bool,
    /// Nothing is purged before a commit.
    pub(crate) purge_waits_for_commit: bool,
    /// A commit is durable before anything is purged.
    pub(crate) commit_is_durable: bool,
    /// A commit raises promises to the greatest ballot that a node had promised when it was ready.
    pub(crate) commit_raises_promises: bool,
    /// A commit also covers the ballots after that one, under which the promised coordinator may
    /// continue.
    pub(crate) commit_outbids_following: bool,
    /// Hints of conditional writes obey the raised promises, though their records are chosen.
    pub(crate) hints_obey_commit: bool,
    /// A conditional write uses promises of replicas with its coordinator's watermark.
    pub(crate) promises_of_one_watermark: bool,
    /// A record whose base version a watermark has ended continues under one above the watermark.
    pub(crate) what_ended_goes_on_in_another: bool,
    /// A record made of an absent key is newer than any that may have been purged.
    pub(crate) absent_is_watermark: bool,
    /// A reader ignores a record up to its watermark that is held by a replica which is not
    /// authoritative.
    pub(crate) reads_heed_watermark: bool,
    /// An acknowledgement from a disk that is lost while the write is under way does not count.
    pub(crate) lost_votes_are_dropped: bool,
    /// A node whose directory is an older copy is not authoritative at first.
    pub(crate) rollback_is_noticed: bool,
    /// A directory that was not ready for a later proof does not adopt the proof.
    pub(crate) outdated_is_noticed: bool,
    /// Such a directory is set aside, and its node rebuilt as one with a new disk.
    pub(crate) outdated_is_set_aside: bool,
    /// A node that is not authoritative takes no part in rounds.
    pub(crate) rebuilt_does_not_count: bool,
    /// A new directory is fenced from its beginning.
    pub(crate) new_is_sealed: bool,
    /// A new directory adopts earlier proofs.
    pub(crate) new_takes_over: bool,
    /// A directory that lowers its fence of the beginning, because it is the first of its name,
    /// adopts no proof for having been made late.
    pub(crate) first_forgets_made: bool,
}

/// The protocol with all rules.
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
    greater_id_backs_off: true,
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
    first_forgets_made: true,
};
