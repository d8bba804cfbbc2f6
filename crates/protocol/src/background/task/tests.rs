use super::*;
use crate::clock::Clock;
use crate::membership::disk_ids::Incarnation;
use crate::membership::logs::Logs;
use crate::membership::state::{Membership, MembershipState};
use crate::placement::topology::{Member, Topology};

const A: NodeId = NodeId(0);

/// Makes the tasks of a node of three that has just started.
pub(crate) fn tasks() -> Tasks {
    let member = |name: &str| Member { name: name.to_owned(), zone: String::new(), weight: 1 };
    let names = ["a", "b", "c"].map(member);
    let topology = Topology::new(names.into(), 3).unwrap();
    let clock = Arc::new(Clock::start(7, 0, 0));
    let membership = Membership::new(MembershipState::Member, 0, false);
    let logs = Arc::new(Logs::first(Incarnation(1)));
    let shared = Arc::new(Shared::new(topology, A, clock, membership, 0, logs));
    Tasks::new(shared, BackgroundConfig::IDLE)
}

/// Returns the calls that tasks have made since the last query: the node, the request and the id of
/// each.
pub(crate) fn requests(tasks: &Tasks) -> Vec<(NodeId, CallId, Request)> {
    let mut effects = Vec::new();
    tasks.drain_effects(&mut effects);
    let call = |effect| match effect {
        BackgroundEffect::Call { call, node, request, .. } => (node, call, request),
        other => panic!("{other:?}"),
    };
    effects.into_iter().map(call).collect()
}

fn calls(tasks: &Tasks) -> Vec<(NodeId, CallId)> {
    requests(tasks).into_iter().map(|(node, call, _)| (node, call)).collect()
}

fn ask(context: &Context, node: u16) -> PendingCall {
    context.call(NodeId(node), Class::Repair, Request::Ping)
}

/// The notes of a task under test.
type Notes = Rc<RefCell<Vec<String>>>;

fn note(notes: &Notes, what: impl Into<String>) {
    notes.borrow_mut().push(what.into());
}

#[test]
fn a_task_resumes_with_the_answer_to_its_own_call() {
    let (mut tasks, notes) = (tasks(), Notes::default());
    for name in ["first", "second"] {
        let (context, notes) = (tasks.context().clone(), Rc::clone(&notes));
        tasks.spawn(name, async move {
            let answer = ask(&context, 1).await;
            note(&notes, format!("{name}: {answer:?}"));
        });
    }
    let asked = calls(&tasks);
    assert_eq!(asked.len(), 2);
    assert!(tasks.complete_call(asked[1].1, Ok(Reply::Pong)));
    assert!(tasks.complete_call(asked[0].1, Err(FailureKind::Busy)));
    assert_eq!(*notes.borrow(), ["second: Ok(Pong)", "first: Err(Busy)"]);
    assert!(!tasks.complete_call(asked[0].1, Ok(Reply::Pong)), "nobody waits for it any more");
}

#[test]
fn a_paused_task_resumes_at_the_first_tick_after_its_pause() {
    let (mut tasks, notes) = (tasks(), Notes::default());
    let (context, told) = (tasks.context().clone(), Rc::clone(&notes));
    let id = tasks.spawn("sleeper", async move {
        context.pause(100).await;
        note(&told, format!("at {}", context.now().mono));
    });
    for (mono, is_asleep) in [(99, true), (130, false)] {
        tasks.set_now(Now { mono, wall: 0 });
        tasks.tick();
        assert_eq!(tasks.is_under_way(id), is_asleep);
    }
    assert_eq!(*notes.borrow(), ["at 130"]);
}

/// The answer to a stopped task is ignored, and the task's values are dropped.
#[test]
fn a_stopped_task_leaves_nothing() {
    let (mut tasks, held) = (tasks(), Rc::new(()));
    let (context, guard) = (tasks.context().clone(), Rc::clone(&held));
    let id = tasks.spawn("stopped", async move {
        let both = [ask(&context, 1), ask(&context, 2)];
        join_all(both).await;
        drop(guard);
        unreachable!("it is stopped");
    });
    let asked = calls(&tasks);
    assert!(tasks.complete_call(asked[0].1, Ok(Reply::Pong)));
    assert_eq!(Rc::strong_count(&held), 2);
    tasks.stop(id);
    assert_eq!(Rc::strong_count(&held), 1);
    assert!(tasks.context().0.calls.borrow().is_empty());
    assert!(!tasks.complete_call(asked[1].1, Ok(Reply::Pong)));
    tasks.tick();
}

#[test]
fn the_first_failure_drops_the_other_calls() {
    let (mut tasks, notes) = (tasks(), Notes::default());
    let (context, told) = (tasks.context().clone(), Rc::clone(&notes));
    tasks.spawn("tries", async move {
        let result = try_join_all([1, 2, 3].map(|node| ask(&context, node))).await;
        note(&told, format!("{result:?}"));
        assert!(ask(&context, 4).await.is_ok());
    });
    let asked = calls(&tasks);
    assert!(tasks.complete_call(asked[2].1, Ok(Reply::Pong)));
    assert!(tasks.complete_call(asked[1].1, Err(FailureKind::Busy)));
    assert_eq!(*notes.borrow(), ["Err(Busy)"]);
    assert_eq!(tasks.context().0.calls.borrow().len(), 1, "the last one alone");
}

#[test]
fn jobs_start_within_the_concurrency_limit() {
    let (mut tasks, notes) = (tasks(), Notes::default());
    let (context, told) = (tasks.context().clone(), Rc::clone(&notes));
    tasks.spawn("jobs", async move {
        // The second job is heavier than the limit, and runs alone.
        let weights = [3, 100, 4, 4, 4];
        let jobs = weights.iter().zip(1..).map(|(weight, node)| (*weight, ask(&context, node)));
        let results = join_bounded(jobs, 2, 10).await;
        note(&told, format!("{}", results.iter().filter(|result| result.is_ok()).count()));
    });
    let mut order = Vec::new();
    let mut waves = Vec::new();
    loop {
        let asked = calls(&tasks);
        let Some((_, first)) = asked.first().copied().or_else(|| order.pop()) else { break };
        waves.push(asked.iter().map(|(node, _)| node.0).collect::<Vec<_>>());
        order.extend(asked.into_iter().skip(1));
        assert!(tasks.complete_call(first, Ok(Reply::Pong)));
    }
    assert_eq!(waves.concat(), [1, 2, 3, 4, 5]);
    assert_eq!(waves[0], [1], "the second would be too heavy beside the first");
    assert_eq!(waves[1], [2]);
    assert_eq!(waves[2], [3, 4]);
    assert_eq!(*notes.borrow(), ["5"]);
}
