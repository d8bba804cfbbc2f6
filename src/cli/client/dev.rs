//! `kvorum dev add` and `kvorum dev remove`: add a node to the cluster of a running `kvorum dev`,
//! and remove a node from it.
//!
//! ```text
//!   add     socket: start a node ─▶ the node asks to join ─▶ plan, apply ─▶ change complete
//!   remove  plan, apply ─▶ change complete ─▶ socket: stop the node's process
//! ```
//!
//! The plan is made and applied in the same way as by `kvorum cluster`. After ctrl-C the command
//! reports how far the change has come.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::admin::AdminClient;
use super::args::ConnectionArgs;
use super::cluster::{plan_text, request_apply, request_plan, wait_for_plan, wait_until_settled};
use super::{CommandFailure, fail, print_done};
use crate::cli::dev::plan::CERTS;
use crate::cli::dev::socket::{DevAnswer, DevNode, DevRequest, ask};
use crate::cli::shell::word;
use crate::cli::{DevAddArgs, DevCommand, DevRemoveArgs, DevRunning};
use crate::layout::status::LayoutStatus;
use crate::operations::status::Cluster;
use crate::settings::members::authority_of;
use crate::transport::Certificates;

/// Time limit for a started node to ask to join, and for all nodes to use a settled layout.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for a killed node to answer again: `kvorum dev` restarts it after 3 seconds.
const RESTART: Duration = Duration::from_secs(10);

/// Time limit for a node on this machine to accept a connection.
const CONNECT: Duration = Duration::from_millis(250);

/// Description of the change's state, printed if the command is interrupted.
#[derive(Debug, Clone)]
struct InterruptNote(Arc<Mutex<String>>);

impl std::fmt::Display for InterruptNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.lock())
    }
}

impl InterruptNote {
    fn set(&self, what: String) {
        *self.0.lock() = what;
    }

    /// Records that a change was applied; `flags` are the connection's flags.
    fn set_applied(&self, name: &str, flags: &str) {
        self.set(format!(
            "the change goes on without this command, and kvorum dev does the rest for {name}. \
             kvorum cluster status{flags} shows how far it is; kvorum cluster abort{flags} goes \
             back, as long as reads have not switched"
        ));
    }
}

/// Runs the command until it is done or interrupted.
pub(crate) fn dev(command: DevCommand) -> Result<(), CommandFailure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| fail(format!("cannot handle signals: {error}")))?;
    let note = InterruptNote(Arc::new(Mutex::new("nothing was changed".to_owned())));
    let (done, ended) = oneshot::channel();
    let shared = note.clone();
    let work = move || {
        let outcome = match &command {
            DevCommand::Add(args) => add(args, &shared),
            DevCommand::Remove(args) => remove(args, &shared),
        };
        // The receiver is gone after ctrl-C.
        let _ = done.send(outcome);
    };
    runtime.block_on(async {
        let failed = |error| fail(format!("cannot handle signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let working = thread::Builder::new().name("dev".to_owned()).spawn(work);
        working.map_err(|error| fail(format!("cannot start a thread: {error}")))?;
        let interrupted = || {
            let note = note.0.lock();
            fail(format!("interrupted: {note}"))
        };
        tokio::select! {
            // A panic of the thread has already been printed and has ended the process.
            ended = ended => ended.unwrap_or(Err(CommandFailure::Failed)),
            _ = interrupt.recv() => Err(interrupted()),
            _ = terminate.recv() => Err(interrupted()),
        }
    })
}

fn add(args: &DevAddArgs, note: &InterruptNote) -> Result<(), CommandFailure> {
    let DevAddArgs { zone, weight, running } = args;
    let members = members(&running.data)?;
    let Some(asked) = members.iter().find(|node| is_up(node)) else {
        return Err(fail("no node is up that could be asked: see the terminal of kvorum dev"));
    };
    let to = connection_args(running, asked);
    let mut client = AdminClient::new(&to)?;
    wait_until_all_up(&mut client)?;
    let wanted = DevRequest::Add { zone: zone.clone(), weight: *weight };
    let DevAnswer::Added { name, before } = ask(&running.data, &wanted).map_err(fail)? else {
        return Err(unexpected_answer());
    };
    note.set(format!(
        "{name} runs and asks for a place; the members are what they were. kvorum dev add goes on \
         with it, kvorum dev remove {name} stops it"
    ));
    let since = if before { " since before" } else { "" };
    print_done(&format!("{name} asks for a place in the cluster{since}\n"), note)?;
    if wait_for_join_request(&mut client, &running.data, &name)? {
        note.set_applied(&name, &to.flags());
        print_done(&format!("{name} has one by a change that is under way or done\n"), note)?;
        wait_until_settled(&mut client)?;
    } else {
        let lists = [("add", &vec![name.clone()])];
        change(&mut client, &lists, None, (&name, note))?;
    }
    wait_until_adopted(&mut client, &running.data)?;
    let url = nodes(&running.data)?.into_iter().find(|node| node.name == name);
    let url = url.map(|node| node.url).unwrap_or_default();
    print_done(
        &format!("{name} is a member of the cluster: {url}\n"),
        format_args!("{name} is a member of the cluster"),
    )
}

fn remove(args: &DevRemoveArgs, note: &InterruptNote) -> Result<(), CommandFailure> {
    let DevRemoveArgs { node: name, replicas, running } = args;
    let all = nodes(&running.data)?;
    let Some(node) = all.iter().find(|node| node.name == *name) else {
        let names: Vec<&str> = all.iter().map(|node| node.name.as_str()).collect();
        let names = names.join(", ");
        return Err(fail(format!("there is no node {name}: those that run are {names}")));
    };
    if node.is_member {
        let others = all.iter().filter(|other| other.is_member && other.name != *name);
        let others: Vec<&DevNode> = others.collect();
        if others.is_empty() {
            return Err(fail(format!(
                "{name} is the last node, and nobody would be left to take what it holds. To end \
                 the cluster, stop kvorum dev and delete {}",
                running.data.display()
            )));
        }
        let Some(asked) = others.into_iter().find(|other| is_up(other)) else {
            return Err(fail(
                "no other node is up that could be asked: see the terminal of kvorum \
                             dev",
            ));
        };
        leave(name, *replicas, &connection_args(running, asked), &running.data, note)?;
    }
    let stop = DevRequest::Stop { name: name.clone() };
    let DevAnswer::Stopped { data } = ask(&running.data, &stop).map_err(fail)? else {
        return Err(unexpected_answer());
    };
    let data = word(&data);
    print_done(
        &format!(
            "{name} is stopped. Its directory is of no use any more, and may be deleted: rm -r \
             {data}\n"
        ),
        format_args!("{name} is not a member any more, and is stopped"),
    )
}

/// Returns true if a node is up. The function also connects to the node, because `kvorum dev` may
/// not have noticed yet that the process was killed.
fn is_up(node: &DevNode) -> bool {
    let address = authority_of(&node.url).parse().ok();
    let connected = address.map(|address| TcpStream::connect_timeout(&address, CONNECT));
    node.is_up && connected.is_some_and(|connected| connected.is_ok())
}

/// Removes a node from the cluster, unless an applied change already does so.
fn leave(
    name: &String,
    replicas: Option<u8>,
    to: &ConnectionArgs,
    data: &Path,
    note: &InterruptNote,
) -> Result<(), CommandFailure> {
    let mut client = AdminClient::new(to)?;
    let layout: LayoutStatus = client.request("GET", "/admin/layout", 200)?;
    if layout.nodes.iter().all(|node| node.name != *name) {
        note.set_applied(name, &to.flags());
        print_done(&format!("{name} leaves by a change that is under way or done\n"), note)?;
        wait_until_settled(&mut client)?;
    } else {
        wait_until_all_up(&mut client)?;
        let lists = [("remove", &vec![name.clone()])];
        change(&mut client, &lists, replicas, (name, note))?;
    }
    wait_until_adopted(&mut client, data)
}

/// Plans, prints and applies a change of a node, and waits for the end of the change.
fn change(
    client: &mut AdminClient<'_>,
    lists: &[(&str, &Vec<String>)],
    replicas: Option<u8>,
    (name, note): (&str, &InterruptNote),
) -> Result<(), CommandFailure> {
    let plan = request_plan(client, lists, replicas)?;
    print_done(&plan_text(&plan), note)?;
    note.set_applied(name, &client.flags());
    request_apply(client, &plan.plan)?;
    let epoch = wait_for_plan(client, &plan.plan)?;
    print_done(&format!("done: epoch {epoch}\n"), note)
}

fn nodes(data: &Path) -> Result<Vec<DevNode>, CommandFailure> {
    match ask(data, &DevRequest::Nodes).map_err(fail)? {
        DevAnswer::Nodes(nodes) => Ok(nodes),
        _ => Err(unexpected_answer()),
    }
}

fn members(data: &Path) -> Result<Vec<DevNode>, CommandFailure> {
    Ok(nodes(data)?.into_iter().filter(|node| node.is_member).collect())
}

fn unexpected_answer() -> CommandFailure {
    fail("the kvorum dev that runs answers something else than was asked: it is of another version")
}

fn connection_args(running: &DevRunning, node: &DevNode) -> ConnectionArgs {
    let (url, token_file) = (node.url.clone(), running.token_file.clone());
    let certificates = match url.starts_with("https://") {
        true => Certificates::new_trusting_ca(running.data.join(CERTS).join("ca.pem")),
        false => Certificates::default(),
    };
    ConnectionArgs { url, certificates, token_file, timeout: None, json: false }
}

/// Waits until the started node asks to join; returns true if the node is already in the layout.
/// Fails if the node has given up, or after [`TIMEOUT`].
fn wait_for_join_request(
    client: &mut AdminClient<'_>,
    data: &Path,
    name: &str,
) -> Result<bool, CommandFailure> {
    let until = Instant::now() + TIMEOUT;
    let mut looks = 0;
    let answered = client.wait("/admin/layout", |_, layout: LayoutStatus, _| {
        looks += 1;
        // A node that has given up is no longer listed by `kvorum dev`, and its log has the reason.
        let is_gone = looks % 5 == 0
            && nodes(data).is_ok_and(|nodes| nodes.iter().all(|node| node.name != name));
        if layout.nodes.iter().any(|node| node.name == name) {
            Some(Some(true))
        } else if layout.joining.iter().any(|node| node.name == name) {
            Some(Some(false))
        } else {
            (is_gone || Instant::now() > until).then_some(None)
        }
    })?;
    answered.ok_or_else(|| {
        fail(format!(
            "{name} does not ask for a place in the cluster: its log, in the terminal of kvorum \
             dev, says why. The members are what they were"
        ))
    })
}

/// Waits until all nodes are up. Fails after [`RESTART`], because a change would wait for the nodes
/// that are down.
fn wait_until_all_up(client: &mut AdminClient<'_>) -> Result<(), CommandFailure> {
    let until = Instant::now() + RESTART;
    let down = client.wait("/v0/cluster", |_, cluster: Cluster, _| {
        let down = cluster.nodes.into_iter().filter(|row| !row.up);
        let down: Vec<String> = down.map(|row| row.name).collect();
        (down.is_empty() || Instant::now() > until).then_some(down)
    })?;
    if down.is_empty() {
        return Ok(());
    }
    let (down, flags) = (down.join(", "), client.flags());
    Err(fail(format!(
        "{down} can't be reached, and the change would wait for that: try again when all nodes are \
         up (kvorum status{flags}). One that is lost for good is removed by kvorum cluster plan \
         --remove-dead NAME{flags}. Nothing was changed"
    )))
}

/// Waits until all nodes use the changed layout, and then tells `kvorum dev`, which from then on
/// starts nodes without the initial member list. After [`TIMEOUT`], returns without telling it.
fn wait_until_adopted(client: &mut AdminClient<'_>, data: &Path) -> Result<(), CommandFailure> {
    let until = Instant::now() + TIMEOUT;
    let layout: LayoutStatus = client.request("GET", "/admin/layout", 200)?;
    let all = client.wait("/v0/cluster", |_, cluster: Cluster, _| {
        let epoch_of = |name: &str| {
            let row = cluster.nodes.iter().find(|row| row.name == name)?;
            row.status.as_ref().map(|status| status.epoch)
        };
        let mut nodes = layout.nodes.iter();
        let all = nodes.all(|node| epoch_of(&node.name).is_some_and(|at| at >= layout.epoch));
        (all || Instant::now() > until).then_some(all)
    })?;
    if all {
        ask(data, &DevRequest::Settled).map_err(fail)?;
    }
    Ok(())
}
