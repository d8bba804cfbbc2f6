//! The list of a node's settings. [`super::declare`] generates the rest from each entry.
//!
//! A new setting needs an entry here, and its use in [`super::config`]. Then `UPDATE_DOCS=1 cargo
//! test -p kvorum the_manual` writes the table of `docs/reference/settings.md`.

use std::path::PathBuf;

use crate::settings::declare::settings;
use crate::settings::units::{Every, Rate, Size, TimeIn, Ttl};
use crate::settings::values::{Listen, LogFormat, Switch, SyncSetting, UpTo};

/// Everything after `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// TOML file with any of these settings, named like the flags. Flags override KVORUM_*
    /// variables, which override the file
    #[arg(long, env = "KVORUM_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Report which clients may do what with these settings, and exit; the node may be running
    #[arg(long)]
    pub(crate) check: bool,
    /// Print on stdout where the node listens, with `--log-format json` too; for `kvorum dev`,
    /// which reads this line
    #[arg(long, hide = true)]
    pub(crate) greet: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Permitted clock skew, 1 ms to 60 s. The default, 500 ms, is far more than the skew of clocks
/// with NTP, and far less than a writer would notice.
pub(crate) type ClockSkew = TimeIn<1, 60_000>;

settings! {
    listen: Listen, "KVORUM_LISTEN", "ADDR:PORT", fixed "127.0.0.1:8080",
        "Address and port to listen on; localhost means 127.0.0.1, and port 0 any free port";

    data: PathBuf, "KVORUM_DATA", "DIR", fixed "./kvorum-data",
        "Data directory; created if missing";

    cluster: String, "KVORUM_CLUSTER", "[NAME=]URL,...", computed "this node alone",
        "All nodes of the cluster at its first start, including this one; the list must be the \
         same on every node. After the first change of the cluster (members, tokens or quotas) the \
         members stored in the data directory are used: then this list only gives the nodes' URLs, \
         and may be omitted. NAME is a node's identity, by default its URL; the URL is the node's \
         address and may change. Append \";zone=ZONE\" to a URL to spread replicas over zones, and \
         \";weight=W\" (1..1000, default 1) to set the node's share of the keys";

    advertise: String, "KVORUM_ADVERTISE", "URL", computed "http://LISTEN, or https:// with TLS",
        "URL at which the other nodes reach this one; must be in --cluster if that is set";

    join: String, "KVORUM_JOIN", "URL,...", computed "none",
        "URLs of some nodes of the cluster that this node asks to join if its data directory is \
         empty: it serves no requests until a plan of `kvorum cluster plan --add NAME` has been \
         applied. A node whose disk was replaced returns in the same way. No effect on a directory \
         with data";

    name: String, "KVORUM_NAME", "NAME", computed "its URL",
        "Name of a node that joins a cluster or starts alone: 1 to 255 bytes without white space";

    zone: String, "KVORUM_ZONE", "ZONE", computed "none",
        "Zone of a node that joins a cluster or starts alone";

    weight: UpTo<1000>, "KVORUM_WEIGHT", "W", fixed "1",
        "Weight of a node that joins a cluster or starts alone, 1..1000: its share of the keys";

    cluster_secret_file: PathBuf, "KVORUM_CLUSTER_SECRET_FILE", "FILE", computed "none",
        "File with the secret that all nodes of the cluster share, 16 to 4096 bytes; \
         KVORUM_CLUSTER_SECRET can hold the secret itself instead. Required unless all nodes \
         listen on loopback";

    cluster_secret_also_file: PathBuf, "KVORUM_CLUSTER_SECRET_ALSO_FILE", "FILE", computed "none",
        "File with a second secret that this node also accepts from other nodes, while one secret \
         replaces the other; it may be missing or empty. Both files are reloaded when they change";

    tls_cert: PathBuf, "KVORUM_TLS_CERT", "FILE", computed "none",
        "Certificate of the node in PEM, followed by the intermediate certificates. With a \
         certificate the port accepts only TLS 1.3. The files of --tls-cert, --tls-key and \
         --tls-client-ca are reloaded when they change";

    tls_key: PathBuf, "KVORUM_TLS_KEY", "FILE", computed "none",
        "Private key of --tls-cert, in PEM";

    tls_client_ca: PathBuf, "KVORUM_TLS_CLIENT_CA", "FILE", computed "none",
        "Certificates of CAs in PEM. With this file, each client must present a certificate that \
         one of these CAs issued. Other nodes need no certificate, because they prove that they \
         know the cluster's secret";

    admin_token_file: PathBuf, "KVORUM_ADMIN_TOKEN_FILE", "FILE", computed "none",
        "File with a token that this node accepts for every request, 16 to 4096 bytes; \
         KVORUM_ADMIN_TOKEN can hold the token itself instead. Admin requests (/admin/...) must \
         then send a token even from loopback. `kvorum token create` creates tokens that all nodes \
         accept";

    require_auth: Switch, "KVORUM_REQUIRE_AUTH", "BOOL", flag "false",
        "Require a token from loopback too: set it behind a proxy on this machine";

    insecure: Switch, "KVORUM_INSECURE", "BOOL", flag "false",
        "Serve all clients that can reach the port, without TLS and without tokens; admin requests \
         from other machines still need a token";

    allow_host: String, "KVORUM_ALLOW_HOST", "NAME,...", computed "none",
        "Additional host names, without port, that a node listening on loopback answers to, for \
         example those of a proxy on this machine. IP addresses, localhost and the advertised \
         name are always allowed";

    allow_origin: String, "KVORUM_ALLOW_ORIGIN", "URL,...", computed "none",
        "Origins whose web pages may send requests to this node and read the answers (CORS), as \
         http://HOST:PORT or https://HOST. Their requests need the same tokens as other requests, \
         and their admin requests always need a token";

    max_clock_skew: ClockSkew, "KVORUM_MAX_CLOCK_SKEW", "TIME", fixed "500ms",
        "Maximum clock skew between nodes, in ms or s, 1ms..60s; writes with timestamps further \
         ahead of this node's clock are refused";

    sync: SyncSetting, "KVORUM_SYNC", "MODE", fixed "always",
        "When a write is acknowledged: \"always\", after it is synced to disk; \"interval\" or \
         \"interval:MS\", after it is passed to the operating system, with a sync every MS \
         milliseconds (1..60000, default 100); \"never\", like \"interval\" but without syncs";

    memory: Size, "KVORUM_MEMORY", "SIZE",
        computed "512MiB, or half of what the system allows if that is less",
        "Memory for memtables, caches, connections and request bodies together, in KiB, MiB or \
         GiB, at least 64MiB. The process uses at most this size plus 64MiB; the log warns if the \
         sum exceeds the limit of its cgroup, its ulimit -v or the machine's memory";

    replicas: UpTo<255>, "KVORUM_REPLICAS", "N", fixed "3",
        "Replicas of a key if a request does not set `from`, 1..255; limited to the number of \
         nodes, and the same on every node. After the first change of the cluster the stored \
         number is used: `kvorum cluster plan --replicas N` changes it";

    deadline: TimeIn<250, 60_000>, "KVORUM_DEADLINE", "TIME", fixed "1s",
        "Time after which a waiting request is answered with 504, in ms or s, 250ms..60s";

    max_value: Size, "KVORUM_MAX_VALUE", "SIZE", fixed "1MiB",
        "Maximum size of a value, in B, KiB or MiB, 1B..8MiB and at most 1/64 of --memory; larger \
         values are answered with 413";

    max_ttl: Ttl, "KVORUM_MAX_TTL", "TIME", fixed "3650d",
        "Maximum time to live (`ttl`) of values that clients write through this node, in s, m, h \
         or d, 1s..3650d; a longer `ttl` is answered with 400";

    repair_interval: Every, "KVORUM_REPAIR_INTERVAL", "TIME", fixed "1h",
        "Time between two repair rounds, in s, m, h or d, 10s..365d, or \"off\". A round compares \
         the records that all nodes have written since the last round, and makes them equal; \
         `kvorum repair` runs a round at once";

    repair_full_interval: Every, "KVORUM_REPAIR_FULL_INTERVAL", "TIME", fixed "7d",
        "Time between two full repair rounds, which compare all records and read every block, in \
         s, m, h or d, 10s..365d. With \"off\" only the first round after a start is full. If this \
         time is less than --repair-interval, or --repair-interval is off, every round is full, \
         and this is the time between two rounds";

    repair_share: UpTo<100>, "KVORUM_REPAIR_SHARE", "PERCENT", fixed "5",
        "Percent of the time, 1..100, during which an automatic repair round works; it pauses for \
         the rest of the time. Requested rounds do not pause";

    stream_rate: Rate, "KVORUM_STREAM_RATE", "SIZE", fixed "off",
        "Maximum bytes a second at which this node receives partitions that move to it, in KiB, \
         MiB or GiB, at least 64KiB; \"off\" = no maximum: the node uses the CPU and disk that \
         clients leave";

    loops: UpTo<256>, "KVORUM_LOOPS", "N", computed "one per available CPU",
        "Event loops (threads that serve connections), 1..256";

    read_threads: UpTo<256>, "KVORUM_READ_THREADS", "N", fixed "8",
        "Threads for reads that wait for the disk, 1..256";

    queue: UpTo<1_000_000>, "KVORUM_QUEUE", "N", fixed "1024",
        "Maximum number of reads that wait for a read thread, 1..1000000; further reads are \
         answered with 503";

    memtable: Size, "KVORUM_MEMTABLE", "SIZE", computed "1/16 of --memory",
        "Size of a memtable, 1MiB to 1/6 of --memory; the node has up to four memtables. Larger \
         memtables mean fewer, bigger flushes and a longer recovery";

    connections: UpTo<1_000_000>, "KVORUM_CONNECTIONS", "N",
        computed "1/8 of --memory at 24KiB each, 36KiB with TLS, minus 64",
        "Maximum number of client connections, 1..1000000, and at most half of the open-file \
         limit; idle connections are closed to make room";

    log: String, "KVORUM_LOG", "LEVEL", fixed "info",
        "Log level: off, error, warn, info, debug or trace, optionally per module as in \
         \"info,lsm=debug\"";

    log_format: LogFormat, "KVORUM_LOG_FORMAT", "FORMAT", fixed "text",
        "Log format: text, or json with one object per line";
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::operations::manual;

    fn kebab(name: &str) -> String {
        name.replace('_', "-")
    }

    #[test]
    fn defaults_are_valid() {
        let chosen = Settings::default().with_defaults();
        assert_eq!((chosen.queue.0, chosen.replicas.0), (1024, 3));
    }

    #[test]
    fn variables_have_the_names_of_their_flags() {
        for (name, variable, ..) in ROWS {
            assert_eq!(*variable, format!("KVORUM_{}", name.to_uppercase()));
        }
    }

    #[test]
    fn the_manual_lists_every_setting() {
        let row = |name: &str, variable: &str, value: &str, default: &str, help: &str| {
            let (name, help) = (kebab(name), help.replace('|', "\\|"));
            format!("| `--{name} {value}` | `{variable}` | {default} | {help} |\n")
        };
        let mut table = "| flag | variable | default | |\n|---|---|---|---|\n".to_owned();
        let help = "TOML file with any of these settings, named like the flags";
        table += &row("config", "KVORUM_CONFIG", "FILE", "none", help);
        for (name, variable, value, default, help) in ROWS {
            table += &row(name, variable, value, default, help);
        }
        manual::holds("settings", &table);
    }

    /// The settings file in packages lists every setting with its help, commented out.
    #[test]
    fn the_packages_settings_list_every_setting() {
        let mut text = SETTINGS_HEAD.to_owned();
        for (name, variable, value, default, help) in ROWS {
            let name = kebab(name);
            let help = format!("{}. {value}, by default {default}.", of_a_file(help));
            text += &format!("\n{}", comment(&help));
            text += &match *variable {
                "KVORUM_DATA" => format!("{name} = \"/var/lib/kvorum\"\n"),
                _ => format!("#{name} = {}\n", in_toml(value, default)),
            };
        }
        manual::is_file("packaging/kvorum.toml", &text);
        let parsed: Settings = toml::from_str(&text).unwrap();
        assert_eq!(parsed.data.as_deref(), Some(Path::new("/var/lib/kvorum")));
        // The file accepts every default that is a value instead of a description.
        let fixed = ROWS.iter().filter(|(.., default, _)| !default.contains(' '));
        for (name, _, value, default, _) in fixed.filter(|(.., default, _)| *default != "none") {
            let line = format!("{} = {}", kebab(name), in_toml(value, default));
            toml::from_str::<Settings>(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    const SETTINGS_HEAD: &str = "\
        # Settings of this machine's node. A line that begins with # and a name is switched off,\n\
        # and shows the default where it is a value. Variables (KVORUM_LISTEN for listen)\n\
        # override this file, flags of `kvorum serve` override both.\n\
        #\n\
        # After a change: `kvorum serve --check --config FILE` says what is open to whom, then\n\
        # `systemctl restart kvorum`. Certificates, secrets and the admin token are read again by\n\
        # themselves, or at once by `systemctl reload kvorum`.\n";

    /// Removes the dashes before names of settings, except in commands between backquotes. Settings
    /// are flags only in commands.
    fn of_a_file(help: &str) -> String {
        let parts = help.split('`').enumerate().map(|(place, part)| {
            let without = |part: String, row: &(&str, &str, &str, &str, &str)| {
                part.replace(&format!("--{}", kebab(row.0)), &kebab(row.0))
            };
            let is_command = place % 2 == 1;
            if is_command { part.to_owned() } else { ROWS.iter().fold(part.to_owned(), without) }
        });
        parts.collect::<Vec<_>>().join("`")
    }

    fn in_toml(value: &str, default: &str) -> String {
        let default = if default.contains(' ') || default == "none" { value } else { default };
        let is_bare = value == "BOOL" || value != "SIZE" && default.parse::<u64>().is_ok();
        if is_bare { default.to_owned() } else { format!("{default:?}") }
    }

    /// Formats a comment in lines of up to 98 columns.
    fn comment(text: &str) -> String {
        let mut lines = vec!["#".to_owned()];
        for word in text.split(' ') {
            let last = lines.last_mut().unwrap();
            if last.len() + 1 + word.len() > 98 {
                lines.push(format!("# {word}"));
            } else {
                *last += &format!(" {word}");
            }
        }
        lines.join("\n") + "\n"
    }
}
