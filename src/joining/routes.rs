//! `POST /admin/join`: a node's request to join this cluster.

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use protocol::handshake::{Channel, Secrets};

use crate::http::admission::admitted::Admitted;
use crate::http::connection::ConnectionState;
use crate::http::problem::Problem;
use crate::http::upload::Upload;
use crate::http::{Answer, JOIN_PROOF, Service, params};
use crate::joining::answers::JoinError;
use crate::joining::message::{self, JoinAnswer, JoinRequest, ProvenRequest};

pub(crate) async fn post(
    service: &Service,
    watch: &ConnectionState,
    request: Admitted<&Parts>,
    upload: &mut Upload<'_>,
) -> Result<Answer, Problem> {
    let Parts { headers, uri, .. } = request.into_params();
    let body = upload.receive(service).await?;
    let secrets = service.reports.secrets();
    let channel = watch.security.get().channel();
    let proven = secrets.own().map(|_| admit(secrets, channel, headers, &body)).transpose()?;
    params::refuse_parameters(uri.query().unwrap_or(""))?;
    let asker: JoinRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("it is not who asks to join: {error}")))?;
    let place = service.reports.answer_join(asker).map_err(|error| match error {
        JoinError::Malformed(what) => Problem::bad_request(what.to_string()),
        JoinError::Refused(why) => Problem::join_refused(why.to_string()),
    })?;
    let status = match place {
        JoinAnswer::Placed { .. } => StatusCode::OK,
        JoinAnswer::Waits { .. } => StatusCode::ACCEPTED,
    };
    let answer = Answer::json(status, &place);
    let Some(proven) = proven else { return Ok(answer) };
    let json = serde_json::to_vec(&place).expect("strings and numbers always serialize");
    let proof = proven.proof_of_answer(&json);
    let proof = HeaderValue::from_str(&proof).expect("digits are visible");
    Ok(answer.with_extra_header(JOIN_PROOF, proof))
}

/// Verifies the proof of a request. Refuses a sender that does not know the cluster's secret.
fn admit(
    secrets: &Secrets,
    channel: Option<Channel>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<ProvenRequest, Problem> {
    let header = headers.get(message::HEADER).ok_or_else(|| {
        Problem::forbidden(
            "this cluster has a secret: start the node that joins with --cluster-secret-file",
        )
    })?;
    message::verify_proof(secrets, channel, header.as_bytes(), body).ok_or_else(|| {
        Problem::forbidden("the cluster secrets differ: give all nodes the same one")
    })
}
