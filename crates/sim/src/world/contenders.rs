//! Clients that use only contended keys. They send reads, conditional writes, and some plain
//! writes. A condition on tags names tags that the client saw last.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::{Answer, AskedQuorum, Condition, Done, Tag};

use crate::histories::{Action, ContendedWrite, Histories, RetryState};
use crate::ledger::{ClientOutcome, ClientRequest, RequestKind};
use crate::plan::Plan;
use crate::random::Random;

/// State of a client of contended keys.
#[derive(Debug, Default)]
pub(super) struct Contender {
    /// The last tags that the client saw of each key, the latest at the end.
    seen: BTreeMap<Bytes, Vec<Tag>>,
    /// A write with an unknown outcome, which the client sends again.
    open: Option<(Bytes, ContendedWrite)>,
}

/// Maximum number of tags of a key that a client remembers.
const MOST_TAGS: usize = 2;

impl Contender {
    pub(super) fn draw_request(
        &mut self,
        plan: &Plan,
        random: &mut Random,
        histories: &Histories,
    ) -> ClientRequest {
        if let Some((key, wanted)) = self.open.take().filter(|_| random.permille(900)) {
            return contended_request(RequestKind::Change(wanted), key);
        }
        let key = histories.key(random.index(plan.contended_keys));
        let what = if random.permille(300) {
            RequestKind::Get
        } else if random.permille(plan.plain_writes) {
            if random.permille(700) { RequestKind::Put } else { RequestKind::Delete }
        } else {
            let condition = self.condition(&key, random);
            let action = match random.below(10) {
                0..4 => Action::Put,
                4..6 => Action::Delete,
                _ => Action::Add(random.between(1, 1000) as i64),
            };
            let retry = if random.permille(500) { RetryState::First } else { RetryState::Once };
            RequestKind::Change(ContendedWrite { condition, action, retry })
        };
        contended_request(what, key)
    }

    fn condition(&self, key: &Bytes, random: &mut Random) -> Condition {
        match (random.below(10), self.seen.get(key)) {
            (0..3, _) => Condition::Any,
            (3, _) => Condition::Exists,
            (4..6, _) => Condition::Absent,
            (6.., None) => Condition::Absent,
            (6.., Some(seen)) => {
                // Most conditions name only the latest tag, some both tags, few only the earlier
                // tag.
                match random.below(10) {
                    0..7 => Condition::OneOf(seen[seen.len() - 1..].to_vec()),
                    7..9 => Condition::OneOf(seen.clone()),
                    _ => Condition::OneOf(seen[..1].to_vec()),
                }
            }
        }
    }

    /// Remembers the tag in an outcome, or a write that must be sent again.
    pub(super) fn record_outcome(
        &mut self,
        number: u64,
        asked: ClientRequest,
        outcome: &ClientOutcome,
    ) {
        let ClientRequest { what, key, .. } = asked;
        let is_known = match outcome {
            ClientOutcome::Answer(Answer::Failed(failed)) => !failed.unknown,
            ClientOutcome::Answer(_) | ClientOutcome::Refused => true,
            ClientOutcome::Nothing | ClientOutcome::Range(_) => false,
        };
        if let RequestKind::Change(wanted) = what
            && wanted.retry != RetryState::Once
            && (!is_known
                || wanted.first_number(number) != number
                    && !matches!(outcome, ClientOutcome::Answer(Answer::Done(..))))
        {
            let retry = RetryState::Again(wanted.first_number(number));
            self.open = Some((key.clone(), ContendedWrite { retry, ..wanted }));
        }
        let ClientOutcome::Answer(answer) = outcome else { return };
        let tag = match answer {
            Answer::Found(record) => record.as_ref().map(Tag::of),
            Answer::Written(version, _) => Some(Tag { version: *version, last: None }),
            Answer::Done(Done::Changed { tag, .. }, _) => Some(*tag),
            Answer::Done(Done::Unmet { current }, _) => *current,
            Answer::Done(Done::Impossible(_) | Done::Forgotten | Done::Reused, _)
            | Answer::Failed(_) => None,
        };
        let Some(tag) = tag else { return };
        let seen = self.seen.entry(key).or_default();
        seen.retain(|other| *other != tag);
        seen.push(tag);
        let most = seen.len().saturating_sub(MOST_TAGS);
        seen.drain(..most);
    }
}

/// Creates a request for a contended key with the default quorum, a majority.
pub(super) fn contended_request(what: RequestKind, key: Bytes) -> ClientRequest {
    ClientRequest { what, key, quorum: AskedQuorum::default(), ttl_ms: 0 }
}
