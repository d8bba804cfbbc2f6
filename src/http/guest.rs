//! What a connection may ask for that came when all places of clients were taken.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::problem::Problem;
use super::routes::{Place, Route};
use crate::http::Service;
use crate::http::connection::Watch;

/// How long a client waits for a place: far longer than it takes to close an idle client.
const WAIT: Duration = Duration::from_millis(250);

/// How often it is looked for one.
const STEP: Duration = Duration::from_millis(5);

/// Whether the request may be done. If so, whether the connection stays open afterwards.
pub(super) async fn admit(
    service: &Service,
    watch: &Watch,
    route: Option<Route>,
) -> Result<bool, Problem> {
    let is_clients = |route: Route| route.place != Place::Spare;
    if !watch.is_placed() && route.is_some_and(is_clients) {
        (service.close_idle_client)();
        return Err(Problem::crowded(service.limits().places.max_clients()));
    }
    if !watch.is_guest() {
        return Ok(true);
    }
    let places = &service.limits().places;
    if places.settle() {
        watch.settle();
        return Ok(true);
    }
    let is_clients = match route.map(|route| route.place) {
        Some(Place::Client) => true,
        Some(Place::Lasting) => !places.guests_are_few(),
        Some(Place::Spare) | None => false,
    };
    if !is_clients {
        return Ok(false);
    }
    let begun = Instant::now();
    let _waiting = places.wait();
    while places.guests_are_few() && begun.elapsed() < WAIT {
        (service.close_idle_client)();
        sleep(STEP).await;
        if places.settle() {
            watch.settle();
            return Ok(true);
        }
    }
    Err(Problem::crowded(places.max_clients()))
}
