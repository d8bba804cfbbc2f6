//! `kvorum dev`: runs a cluster of real processes on this machine, for trials and failure
//! experiments.
//!
//! ```text
//!  kvorum dev ─┬─▶ kvorum serve (node-1, :8080) ─▶ its log ─┐
//!              ├─▶ kvorum serve (node-2, :8081) ─▶ its log ─┼─▶ one terminal
//!              └─▶ kvorum serve (node-3, :8082) ─▶ its log ─┘
//!                       ▲     │ killed by hand
//!                       └─────┘ restarted after a pause
//!
//!  kvorum dev add, kvorum dev remove ─▶ a socket in the data directory ─▶ kvorum dev
//! ```

mod console;
mod error;
mod keeper;
mod orphans;
pub(crate) mod plan;
pub(crate) mod socket;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::rc::Rc;

use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::cli::DevArgs;
use crate::cli::shell::word;
use crate::node::store;
use crate::runtime::accept;
use crate::settings::secret::ADMIN;
use console::Console;
use error::DevError;
use keeper::{Keeper, SupervisionEnd};
use plan::{DevPlan, Token};
use socket::{DevAnswer, DevNode, DevRequest, DevSocket};

/// Limit on requests queued at the socket; further clients wait until the queue has room.
const REQUESTS: usize = 4;

/// Runs the nodes until a signal stops them. Fails if one of the first nodes can't start, or if no
/// node is left.
pub(crate) fn run(args: &DevArgs) -> Result<(), DevError> {
    store::restrict_umask();
    socket::refuse_second_instance(&args.data)?;
    let (plan, note) = DevPlan::new(args)?;
    let nodes = plan.numbers().into_iter().map(|n| (plan::name(n), plan.data_of(n)));
    let left = orphans::still_running(nodes);
    if !left.is_empty() {
        return Err(DevError::StillRun { data: args.data.clone(), nodes: left });
    }
    for number in plan.numbers() {
        let address = plan.address(number);
        accept::bind(address).map_err(|source| DevError::Listen { address, source })?;
    }
    let data = &args.data;
    fs::create_dir_all(data)
        .map_err(|source| DevError::NoDirectory { data: data.clone(), source })?;
    plan.make_certs()?;
    plan.make_token()?;
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(DevError::Runtime)?;
    runtime.block_on(supervise(plan, note, args))
}

async fn supervise(plan: DevPlan, note: String, args: &DevArgs) -> Result<(), DevError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DevError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(DevError::Signals)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(DevError::Signals)?;
    let (ask, mut asked) = mpsc::channel(REQUESTS);
    let _socket = DevSocket::open(&args.data, ask)?;
    let (serves, mut serving) = mpsc::channel(plan::MAX_NODES);
    let mut nodes = Nodes::start(plan, &args.data, serves)?;
    nodes.console.print(&note);
    let outcome = loop {
        tokio::select! {
            _ = interrupt.recv() => break Ok(()),
            _ = terminate.recv() => break Ok(()),
            _ = hangup.recv() => break Ok(()),
            Some((number, pid)) = serving.recv() => nodes.serves(number, pid),
            Some((wanted, answer)) = asked.recv() => nodes.handle_request(wanted, answer),
            ended = nodes.keepers.join_next() => match ended {
                Some(Ok((number, ended))) => {
                    if let Err(error) = nodes.on_supervision_end(number, ended) {
                        break Err(error);
                    }
                }
                // A panic of the task has already been printed and has ended the process.
                Some(Err(_)) => {}
                None => break Err(DevError::NoneLeft),
            },
        }
    };
    if outcome.is_ok() {
        nodes.console.print("stopping\n");
    }
    nodes.stop().await;
    outcome
}

/// The supervised nodes.
struct Nodes {
    plan: Rc<RefCell<DevPlan>>,
    data: PathBuf,
    program: PathBuf,
    console: Rc<Console>,
    serves: mpsc::Sender<(u16, u32)>,
    kept: BTreeMap<u16, SupervisedNode>,
    keepers: JoinSet<(u16, SupervisionEnd)>,
    /// True once all nodes that were members at the start have served.
    is_complete: bool,
}

/// A supervised node.
struct SupervisedNode {
    stop: watch::Sender<bool>,
    /// The node's process, once it serves.
    pid: Option<u32>,
    /// Clients that wait for the answer that the node has stopped.
    waiting: Vec<oneshot::Sender<DevAnswer>>,
}

impl Nodes {
    fn start(
        plan: DevPlan,
        data: &std::path::Path,
        serves: mpsc::Sender<(u16, u32)>,
    ) -> Result<Self, DevError> {
        let program = std::env::current_exe().map_err(DevError::Program)?;
        let numbers = plan.numbers();
        let width = numbers.iter().map(|number| plan::name(*number).len()).max();
        let console = Console::new(width.unwrap_or_default()).map_err(DevError::Stdout)?;
        let mut nodes = Self {
            plan: Rc::new(RefCell::new(plan)),
            data: data.to_owned(),
            program,
            console: Rc::new(console),
            serves,
            kept: BTreeMap::new(),
            keepers: JoinSet::new(),
            is_complete: false,
        };
        numbers.into_iter().for_each(|number| nodes.keep(number));
        Ok(nodes)
    }

    fn keep(&mut self, number: u16) {
        let (stop, stopping) = watch::channel(false);
        let keeper = Keeper {
            number,
            plan: Rc::clone(&self.plan),
            program: self.program.clone(),
            console: Rc::clone(&self.console),
            stopping,
            serves: self.serves.clone(),
        };
        self.keepers.spawn_local(keeper.run());
        self.kept.insert(number, SupervisedNode { stop, pid: None, waiting: Vec::new() });
    }

    /// Records that the process `pid` of a node serves.
    fn serves(&mut self, number: u16, pid: u32) {
        if let Some(kept) = self.kept.get_mut(&number) {
            kept.pid = Some(pid);
        }
        let is_news = self.plan.borrow_mut().serves(number);
        if is_news {
            self.save();
        }
        if !self.is_complete && self.members().iter().all(|number| self.pid(*number).is_some()) {
            self.is_complete = true;
            self.save();
            self.console.print(&self.greeting());
        }
    }

    /// Handles the end of a node's supervision. An error ends the whole cluster.
    fn on_supervision_end(&mut self, number: u16, ended: SupervisionEnd) -> Result<(), DevError> {
        let Some(kept) = self.kept.remove(&number) else { return Ok(()) };
        let is_member = self.members().contains(&number);
        if ended == SupervisionEnd::GaveUp && is_member && !self.is_complete {
            return Err(DevError::GaveUp(plan::name(number)));
        }
        // A member whose supervision gave up stays in the plan, so that the next start tries it
        // again.
        if ended != SupervisionEnd::GaveUp || !is_member {
            self.plan.borrow_mut().remove(number);
            self.save();
        }
        for waiting in kept.waiting {
            // If the client has disconnected, nobody needs the answer.
            let data = absolute_path(&self.plan.borrow().data_of(number));
            let _ = waiting.send(DevAnswer::Stopped { data });
        }
        Ok(())
    }

    /// Handles a request from the socket.
    fn handle_request(&mut self, wanted: DevRequest, answer: oneshot::Sender<DevAnswer>) {
        let done = match wanted {
            DevRequest::Nodes => DevAnswer::Nodes(self.nodes()),
            DevRequest::Add { zone, weight } => self.add(zone, weight),
            DevRequest::Stop { name } => {
                let numbers = self.kept.keys().copied();
                let number = numbers.into_iter().find(|number| plan::name(*number) == name);
                match number.and_then(|number| self.kept.get_mut(&number)) {
                    Some(kept) => {
                        // The supervision may just have ended; the main loop handles its end next.
                        let _ = kept.stop.send(true);
                        kept.waiting.push(answer);
                        return;
                    }
                    None => DevAnswer::Stopped { data: absolute_path(&self.data.join(name)) },
                }
            }
            DevRequest::Settled => {
                self.plan.borrow_mut().record_settled();
                self.save();
                DevAnswer::Noted
            }
        };
        let _ = answer.send(done);
    }

    fn add(&mut self, zone: Option<String>, weight: Option<u32>) -> DevAnswer {
        let waits = self.kept.keys().copied().find(|number| !self.members().contains(number));
        if let Some(number) = waits {
            let asks = self.plan.borrow().node(number).cloned().unwrap_or_default();
            if !asks.matches(zone.as_deref(), weight) {
                let name = plan::name(number);
                return DevAnswer::Refused(format!(
                    "{name} asks for a place already, with another zone or weight: let it have \
                     that (kvorum dev add), or stop it (kvorum dev remove {name})"
                ));
            }
            return DevAnswer::Added { name: plan::name(number), before: true };
        }
        let added = self.plan.borrow_mut().add(zone, weight);
        match added {
            Ok(number) => {
                self.save();
                self.keep(number);
                DevAnswer::Added { name: plan::name(number), before: false }
            }
            Err(why) => DevAnswer::Refused(why.to_string()),
        }
    }

    fn nodes(&self) -> Vec<DevNode> {
        let plan = self.plan.borrow();
        let node = |(number, kept): (&u16, &SupervisedNode)| DevNode {
            name: plan::name(*number),
            url: plan.url(*number),
            is_member: plan.node(*number).is_some_and(|node| node.is_member),
            is_up: kept.pid.is_some(),
        };
        self.kept.iter().map(node).collect()
    }

    /// Returns the numbers of the cluster's members.
    fn members(&self) -> Vec<u16> {
        let plan = self.plan.borrow();
        let is_member = |number: &u16| plan.node(*number).is_some_and(|node| node.is_member);
        plan.numbers().into_iter().filter(is_member).collect()
    }

    fn pid(&self, number: u16) -> Option<u32> {
        self.kept.get(&number)?.pid
    }

    fn save(&self) {
        let saved = self.plan.borrow().save();
        if let Err(error) = saved {
            let data = self.data.display();
            self.console.print(&format!(
                "cannot note in {data} which nodes there are ({error}): the next kvorum dev may \
                 not start those that were added\n"
            ));
        }
    }

    /// Stops all nodes.
    async fn stop(mut self) {
        for kept in self.kept.values() {
            // The supervision that gave up no longer has a receiver.
            let _ = kept.stop.send(true);
        }
        while self.keepers.join_next().await.is_some() {}
        self.console.finish();
    }

    fn greeting(&self) -> String {
        let plan = self.plan.borrow();
        let members = self.members();
        let (count, program) = (members.len(), word(&self.program));
        let mut text = format!(
            "\nkvorum: {count} node(s) running, data in {} (kept):\n\n",
            self.data.display()
        );
        // The user's other terminal may have another working directory.
        let absolute = |path: &Path| word(&absolute_path(path));
        let data = absolute(&self.data);
        let pid = |number: u16| self.pid(number).unwrap_or_default();
        for number in &members {
            let (name, url) = (plan::name(*number), plan.url(*number));
            let _ = writeln!(text, "  {name}  {url}  pid {}", pid(*number));
        }
        let [first, other, last] = [0, 1 % count, count - 1].map(|place| plan.url(members[place]));
        let votes = if count >= 3 { "&ack=2&from=3" } else { "" };
        let killed = members[count - 1];
        let certs = plan.certs().map(|certs| absolute(&certs.join("ca.pem")));
        let [curl, ca] = [("curl --cacert", "curl"), (" --ca-file", "")].map(|(with, without)| {
            certs.as_ref().map_or(without.to_owned(), |ca| format!("{with} {ca}"))
        });
        let [(header, token), (_, admin)] =
            [&plan.tokens().any, &plan.tokens().admin].map(|token| match token {
                Token::None => (String::new(), String::new()),
                Token::File(file) => {
                    let file = absolute(file);
                    let header = format!(" -H \"Authorization: Bearer $(cat {file})\"");
                    (header, format!(" --token-file {file}"))
                }
                // The user's other terminal is expected to have the variable too.
                Token::Variable => {
                    let header = format!(" -H \"Authorization: Bearer ${}\"", ADMIN.variable);
                    (header, String::new())
                }
            });
        let curl = curl + &header;
        let ca = ca + &token;
        let with = match plan.tokens().admin {
            Token::Variable => format!(" with {} set as here", ADMIN.variable),
            Token::None | Token::File(_) => String::new(),
        };
        let _ = write!(
            text,
            "\nDashboard: {first}/ui\n\
             \nTry in another terminal{with}:\n\
             \n  {curl} -i -X PUT --data-binary 'hello' '{first}/v0/entity?id=greeting{votes}'\
             \n  {curl} -i '{other}/v0/entity?id=greeting{votes}'\
             \n  {curl} -i -H 'Accept: application/x-ndjson' '{last}/v0/entities?start=a'\
             \n  {program} put greeting hi --url {first}{ca}\
             \n  {program} get greeting --url {other}{ca}\
             \n  {program} status --watch --url {first}{ca}\
             \n  kill -9 {}     # {}; it restarts after {} s: watch it recover\
             \n  {program} dev add --data {data}{admin}    # one more node; keys move to it\n\
             \nCtrl-C stops all.\n\n",
            pid(killed),
            plan::name(killed),
            keeper::PAUSE.as_secs(),
        );
        text
    }
}

/// Returns the absolute path of a file, for a command that the user runs in another directory.
fn absolute_path(path: &Path) -> PathBuf {
    absolute(path).unwrap_or_else(|_| path.to_owned())
}
