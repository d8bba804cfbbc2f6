//! The nodes of a `kvorum dev` and their command lines, stored in a file beside the nodes' data
//! directories. The file records nodes that were added or removed while `kvorum dev` ran.
//!
//! ```text
//!  dev.json ─┐                              ┌─▶ the first nodes: --cluster
//!  --nodes  ─┴─▶ nodes by number ─▶ command ┤
//!                    ▲                      └─▶ added nodes: --join
//!                    └── add, remove: stored in dev.json
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::DevError;
use crate::cli::cert::{self, CertError};
use crate::cli::{Cli, Command, DevArgs, variables};
use crate::runtime::accept;
use crate::settings::config;
use crate::settings::list::Settings;
use crate::settings::members::ServingAddress;
use crate::settings::secret::{ADMIN, CLUSTER};
use crate::settings::units::Ttl;

/// Default memory of a node, with which three nodes fit on a laptop.
const MEMORY: &str = "256MiB";

/// Variables of `kvorum serve` that are hidden from the nodes: they would contradict the settings
/// that this plan chooses for each node, and the commands that `kvorum dev` prints.
pub(super) const IGNORED: &[&str] = &[
    "KVORUM_CONFIG",
    "KVORUM_LISTEN",
    "KVORUM_DATA",
    "KVORUM_CLUSTER",
    "KVORUM_ADVERTISE",
    "KVORUM_JOIN",
    "KVORUM_NAME",
    "KVORUM_ZONE",
    "KVORUM_WEIGHT",
    "KVORUM_TLS_CERT",
    "KVORUM_TLS_KEY",
    "KVORUM_TLS_CLIENT_CA",
];

/// Default number of nodes.
const NODES: u16 = 3;

/// Default port of the first node.
const PORT: u16 = 8080;

/// Limit on the nodes on one machine.
pub(super) const MAX_NODES: usize = 16;

/// The kernel's random device.
pub(super) const RANDOM: &str = "/dev/urandom";

/// Subdirectory of the data directory with the certificates.
pub(crate) const CERTS: &str = "certs";
const CA_LIFE: Ttl = Ttl::days(3650);
const CERT_LIFE: Ttl = Ttl::days(365);

/// Name of the plan's file in the data directory.
const FILE: &str = "dev.json";

/// Name of the file with a generated token, used if nodes require a token and none is given.
const TOKEN: &str = "admin-token";

/// The nodes of a `kvorum dev` and their command lines.
#[derive(Debug)]
pub(super) struct DevPlan {
    data: PathBuf,
    /// Flags of `kvorum serve` that all nodes have in common.
    serve: Vec<OsString>,
    /// Secret that the nodes share; `None` if the settings or the environment give a secret.
    secret: Option<String>,
    /// Tokens that requests need.
    tokens: Tokens,
    kept: PlanFile,
}

/// Source of a token that the nodes accept for every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Token {
    /// No token is needed.
    #[default]
    None,
    /// The token is in this file.
    File(PathBuf),
    /// The token is in the variable `KVORUM_ADMIN_TOKEN`.
    Variable,
}

/// The tokens that requests need.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// Token for all requests; [`Token::None`] without `--require-auth`.
    pub(super) any: Token,
    /// Token for admin requests.
    pub(super) admin: Token,
}

/// Content of the plan's file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PlanFile {
    /// Port of the first node; the other nodes have the following ports, by their numbers.
    port: u16,
    /// Numbers of the cluster's initial nodes.
    first: BTreeSet<u16>,
    /// True if the members have changed and all nodes are known to use the new layout. Until then,
    /// nodes start with the list of the initial nodes, because a node may know no other layout.
    changed: bool,
    /// The nodes to run, by number.
    nodes: BTreeMap<u16, DevPlanNode>,
    /// True if the nodes serve TLS.
    #[serde(default)]
    tls: bool,
}

/// Stored settings and state of a node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct DevPlanNode {
    zone: Option<String>,
    weight: Option<u32>,
    /// True if the node was ever a member of the cluster; otherwise it asks to join.
    pub(super) is_member: bool,
}

impl DevPlan {
    /// Builds the plan from the flags and the data directory. The returned text tells the user
    /// which flags and variables have no effect.
    pub(super) fn new(args: &DevArgs) -> Result<(Self, String), DevError> {
        let random = random_secret().map_err(DevError::Random)?;
        let (data, serve) = (args.data.clone(), args.serve.clone());
        let (tokens, kept) = (Tokens::default(), PlanFile::default());
        let mut plan = Self { data, serve, secret: None, tokens, kept };
        let known = plan.load()?;
        let is_known = known.is_some();
        plan.kept = known.unwrap_or_else(|| PlanFile::first(args.nodes.unwrap_or(NODES)));
        plan.kept.tls |= args.tls;
        let mut note = String::new();
        let (count, data) = (plan.kept.nodes.len(), plan.data.display());
        if let Some(nodes) = args.nodes.filter(|nodes| is_known && usize::from(*nodes) != count) {
            note += &format!(
                "--nodes {nodes} has no effect: {data} has the {count} node(s) {}; kvorum dev add \
                 and kvorum dev remove change that\n",
                plan.names().join(", ")
            );
        }
        let port = plan.kept.port;
        match args.port {
            Some(other) if plan.kept.is_fixed() && other != port => {
                note += &format!(
                    "--port {other} has no effect: the nodes of {data} know each other by their \
                     ports, from {port} on, since nodes were added or removed\n"
                );
            }
            _ if plan.kept.is_fixed() => {}
            port => plan.kept.port = port.unwrap_or(PORT),
        }
        for number in plan.numbers() {
            plan.port_of(number)?;
        }
        let ignored = variables::find_set_variables(IGNORED);
        if !ignored.is_empty() {
            note += &format!(
                "ignored environment variable(s): {}; kvorum dev chooses these settings for its \
                 nodes (--tls, --port, --data), and takes others of kvorum serve after --\n",
                ignored.join(", ")
            );
        }
        plan.prepare_flags(random)?;
        Ok((plan, note))
    }

    /// Parses the user's flags of `kvorum serve`, which may replace this plan's own choices.
    fn prepare_flags(&mut self, random: String) -> Result<(), DevError> {
        let Some(first) = self.numbers().first().copied() else { return Ok(()) };
        let words = [OsString::from("kvorum")].into_iter().chain(self.command_line(first));
        let parsed = Cli::read_without(IGNORED, words).map_err(DevError::Flags)?;
        let Command::Serve(serve) = parsed.command else { unreachable!("the first word is serve") };
        if serve.settings.memory.is_none() && serve.config.is_none() {
            self.serve.extend(["--memory".into(), MEMORY.into()]);
        }
        let said = serve.settings.cluster_secret_file.is_some() || serve.config.is_some();
        self.secret = (!said && CLUSTER.variable().is_none()).then_some(random);
        let settings = config::merge_sources(*serve)?;
        if settings.tls_cert.is_some() && !self.kept.tls {
            return Err(DevError::OtherTls);
        }
        self.find_tokens(&settings);
        Ok(())
    }

    /// Determines the tokens. If all requests need a token and the settings name none, chooses a
    /// file in the data directory for a generated token.
    fn find_tokens(&mut self, settings: &Settings) {
        let is_needed = settings.require_auth.is_some_and(|required| required.0);
        let admin = match &settings.admin_token_file {
            Some(file) => Token::File(file.clone()),
            None if ADMIN.variable().is_some() => Token::Variable,
            None if is_needed => {
                let file = self.data.join(TOKEN);
                self.serve.extend(["--admin-token-file".into(), file.clone().into()]);
                Token::File(file)
            }
            None => Token::None,
        };
        let any = if is_needed { admin.clone() } else { Token::None };
        self.tokens = Tokens { any, admin };
    }

    /// Generates a token and stores it in its file, if a generated token is needed and the file
    /// does not exist.
    pub(super) fn make_token(&self) -> Result<(), DevError> {
        let file = self.data.join(TOKEN);
        if self.tokens.admin != Token::File(file.clone()) || file.exists() {
            return Ok(());
        }
        let token = random_secret().map_err(DevError::Random)?;
        fs::write(&file, token + "\n").map_err(|source| DevError::File { file, source })
    }

    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Reads the stored plan; `None` if there are no nodes yet.
    fn load(&self) -> Result<Option<PlanFile>, DevError> {
        let file = self.data.join(FILE);
        match fs::read(&file) {
            Ok(bytes) => {
                let kept: PlanFile = serde_json::from_slice(&bytes)
                    .map_err(|source| DevError::Damaged { file, source })?;
                Ok(Some(kept).filter(|kept| !kept.nodes.is_empty()))
            }
            // A data directory of an early build has no plan file: the highest numbered data
            // directory of a node shows how many nodes there are.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let last =
                    (1..=MAX_NODES as u16).rev().find(|n| self.data_of(*n).join("STORE").exists());
                Ok(last.map(PlanFile::first))
            }
            Err(source) => Err(DevError::File { file, source }),
        }
    }

    /// Stores the plan for the next start.
    pub(super) fn save(&self) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(&self.kept).expect("strings and numbers serialize");
        let (file, new) = (self.data.join(FILE), self.data.join(format!("{FILE}.new")));
        fs::write(&new, bytes)?;
        fs::rename(new, file)
    }

    /// Returns the numbers of the nodes to run.
    pub(super) fn numbers(&self) -> Vec<u16> {
        self.kept.nodes.keys().copied().collect()
    }

    fn names(&self) -> Vec<String> {
        self.kept.nodes.keys().map(|number| name(*number)).collect()
    }

    pub(super) fn node(&self, number: u16) -> Option<&DevPlanNode> {
        self.kept.nodes.get(&number)
    }

    /// Returns a node's data directory.
    pub(super) fn data_of(&self, number: u16) -> PathBuf {
        self.data.join(name(number))
    }

    fn port_of(&self, number: u16) -> Result<u16, DevError> {
        let first = self.kept.port;
        let port = first.checked_add(number - 1);
        port.ok_or_else(|| DevError::NoPort { first, node: name(number) })
    }

    /// Returns the address that a node listens on.
    pub(super) fn address(&self, number: u16) -> SocketAddr {
        let port = self.port_of(number).expect("it was looked at when the node was planned");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    /// Returns the URL of the node with this number.
    pub(super) fn url(&self, number: u16) -> String {
        ServingAddress { address: self.address(number), tls: self.kept.tls }.url()
    }

    /// Returns the directory of the certificates, if the nodes serve TLS.
    pub(super) fn certs(&self) -> Option<PathBuf> {
        self.kept.tls.then(|| self.data.join(CERTS))
    }

    /// Creates the CA if it does not exist, and issues a new certificate, valid for a year.
    pub(super) fn make_certs(&self) -> Result<(), CertError> {
        let Some(dir) = self.certs() else { return Ok(()) };
        if !dir.join("ca.pem").exists() {
            cert::make_ca(&dir, CA_LIFE)?;
        }
        let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        // An interrupted start may have left a certificate and a key that do not match.
        for file in ["node.pem", "node.key"] {
            match fs::remove_file(dir.join(file)) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(CertError::File { path: dir.join(file), source });
                }
                _ => {}
            }
        }
        cert::issue_node(&dir, &hosts, CERT_LIFE, &dir.join("node.pem"))?;
        Ok(())
    }

    /// Returns the secret that the nodes share; `None` if the settings or the environment give a
    /// secret.
    pub(super) fn secret(&self) -> Option<&str> {
        self.secret.as_deref()
    }

    /// Adds a node that will join; returns its number, the next one whose directory and port are
    /// free.
    pub(super) fn add(
        &mut self,
        zone: Option<String>,
        weight: Option<u32>,
    ) -> Result<u16, DevError> {
        if self.kept.nodes.len() >= MAX_NODES {
            return Err(DevError::TooMany);
        }
        let known = self.kept.first.iter().chain(self.kept.nodes.keys()).copied().max();
        let mut number = known.unwrap_or(0) + 1;
        loop {
            let port = self.port_of(number)?;
            let is_new = !self.data_of(number).exists();
            if is_new && accept::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok() {
                break;
            }
            number += 1;
        }
        self.kept.nodes.insert(number, DevPlanNode { zone, weight, is_member: false });
        Ok(number)
    }

    /// Records that a node serves and is therefore a member. Returns true if the node was not a
    /// member before.
    pub(super) fn serves(&mut self, number: u16) -> bool {
        let Some(node) = self.kept.nodes.get_mut(&number) else { return false };
        !std::mem::replace(&mut node.is_member, true)
    }

    /// Records that all nodes use a layout whose members differ from the initial ones.
    pub(super) fn record_settled(&mut self) {
        self.kept.changed = true;
    }

    /// Removes a node from those to run.
    pub(super) fn remove(&mut self, number: u16) {
        self.kept.nodes.remove(&number);
    }

    /// Returns the command line that starts a node.
    pub(super) fn command_line(&self, number: u16) -> Vec<OsString> {
        let PlanFile { first, changed, nodes, .. } = &self.kept;
        let node = nodes.get(&number).cloned().unwrap_or_default();
        let address = self.address(number).to_string();
        let begin = ["serve", "--greet", "--listen", &address];
        let mut words: Vec<OsString> = begin.map(OsString::from).to_vec();
        words.extend(["--advertise".into(), self.url(number).into()]);
        let is_listed = if *changed { node.is_member } else { first.contains(&number) };
        if is_listed {
            words.extend(["--cluster".into(), self.list().into()]);
        } else {
            let members = nodes.iter().filter(|(_, node)| node.is_member);
            let urls: Vec<String> = members.map(|(member, _)| self.url(*member)).collect();
            words.extend(["--join".into(), urls.join(",").into()]);
            words.extend(["--name".into(), name(number).into()]);
            for (flag, value) in
                [("--zone", node.zone), ("--weight", node.weight.map(|weight| weight.to_string()))]
            {
                words.extend(value.into_iter().flat_map(|value| [flag.into(), value.into()]));
            }
        }
        words.extend(["--data".into(), self.data_of(number).into()]);
        if let Some(certs) = self.certs() {
            words.extend(["--tls-cert".into(), certs.join("node.pem").into()]);
            words.extend(["--tls-key".into(), certs.join("node.key").into()]);
        }
        words.extend(self.serve.iter().cloned());
        words
    }

    /// Returns the list for `--cluster`: the initial nodes, or the current members once all nodes
    /// are known to use a changed layout.
    fn list(&self) -> String {
        let PlanFile { first, changed, nodes, .. } = &self.kept;
        let members = nodes.iter().filter(|(_, node)| node.is_member).map(|(number, _)| *number);
        let listed: Vec<u16> =
            if *changed { members.collect() } else { first.iter().copied().collect() };
        let listed = listed.into_iter().map(|number| {
            let node = nodes.get(&number).cloned().unwrap_or_default();
            let zone = node.zone.map(|zone| format!(";zone={zone}")).unwrap_or_default();
            let weight = node.weight.map(|weight| format!(";weight={weight}")).unwrap_or_default();
            format!("{}={}{zone}{weight}", name(number), self.url(number))
        });
        listed.collect::<Vec<_>>().join(",")
    }
}

impl PlanFile {
    /// Returns true if nodes learn each other's URLs from a layout. Ports can't change any more
    /// then, because a node that joins has no list with other ports.
    fn is_fixed(&self) -> bool {
        self.changed || self.nodes.keys().any(|number| !self.first.contains(number))
    }

    /// Returns the plan of a new cluster with the nodes 1 to `nodes`.
    fn first(nodes: u16) -> Self {
        let first: BTreeSet<u16> = (1..=nodes).collect();
        let member = DevPlanNode { is_member: true, ..DevPlanNode::default() };
        let nodes = first.iter().map(|number| (*number, member.clone())).collect();
        Self { port: PORT, first, changed: false, nodes, tls: false }
    }
}

impl DevPlanNode {
    /// Returns true if the node has the wanted zone and weight; `None` accepts any.
    pub(super) fn matches(&self, zone: Option<&str>, weight: Option<u32>) -> bool {
        zone.is_none_or(|zone| self.zone.as_deref() == Some(zone))
            && weight.is_none_or(|weight| self.weight.unwrap_or(1) == weight)
    }
}

/// Returns a node's name.
pub(super) fn name(number: u16) -> String {
    format!("node-{number}")
}

/// Returns a random secret or token of 128 bits in hexadecimal. As a cluster secret it keeps other
/// processes from posing as nodes.
fn random_secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn plan(data: &Path, nodes: Option<u16>, port: u16) -> (DevPlan, String) {
        let (data, serve) = (data.to_owned(), vec!["--sync".into(), "never".into()]);
        let port = Some(port);
        DevPlan::new(&DevArgs { command: None, nodes, port, tls: false, data, serve }).unwrap()
    }

    fn line(plan: &DevPlan, number: u16) -> String {
        plan.command_line(number).join(&OsString::from(" ")).into_string().unwrap()
    }

    #[test]
    fn nodes_start_with_the_list_until_members_have_changed() {
        let data = tempfile::tempdir().unwrap();
        let (mut one, note) = plan(data.path(), Some(1), 18_080);
        assert!(note.is_empty() && one.secret().is_some());
        let begins = line(&one, 1);
        assert!(begins.contains("--cluster node-1=http://127.0.0.1:18080 --data"), "{begins}");
        assert!(begins.ends_with("--sync never --memory 256MiB"), "{begins}");

        let number = one.add(Some("x".to_owned()), Some(2)).unwrap();
        let joins = line(&one, number);
        assert!(
            joins.contains(&format!("--join {} --name {}", one.url(1), name(number))),
            "{joins}"
        );
        assert!(joins.contains("--zone x --weight 2"), "{joins}");
        assert_eq!(line(&one, 1), begins, "whoever knows no other layout needs the first list");
        assert!(one.serves(number) && !one.serves(number));
        one.record_settled();
        one.save().unwrap();

        let (mut again, note) = plan(data.path(), Some(3), 19_000);
        assert!(note.contains("has the 2 node(s) node-1, node-"), "{note}");
        assert!(note.contains("--port 19000 has no effect"), "{note}");
        let both = format!("node-1={},{}={}", again.url(1), name(number), again.url(number));
        for node in [1, number] {
            let said = line(&again, node);
            assert!(said.contains(&format!("--cluster {both};zone=x;weight=2 ")), "{said}");
        }
        again.remove(1);
        again.save().unwrap();
        assert_eq!(plan(data.path(), None, 18_080).0.numbers(), [number]);
    }

    #[test]
    fn a_directory_of_an_earlier_build_keeps_its_nodes() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir_all(data.path().join("node-2")).unwrap();
        fs::write(data.path().join("node-2/STORE"), "").unwrap();
        assert_eq!(plan(data.path(), None, 18_080).0.numbers(), [1, 2]);
        let (mut two, note) = plan(data.path(), Some(2), 19_000);
        assert_eq!((two.url(1).as_str(), note.as_str()), ("http://127.0.0.1:19000", ""));
        assert!(two.add(None, None).unwrap() > 2);
        fs::write(data.path().join(FILE), "no json").unwrap();
        let args = DevArgs {
            command: None,
            nodes: None,
            port: None,
            tls: false,
            data: data.path().to_owned(),
            serve: Vec::new(),
        };
        assert!(DevPlan::new(&args).unwrap_err().to_string().contains("dev.json"));
    }
}
