//! Admission of requests without a client slot: requests of a connection that was accepted when all
//! client slots were taken, and requests of HTTP/2 streams that found no free slot.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::problem::Problem;
use super::routes::{Route, SlotNeed};
use crate::http::Service;
use crate::http::connection::ConnectionState;

/// Time that a client waits for a slot: far longer than it takes to close an idle client.
const WAIT: Duration = Duration::from_millis(250);

/// Interval of attempts to get a slot.
const STEP: Duration = Duration::from_millis(5);

/// Admits a request whose watch has no slot, or refuses it. Returns true if the connection stays
/// open afterwards.
pub(super) async fn admit(
    service: &Service,
    watch: &ConnectionState,
    route: Option<Route>,
) -> Result<bool, Problem> {
    let slots = &service.limits().connection_slots;
    if watch.takes_slot(service, false) {
        return Ok(true);
    }
    let is_clients = match route.map(|route| route.slot) {
        Some(SlotNeed::Client) => true,
        Some(SlotNeed::LongLived) => !service.may_stay_without_slot(watch),
        Some(SlotNeed::Spare) | None => false,
    };
    if !is_clients {
        return Ok(!watch.is_reserve());
    }
    let begun = Instant::now();
    let _waiting = slots.wait();
    while service.may_stay_without_slot(watch) && begun.elapsed() < WAIT {
        (service.close_idle_client)();
        sleep(STEP).await;
        if watch.takes_slot(service, true) {
            return Ok(true);
        }
    }
    Err(Problem::no_free_slot(slots.max_clients()))
}
