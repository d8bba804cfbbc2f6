//! `/admin/layout` and the paths below it: reports the layout in force, plans changes, and applies
//! or aborts them.
//!
//! ```text
//!   POST plan ─────────▶ a plan, computed outside the event loop, kept by this node
//!   POST apply, abort ─▶ the node task ─▶ the metadata quorum
//!   GET ───────────────▶ the layout in force, and the progress of a change
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use protocol::Progress;
use protocol::layout::{Layout, Stage};
use tokio::time::sleep;

use crate::http::admission::admitted::Admitted;
use crate::http::problem::Problem;
use crate::http::{Answer, Service, params};
use crate::layout::status::{ChangeProgress, id_text};

pub(crate) fn get(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    params::refuse_parameters(query.into_params())?;
    Ok(Answer::json(StatusCode::OK, &service.reports.layout()))
}

/// Interval at which a handler checks the progress of a change.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(crate) async fn plan(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    let change = params::change(query.into_params(), |name| service.reports.joiner(name))?;
    refuse_before_start(service)?;
    match service.reports.plan(change).await {
        Some(Ok(plan)) => Ok(Answer::json(StatusCode::OK, &plan)),
        Some(Err(error)) => Err(Problem::bad_request(error.to_string())),
        None => Err(Problem::overload("the node is about to stop")),
    }
}

pub(crate) async fn apply(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    let id = params::apply(query.into_params())?;
    refuse_before_start(service)?;
    let Some(plan) = service.reports.find_plan(id) else {
        let detail = format!(
            "this node knows no plan {}: it forgets plans when it restarts, and all but the last \
             few; plan again, or ask the node that made it",
            id_text(id)
        );
        return Err(Problem::plan_refused(detail));
    };
    refuse_outdated_plan(&plan, &service.reports.known_layout())?;
    if let Some(other) = service.reports.layout().change
        && other.progress == ChangeProgress::Asking
        && other.plan != id_text(id)
    {
        return Err(Problem::plan_refused(format!(
            "this node asks the council for plan {} at the moment: wait for the end of that \
             (change in /admin/layout)",
            other.plan
        )));
    }
    refuse_unasked_nodes(&plan, &service.reports.known_layout())?;
    // Answers after the change is recorded, so an abort that follows this answer finds the change.
    let until = Instant::now() + service.limits().deadline;
    let is_known = || service.reports.change().is_some_and(|(plan, _)| plan == id);
    service.reports.apply(plan).await;
    while !is_known() && Instant::now() < until {
        sleep(POLL_INTERVAL).await;
    }
    Ok(Answer::json(StatusCode::ACCEPTED, &service.reports.layout()))
}

/// Refuses a change until all nodes that `--cluster` lists have started once.
fn refuse_before_start(service: &Service) -> Result<(), Problem> {
    service.reports.reason_not_begun().map_or(Ok(()), |why| Err(Problem::plan_refused(why)))
}

/// Refuses a plan with a new node that did not ask to join. The change would wait for the node,
/// which may not exist.
fn refuse_unasked_nodes(plan: &Layout, known: &Layout) -> Result<(), Problem> {
    let is_new =
        |node: &&protocol::layout::Node| plan.id() != known.id() && known.node(node.id).is_none();
    let mut unasked = plan.nodes.iter().filter(is_new).filter(|node| node.first_disk.is_none());
    let Some(node) = unasked.next() else { return Ok(()) };
    let name = &node.member.name;
    Err(Problem::plan_refused(format!(
        "node {name:?} has not asked to join: nothing was changed. Start it with kvorum serve \
         --join and a URL of this cluster, then plan to add it by its name alone"
    )))
}

/// Refuses a plan that is neither based on the latest layout, nor is the latest layout.
fn refuse_outdated_plan(plan: &Layout, known: &Layout) -> Result<(), Problem> {
    if plan.base != known.id() && plan.id() != known.id() {
        let (base, known) = (plan.epoch - 1, known.epoch);
        return Err(Problem::plan_refused(format!(
            "the plan was made in epoch {base}, and it is epoch {known} by now: plan again"
        )));
    }
    Ok(())
}

pub(crate) async fn abort(service: &Service, query: Admitted<&str>) -> Result<Answer, Problem> {
    params::refuse_parameters(query.into_params())?;
    refuse_before_start(service)?;
    wait_for_decision(service).await?;
    let known = service.reports.known_layout();
    let Some(before) = service.reports.abort_layout(&known) else {
        let why = match known.stage {
            Stage::ReadNew => {
                "reads use the new replicas already: the change can't be aborted any more, and \
                 ends once a majority of the previous members is up"
            }
            Stage::Settled => {
                "no keys move: there is nothing to abort. A change that is decided and moves none, \
                 or has moved all, is in force: to go back, plan the opposite"
            }
            Stage::Prepare | Stage::ReadOld => {
                "this node cannot reach any of the previous members, one of which must be in the \
                 council after an abort: abort at one of them, or once they are up"
            }
        };
        return Err(Problem::plan_refused(why.to_owned()));
    };
    // Answers with the layout from before the abort. A client that waits for the end of the abort
    // waits for the next epoch, and that epoch may already be in force if this thread is delayed.
    let layout = service.reports.layout();
    service.reports.apply(Arc::new(before)).await;
    Ok(Answer::json(StatusCode::ACCEPTED, &layout))
}

/// Waits until the metadata quorum has decided this node's proposal, and the node has adopted the
/// decision. Before that, the layout that an abort would undo is unknown.
async fn wait_for_decision(service: &Service) -> Result<(), Problem> {
    let reports = &service.reports;
    let until = Instant::now() + service.limits().deadline;
    loop {
        let asked = reports.change().filter(|(_, progress)| *progress == Progress::Asking);
        let lags = reports.layout().epoch < reports.known_layout().epoch;
        match asked {
            None if !lags || Instant::now() >= until => return Ok(()),
            Some((plan, _)) if Instant::now() >= until => {
                return Err(Problem::plan_refused(format!(
                    "the council is still asked for plan {}, and may decide it later: nothing is \
                     aborted yet. Without a majority of the council nothing changes: look at \
                     `kvorum cluster status`, and abort again",
                    id_text(plan)
                )));
            }
            _ => sleep(POLL_INTERVAL).await,
        }
    }
}
