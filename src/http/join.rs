//! `POST /admin/join`: a node that belongs to no cluster asks for a place in this one.

use cluster::handshake::{Nonce, Secret};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};

use super::problem::Problem;
use super::upload::Upload;
use super::{Answer, Service, params};
use crate::operations::joining::JoinError;
use crate::peers::join::{self, Asker, Told};

pub(super) async fn post(
    service: &Service,
    headers: &HeaderMap,
    query: &str,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let body = upload.receive(service.limits()).await?;
    let nonce = service.reports.secret().map(|secret| admit(secret, headers, &body)).transpose()?;
    params::none(query)?;
    let asker: Asker = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("it is not who asks to join: {error}")))?;
    let told = service.reports.asks_to_join(asker).map_err(|error| match error {
        JoinError::Malformed(what) => Problem::bad_request(what),
        JoinError::Refused(why) => Problem::no_place(why),
    })?;
    let status = match told {
        Told::Placed { .. } => StatusCode::OK,
        Told::Waits { .. } => StatusCode::ACCEPTED,
    };
    let answer = Answer::json(status, &told);
    let proof = service.reports.secret().zip(nonce).map(|(secret, nonce)| {
        let json = serde_json::to_vec(&told).expect("strings and numbers always serialize");
        let proof = join::proof_of_answer(secret, &nonce, &json);
        Box::new(HeaderValue::from_str(&proof).expect("digits are visible"))
    });
    Ok(Answer { proof, ..answer })
}

/// Refuses who does not know the secret; the nonce of who does.
fn admit(secret: &Secret, headers: &HeaderMap, body: &[u8]) -> Result<Nonce, Problem> {
    let header = headers.get(join::HEADER).ok_or_else(|| {
        Problem::forbidden(
            "this cluster has a secret: start the node that joins with --cluster-secret-file",
        )
    })?;
    join::proven_by(secret, header.as_bytes(), body).ok_or_else(|| {
        Problem::forbidden("the cluster secrets differ: give all nodes the same one")
    })
}
