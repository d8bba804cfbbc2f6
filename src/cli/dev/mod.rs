//! `kvorum dev`: a cluster of real processes on this machine, to try and to break.
//!
//! ```text
//!  kvorum dev ─┬─▶ kvorum serve (node-1, :8080) ─▶ its log ─┐
//!              ├─▶ kvorum serve (node-2, :8081) ─▶ its log ─┼─▶ one terminal
//!              └─▶ kvorum serve (node-3, :8082) ─▶ its log ─┘
//!                       ▲     │ killed by hand
//!                       └─────┘ started again after a moment
//! ```

mod console;
mod keeper;

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::cli::{Cli, Command, DevArgs};
use crate::runtime::accept;
use crate::settings::secret::CLUSTER;
use console::Console;
use keeper::{Keeper, News};

/// Memory of a node unless something else is said: three of them fit a laptop.
const MEMORY: &str = "256MiB";

/// Where the kernel gives out randomness.
const RANDOM: &str = "/dev/urandom";

/// Runs until told to stop, or until no node can be run. An error is one line.
pub(crate) fn run(args: &DevArgs) -> Result<(), String> {
    let nodes = plan(args)?;
    for node in &nodes {
        accept::bind(node.address).map_err(|error| {
            format!("cannot listen on {}: {error}; choose another --port", node.address)
        })?;
    }
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(supervise(nodes, &args.data))
}

/// One node of the cluster, and how it is started.
#[derive(Debug)]
struct Planned {
    number: usize,
    name: String,
    address: SocketAddr,
    args: Vec<OsString>,
    /// What the nodes know each other by; `None` = the flags say it.
    secret: Option<String>,
}

fn plan(args: &DevArgs) -> Result<Vec<Planned>, String> {
    let last = args.port.checked_add(args.nodes - 1);
    last.ok_or_else(|| format!("--port {}: there are no {} ports", args.port, args.nodes))?;
    let addresses = (args.port..).take(args.nodes.into());
    let addresses = addresses.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let names: Vec<_> =
        addresses.enumerate().map(|(n, address)| (format!("node-{}", n + 1), address)).collect();
    let cluster: Vec<_> =
        names.iter().map(|(name, address)| format!("{name}=http://{address}")).collect();
    let cluster = cluster.join(",");
    let random = random_secret().map_err(|error| format!("{RANDOM}: {error}"))?;
    let mut nodes = Vec::new();
    for (number, (name, address)) in names.into_iter().enumerate() {
        let mut words: Vec<OsString> = vec!["serve".into()];
        words.extend(["--listen".into(), address.to_string().into()]);
        words.extend(["--advertise".into(), format!("http://{address}").into()]);
        words.extend(["--cluster".into(), cluster.clone().into()]);
        words.extend(["--data".into(), args.data.join(&name).into()]);
        words.extend(args.serve.iter().cloned());
        let parsed = Cli::read([OsString::from("kvorum")].into_iter().chain(words.clone()));
        let Command::Serve(serve) = parsed.map_err(|error| said(&error))?.command else {
            unreachable!("the first word is serve")
        };
        if serve.settings.memory.is_none() && serve.config.is_none() {
            words.extend(["--memory".into(), MEMORY.into()]);
        }
        let said = serve.settings.cluster_secret_file.is_some() || serve.config.is_some();
        let secret = (!said && CLUSTER.variable().is_none()).then(|| random.clone());
        nodes.push(Planned { number, name, address, args: words, secret });
    }
    Ok(nodes)
}

/// A secret for as long as the cluster runs, so that no other process passes for one of its nodes.
fn random_secret() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What is wrong with the flags after `--`, on one line.
fn said(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    format!("{} (serve flags after --)", first.trim_start_matches("error: "))
}

async fn supervise(nodes: Vec<Planned>, data: &Path) -> Result<(), String> {
    let failed = |error| format!("cannot handle signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let program = std::env::current_exe();
    let program = program.map_err(|error| {
        format!(
            "cannot determine the path of this program: \
        {error}"
        )
    })?;
    let width = nodes.iter().map(|node| node.name.len()).max().unwrap_or_default();
    let console =
        Console::new(width).map_err(|error| format!("cannot write to stdout: {error}"))?;
    let console = Rc::new(console);
    let (stop, stopping) = watch::channel(false);
    let (tell, mut news) = mpsc::channel(nodes.len());
    let urls: Vec<_> = nodes.iter().map(|node| format!("http://{}", node.address)).collect();
    let keepers: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let console = Rc::clone(&console);
            let keeper = Keeper::new(node, &program, console, stopping.clone(), tell.clone());
            tokio::task::spawn_local(keeper.run())
        })
        .collect();
    drop(tell);
    let mut pids = vec![0; urls.len()];
    let mut running = 0;
    let outcome = loop {
        tokio::select! {
            _ = interrupt.recv() => break Ok(()),
            _ = terminate.recv() => break Ok(()),
            _ = hangup.recv() => break Ok(()),
            reported = news.recv() => match reported {
                Some(News::Up(number, pid)) => {
                    pids[number] = pid;
                    running += 1;
                    if running == pids.len() {
                        console.print(&greeting(&urls, &pids, data, &program));
                    }
                }
                Some(News::GaveUp(name)) if running < pids.len() => {
                    break Err(format!("{name} failed to start; the other nodes were stopped"));
                }
                Some(News::GaveUp(_)) => {}
                None => break Err("no node is left running".to_owned()),
            },
        }
    };
    if outcome.is_ok() {
        console.print("stopping\n");
    }
    // Those that gave up listen no more.
    let _ = stop.send(true);
    for keeper in keepers {
        // A panic in there was printed.
        let _ = keeper.await;
    }
    console.finish();
    outcome
}

fn greeting(urls: &[String], pids: &[u32], data: &Path, program: &Path) -> String {
    let (count, program) = (urls.len(), program.display());
    let mut text =
        format!("\nkvorum: {count} node(s) running, data in {} (kept):\n\n", data.display());
    for (number, (url, pid)) in urls.iter().zip(pids).enumerate() {
        let _ = writeln!(text, "  node-{}  {url}  pid {pid}", number + 1);
    }
    let (other, last) = (&urls[1 % count], &urls[count - 1]);
    let first = &urls[0];
    let votes = if count >= 3 { "&ack=2&from=3" } else { "" };
    let _ = write!(
        text,
        "\nDashboard: {first}/ui\n\
         \nTry in another terminal:\n\
         \n  curl -i -X PUT --data-binary 'hello' '{first}/v0/entity?id=greeting{votes}'\
         \n  curl -i '{other}/v0/entity?id=greeting{votes}'\
         \n  curl -i '{last}/v0/entities?start=a'\
         \n  {program} status --watch --url {first}\
         \n  kill -9 {}     # node-{count}; it restarts after {} s: watch it recover\n\
         \nCtrl-C stops all.\n\n",
        pids[count - 1],
        keeper::PAUSE.as_secs(),
    );
    text
}
