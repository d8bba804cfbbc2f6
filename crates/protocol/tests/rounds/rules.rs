//! The rules of repair rounds. For each rule, a test switches it off and finds the failure that the
//! rule prevents.

/// The rules of nodes, coordinators and repair rounds.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A repair fence (`seal`) is durable before its node replies to the round.
    pub(crate) seal_is_durable: bool,
    /// A fenced node refuses clients' plain writes with times up to the fence.
    pub(crate) seal_refuses_writes: bool,
    /// A fenced node refuses hints with times up to the fence.
    pub(crate) seal_refuses_hints: bool,
    /// A fenced node refuses records up to the fence that a reader sends.
    pub(crate) seal_refuses_repair: bool,
    /// A fenced node promises no ballots up to the fence, and stores no records of such ballots.
    pub(crate) seal_refuses_ballots: bool,
    /// If a fence refuses a write, its coordinator gives the write a new version. If the rule is
    /// off, the refusal counts as "stored", as for an older write.
    pub(crate) refused_is_reissued: bool,
    /// If a read cannot repair a majority, it stores its record under a new ballot.
    pub(crate) refused_read_takes_ballot: bool,
    /// A round proves something only if all nodes take part until its end.
    pub(crate) all_take_part: bool,
    /// A node that a later round has fenced carries out no step of an earlier round.
    pub(crate) later_round_ends_earlier: bool,
    /// If two rounds have each fenced some nodes, the round whose driver has the greater id backs
    /// off.
    pub(crate) greater_id_backs_off: bool,
    /// A node that missed a commit adopts the proof before its records are compared.
    pub(crate) lagging_adopts_proofs: bool,
    /// Records that may be purged are not compared, and not brought to nodes without them.
    pub(crate) sums_skip_purgeable: bool,
    /// A round brings the newest record of a key, even if it is newer than the fence.
    pub(crate) exchange_brings_newest: bool,
    /// Before a round brings a conditional write's record, it reads the record as a client would.
    /// If the rule is off, the round brings the record as if it were chosen.
    pub(crate) minority_is_completed: bool,
    /// The record of that read is brought only if it is not older than the differing record.
    pub(crate) read_is_not_older: bool,
    /// A node reports that its record is unreadable. If the rule is off, it reports that it has
    /// none.
    pub(crate) damage_is_told: bool,
    /// An unreadable record is discarded only after all other nodes have reported their records.
    pub(crate) healing_waits: bool,
    /// A record that other nodes have purged is deleted if it has surfaced in place of an
    /// unreadable newer one.
    pub(crate) resurfaced_is_deleted: bool,
    /// Records that a round has brought are durable before their node is ready.
    pub(crate) ready_is_durable: bool,
    /// A node is ready only in the process in which its fence was raised.
    pub(crate) ready_without_restart: bool,
    /// The driver of a round checks that a ready node has not restarted since its fence was raised.
    pub(crate) lives_are_compared: bool,
    /// After a restart of any node, records that the last round found equal are compared again.
    pub(crate) restart_voids_equality: bool,
    /// No record is purged before a commit.
    pub(crate) purge_waits_for_commit: bool,
    /// A commit is durable before a record is purged.
    pub(crate) commit_is_durable: bool,
    /// A commit raises promises to the greatest ballot that any ready node had promised.
    pub(crate) commit_raises_promises: bool,
    /// A commit also raises promises above the ballots under which the coordinator with that
    /// promise may continue.
    pub(crate) commit_outbids_following: bool,
    /// Hints of conditional writes obey the raised promises, although their records are chosen.
    pub(crate) hints_obey_commit: bool,
    /// A conditional write needs promises of replicas whose watermark is that of its coordinator.
    pub(crate) promises_of_one_watermark: bool,
    /// If a watermark has ended a record's base version, the record continues under a base version
    /// above the watermark.
    pub(crate) ended_record_changes_base: bool,
    /// A record that continues an absent key outranks all records that may have been purged.
    pub(crate) absent_is_watermark: bool,
    /// A reader ignores a record up to its watermark if the record's replica is not authoritative.
    pub(crate) reads_heed_watermark: bool,
    /// The acknowledgement of a disk that is lost during the write does not count.
    pub(crate) lost_votes_are_dropped: bool,
    /// A node that starts with an older copy of its directory is not authoritative.
    pub(crate) rollback_is_noticed: bool,
    /// A directory that was not ready for a later proof does not adopt the proof.
    pub(crate) outdated_is_noticed: bool,
    /// An outdated directory is set aside, and its node is rebuilt like one with a new disk.
    pub(crate) outdated_is_set_aside: bool,
    /// A node that is not authoritative takes no part in rounds.
    pub(crate) rebuilt_does_not_count: bool,
    /// A new directory has a fence at the time at which it was made.
    pub(crate) new_is_sealed: bool,
    /// A new directory adopts proofs of rounds before it was made.
    pub(crate) new_adopts_proofs: bool,
    /// The first directory of a node lowers its initial fence. It then no longer adopts proofs on
    /// the ground that it was made later.
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
    lagging_adopts_proofs: true,
    sums_skip_purgeable: true,
    exchange_brings_newest: true,
    minority_is_completed: true,
    read_is_not_older: true,
    damage_is_told: true,
    healing_waits: true,
    resurfaced_is_deleted: true,
    ready_is_durable: true,
    ready_without_restart: true,
    lives_are_compared: true,
    restart_voids_equality: true,
    purge_waits_for_commit: true,
    commit_is_durable: true,
    commit_raises_promises: true,
    commit_outbids_following: true,
    hints_obey_commit: true,
    promises_of_one_watermark: true,
    ended_record_changes_base: true,
    absent_is_watermark: true,
    reads_heed_watermark: true,
    lost_votes_are_dropped: true,
    rollback_is_noticed: true,
    outdated_is_noticed: true,
    outdated_is_set_aside: true,
    rebuilt_does_not_count: true,
    new_is_sealed: true,
    new_adopts_proofs: true,
    first_forgets_made: true,
};
