//! Who may administer the node: whoever is on its machine, or has the token if there is one. Behind
//! a proxy everybody seems to be on its machine: so with a token nobody gets in without.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use super::problem::Problem;
use crate::http::connection::Watch;
use crate::node::Node;

/// What comes before the token.
const SCHEME: &str = "Bearer ";

/// Refuses a request to an admin route of somebody who may not.
pub(super) fn admit(node: &Node, watch: &Watch, headers: &HeaderMap) -> Result<(), Problem> {
    if let Some(token) = &node.config.admin_token {
        // How long it takes must not tell how much of a guess was right.
        let right = |given: &[u8]| bool::from(given.ct_eq(token.bytes()));
        return match bearer(headers) {
            Some(given) if right(given) => Ok(()),
            Some(_) => Err(Problem::forbidden("the admin token is wrong")),
            None => Err(Problem::forbidden(
                "send the admin token: Authorization: Bearer TOKEN (--admin-token-file)",
            )),
        };
    }
    let near = watch.client.get().is_some_and(|client| client.ip().to_canonical().is_loopback());
    if near {
        return Ok(());
    }
    Err(Problem::forbidden(
        "without an admin token, admin requests are accepted from loopback only: start the node \
         with --admin-token-file, and send Authorization: Bearer TOKEN",
    ))
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then_some(token)
}
