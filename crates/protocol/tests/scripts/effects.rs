//! Prints the effects of an event, one line each.

use protocol::{
    Answer, BackgroundEffect, Body, Done, Effect, FailureKind, Message, Quorum, ReplicaSet,
    RequestFailure, ScanStep, Tag, WriteIdentity,
};

use crate::words::{Words, after_base, lower, op, proof_text, slot, until, up_to};

impl Words {
    /// Returns one line that describes the effect.
    pub(crate) fn effect(&self, effect: &Effect) -> String {
        match effect {
            Effect::Read { op: id, key, most, .. } => {
                let most = if *most == u32::MAX { String::new() } else { up_to(*most) };
                format!("store: {} read {}{most}", op(*id), Self::name_of(key))
            }
            Effect::Recall { op: id, key, asked: WriteIdentity { id: write, .. }, .. } => {
                format!("store: {} recall {} {write}", op(*id), Self::name_of(key))
            }
            Effect::Write { op: id, key, record, look, durable, .. } => {
                let look = if *look { " look" } else { "" };
                let durable = if *durable { " durably" } else { "" };
                format!("store: {} write {}{look}{durable}", op(*id), self.item_text(key, record))
            }
            Effect::WriteAll { op: id, items, .. } => {
                format!("store: {} writes {}", op(*id), self.items_text(items))
            }
            Effect::Page { op: id, request, .. } => {
                format!("store: {} {}", op(*id), self.page_request_text(request))
            }
            Effect::Compare { op: id, request, .. } => {
                let until = after_base(request.until);
                format!("store: {} sums up to {until}", op(*id))
            }
            Effect::Discard { op: id, ranges } => format!("store: {} discard {ranges:?}", op(*id)),
            Effect::Send { peer, message } => format!("n{}: {}", peer.0, self.message(message)),
            Effect::Respond { connection, id, reply } => {
                format!("l{}.{id}: {}", connection.0, self.reply_text(reply))
            }
            Effect::Answer { client, answer } => format!("c{}: {}", client.0, self.answer(answer)),
            Effect::ReturnCall { call, result } => {
                let result = match result {
                    Ok(reply) => self.reply_text(reply),
                    Err(why) => format!("nothing, {}", failure(*why)),
                };
                format!("k{}: {result}", call.0)
            }
            Effect::Hint { hint, peer, key, record } => {
                format!("hint h{} for n{}: {}", hint.0, peer.0, self.item_text(key, record))
            }
            Effect::StoreProof { op: id, proof } => {
                format!("{}: keep {}", op(*id), proof_text(proof))
            }
            Effect::StoreLayouts { op: id } => format!("{}: keep layouts", op(*id)),
            Effect::StoreMissed { op: id, node } => {
                format!("{}: keep what n{} misses", op(*id), node.0)
            }
        }
    }

    /// Returns one line that describes an effect of the background work.
    pub(crate) fn node_effect(&self, effect: &BackgroundEffect) -> String {
        match effect {
            BackgroundEffect::Outdated { proven } => format!("outdated by {proven}"),
            BackgroundEffect::DropOrphans => "store: drop orphans".to_owned(),
            BackgroundEffect::Waits(waits) => format!("tell: {waits:?}"),
            BackgroundEffect::RoundEnded(report) => format!("round ended: {report:?}"),
            BackgroundEffect::ReadHints { peer, after, max_bytes, .. } => {
                let after = after.as_ref().map(|key| format!(" after {}", Self::name_of(key)));
                let after = after.unwrap_or_default();
                format!("store: hints for n{}{after}, {max_bytes} bytes", peer.0)
            }
            BackgroundEffect::DropHints { peer, items } => {
                format!("store: drop hints for n{}: {}", peer.0, self.items_text(items))
            }
            BackgroundEffect::Call { call, node, class, request } => {
                let (class, request) = (lower(class), self.request_text(request));
                format!("k{} of n{}: {class} {request}", call.0, node.0)
            }
            BackgroundEffect::StoreClaim { peer, claim } => {
                let (disk, reported) = (claim.incarnation.0, claim.reported);
                let (position, late) = (reported.position.0, reported.late.0);
                let life = reported.life.map_or(String::new(), |life| {
                    format!(" life {} up {position} late {late}", life.0)
                });
                format!("remember n{} disk {disk}{life}", peer.0)
            }
            BackgroundEffect::StoreRemembered { call, remembered } => {
                format!("k{} keep {} remembered", call.0, remembered.len())
            }
            BackgroundEffect::StoreClusterId(id) => format!("keep cluster {id}"),
            BackgroundEffect::StoreLayouts => "keep layouts".to_owned(),
            BackgroundEffect::StoreMissed { node } => format!("keep what n{} misses", node.0),
            BackgroundEffect::StoreState(state) => format!("stand {}", lower(state)),
        }
    }

    /// Returns one line that describes a scan's next step.
    pub(crate) fn step(&self, step: &ScanStep) -> String {
        match step {
            ScanStep::Item(key, record) => format!("item {}", self.item_text(key, record)),
            ScanStep::Ask(node, page) => format!("n{}: {}", node.0, self.page_request_text(page)),
            ScanStep::Wait => "wait".to_owned(),
            ScanStep::End => "end".to_owned(),
            ScanStep::OutOfReach => "out of reach".to_owned(),
        }
    }

    fn message(&self, message: &Message) -> String {
        match &message.body {
            Body::Request { remaining_ms, class, request } => {
                let (class, request) = (lower(class), self.request_text(request));
                format!("{} {class} {request} ({remaining_ms} ms)", slot(message.id))
            }
            Body::Reply(reply) => {
                format!("{} {}", slot(message.id), self.reply_text(reply))
            }
        }
    }

    fn answer(&self, answer: &Answer) -> String {
        match answer {
            Answer::Found(None) => "absent".to_owned(),
            Answer::Found(Some(record)) => format!("found {}", self.record_text(None, record)),
            Answer::Written(version, acks) => {
                format!("written {} {}", self.version_text(*version), format_holders(acks.by))
            }
            Answer::Done(done, acks) => {
                format!("{} {}", self.done_text(done), format_holders(acks.by))
            }
            Answer::Failed(failed) => failed_text(failed),
        }
    }
}

/// Prints the positions of replicas in the key's order, counted from 1.
pub(crate) fn format_holders(by: ReplicaSet) -> String {
    let places = (0..usize::from(ReplicaSet::MOST)).filter(|place| by.has(*place));
    let places: Vec<String> = places.map(|place| (place + 1).to_string()).collect();
    format!("(by {})", if places.is_empty() { "none".to_owned() } else { places.join(", ") })
}

impl Words {
    pub(crate) fn done_text(&self, done: &Done) -> String {
        let tag = |tag: &Tag| {
            let step = tag.last.map(|(step, _)| format!("#{step}")).unwrap_or_default();
            format!("{}{step}", self.version_text(tag.version))
        };
        match done {
            Done::Changed { tag: after, result, expiry_ms, .. } => {
                let sum = result.map(|sum| format!(", {sum}")).unwrap_or_default();
                format!("changed {}{sum}{}", tag(after), until(*expiry_ms))
            }
            Done::Unmet { current: None } => "unmet, there is none".to_owned(),
            Done::Unmet { current: Some(current) } => format!("unmet, there is {}", tag(current)),
            Done::Impossible(why) => format!("impossible, {}", lower(why)),
            Done::Forgotten => "forgotten".to_owned(),
            Done::Reused => "reused".to_owned(),
        }
    }
}

fn failed_text(failed: &RequestFailure) -> String {
    let Quorum { ack, from } = failed.quorum;
    let (why, acked) = (failure(failed.failure), failed.acked);
    let outcome = match (failed.is_write, failed.unknown) {
        (false, _) => "",
        (true, true) => ", outcome unknown",
        (true, false) => ", outcome none",
    };
    let detail = failed.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let parts = failed.parts.iter().map(|(node, part)| format!("{}:{part:?}", node.0));
    let parts = parts.collect::<Vec<_>>().join(" ");
    format!("failed, {why}: {acked} did, {ack}/{from} wanted{outcome}{detail} [{parts}]")
}

fn failure(failure: FailureKind) -> &'static str {
    match failure {
        FailureKind::TooFew => "too few",
        FailureKind::Busy => "busy",
        FailureKind::NoSpace => "no space",
        FailureKind::Failed => "failed",
        FailureKind::Fenced => "fenced",
    }
}
