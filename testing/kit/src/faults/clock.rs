//! Wall clocks that are wrong or step, by means of libfaketime. The monotonic clock is unaffected.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::cluster::Cluster;

/// Paths of libfaketime on Debian and Ubuntu.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Starts a node whose clock is right. If the node refuses to start because its clock was far ahead
/// before, runs `kvorum repair-clock` first. Returns the output of the repair; `None` if none was
/// needed.
pub fn start_repaired(
    binary: &Path,
    cluster: &mut Cluster,
    node: usize,
) -> Result<Option<String>, Failure> {
    match cluster.start_node(node) {
        Err(Failure::Refused(why)) if why.contains("repair-clock") => {}
        started => return started.map(|()| None),
    }
    let mut repair = Command::new(binary);
    let output =
        repair.args(["repair-clock", "--yes", "--data"]).arg(cluster.data(node)).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        return Err(Failure::Broken(format!("repair-clock ended with {}: {said}", output.status)));
    }
    cluster.start_node(node)?;
    Ok(Some(said))
}

/// Starts a cluster whose wall clocks [`set`] controls, and waits until it is ready. Also returns,
/// for each node, the file that controls its clock.
pub fn start_with_fake_clocks(
    binary: &Path,
    nodes: usize,
    args: &[&str],
) -> Result<(Cluster, Vec<PathBuf>), Failure> {
    let mut cluster = Cluster::plan(binary, nodes, None, args)?;
    let offsets = fake_clocks(&mut cluster)?;
    (0..nodes).try_for_each(|node| cluster.start_node(node))?;
    cluster.wait_until_ready()?;
    Ok((cluster, offsets))
}

/// Configures every node of a planned cluster to run with a wall clock that [`set`] controls.
/// Returns, for each node, the file that controls its clock.
pub fn fake_clocks(cluster: &mut Cluster) -> Result<Vec<PathBuf>, Failure> {
    let nodes = 0..cluster.launches.len();
    let offsets: Vec<PathBuf> =
        nodes.map(|node| cluster.dir().join(format!("offset-{node}"))).collect();
    for (launch, offset) in cluster.launches.iter_mut().zip(&offsets) {
        set(offset, 0)?;
        launch.wrapper = preload(offset)?;
    }
    Ok(offsets)
}

/// Returns the path of libfaketime: the environment variable `LIBFAKETIME`, or else the path in
/// Debian's or Ubuntu's package. Fails with [`Failure::Skipped`] if neither exists.
pub fn library() -> Result<String, Failure> {
    let named = std::env::var("LIBFAKETIME").ok();
    let library =
        named.as_deref().into_iter().chain(LIBRARIES).find(|path| Path::new(path).exists());
    let library = library.ok_or_else(|| Failure::Skipped("there is no libfaketime".to_owned()))?;
    Ok(library.to_owned())
}

/// Returns the wrapper that runs a node with a wall clock controlled by the file at `offset`.
pub fn preload(offset: &Path) -> Result<Vec<String>, Failure> {
    let library = library()?;
    Ok(vec![
        "env".to_owned(),
        format!("LD_PRELOAD={library}"),
        format!("FAKETIME_TIMESTAMP_FILE={}", offset.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        "DONT_FAKE_MONOTONIC=1".to_owned(),
    ])
}

/// Offsets a node's wall clock by `seconds` from now on. Replaces the file `path` atomically, so
/// that the library never reads a partial file.
pub fn set(path: &Path, seconds: i64) -> Result<(), Failure> {
    set_millis(path, seconds * 1000)
}

/// Offsets a node's wall clock by `millis` milliseconds from now on.
pub fn set_millis(path: &Path, millis: i64) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let (sign, off) = (if millis < 0 { '-' } else { '+' }, millis.unsigned_abs());
    fs::write(&new, format!("{sign}{}.{:03}s\n", off / 1000, off % 1000))?;
    Ok(fs::rename(&new, path)?)
}
