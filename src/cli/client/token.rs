//! `kvorum token create`, `list`, `revoke`: manages tokens, which authorize requests to nodes.

use std::fmt::Write;
use std::io;
use std::num::NonZeroU64;

use clap::{Args, Subcommand};
use indicatif::HumanDuration;

use super::admin::AdminClient;
use super::args::{ArgError, ConnectionArgs};
use super::bytes::percent;
use super::{CommandFailure, fail, is_closed, print, print_done};
use crate::settings::units::{Size, Ttl};
use crate::tokens::status::{TokenList, TokenMade, TokenStatus};

/// Arguments of `kvorum token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// The command to run.
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it; it can't be shown again
    Create(CreateArgs),
    /// List the tokens, without their texts
    List(ConnectionArgs),
    /// Revoke a token: nodes refuse it once they have learned of the revocation, within a second
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Name of the token: 1 to 64 bytes of visible characters
    #[arg(long, value_name = "NAME")]
    name: String,

    /// Methods that the token allows: read, write, or GET, PUT, DELETE, POST [default: read,write]
    #[arg(long, value_name = "LIST")]
    methods: Option<String>,

    /// Prefix of the keys that the token allows, up to 128 bytes [default: all keys]
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,

    /// Kinds of requests that the token allows: data (keys and values), metrics (the nodes' reports
    /// of themselves), admin (everything under /admin, also creating tokens of any kind) [default:
    /// data]
    #[arg(long = "for", value_name = "LIST")]
    kinds: Option<String>,

    /// Time from now after which the token expires, in s, m, h or d, as in 30d [default: never]
    #[arg(long, value_name = "TIME")]
    expires: Option<Ttl>,

    /// Maximum requests a second at each node, as in 1000/s [default: no maximum]
    #[arg(long, value_name = "N/s", value_parser = requests)]
    rate: Option<NonZeroU64>,

    /// Maximum bytes a second of bodies, in and out, at each node, as in 10MiB/s [default: no
    /// maximum]
    #[arg(long, value_name = "SIZE/s", value_parser = bytes)]
    bytes: Option<Size>,

    #[command(flatten)]
    ask: ConnectionArgs,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// The token's id or name
    #[arg(value_name = "ID|NAME")]
    token: String,

    #[command(flatten)]
    ask: ConnectionArgs,
}

fn requests(text: &str) -> Result<NonZeroU64, ArgError> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let number = if number.starts_with('+') { None } else { number.parse().ok() };
    number.ok_or_else(|| ArgError::Requests(text.to_owned()))
}

fn bytes(text: &str) -> Result<Size, ArgError> {
    let size: Size = text.strip_suffix("/s").unwrap_or(text).parse()?;
    Some(size).filter(|size| size.0 > 0).ok_or(ArgError::NoBytes)
}

/// Runs the command.
pub(crate) fn token(args: &TokenArgs) -> Result<(), CommandFailure> {
    match &args.command {
        TokenCommand::Create(args) => create(args),
        TokenCommand::List(ask) => list(ask),
        TokenCommand::Revoke(args) => revoke(args),
    }
}

fn create(args: &CreateArgs) -> Result<(), CommandFailure> {
    let CreateArgs { name, methods, prefix, kinds, expires, rate, bytes, ask } = args;
    if is_closed(io::stdout()) {
        return Err(fail(
            "stdout: it is closed, or /dev/null opened for reading and writing, so the text of the \
             token would be lost. No token was created: send stdout to a file",
        ));
    }
    let mut query = format!("name={}", percent(name.as_bytes()));
    for (name, value) in [
        ("methods", methods.clone()),
        ("prefix", prefix.clone()),
        ("for", kinds.clone()),
        ("expires", expires.map(|expires| expires.to_string())),
        ("requests", rate.map(|rate| rate.to_string())),
        ("bytes", bytes.map(|bytes| bytes.0.to_string())),
    ] {
        if let Some(value) = value {
            let _ = write!(query, "&{name}={}", percent(value.as_bytes()));
        }
    }
    let mut client = AdminClient::new(ask)?;
    let made: TokenMade = client.request_change(&format!("/admin/tokens?{query}"), 201)?;
    // Only the token's text is printed, so that stdout can be redirected into a file.
    print_done(
        &if ask.json { json(&made) } else { format!("{}\n", made.token) },
        format_args!(
            "the token {} was created, and its text is lost: kvorum token revoke {}{}, then create \
             another one",
            made.status.name,
            made.status.id,
            ask.flags()
        ),
    )
}

fn list(ask: &ConnectionArgs) -> Result<(), CommandFailure> {
    let mut client = AdminClient::new(ask)?;
    let list: TokenList = client.request("GET", "/admin/tokens", 200)?;
    if ask.json {
        return print(&json(&list));
    }
    let now_ms = list.now_ms;
    let lines: String = list.tokens.iter().map(|token| line(token, now_ms) + "\n").collect();
    print(&if lines.is_empty() { "there are no tokens\n".to_owned() } else { lines })
}

fn revoke(args: &RevokeArgs) -> Result<(), CommandFailure> {
    let RevokeArgs { token, ask } = args;
    let target = format!("/admin/tokens/revoke?id={}", percent(token.as_bytes()));
    let revoked: TokenStatus = AdminClient::new(ask)?.request_change(&target, 200)?;
    let text = || format!("revoked: {} ({})\n", revoked.name, revoked.id);
    print_done(&if ask.json { json(&revoked) } else { text() }, "the token was revoked")
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers always serialize") + "\n"
}

/// Describes a token in one line. `now_ms` is the node's time, in milliseconds since 1970.
fn line(token: &TokenStatus, now_ms: u64) -> String {
    let time = |ms: u64| HumanDuration(std::time::Duration::from_millis(ms));
    let mut text = format!(
        "{}  {}  for {}  {}",
        token.id,
        token.name,
        token.kinds.join(","),
        token.methods.join(",")
    );
    if let Some(prefix) = &token.prefix {
        let _ = write!(text, "  prefix {prefix:?}");
    }
    if let Some(prefix) = &token.prefix_base64 {
        let _ = write!(text, "  prefix {prefix} (base64)");
    }
    if let Some(rate) = token.requests_per_second {
        let _ = write!(text, "  {rate}/s");
    }
    if let Some(bytes) = token.bytes_per_second {
        let _ = write!(text, "  {}/s", indicatif::HumanBytes(bytes));
    }
    let _ = write!(text, "  made {} ago", time(now_ms.saturating_sub(token.changed_ms)));
    let _ = match token.expires_ms {
        None => write!(text, "  never expires"),
        Some(_) if token.expired => write!(text, "  expired"),
        Some(at) => write!(text, "  expires in {}", time(at.saturating_sub(now_ms))),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shown_per_second() {
        assert_eq!(requests("1000/s").map(NonZeroU64::get), Ok(1000));
        assert_eq!(requests("1").map(NonZeroU64::get), Ok(1));
        assert_eq!(bytes("10MiB/s").map(|size| size.0), Ok(10 << 20));
        for bad in ["", "0", "0/s", "/s", "1/m", "-1", "1k"] {
            assert!(requests(bad).is_err() && bytes(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_line_shows_all_fields_of_a_token() {
        let json = r#"{"id":"0000002a","name":"ci","for":["data","metrics"],"methods":["GET"],
            "prefix":"a b","changed_ms":1000,"expires_ms":121000,"requests_per_second":7,
            "bytes_per_second":1048576}"#;
        let token: TokenStatus = serde_json::from_str(json).unwrap();
        assert_eq!(
            line(&token, 61_000),
            "0000002a  ci  for data,metrics  GET  prefix \"a b\"  7/s  1.00 MiB/s  made 60 seconds \
             ago  expires in 60 seconds"
        );
    }
}
