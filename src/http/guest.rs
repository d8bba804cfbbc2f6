//! What may be asked for without a client's place: by a connection that came when all were taken,
//! or by a stream of HTTP/2 that found none beside those that its connection has.

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

/// Whether the request may be done, of a watch without a place. If so, whether the connection stays
/// open afterwards.
pub(super) async fn admit(
    service: &Service,
    watch: &Watch,
    route: Option<Route>,
) -> Result<bool, Problem> {
    let places = &service.limits().places;
    if watch.takes_place(service, false) {
        return Ok(true);
    }
    let is_clients = match route.map(|route| route.place) {
        Some(Place::Client) => true,
        Some(Place::Lasting) => !service.spare_are_few(watch),
        Some(Place::Spare) | None => false,
    };
    if !is_clients {
        return Ok(!watch.is_guest());
    }
    let begun = Instant::now();
    let _waiting = places.wait();
    while service.spare_are_few(watch) && begun.elapsed() < WAIT {
        (service.close_idle_client)();
        sleep(STEP).await;
        if watch.takes_place(service, true) {
            return Ok(true);
        }
    }
    Err(Problem::crowded(places.max_clients()))
}
