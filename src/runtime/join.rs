//! A node with an empty directory that asks for a place in a cluster, until it has one.
//!
//! ```text
//!  URLs of --join ─┬─▶ once a second: POST /admin/join ─▶ has it a place? ─▶ stored, and it starts
//!  members, as ────┘         │                                  as any member
//!  they answer               └─▶ refused: it ends, with why
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cluster::Incarnation;
use cluster::handshake::Secret;
use cluster::layout::VoterId;
use node::identity::{Candidate, Placed};
use socket2::Socket;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::error::ServeError;
use super::serve::{self, WAITS, random};
use super::{accept, credentials, notify};
use crate::counters::clocks::wall_micros;
use crate::http::waiting;
use crate::node::store::InDirectory;
use crate::peers::join::{self, Answer, Asker, Unanswered};
use crate::settings::config::Config;
use crate::settings::members::{At, Members, Unlisted};
use crate::transport::{Came, Tls};

/// How often each node is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Nodes that are asked in one round. Of a larger cluster some are asked in the next ones.
const ASKED_AT_ONCE: usize = 64;

/// Clients that are answered at once while the node waits: few ask for its health.
const ANSWERED_AT_ONCE: usize = 64;

/// How long a client may take for a TLS handshake meanwhile.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long no connection is taken after one could not be.
const BACK_OFF: Duration = Duration::from_millis(100);

/// How the asking ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The directory has its place: it can start.
    Placed,
    /// The node was told to stop.
    Stopped,
}

/// Asks, if the settings say so and the directory has no place yet.
pub(super) fn place(
    config: &Config,
    db: &lsm::Db,
    (socket, address): (&Socket, SocketAddr),
    tls: Option<&Arc<Tls>>,
) -> Result<Ended, ServeError> {
    let Members::Unlisted(unlisted) = &config.members else { return Ok(Ended::Placed) };
    if unlisted.join.is_empty() {
        return Ok(Ended::Placed);
    }
    let in_data = |source| InDirectory { data: config.data.clone(), source };
    let (incarnation, voter) = (Incarnation(random("incarnation")), VoterId(random("voter")));
    let new = Candidate { incarnation, voter };
    let candidate = Candidate::of(db, new).map_err(in_data)?;
    let Some(candidate) = candidate else { return Ok(Ended::Placed) };
    let asker = asker(unlisted, config.at(address), candidate);
    if unlisted.join.iter().all(|url| *url == asker.url) {
        return Err(ServeError::JoinsItself { url: asker.url });
    }
    tracing::info!(name = asker.name, url = asker.url, "asking to join the cluster");
    if config.greets {
        greet(unlisted, &asker);
    }
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(ServeError::Asking)?;
    let asking = Asking {
        asker: &asker,
        secret: credentials::secret(config),
        token: config.admin_token.as_ref().map(|token| token.bytes()),
        targets: unlisted.join.iter().cloned().collect(),
        last: None,
        said: BTreeMap::new(),
    };
    let listen = || accept::listen(socket.try_clone()?);
    let listener = listen().map_err(|source| ServeError::Listen { address, source })?;
    let (tls, asked) = (tls.cloned(), unlisted.join[0].clone());
    let asked = async {
        tokio::task::spawn_local(answer(listener, tls, asked));
        // There are no loops yet. This runtime turns, or nothing is told.
        tokio::task::spawn_local(notify::keep_alive(&[]));
        asking.run().await
    };
    let Some(placed) = runtime.block_on(asked)? else { return Ok(Ended::Stopped) };
    tracing::info!(epoch = placed.layout.epoch, "accepted into the cluster");
    let skew = config.max_clock_skew.as_micros() as u64;
    candidate.takes(db, placed, wall_micros(), skew).map_err(in_data)?;
    Ok(Ended::Placed)
}

fn asker(unlisted: &Unlisted, at: At, candidate: Candidate) -> Asker {
    let url = unlisted.url.clone().unwrap_or_else(|| at.url());
    let member = unlisted.member(&url);
    let Candidate { incarnation, voter } = candidate;
    Asker {
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

/// Says what it waits for, and what is to be typed.
fn greet(unlisted: &Unlisted, asker: &Asker) {
    let (name, url, first) = (&asker.name, &asker.url, &unlisted.join[0]);
    serve::say(format!(
        "kvorum {} at {url}{WAITS}{first}, as node {name}. It serves nothing until then. Run:\n\
         \n  kvorum cluster plan --add '{name}' --url {first}\
         \n  kvorum cluster apply --wait PLAN --url {first}\n",
        env!("KVORUM_VERSION"),
    ));
}

/// Answers clients while the node waits: that it is alive, and not ready. The port stays open after
/// that, and whoever connects meanwhile is served once the node serves.
async fn answer(listener: TcpListener, tls: Option<Arc<Tls>>, asked: String) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let (places, asked) = (Arc::new(Semaphore::new(ANSWERED_AT_ONCE)), Rc::<str>::from(asked));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, it may be. The listener stays readable.
            sleep(BACK_OFF).await;
            continue;
        };
        let (tls, asked) = (tls.clone(), Rc::clone(&asked));
        tokio::task::spawn_local(async move {
            match tls {
                None => waiting::converse(stream.into(), &asked).await,
                Some(tls) => {
                    // Whoever speaks in clear, or as a node, has come too early.
                    let came = timeout(HANDSHAKE, tls.accept(stream)).await;
                    if let Ok(Ok(Came::Client(stream))) = came {
                        waiting::converse(stream, &asked).await;
                    }
                }
            }
            drop(place);
        });
    }
}

/// The rounds of asking.
struct Asking<'a> {
    asker: &'a Asker,
    secret: Option<Secret>,
    token: Option<&'a [u8]>,
    /// Where nodes of the cluster are.
    targets: BTreeSet<String>,
    /// Who was asked last.
    last: Option<String>,
    /// What was said last of each.
    said: BTreeMap<String, String>,
}

impl Asking<'_> {
    /// Asks until there is a place, or the node is told to stop: then `None`.
    async fn run(mut self) -> Result<Option<Placed>, ServeError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        // SIGHUP changes nothing, as later; without a handler it would end the process.
        let _hangup = signal(SignalKind::hangup()).map_err(ServeError::Signals)?;
        // Whoever waits for people is not stuck in its start; and can be told to stop from here on.
        let first = self.targets.first().map_or("", String::as_str);
        notify::ready(&format!("waits for a place in the cluster of {first}"));
        let mut rounds = interval(EVERY);
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

    /// Asks each node once, or as many as are asked in one round.
    async fn round(&mut self) -> Result<Option<Placed>, ServeError> {
        let mut asked = JoinSet::new();
        for url in self.due() {
            let asker = Asker { clock_ms: wall_micros() / 1000, ..self.asker.clone() };
            let secret = self.secret.clone();
            let token = self.token.map(<[u8]>::to_vec);
            asked.spawn_local(async move {
                let answer = join::ask(&url, &asker, secret.as_ref(), token.as_deref()).await;
                (url, answer)
            });
        }
        while let Some(done) = asked.join_next().await {
            // A panic in there was printed, and ended the process.
            let Ok((url, answer)) = done else { continue };
            match answer {
                Ok(Answer::Placed(cluster, own, layout)) => {
                    return Ok(Some(Placed { cluster, own, layout }));
                }
                Ok(Answer::Waits(members, because)) => {
                    let known = "it knows that this node asks to join";
                    self.say(&url, because.as_deref().unwrap_or(known));
                    let others = members.into_iter().filter(|member| *member != self.asker.url);
                    self.targets.extend(others);
                }
                Err(Unanswered::Refused(why)) => {
                    return Err(ServeError::Refused { url, why });
                }
                Err(error) => self.say(&url, &error.to_string()),
            }
        }
        Ok(None)
    }

    /// The nodes that are asked in this round, in turn.
    fn due(&mut self) -> Vec<String> {
        let after = self.last.clone().unwrap_or_default();
        let (before, behind): (Vec<_>, Vec<_>) =
            self.targets.iter().cloned().partition(|url| *url <= after);
        let due: Vec<String> = behind.into_iter().chain(before).take(ASKED_AT_ONCE).collect();
        self.last = due.last().cloned();
        due
    }

    /// Logs what became of asking a node, unless it is what became of it before.
    fn say(&mut self, url: &str, what: &str) {
        let before = self.said.insert(url.to_owned(), what.to_owned());
        if before.as_deref() != Some(what) {
            tracing::info!(url, "{what}");
        }
    }
}
