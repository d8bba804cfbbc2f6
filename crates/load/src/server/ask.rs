//! One question to a server: `GET`, its answer as text.

use std::net::SocketAddr;
use std::time::Duration;

use ureq::http::StatusCode;

/// What `GET path` says, whatever its status, within `limit` and up to `max_len` bytes.
pub(crate) fn ask(
    address: SocketAddr,
    path: &str,
    limit: Duration,
    max_len: u64,
) -> Result<(StatusCode, String), String> {
    ask_with(address, path, None, limit, max_len)
}

/// The same with a token (RFC 6750), if there is one.
pub(crate) fn ask_with(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    limit: Duration,
    max_len: u64,
) -> Result<(StatusCode, String), String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(limit))
        // The server under test is meant, never something between.
        .proxy(None)
        .http_status_as_error(false)
        .build();
    let url = format!("http://{address}{path}");
    let failed = |cause: ureq::Error| cause.to_string();
    let mut request = ureq::Agent::from(config).get(&url);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().map_err(failed)?;
    let body = response.body_mut().with_config().limit(max_len);
    let text = body.read_to_string().map_err(failed)?;
    Ok((response.status(), text))
}
