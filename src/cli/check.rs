//! `kvorum serve --check`: reports which clients may do what with these settings.

use std::fmt::Write;

use cluster::layout::Kinds;

use crate::node::access::Access;
use crate::settings::config::Config;
use crate::transport::{Tls, TlsError};

/// Returns the report. With an error the node would not start either.
pub(crate) fn run(config: &Config) -> Result<String, TlsError> {
    let mut text = String::new();
    let tls = config.tls.clone().map(Tls::load).transpose()?;
    let mut row = |what: &str, says: String| {
        let _ = writeln!(text, "{what:<18} {says}");
    };
    let near = config.listen.ip().to_canonical().is_loopback();
    let reach = if near { "this machine" } else { "whoever can reach that address" };
    row("listens on", format!("{}, for {reach}", config.at(config.listen).url()));
    match (&tls, &config.tls) {
        (Some(tls), Some(files)) => {
            tls.check()?;
            let days = tls.days_left();
            row("certificate", format!("{}, good for {days} days", files.cert.display()));
            let clients = match &files.client_ca {
                Some(ca) => format!("must show a certificate issued by {}", ca.display()),
                None => "need no certificate".to_owned(),
            };
            row("clients", clients);
        }
        _ => row("certificate", "none: all that comes and goes is in clear".to_owned()),
    }
    let access = Access::new(config.admin_token.clone(), config.open_to);
    for (what, kind) in [
        ("keys and values", Kinds::DATA),
        ("state, metrics", Kinds::METRICS),
        ("admin", Kinds::ADMIN),
    ] {
        row(what, needed(&access, kind, near));
    }
    row("health, UI's files", "anybody".to_owned());
    row("web pages", pages(config, &access));
    row("other nodes", nodes(config));
    let doubts = tls.as_ref().map(Tls::doubts).unwrap_or_default();
    for warning in config.warnings.iter().chain(&doubts) {
        let _ = writeln!(text, "\nwarning: {warning}");
    }
    Ok(text)
}

fn needed(access: &Access, kind: Kinds, near_only: bool) -> String {
    let [near, far] = [true, false].map(|near| access.is_needed(kind, near));
    match (near, far) {
        _ if near_only && near => "whoever has a token for it".to_owned(),
        _ if near_only => "anybody on this machine".to_owned(),
        (true, true) => "whoever has a token for it".to_owned(),
        (false, true) => "anybody on this machine; from elsewhere, who has a token".to_owned(),
        (_, false) => "ANYBODY who reaches the port".to_owned(),
    }
}

/// Describes the origins whose web pages may send requests.
fn pages(config: &Config, access: &Access) -> String {
    let listed = config.allow_origin.join(", ");
    if listed.is_empty() {
        return "the node's own (/ui), no others".to_owned();
    }
    let [near, far] = [true, false].map(|near| access.is_needed(Kinds::DATA, near));
    let may = match (near, far) {
        (_, false) => "may READ AND WRITE without a token in any browser that reaches this node",
        (false, true) => "may READ AND WRITE without a token in browsers on this machine",
        (true, true) => "may ask, with a token",
    };
    format!("the node's own (/ui), and those of {listed}, which {may}; to administer needs one")
}

fn nodes(config: &Config) -> String {
    let alone = config.members.nodes() == 1 && config.members.joins().is_empty();
    match (&config.secret, &config.secret_files.also) {
        (None, _) if alone => "none can connect: there is no cluster secret".to_owned(),
        (None, _) => "any process on this machine: there is no cluster secret".to_owned(),
        (Some(_), None) => "who knows the cluster's secret".to_owned(),
        (Some(_), Some(also)) => {
            format!("who knows the cluster's secret, or that in {}, if any", also.display())
        }
    }
}
