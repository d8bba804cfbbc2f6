//! Admission of requests without a client slot. Either all client slots were taken when the
//! connection was accepted, or an HTTP/2 stream found no free slot.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::problem::Problem;
use super::routes::{Route, SlotNeed};
use crate::http::Service;
use crate::http::connection::ConnectionState;

/// Time that a request waits for a slot. The closing of an idle client takes far less.
const SLOT_TIMEOUT: Duration = Duration::from_millis(250);

/// Interval of attempts to take a slot.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Admits a request without a slot, or refuses it. Returns true if the connection stays open after
/// the answer.
pub(super) async fn admit(
    service: &Service,
    watch: &ConnectionState,
    route: Option<Route>,
) -> Result<bool, Problem> {
    let slots = &service.limits().connection_slots;
    if watch.try_take_slot(service, false) {
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
    while service.may_stay_without_slot(watch) && begun.elapsed() < SLOT_TIMEOUT {
        (service.close_idle_client)();
        sleep(RETRY_INTERVAL).await;
        if watch.try_take_slot(service, true) {
            return Ok(true);
        }
    }
    Err(Problem::no_free_slot(slots.max_clients()))
}
