//! `kvorum serve --check`: reports which clients may send which requests under the given settings.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::{fs, io};

use protocol::layout::Kinds;

use crate::joining::ask::refuse_own_url;
use crate::node::store::DirectoryError;
use crate::runtime::error::ServeError;
use crate::runtime::limits;
use crate::settings::config::{Config, receives_loopback};
use crate::settings::members::Members;
use crate::tokens::lookup::Access;
use crate::transport::Tls;

/// Returns the report. Every error here would also prevent the node from starting.
pub(crate) fn run(config: &Config) -> Result<String, ServeError> {
    let mut text = String::new();
    limits::refuse_too_few_files(config, limits::raise_file_limit())?;
    refuse_unreadable(&config.data)?;
    if let Members::Unlisted(unlisted) = &config.members {
        refuse_own_url(unlisted, config.at(config.listen))?;
    }
    let tls = config.tls.clone().map(Tls::load).transpose()?;
    let mut row = |what: &str, says: String| {
        let _ = writeln!(text, "{what:<18} {says}");
    };
    let reach = RequestOrigin::of(config.listen);
    let whom = match reach {
        RequestOrigin::Loopback => "this machine",
        RequestOrigin::All | RequestOrigin::Remote => "whoever can reach that address",
    };
    row("listens on", format!("{}, for {whom}", config.at(config.listen).url()));
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
        row(what, describe_access(&access, kind, reach));
    }
    row("health, UI's files", "anybody".to_owned());
    row("web pages", pages(config, &access, reach));
    row("other nodes", nodes(config));
    let doubts = tls.as_ref().map(Tls::warnings).unwrap_or_default();
    for warning in config.warnings.iter().chain(&doubts) {
        let _ = writeln!(text, "\nwarning: {warning}");
    }
    Ok(text)
}

/// Refuses a data directory that cannot be listed. A missing directory is valid: the node creates
/// it at start.
fn refuse_unreadable(data: &Path) -> Result<(), ServeError> {
    match fs::read_dir(data) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(DirectoryError { data: data.to_owned(), source }.into())
        }
        _ => Ok(()),
    }
}

/// Origin of the requests that reach the listen address. Only requests from 127.0.0.1 and ::1 count
/// as requests of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestOrigin {
    /// Only 127.0.0.1 and ::1.
    Loopback,
    /// 127.0.0.1, ::1 and other addresses.
    All,
    /// Only other addresses. A request from this machine comes from the listen address, unless its
    /// client binds its socket to loopback, which ordinary clients do not do.
    Remote,
}

impl RequestOrigin {
    fn of(listen: SocketAddr) -> Self {
        match (listen.ip().to_canonical().is_loopback(), receives_loopback(listen)) {
            (true, _) => Self::Loopback,
            (false, true) => Self::All,
            (false, false) => Self::Remote,
        }
    }
}

fn describe_access(access: &Access, kind: Kinds, reach: RequestOrigin) -> String {
    let [near, far] = [true, false].map(|near| access.is_needed(kind, near));
    match (near, far, reach) {
        (false, _, RequestOrigin::Loopback) => "anybody on this machine".to_owned(),
        (_, false, _) => "ANYBODY who reaches the port".to_owned(),
        (false, true, RequestOrigin::All) => {
            "anybody on this machine, from 127.0.0.1 or ::1; from elsewhere, who has a token"
                .to_owned()
        }
        (false, true, RequestOrigin::Remote) => {
            "whoever has a token for it, on this machine too, unless its client binds its socket \
             to 127.0.0.1 or ::1: requests to that address do not come from there by themselves"
                .to_owned()
        }
        (true, _, _) => "whoever has a token for it".to_owned(),
    }
}

/// Describes the origins whose web pages may send requests.
fn pages(config: &Config, access: &Access, reach: RequestOrigin) -> String {
    let listed = config.allow_origin.join(", ");
    if listed.is_empty() {
        return "the node's own (/ui), no others".to_owned();
    }
    let [near, far] = [true, false].map(|near| access.is_needed(Kinds::DATA, near));
    let may = match (near, far) {
        (_, false) => "may READ AND WRITE without a token in any browser that reaches this node",
        (false, true) if reach != RequestOrigin::Remote => {
            "may READ AND WRITE without a token in browsers on this machine"
        }
        (_, true) => "may ask, with a token",
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
