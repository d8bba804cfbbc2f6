//! The rules of the protocol, each of which can be left out to see what it is for.

/// What the replicas, the coordinators and the rounds do.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// A seal is durable before its replica answers the round.
    pub(crate) seal_is_durable: bool,
    /// A sealed replica refuses a client's plain write up to the seal, …
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
    /// A round commits when all replicas agree. If not, when a majority does.
    pub(crate) all_agree: bool,
    /// A replica that has streamed to a directory refuses a commit that counts an earlier one in
    /// its place.
    pub(crate) commit_names_lives: bool,
    /// Nothing is purged before a commit.
    pub(crate) purge_waits_for_commit: bool,
    /// A round drops the sum of a directory if a replica tells it of a later one.
    pub(crate) later_life_ends_sum: bool,
    /// A commit is durable before anything is purged.
    pub(crate) commit_is_durable: bool,
    /// What a round brought is durable before it is summed.
    pub(crate) exchange_is_durable: bool,
    /// A replica that takes part in a round takes nothing from an earlier one.
    pub(crate) later_round_ends_earlier: bool,
    /// A replica that is rebuilt refuses a record up to its watermark from one with a lower
    /// watermark.
    pub(crate) watermark_refuses_stream: bool,
    /// A reader passes over a record up to the watermark of a replica that does not hold it.
    pub(crate) reads_heed_watermark: bool,
    /// An acknowledgement from a disk that is lost while the write is under way does not count.
    pub(crate) lost_votes_are_dropped: bool,
    /// A replica whose directory is an older copy is rebuilt.
    pub(crate) rollback_is_noticed: bool,
    /// A replica that is rebuilt takes no part in rounds, …
    pub(crate) rebuilt_does_not_count: bool,
    /// … takes over the watermark of those that stream to it, …
    pub(crate) rebuilt_takes_watermark: bool,
    /// … and their seal and the round that made it.
    pub(crate) rebuilt_joins_round: bool,
    /// A replica that takes over a watermark drops what it alone holds up to there.
    pub(crate) watermark_drops: bool,
    /// A replica that missed a commit takes over the watermark before it is compared.
    pub(crate) lagging_takes_over: bool,
    /// Sums leave out what may be purged.
    pub(crate) sums_skip_purgeable: bool,
    /// A replica that can't read a record says so. If not, it takes it for absent.
    pub(crate) damage_is_told: bool,
    /// What can't be read is healed when all others have told what they hold.
    pub(crate) healing_waits: bool,
    /// A round brings the newest record of a key, even if it is newer than the seal.
    pub(crate) exchange_brings_newest: bool,
    /// A conditional record that one replica holds is completed by a round, as by a reader. If
    /// not, it is brought to the others as if it were chosen.
    pub(crate) minority_is_completed: bool,
    /// A commit raises the promises to the greatest that one of the replicas had given when it
    /// was summed, …
    pub(crate) commit_raises_promises: bool,
    /// … and hints of conditional writes obey that, though they are chosen.
    pub(crate) hints_obey_commit: bool,
    /// A conditional write goes by promises of replicas with one watermark.
    pub(crate) promises_of_one_watermark: bool,
    /// What is found of a family that a watermark has ended goes on in one above that.
    pub(crate) what_ended_goes_on_in_another: bool,
    /// What a conditional write makes of an absent key is newer than what may have been purged.
    pub(crate) absent_is_watermark: bool,
}

/// All of them.
pub(crate) const RULES: Rules = Rules {
    seal_is_durable: true,
    seal_refuses_writes: true,
    seal_refuses_hints: true,
    seal_refuses_repair: true,
    seal_refuses_ballots: true,
    refused_is_reissued: true,
    all_agree: true,
    commit_names_lives: true,
    later_life_ends_sum: true,
    commit_is_durable: true,
    exchange_is_durable: true,
    later_round_ends_earlier: true,
    watermark_refuses_stream: true,
    reads_heed_watermark: true,
    lost_votes_are_dropped: true,
    rollback_is_noticed: true,
    rebuilt_does_not_count: true,
    rebuilt_takes_watermark: true,
    rebuilt_joins_round: true,
    purge_waits_for_commit: true,
    watermark_drops: true,
    lagging_takes_over: true,
    sums_skip_purgeable: true,
    damage_is_told: true,
    healing_waits: true,
    exchange_brings_newest: true,
    minority_is_completed: true,
    commit_raises_promises: true,
    hints_obey_commit: true,
    promises_of_one_watermark: true,
    what_ended_goes_on_in_another: true,
    absent_is_watermark: true,
};
