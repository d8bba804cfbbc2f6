//! `GET /admin/profile`: records a profile of the node, and answers when the recording ends. The
//! recorder's thread does all the work; the event loop only awaits the result.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use profile::{Clock, RecordingRequest, Refused};
use tokio::sync::oneshot;

use super::admission::admitted::Admitted;
use super::problem::Problem;
use super::{Answer, Body, Service, caching, params};
use crate::http::connection::ConnectionState;

/// Interval of checks whether the client is still connected and the node still serves.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn get(
    service: &Service,
    watch: &ConnectionState,
    query: Admitted<&str>,
) -> Result<Answer, Problem> {
    let params::ProfileParams { events, duration, format, idle } =
        params::profile(query.into_params())?;
    let who = watch.client.get().map_or("somebody".to_owned(), |client| client.to_string());
    let order = RecordingRequest { events, duration, who, idle, clock: Clock::default() };
    let (report, mut reported) = oneshot::channel();
    let url = service.reports.url().to_owned();
    let recording = profile::start(order, move |profile| {
        // The send fails if the client has disconnected.
        let _ = report.send(profile.write(format, &url));
    });
    let recording = recording.map_err(|error| match error {
        Refused::Busy { .. } => Problem::concurrent_recording(error.to_string()),
        Refused::Thread(_) => Problem::no_recording(error.to_string()),
    })?;
    watch.set_leave_check(true);
    let written = loop {
        tokio::select! {
            biased;
            written = &mut reported => break written,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        if watch.has_left() || service.reports.is_stopping() {
            drop(recording);
            return Err(Problem::no_recording("the client disconnected".to_owned()));
        }
    };
    watch.set_leave_check(false);
    let failed = |why: String| Problem::no_recording(why);
    let written = written.map_err(|_| failed("the recording ended unexpectedly".to_owned()))?;
    let written = written.map_err(|error| failed(error.to_string()))?;
    Ok(Answer {
        status: StatusCode::OK,
        tag: None,
        receipt: None,
        expiry_ms: 0,
        content_type: Some(format.content_type()),
        extra_header: None,
        headers: &caching::FRESH,
        body: Body::Whole(Bytes::from(written).into()),
    })
}
