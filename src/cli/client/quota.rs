//! `kvorum quota set`, `list`, `remove`: manages quotas, which limit the bytes that clients may
//! store under a prefix.

use std::fmt::Write;

use clap::{ArgGroup, Args, Subcommand};
use indicatif::HumanBytes;

use super::admin::AdminClient;
use super::args::ConnectionArgs;
use super::bytes::percent;
use super::{CommandFailure, print, print_done};
use crate::quotas::status::{QuotaList, QuotaStatus};
use crate::settings::units::Size;

/// Arguments of `kvorum quota`.
#[derive(Debug, Args)]
pub(crate) struct QuotaArgs {
    /// The command to run.
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Set the quota of a prefix, or replace it
    ///
    /// A quota counts the bytes of keys and values that are not deleted; each key counts once,
    /// however many replicas it has. Each node adds its own writes at once, and estimates the sum
    /// over all nodes from the keys that it holds. Writes that are in flight when a hard limit is
    /// reached are stored all the same.
    Set(SetArgs),
    /// List the quotas, and the bytes stored under each, as the node estimates them
    List(ConnectionArgs),
    /// Remove the quota of a prefix
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limit").args(["soft", "hard"]).required(true).multiple(true))]
struct SetArgs {
    /// Prefix of the keys, up to 128 bytes; "" = all keys
    #[arg(value_name = "PREFIX")]
    prefix: String,

    /// Soft limit: above it metrics and alerts warn, as in 8GiB [default: none]
    #[arg(long, value_name = "SIZE")]
    soft: Option<Size>,

    /// Hard limit: from it on writes are refused with 507, as in 10GiB [default: none]
    #[arg(long, value_name = "SIZE")]
    hard: Option<Size>,

    #[command(flatten)]
    ask: ConnectionArgs,
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// Prefix of the quota
    #[arg(value_name = "PREFIX")]
    prefix: String,

    #[command(flatten)]
    ask: ConnectionArgs,
}

/// Runs the command.
pub(crate) fn quota(args: &QuotaArgs) -> Result<(), CommandFailure> {
    match &args.command {
        QuotaCommand::Set(args) => set(args),
        QuotaCommand::List(ask) => list(ask),
        QuotaCommand::Remove(args) => remove(args),
    }
}

fn set(args: &SetArgs) -> Result<(), CommandFailure> {
    let SetArgs { prefix, soft, hard, ask } = args;
    let mut target = format!("/admin/quotas?prefix={}", percent(prefix.as_bytes()));
    for (name, limit) in [("soft", soft), ("hard", hard)] {
        if let Some(Size(bytes)) = limit {
            let _ = write!(target, "&{name}={bytes}");
        }
    }
    let set: QuotaStatus = AdminClient::new(ask)?.request_change(&target, 200)?;
    report("set", &set, ask)
}

fn list(ask: &ConnectionArgs) -> Result<(), CommandFailure> {
    let list: QuotaList = AdminClient::new(ask)?.request("GET", "/admin/quotas", 200)?;
    if ask.json {
        return print(&json(&list));
    }
    let lines: String = list.quotas.iter().map(|quota| line(quota) + "\n").collect();
    print(&if lines.is_empty() { "there are no quotas\n".to_owned() } else { lines })
}

fn remove(args: &RemoveArgs) -> Result<(), CommandFailure> {
    let RemoveArgs { prefix, ask } = args;
    let target = format!("/admin/quotas/remove?prefix={}", percent(prefix.as_bytes()));
    let removed: QuotaStatus = AdminClient::new(ask)?.request_change(&target, 200)?;
    report("removed", &removed, ask)
}

fn report(what: &str, quota: &QuotaStatus, ask: &ConnectionArgs) -> Result<(), CommandFailure> {
    let text = if ask.json { json(quota) } else { format!("{what}: {}\n", limits(quota)) };
    print_done(&text, format_args!("the quota was {what}"))
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers always serialize") + "\n"
}

fn limits(quota: &QuotaStatus) -> String {
    let mut text = match (&quota.prefix, &quota.prefix_base64) {
        (Some(prefix), _) => format!("{prefix:?}"),
        (None, Some(prefix)) => format!("{prefix} (base64)"),
        (None, None) => String::new(),
    };
    for (name, limit) in [("soft", quota.soft_bytes), ("hard", quota.hard_bytes)] {
        if let Some(bytes) = limit {
            let _ = write!(text, "  {name} {}", HumanBytes(bytes));
        }
    }
    text
}

/// Describes a quota in one line.
fn line(quota: &QuotaStatus) -> String {
    let mut text = limits(quota);
    let _ = match quota.stored_bytes {
        Some(bytes) => write!(text, "  about {} stored: {}", HumanBytes(bytes), quota.state),
        None => write!(text, "  not counted yet"),
    };
    if quota.refused_writes > 0 {
        let _ = write!(text, "  {} writes refused by this node", quota.refused_writes);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_all_fields_of_a_quota() {
        let json = r#"{"prefix":"a b","soft_bytes":1024,"hard_bytes":2097152,"stored_bytes":2048,
            "refused_writes":7,"state":"above-soft"}"#;
        let quota: QuotaStatus = serde_json::from_str(json).unwrap();
        assert_eq!(
            line(&quota),
            "\"a b\"  soft 1.00 KiB  hard 2.00 MiB  about 2.00 KiB stored: above-soft  7 writes \
             refused by this node"
        );
        let json =
            r#"{"prefix_base64":"/w==","hard_bytes":1,"refused_writes":0,"state":"unknown"}"#;
        let quota: QuotaStatus = serde_json::from_str(json).unwrap();
        assert_eq!(line(&quota), "/w== (base64)  hard 1 B  not counted yet");
    }
}
