//! `kvorum serve`: starts the node, and stops it in reverse order.
//!
//! ```text
//!  start  address bound ─▶ store recovered ─▶ identity, clock ─▶ read pool, loops ─▶ port open
//!  stop   socket closed ◀─ store closed    ◀─ clock stored    ◀─ loops drained ◀─ SIGTERM, ctrl-C
//! ```

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::handshake::Secrets;
use protocol::layout::Layout;
use protocol::{Incarnation, MembershipState, Shared, handshake};
use server::identity::{self, Identity, NodeSettings};
use server::link::{LinkBounds, PeerTable};
use server::{PageWork, Pages, StartError, StartedNode, StartingNode};
use socket2::Socket;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::counters::Accepting;
use crate::counters::clocks::wall_micros;
use crate::counters::memory_budget::Budget;
use crate::finalize::status::StoreFormats;
use crate::http::{self, OwnNames};
use crate::joining::ask;
use crate::joining::joiners::Joiners;
use crate::layout::plans::Plans;
use crate::node::clock::NodeClock;
use crate::node::clock_comparison::ClockComparison;
use crate::node::connection_slots::ConnectionSlots;
use crate::node::life_file::DataDirectory;
use crate::node::limits::Limits;
use crate::node::reads::ReadPool;
use crate::node::store::{self, DirectoryError};
use crate::node::task;
use crate::node::{Node, Outdated};
use crate::operations::stderr;
use crate::peers::PeerFacts;
use crate::quotas::counts::Quotas;
use crate::quotas::recount::Counting;
use crate::runtime::accept;
use crate::runtime::credentials::{self, Credentials};
use crate::runtime::directory_access;
use crate::runtime::error::ServeError;
use crate::runtime::event_loop::{self, Handle, LoopCommand};
use crate::runtime::limits;
use crate::runtime::notify;
use crate::runtime::set_aside;
use crate::runtime::unusable::Unusable;
use crate::sample_history::ring::History;
use crate::sample_history::thread::Sampling;
use crate::settings::config::{Config, Logging, OpenTo, receives_loopback};
use crate::settings::error::ConfigError;
use crate::settings::members::{self, Membership};
use crate::tokens::lookup::{self, Access};
use crate::transport::Tls;

/// Serves until a signal or an error ends the node.
pub(crate) fn run(mut config: Config, logging: &Logging) -> Result<(), ServeError> {
    store::restrict_umask();
    stderr::log(logging).map_err(ServeError::Logging)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let files = limits::raise_file_limit();
    limits::refuse_too_few_files(&config, files)?;
    limits::leave_files_to_the_store(&mut config, files);
    let (listen, data) = (config.listen, config.data.display().to_string());
    let bind_error = |source| ServeError::Listen { address: listen, source };
    let socket = accept::bind(listen).map_err(bind_error)?;
    let address = socket.local_addr().map_err(bind_error)?.as_socket().unwrap_or(listen);
    let Some(node) = start_node(config, &socket, address)? else {
        tracing::info!("stopped");
        return Ok(());
    };
    let Config { allow_host, allow_origin, .. } = &node.config;
    let names = Arc::new(OwnNames::of(address, node.url(), allow_host, allow_origin));
    let loops = start_loops(&node, &names).map_err(ServeError::EventLoop)?;
    // Signal handlers must exist before another process can learn that the node runs, and stop it.
    let acceptor = Acceptor::new().map_err(ServeError::Signals)?;
    let listener = accept::listen(socket).map_err(bind_error)?;
    tracing::info!(%address, url = node.url(), data, "serving");
    print_greeting(&node.config, address, node.url(), &data);
    let credentials = Credentials::watch(&node).map_err(ServeError::Thread)?;
    notify::report_ready(notify::SERVES);
    let counting = Counting::start(&node).map_err(ServeError::Thread)?;
    let sampling = Sampling::start(&node).map_err(ServeError::Thread)?;
    let outcome = acceptor.run(listener, &loops, &node, &credentials).map_err(ServeError::Accept);
    notify::report_stop();
    credentials.stop();
    counting.stop();
    sampling.stop();
    let (is_outdated, data) = (node.is_outdated(), node.config.data.clone());
    tracing::info!("stopping");
    stop(node, loops)?;
    tracing::info!("stopped");
    if is_outdated {
        return Err(set_outdated_aside(data));
    }
    outcome
}

/// Moves an outdated copy's content aside. Returns the error that ends the node.
fn set_outdated_aside(data: PathBuf) -> ServeError {
    match set_aside::set_aside(&data) {
        Ok(aside) => ServeError::Outdated { aside },
        Err(source) => ServeError::OutdatedStays { data, source },
    }
}

/// Completes the move of the data directory's content if an earlier process was killed during the
/// move. A directory with a part of its content is not a store.
fn end_setting_aside(data: &Path) -> Result<(), ServeError> {
    let ended = set_aside::resume_move(data)
        .map_err(|source| DirectoryError { data: data.to_owned(), source })?;
    if let Some(aside) = ended {
        let aside = aside.display();
        tracing::warn!(
            %aside,
            "this data directory was an outdated copy: its content was moved aside, and the node \
             is rebuilt from the others"
        );
    }
    Ok(())
}

/// Opens the node; `None` if the node was stopped before it had joined the cluster.
fn start_node(
    config: Config,
    socket: &Socket,
    address: SocketAddr,
) -> Result<Option<Arc<Node>>, ServeError> {
    let started = Instant::now();
    server::refuse_after_last_day(wall_micros()).map_err(ServeError::Clock)?;
    end_setting_aside(&config.data)?;
    let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
    let has_others = config.members.nodes() > 1 || !config.members.joins().is_empty();
    let failed = |cause| Unusable { data: config.data.clone(), has_others, cause };
    let db = Arc::new(store::open(&config).map_err(|error| failed(StartError::Open(error)))?);
    directory_access::warn_of_readers(&config.data);
    log_store_format(StoreFormats::of(&db));
    if ask::join_cluster(&config, &db, (socket, address), tls.as_ref())? == ask::JoinEnd::Stopped {
        close(db)?;
        return Ok(None);
    }
    let name = identity::kept_name(db.engine()).map_err(failed)?;
    warn_of_unused_name(&config, name.as_deref());
    let layout = identity::kept_layout(db.engine()).map_err(failed)?;
    if let Some(layout) = &layout {
        require_secret(&config, layout)?;
    }
    let members =
        config.members.settle(config.at(address), name, config.replicas, layout.is_some())?;
    let StartedNode { shared, identity, clock } = begin(&config, &db, &members).map_err(failed)?;
    let clock = NodeClock::start(&db, clock).map_err(failed)?;
    let secrets = Arc::new(credentials::secrets(&config)?);
    let facts = peer_facts(&shared, &config, &secrets);
    let own_url = own_url(&config, address, &identity);
    let (task, events) = mpsc::channel(task::EVENTS);
    let pages = Arc::new(Pages::new(config.memory.page_bytes as usize, PageWork::SERVING));
    let reads = ReadPool::start(&db, &shared, &pages, config.read_threads, config.queue)
        .map_err(ServeError::ReadThread)?;
    let limits = limits(&config);
    let access = Access::new(config.admin_token.clone(), config.open_to);
    Ok(Some(Arc::new(Node {
        started,
        db,
        shared,
        own_url,
        facts,
        identity,
        task,
        task_events: Mutex::new(Some(events)),
        clock,
        comparison: ClockComparison::default(),
        reads,
        limits,
        answers: Budget::new(config.memory.answer_bytes as usize),
        lent: Budget::new(config.memory.lent_bytes as usize),
        pages,
        counters: (0..config.loops).map(|_| Arc::default()).collect(),
        access,
        quotas: Quotas::default(),
        history: History::default(),
        accepting: Accepting::default(),
        stopping: AtomicBool::new(false),
        outdated: Outdated::default(),
        plans: Plans::default(),
        joiners: Joiners::default(),
        secrets,
        tls,
        config,
    })))
}

/// If this release writes a later format, logs that the previous release can still open the store.
fn log_store_format(formats: StoreFormats) {
    if formats.can_be_raised() {
        tracing::info!(
            format = formats.store_format,
            latest = formats.newest_store_format,
            "the store keeps its format, which the release before this one opens too, until \
             `kvorum cluster finalize` raises it"
        );
    }
}

/// Returns the state of the peer connections, which all loops share.
fn peer_facts(shared: &Arc<Shared>, config: &Config, secrets: &Arc<Secrets>) -> Arc<PeerFacts> {
    let known = handshake::HandshakeIdentity::new(
        Arc::clone(&shared.membership.views),
        shared.own,
        Arc::clone(&shared.membership.cluster),
        Arc::clone(secrets),
        (
            Arc::clone(&shared.membership.logs),
            Arc::clone(&shared.repair.proofs),
            Arc::clone(&shared.membership.layouts),
        ),
    );
    let bounds = LinkBounds {
        encoded_bytes: config.memory.peer_bytes as usize,
        loops: config.loops,
        queue_bytes: config.memory.queue_bytes() as usize,
    };
    let received = Budget::new(config.memory.received_bytes as usize);
    let max_skew = config.max_clock_skew.as_micros() as u64;
    let (shared, known) = (Arc::clone(shared), Arc::new(known));
    let table = PeerTable::new(shared, known, max_skew, bounds);
    Arc::new(PeerFacts::new(table, received, config.members.listed_urls()))
}

/// Starts the node of the data directory, and waits until its clock may be used.
fn begin(config: &Config, db: &lsm::Db, members: &Membership) -> Result<StartedNode, StartError> {
    let Membership { topology, own, named, urls } = members;
    let skew = config.max_clock_skew.as_micros() as u64;
    let named = NodeSettings { topology, own: *own, named: *named, urls };
    let incarnation = Incarnation(random("incarnation"));
    let starting =
        StartingNode::open(db, named, incarnation, MembershipState::Joining, wall_micros(), skew)?;
    tracing::info!(
        name = starting.identity().name(),
        nodes = starting.nodes(),
        state = starting.identity().state().label(),
        incarnation = format_args!("{:016x}", starting.identity().incarnation().0),
        cluster = starting.identity().cluster().map(tracing::field::display),
        "this node"
    );
    wait_for_wall(&starting);
    let directory = DataDirectory(&config.data);
    let started = starting.begin(db, &directory, named, wall_micros(), random("life"))?;
    if started.identity.state() == MembershipState::Verifying {
        tracing::warn!(
            "the data directory is a copy or was moved from another file system: the node is not \
             authoritative until all other nodes have confirmed that it holds what this node \
             acknowledged"
        );
    }
    Ok(started)
}

/// Refuses to run without a secret in a cluster that other machines can reach. The check of the
/// settings does not suffice, because a node that was alone at its first start needed no secret.
fn require_secret(config: &Config, layout: &Layout) -> Result<(), ServeError> {
    if config.open_to == OpenTo::Nobody && config.secret.is_none() && !layout.is_alone() {
        return Err(ConfigError::NodesProve.into());
    }
    let beyond = layout.all().find(|node| !members::is_loopback(&node.url));
    match beyond.filter(|_| config.secret.is_none() && !layout.is_alone()) {
        None => Ok(()),
        Some(node) => {
            let (name, url) = (node.member.name.clone(), node.url.clone());
            Err(ServeError::NoSecret { name, url })
        }
    }
}

/// Returns this node's URL. The other nodes use the URL in the layout, which may differ.
fn own_url(config: &Config, address: SocketAddr, identity: &Identity) -> String {
    let listens = config.at(address).url();
    let layout = identity.layout_in_force();
    let known = layout.and_then(|layout| layout.find_node(identity.name())).map(|node| &node.url);
    match (config.members.own_url(), known) {
        (Some(said), Some(known)) if said != known => {
            tracing::warn!(
                said,
                known,
                "the other nodes use another URL for this node than --advertise or --cluster says: \
                 correct it in --cluster on the other nodes, or run `kvorum cluster plan` on this \
                 machine and apply the plan"
            );
            said.to_owned()
        }
        (Some(said), _) => said.to_owned(),
        (None, Some(known)) => {
            if *known != listens && !address.ip().is_unspecified() {
                tracing::warn!(
                    %address,
                    known,
                    "this node does not listen at the URL that the other nodes use for it: set \
                     --listen to that address, or --advertise to the URL of this one"
                );
            }
            known.clone()
        }
        (None, None) => listens,
    }
}

/// Waits until the peers accept the clock's lead over the wall clock.
fn wait_for_wall(starting: &StartingNode) {
    let wait = starting.wait_for_wall(wall_micros());
    if wait > 0 {
        let wait = Duration::from_micros(wait);
        tracing::info!(?wait, "timestamps continue ahead of this machine's clock; waiting for it");
        thread::sleep(wait);
    }
}

/// Returns an unpredictable number, different for different words.
pub(crate) fn random(word: &str) -> u64 {
    RandomState::new().hash_one(word)
}

/// Returns the limits on client requests.
fn limits(config: &Config) -> Limits {
    let bodies = config.memory.body_bytes as usize;
    Limits {
        bodies: Budget::new(bodies),
        beginnings: Budget::new(http::beginning_bytes(bodies, config.max_value)),
        streams: Budget::new(http::MAX_STREAMS),
        status_collections: Budget::new(http::MAX_CONCURRENT_STATUS),
        connection_slots: ConnectionSlots::new(config.connections, config.reserve_slots),
        max_value: config.max_value,
        max_ttl: config.max_ttl,
        deadline: config.deadline,
    }
}

fn start_loops(node: &Arc<Node>, names: &Arc<OwnNames>) -> io::Result<Vec<Handle>> {
    (0..node.config.loops).map(|number| event_loop::start(node, names, number)).collect()
}

/// Part of the line on stdout which says that the node serves. `kvorum dev` waits for it.
pub(crate) const LISTENS: &str = " listening on ";

/// Part of the line on stdout which says that the node waits to join a cluster.
pub(crate) const WAITS: &str = " waits for a place in the cluster of ";

/// Prints the node's addresses, and commands to try. `own` is the URL at which other nodes reach
/// it.
fn print_greeting(config: &Config, address: SocketAddr, own: &str, data: &str) {
    if !config.greets {
        return;
    }
    let all = config.at(address).url();
    // An unspecified address means all addresses. The reader is on this machine.
    let near = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    // A certificate is for the URL of `--advertise`, and not necessarily for this machine's
    // addresses.
    let url = match config.tls.is_some() && own != all {
        true => own.to_owned(),
        false => config.at((near, address.port()).into()).url(),
    };
    // curl does not trust a private CA.
    let (mut curl, mut notes) = ("curl".to_owned(), Vec::new());
    if config.tls.is_some() {
        curl += " --cacert CA.pem";
        notes.push("CA.pem: of the CA that issued its certificate");
    }
    if config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()) {
        curl += " --cert CLIENT.pem --key CLIENT.key";
        notes.push("CLIENT: by a CA of --tls-client-ca, as kvorum cert client makes it");
    }
    let receives_requests = config.open_to != OpenTo::Loopback || receives_loopback(address);
    if config.open_to == OpenTo::Nobody || !receives_requests {
        curl += " -H 'Authorization: Bearer TOKEN'";
        notes.push("TOKEN: made by kvorum token create, or the admin token");
    }
    let note = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let text = format!(
        "kvorum {}{LISTENS}{all}, data in {data}. Dashboard: {url}/ui. Try{note}:\n\
         \n  {curl} -i -X PUT --data-binary 'hello' '{url}/v0/entity?id=greeting'\
         \n  {curl} -i '{url}/v0/entity?id=greeting'\
         \n  {curl} -i -H 'Accept: application/x-ndjson' '{url}/v0/entities?start=a'\n",
        env!("KVORUM_VERSION"),
    );
    print_text(text);
}

/// Writes to stdout in a separate thread. So the node serves even if no process reads the output,
/// and does not wait for a full pipe.
pub(crate) fn print_text(text: String) {
    let said = thread::Builder::new().name("greeting".to_owned()).spawn(move || {
        let _ = io::stdout().write_all(text.as_bytes());
    });
    if let Err(error) = said {
        tracing::warn!(%error, "cannot write to stdout");
    }
}

/// Warns if the node name stored in the data directory differs from the configured name, which is
/// used only at a first start.
fn warn_of_unused_name(config: &Config, kept: Option<&str>) {
    if let Some((given, kept)) = config.members.unused_name(kept).zip(kept) {
        tracing::warn!(
            "this data directory belongs to node {kept}, which goes on as such: --join and --name \
             {given} are for a first start. For a new node, give an empty directory"
        );
    }
}

/// The main thread of a serving node: accepts connections, and waits for a signal to stop.
struct Acceptor {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Acceptor {
    fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        drop(entered);
        Ok(Self { runtime, terminate, interrupt, hangup })
    }

    /// Serves until a signal to stop, or until the data directory turns out to be an older copy. An
    /// error means that no more connections can be accepted.
    fn run(
        mut self,
        listener: TcpListener,
        loops: &[Handle],
        node: &Node,
        credentials: &Credentials,
    ) -> io::Result<()> {
        let hangup = async {
            while self.hangup.recv().await.is_some() {
                credentials.reload_now();
            }
        };
        let slots = &node.limits.connection_slots;
        let served = self.runtime.block_on(async {
            tokio::select! {
                () = hangup => Ok(()),
                _ = self.terminate.recv() => Ok(()),
                _ = self.interrupt.recv() => Ok(()),
                () = node.outdated.wait_until_noted() => Ok(()),
                () = notify::keep_alive(loops) => Ok(()),
                ended = accept::run(listener, loops, slots, &node.accepting) => ended,
            }
        });
        node.stopping.store(true, Ordering::Relaxed);
        served
    }
}

fn stop(node: Arc<Node>, loops: Vec<Handle>) -> Result<(), ServeError> {
    for handle in &loops {
        // A loop that has already ended does not receive the command.
        let _ = handle.commands.blocking_send(LoopCommand::Stop);
    }
    loops.into_iter().for_each(Handle::join);
    node.reads.stop();
    lookup::keep_expired(&node);
    node.clock.stop();
    // All other owners of the store were joined above, or are dropped with the rest of the node.
    let db = Arc::into_inner(node).map(|node| node.db);
    close(db.ok_or(ServeError::InUse)?)
}

fn close(db: Arc<lsm::Db>) -> Result<(), ServeError> {
    let db = Arc::into_inner(db).ok_or(ServeError::InUse)?;
    db.close().map_err(ServeError::Close)
}
