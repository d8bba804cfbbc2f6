//! The joining node's side of a join: it asks the members of a cluster until one accepts it.
//!
//! ```text
//!  URLs of --join ─────┬─▶ POST /admin/join, ─┬─▶ accepted: the layout is stored, and the node
//!  URLs of members, ───┘   once a second      │   starts as any member
//!  from their answers                         └─▶ refused: the node ends with the reason
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::Incarnation;
use protocol::handshake::Secret;
use protocol::layout::VoterId;
use server::identity::{Candidate, GrantedMembership};
use socket2::Socket;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{AbortHandle, JoinSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::counters::clocks::wall_micros;
use crate::http::not_serving::{self, Waiting};
use crate::joining::message::{self, AskFailure, JoinReply, JoinRequest};
use crate::node::store::DirectoryError;
use crate::runtime::error::ServeError;
use crate::runtime::serve::{self, WAITS, random};
use crate::runtime::{accept, credentials, notify};
use crate::settings::config::Config;
use crate::settings::members::{Members, ServingAddress, Unlisted, is_loopback};
use crate::transport::{AcceptedStream, Tls};

/// Interval of requests to each node.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of nodes asked in one round. The rest of a larger cluster is asked in later
/// rounds.
const MAX_ASKED_PER_ROUND: usize = 64;

/// Maximum number of concurrent connections while the node waits, because only health checks are
/// expected. Above it the oldest connection is closed.
const MAX_CONNECTIONS: usize = 64;

/// Time limit of a client's TLS handshake while the node waits.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Pause after a failed accept.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Outcome of the join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinEnd {
    /// The directory belongs to a member, so the node can start.
    Placed,
    /// A signal stopped the node.
    Stopped,
}

/// Joins the cluster, and returns after the node has become a member. Returns at once if the
/// settings name no cluster to join, or if the directory already belongs to a member.
pub(crate) fn join_cluster(
    config: &Config,
    db: &lsm::Db,
    (socket, address): (&Socket, SocketAddr),
    tls: Option<&Arc<Tls>>,
) -> Result<JoinEnd, ServeError> {
    let Members::Unlisted(unlisted) = &config.members else { return Ok(JoinEnd::Placed) };
    if unlisted.join.is_empty() {
        return Ok(JoinEnd::Placed);
    }
    let in_data = |source| DirectoryError { data: config.data.clone(), source };
    let (incarnation, voter) = (Incarnation(random("incarnation")), VoterId(random("voter")));
    let new = Candidate { incarnation, voter };
    let candidate = Candidate::of(db, new).map_err(in_data)?;
    let Some(candidate) = candidate else { return Ok(JoinEnd::Placed) };
    refuse_own_url(unlisted, config.at(address))?;
    let asker = join_request(unlisted, config.at(address), candidate);
    tracing::info!(name = asker.name, url = asker.url, "asking to join the cluster");
    let listen = || accept::listen(socket.try_clone()?);
    let listener = listen().map_err(|source| ServeError::Listen { address, source })?;
    if config.greets {
        print_instructions(unlisted, &asker, config.admin_token.is_some());
    }
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(ServeError::Asking)?;
    let asking = JoinAttempt {
        asker: &asker,
        secret: credentials::secret(config),
        token: config.admin_token.as_ref().map(|token| token.bytes()),
        targets: unlisted.join.iter().cloned().collect(),
        last: None,
        last_results: BTreeMap::new(),
    };
    let (tls, asked) = (tls.cloned(), unlisted.join[0].clone());
    let asked = async {
        spawn_local(answer(listener, tls, asked));
        // Event loops do not run yet. systemd's watchdog gets its messages while this runtime makes
        // progress.
        spawn_local(notify::keep_alive(&[]));
        asking.run().await
    };
    let Some(placed) = runtime.block_on(asked)? else { return Ok(JoinEnd::Stopped) };
    tracing::info!(epoch = placed.layout.epoch, "accepted into the cluster");
    let skew = config.max_clock_skew.as_micros() as u64;
    candidate.become_member(db, placed, wall_micros(), skew).map_err(in_data)?;
    Ok(JoinEnd::Placed)
}

/// Refuses settings in which `--join` names only this node.
pub(crate) fn refuse_own_url(unlisted: &Unlisted, at: ServingAddress) -> Result<(), ServeError> {
    let url = unlisted.own_url(at);
    if !unlisted.join.is_empty() && unlisted.join.iter().all(|joined| *joined == url) {
        return Err(ServeError::JoinsItself { url });
    }
    Ok(())
}

fn join_request(unlisted: &Unlisted, at: ServingAddress, candidate: Candidate) -> JoinRequest {
    let url = unlisted.own_url(at);
    let member = unlisted.member(&url);
    let Candidate { incarnation, voter } = candidate;
    JoinRequest {
        name: member.name,
        url,
        zone: member.zone,
        weight: member.weight,
        incarnation: format!("{:016x}", incarnation.0),
        voter: format!("{:016x}", voter.0),
        clock_ms: 0,
        began_ms: wall_micros() / 1000,
    }
}

/// Prints that the node waits, and the commands that add it. `has_admin_token` is true if this node
/// has an admin token; the asked node is then likely to have it too.
fn print_instructions(unlisted: &Unlisted, asker: &JoinRequest, has_admin_token: bool) {
    let (name, url, first) = (&asker.name, &asker.url, &unlisted.join[0]);
    let (mut flags, mut notes) = (format!("--url {first}"), Vec::new());
    if first.starts_with("https:") {
        flags += " --ca-file CA.pem";
        notes.push("CA.pem: of the CA that issued its certificate");
    }
    // Without an admin token, only requests over loopback may administer a node.
    if has_admin_token || !is_loopback(first) {
        flags += " --token-file FILE";
        notes.push("FILE: with the admin token of that cluster");
    }
    let note = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    serve::print_text(format!(
        "kvorum {} at {url}{WAITS}{first}, as node {name}. It serves nothing until then. \
         Run{note}:\n\
         \n  kvorum cluster plan --add '{name}' {flags}\
         \n  kvorum cluster apply --wait PLAN {flags}\n",
        env!("KVORUM_VERSION"),
    ));
}

/// Answers clients while the node waits: the node is alive, and not ready. The port stays open
/// after the join. Clients that connect between the join and the start of service are answered
/// after the start.
async fn answer(listener: TcpListener, tls: Option<Arc<Tls>>, asked: String) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let asked = Rc::<str>::from(asked);
    let mut served: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process may have no free file descriptors. Without a pause this loop would spin,
            // because the listener stays readable.
            sleep(BACK_OFF).await;
            continue;
        };
        served.retain(|connection| !connection.is_finished());
        if served.len() == MAX_CONNECTIONS {
            // The oldest connection is probably idle, and a health check must not wait for it.
            served.pop_front().inspect(AbortHandle::abort);
        }
        let answering = answer_client(stream, tls.clone(), Rc::clone(&asked));
        served.push_back(spawn_local(answering).abort_handle());
    }
}

async fn answer_client(stream: TcpStream, tls: Option<Arc<Tls>>, asked: Rc<str>) {
    let Some(tls) = tls else {
        return not_serving::answer_request(stream.into(), Waiting::ForPlace(&asked)).await;
    };
    match timeout(HANDSHAKE, tls.accept_http1(stream)).await {
        Ok(Ok(AcceptedStream::Client(stream))) => {
            not_serving::answer_request(stream, Waiting::ForPlace(&asked)).await;
        }
        Ok(Ok(AcceptedStream::InClear(stream))) => {
            not_serving::answer_request(stream.into(), Waiting::ForTls).await;
        }
        // The connection is closed: another node connected too early, or the handshake failed.
        Ok(Ok(AcceptedStream::Peer(_)) | Err(_)) | Err(_) => {}
    }
}

/// The state of the join that all rounds share.
struct JoinAttempt<'a> {
    asker: &'a JoinRequest,
    secret: Option<Secret>,
    token: Option<&'a [u8]>,
    /// URLs of the cluster's nodes.
    targets: BTreeSet<String>,
    /// URL of the node asked last.
    last: Option<String>,
    /// The result last logged for each node, by URL.
    last_results: BTreeMap<String, String>,
}

impl JoinAttempt<'_> {
    /// Asks until a member accepts the node, and returns the node's place; `None` if a signal
    /// stopped the node.
    async fn run(mut self) -> Result<Option<GrantedMembership>, ServeError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        // SIGHUP has no effect yet. Without a handler it would end the process.
        let _hangup = signal(SignalKind::hangup()).map_err(ServeError::Signals)?;
        // Reports to systemd that the start is complete, because a node that waits for an operator
        // is not stuck. From here on signals can stop the node.
        let first = self.targets.first().map_or("", String::as_str);
        notify::report_ready(&format!("waits for a place in the cluster of {first}"));
        let mut rounds = interval(ASK_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let round = async {
                rounds.tick().await;
                self.round().await
            };
            tokio::select! {
                _ = terminate.recv() => return Ok(None),
                _ = interrupt.recv() => return Ok(None),
                placed = round => {
                    if let Some(placed) = placed? {
                        return Ok(Some(placed));
                    }
                }
            }
        }
    }

    /// Asks each node once, up to the limit of a round. Returns the place if a member accepts the
    /// node.
    async fn round(&mut self) -> Result<Option<GrantedMembership>, ServeError> {
        let mut asked = JoinSet::new();
        for url in self.nodes_to_ask() {
            let asker = JoinRequest { clock_ms: wall_micros() / 1000, ..self.asker.clone() };
            let secret = self.secret.clone();
            let token = self.token.map(<[u8]>::to_vec);
            asked.spawn_local(async move {
                let answer = message::ask(&url, &asker, secret.as_ref(), token.as_deref()).await;
                (url, answer)
            });
        }
        while let Some(done) = asked.join_next().await {
            // An error means that the task panicked, and a panic ends the process.
            let Ok((url, answer)) = done else { continue };
            match answer {
                Ok(JoinReply::Placed(cluster, own, layout)) => {
                    return Ok(Some(GrantedMembership { cluster, own, layout }));
                }
                Ok(JoinReply::Waits(members, because)) => {
                    let known = "it knows that this node asks to join";
                    let what = because.as_deref().unwrap_or(known);
                    if self.is_news(&url, what) {
                        tracing::info!(url, "{what}");
                    }
                    let others = members.into_iter().filter(|member| *member != self.asker.url);
                    self.targets.extend(others);
                }
                Err(AskFailure::Refused(why)) => {
                    return Err(ServeError::Refused { url, why });
                }
                Err(error) => {
                    let what = error.to_string();
                    if self.is_news(&url, &what) {
                        tracing::warn!(url, "{what}");
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns the URLs of the nodes to ask in this round, in rotation.
    fn nodes_to_ask(&mut self) -> Vec<String> {
        let after = self.last.clone().unwrap_or_default();
        let (before, behind): (Vec<_>, Vec<_>) =
            self.targets.iter().cloned().partition(|url| *url <= after);
        let due: Vec<String> = behind.into_iter().chain(before).take(MAX_ASKED_PER_ROUND).collect();
        self.last = due.last().cloned();
        due
    }

    /// Stores the result of asking a node. Returns true if it differs from the node's last result.
    fn is_news(&mut self, url: &str, what: &str) -> bool {
        let before = self.last_results.insert(url.to_owned(), what.to_owned());
        before.as_deref() != Some(what)
    }
}
