//! Background tasks: a deterministic executor of `async` functions inside the protocol.
//!
//! ```text
//!   spawn ──────────────▶ ┌───────┐ ─▶ polled: Context::call ─▶ BackgroundEffect::Call ─▶ a node
//!   CallReturned ───────▶ │ Tasks │ ─▶ polled: the task that made the call         │
//!   Tick ───────────────▶ └───────┘ ─▶ polled: all tasks, to test their conditions │
//!        ▲                                                                        │
//!        └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The executor polls a task only while its node handles an event, and in the order in which
//! answers come. No thread wakes a task, and a task reads no clock except the event's time. A node
//! with tasks is therefore a function of its state, the time and the event.
//!
//! The code that starts a task owns it, and starts the next task of the same kind only after the
//! last one has ended. Tasks are, for example, a repair round or a rebuild from another node.
//! Owners ask [`Tasks::is_under_way`] whether a task is under way, and never keep a flag for that,
//! because a task may be dropped.
//!
//! Every wait ends: a call returns by the deadline of its class, and each condition that a task
//! waits for includes a time. A task keeps no copy of its node's state across a wait, because the
//! state may have changed meanwhile. The owner drops a task with [`Tasks::stop`], which also drops
//! the task's calls; a later answer is ignored.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as PollContext, Poll, Waker};

use crate::background::effect::{BackgroundConfig, BackgroundEffect};
use crate::clock::Now;
use crate::event::{CallId, FailureKind};
use crate::message::{Class, NodeId, Reply, Request};
use crate::placement::view::View;
use crate::shared::Shared;

/// The id of a task, unique until the node's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId(u64);

/// The tasks of a node.
pub(crate) struct Tasks {
    context: Context,
    tasks: BTreeMap<TaskId, Task>,
    next: u64,
}

struct Task {
    name: &'static str,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// A task's access to its node.
#[derive(Clone)]
pub(crate) struct Context(Rc<ContextInner>);

struct ContextInner {
    shared: Arc<Shared>,
    config: BackgroundConfig,
    view: RefCell<Arc<View>>,
    now: Cell<Now>,
    /// The task that is being polled.
    polled: Cell<TaskId>,
    /// Ticks since the start.
    ticks: Cell<u64>,
    /// True while this node's knowledge of layouts is being stored.
    keeps_layouts: Cell<bool>,
    next_call: Cell<u64>,
    calls: RefCell<BTreeMap<CallId, WaitingCall>>,
    effects: RefCell<Vec<BackgroundEffect>>,
}

/// A call that a task waits for.
struct WaitingCall {
    task: TaskId,
    answer: Option<Result<Reply, FailureKind>>,
}

impl Tasks {
    pub(crate) fn new(shared: Arc<Shared>, config: BackgroundConfig) -> Self {
        let view = RefCell::new(shared.view());
        let inner = ContextInner {
            shared,
            config,
            view,
            now: Cell::new(Now { mono: 0, wall: 0 }),
            polled: Cell::new(TaskId(0)),
            ticks: Cell::new(0),
            keeps_layouts: Cell::new(false),
            next_call: Cell::new(0),
            calls: RefCell::default(),
            effects: RefCell::default(),
        };
        Self { context: Context(Rc::new(inner)), tasks: BTreeMap::new(), next: 0 }
    }

    /// Returns the context that the node's tasks act through.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Sets the time of the event that the node handles.
    pub(crate) fn set_now(&self, now: Now) {
        self.context.0.now.set(now);
    }

    /// Sets the view in force.
    pub(crate) fn follow(&self, view: &Arc<View>) {
        *self.context.0.view.borrow_mut() = Arc::clone(view);
    }

    /// Starts a task, and runs it up to its first wait.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        future: impl Future<Output = ()> + 'static,
    ) -> TaskId {
        let id = TaskId(self.next);
        self.next += 1;
        self.tasks.insert(id, Task { name, future: Box::pin(future) });
        self.poll(id);
        id
    }

    /// Drops a task at the point where it waits, with its calls.
    pub(crate) fn stop(&mut self, id: TaskId) {
        self.tasks.remove(&id);
    }

    /// Drops one of the tasks under way at the point where it waits, chosen by `pick`; returns its
    /// name.
    pub(crate) fn stop_any(&mut self, pick: u64) -> Option<&'static str> {
        let at = pick.checked_rem(self.tasks.len() as u64)?;
        let id = *self.tasks.keys().nth(at as usize)?;
        self.tasks.remove(&id).map(|task| task.name)
    }

    /// True if a task has not ended.
    pub(crate) fn is_under_way(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    /// Resumes the task that made a call, now that the call has returned. Returns `false` if no
    /// task waits for the call: the task or the call was dropped.
    pub(crate) fn complete_call(&mut self, call: CallId, result: CallResult) -> bool {
        let task = {
            let mut calls = self.context.0.calls.borrow_mut();
            let Some(waiting) = calls.get_mut(&call) else { return false };
            waiting.answer = Some(result);
            waiting.task
        };
        self.poll(task);
        true
    }

    /// Counts a tick and polls all tasks, so that a task that waits for a condition checks it.
    pub(crate) fn tick(&mut self) {
        self.context.0.ticks.set(self.ticks() + 1);
        for id in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.poll(id);
        }
    }

    /// Returns the number of ticks since the start.
    pub(crate) fn ticks(&self) -> u64 {
        self.context.0.ticks.get()
    }

    /// Moves the effects that tasks have asked for to the node's effects.
    pub(crate) fn drain_effects(&self, out: &mut Vec<BackgroundEffect>) {
        out.append(&mut self.context.0.effects.borrow_mut());
    }

    fn poll(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        self.context.0.polled.set(id);
        let mut context = PollContext::from_waker(Waker::noop());
        if task.future.as_mut().poll(&mut context).is_ready() {
            self.tasks.remove(&id);
        }
    }
}

impl Context {
    /// Returns the time of the event that is being handled. The time changes with every wait.
    pub(crate) fn now(&self) -> Now {
        self.0.now.get()
    }

    /// Returns the view in force. The view may change with every wait.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.0.view.borrow())
    }

    /// Returns all other nodes of the view, from both sets while partitions move. A node that is
    /// about to leave may be the only one that holds a write or a mark. A node that is about to
    /// join takes part in writes, and may miss some like any other node.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let own = self.0.shared.own;
        self.0.view.borrow().ids().filter(|node| *node != own).collect()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn config(&self) -> &BackgroundConfig {
        &self.0.config
    }

    /// Returns the greatest time of a version that this node accepts at present.
    pub(crate) fn greatest_accepted_time(&self) -> u64 {
        self.0.shared.clock.greatest_accepted_time(self.now(), self.0.config.max_skew_micros)
    }

    /// True if a version's time is too far ahead of this node's clock to be stored.
    pub(crate) fn is_ahead(&self, time: u64) -> bool {
        self.0.shared.clock.is_ahead(time, self.now(), self.0.config.max_skew_micros)
    }

    /// Returns the next call id, which no other call of this node has.
    fn next_call(&self) -> CallId {
        let next = self.0.next_call.get();
        self.0.next_call.set(next + 1);
        CallId(next)
    }

    pub(crate) fn effect(&self, effect: BackgroundEffect) {
        self.0.effects.borrow_mut().push(effect);
    }

    /// Stores this node's knowledge of layouts, unless a store is under way.
    pub(crate) fn store_layouts(&self) {
        if !self.0.keeps_layouts.replace(true) {
            self.effect(BackgroundEffect::StoreLayouts);
        }
    }

    /// Notes that the knowledge of layouts was stored, or that storing it failed. A failed store is
    /// tried again with the next tick.
    pub(crate) fn on_layouts_stored(&self, kept: bool) {
        self.0.keeps_layouts.set(false);
        if kept && self.0.shared.membership.layouts.is_unsaved() {
            self.store_layouts();
        }
    }

    /// Calls a node, which may be this one. The call is made when the returned future is first
    /// polled, and returns by the deadline of its class.
    pub(crate) fn call(&self, node: NodeId, class: Class, request: Request) -> PendingCall {
        self.effect_as_call(move |call| BackgroundEffect::Call { call, node, class, request })
    }

    /// Returns a future that performs an effect, and resolves as a call does. The effect starts
    /// when the future is first polled.
    pub(crate) fn effect_as_call(
        &self,
        effect: impl FnOnce(CallId) -> BackgroundEffect + 'static,
    ) -> PendingCall {
        PendingCall { context: self.clone(), state: CallState::Unsent(Box::new(effect)) }
    }

    /// Waits for a number of microseconds, rounded up to the node's tick.
    pub(crate) async fn pause(&self, micros: u64) {
        let until = self.now().mono + micros;
        self.wait_until(|now| now.mono >= until).await;
    }

    /// Waits until a condition holds. The condition is checked with each tick, and must become true
    /// eventually.
    pub(crate) async fn wait_until(&self, condition: impl Fn(Now) -> bool) {
        std::future::poll_fn(|_| match condition(self.now()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

/// The result of a call: the reply, or why there is none.
pub(crate) type CallResult = Result<Reply, FailureKind>;

/// The future of a call's result.
pub(crate) struct PendingCall {
    context: Context,
    state: CallState,
}

enum CallState {
    Unsent(Box<dyn FnOnce(CallId) -> BackgroundEffect>),
    Made(CallId),
    Over,
}

impl Future for PendingCall {
    type Output = Result<Reply, FailureKind>;

    fn poll(mut self: Pin<&mut Self>, _: &mut PollContext<'_>) -> Poll<Self::Output> {
        let context = self.context.clone();
        match std::mem::replace(&mut self.state, CallState::Over) {
            CallState::Unsent(effect) => {
                let call = context.next_call();
                let waiting = WaitingCall { task: context.0.polled.get(), answer: None };
                context.0.calls.borrow_mut().insert(call, waiting);
                context.effect(effect(call));
                self.state = CallState::Made(call);
                Poll::Pending
            }
            CallState::Made(call) => {
                let mut calls = context.0.calls.borrow_mut();
                let answer = calls.get_mut(&call).and_then(|waiting| waiting.answer.take());
                let Some(answer) = answer else {
                    self.state = CallState::Made(call);
                    return Poll::Pending;
                };
                calls.remove(&call);
                Poll::Ready(answer)
            }
            CallState::Over => unreachable!("a call is polled after it has returned"),
        }
    }
}

impl Drop for PendingCall {
    /// Removes the call, so that a later answer is ignored.
    fn drop(&mut self) {
        if let CallState::Made(call) = self.state {
            self.context.0.calls.borrow_mut().remove(&call);
        }
    }
}

/// Calls to several nodes, at most one to each, whose results are taken one at a time.
pub(crate) struct CallSet {
    context: Context,
    calls: Vec<(NodeId, PendingCall)>,
}

impl CallSet {
    pub(crate) fn new(context: &Context) -> Self {
        Self { context: context.clone(), calls: Vec::new() }
    }

    /// Calls a node, unless a call to it is under way.
    pub(crate) fn ask(&mut self, node: NodeId, class: Class, request: Request) {
        if self.calls.iter().all(|(asked, _)| *asked != node) {
            self.calls.push((node, self.context.call(node, class, request)));
        }
    }

    /// Drops the calls that are under way.
    pub(crate) fn forget(&mut self) {
        self.calls.clear();
    }

    /// Returns the next result; `None` = no result came before the next tick.
    pub(crate) async fn next_in_this_tick(&mut self) -> Option<(NodeId, CallResult)> {
        let ticks = self.context.0.ticks.get();
        std::future::poll_fn(|cx| {
            for at in 0..self.calls.len() {
                let (node, call) = &mut self.calls[at];
                if let Poll::Ready(result) = Pin::new(call).poll(cx) {
                    let node = *node;
                    self.calls.remove(at);
                    return Poll::Ready(Some((node, result)));
                }
            }
            match self.context.0.ticks.get() == ticks {
                true => Poll::Pending,
                false => Poll::Ready(None),
            }
        })
        .await
    }
}

/// Runs all futures at once, and returns their results in the same order.
pub(crate) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let results = join_bounded(futures.into_iter().map(|future| (0, future)), usize::MAX, u64::MAX);
    results.await
}

/// Runs all futures at once, until all are ready or one fails. The first failure drops the others.
pub(crate) async fn try_join_all<T, E, F>(futures: impl IntoIterator<Item = F>) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting: Vec<_> =
        futures.into_iter().map(|future| (Some(Box::pin(future)), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_over = true;
        for (future, result) in &mut waiting {
            let Some(pending) = future else { continue };
            match pending.as_mut().poll(context) {
                Poll::Ready(Ok(done)) => (*future, *result) = (None, Some(done)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => is_over = false,
            }
        }
        if is_over { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(waiting.into_iter().filter_map(|(_, result)| result).collect())
}

/// Runs jobs concurrently, and returns their results in the same order. At most `most` jobs with a
/// total weight of at most `most_weight` run at once, except that a heavier job runs alone. A job
/// begins as soon as these limits allow.
pub(crate) async fn join_bounded<F: Future>(
    jobs: impl IntoIterator<Item = (u64, F)>,
    most: usize,
    most_weight: u64,
) -> Vec<F::Output> {
    let mut jobs = jobs.into_iter().enumerate().peekable();
    let mut under_way: Vec<(usize, u64, Pin<Box<F>>)> = Vec::new();
    let mut weight = 0;
    let mut results = BTreeMap::new();
    std::future::poll_fn(|context| {
        loop {
            under_way.retain_mut(|(at, weighs, job)| match job.as_mut().poll(context) {
                Poll::Ready(result) => {
                    weight -= *weighs;
                    results.insert(*at, result);
                    false
                }
                Poll::Pending => true,
            });
            let mut has_begun = false;
            while let Some((at, (weighs, job))) = jobs.next_if(|(_, (weighs, _))| {
                under_way.is_empty() || under_way.len() < most && weight + weighs <= most_weight
            }) {
                weight += weighs;
                under_way.push((at, weighs, Box::pin(job)));
                has_begun = true;
            }
            if !has_begun {
                return if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending };
            }
        }
    })
    .await;
    results.into_values().collect()
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tasks.values().map(|task| task.name)).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
