//! The measured etcd: the build of `bench/cluster.sh`, or else an installed etcd.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use bench_table::find;
use load::server::Metrics;

use crate::metrics::SCRAPE_TIMEOUT;

/// Returns the path of etcd: that in the environment variable `ETCD`, which `bench/cluster.sh`
/// sets, or else that of an installed etcd. If there is neither, the error tells how to install it.
pub(crate) fn program() -> Result<PathBuf, String> {
    let built = std::env::var_os("ETCD").filter(|path| !path.is_empty());
    built.map(PathBuf::from).map_or_else(|| find("etcd", "etcd-server"), Ok).map_err(|why| {
        format!("{why}; or install Go, with which bench/cluster.sh builds a current one")
    })
}

/// Returns the version that the `etcd` program reports.
pub(crate) fn version() -> Result<String, String> {
    let program = program()?;
    let shown = program.display();
    let output = Command::new(&program)
        .arg("--version")
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    version_of(&String::from_utf8_lossy(&output.stdout))
        .map(str::to_owned)
        .ok_or_else(|| format!("`{shown} --version` does not tell a version: is it etcd?"))
}

fn version_of(version_output: &str) -> Option<&str> {
    version_output.lines().find_map(|line| line.strip_prefix("etcd Version: ")).map(str::trim)
}

/// Returns the address of the leader. All requests go to the leader, because other nodes would only
/// forward them to it.
pub(crate) fn leader(nodes: &[SocketAddr]) -> Result<SocketAddr, String> {
    let leads = |node: &&SocketAddr| {
        let metrics = Metrics::scrape(**node, "/metrics", SCRAPE_TIMEOUT).unwrap_or_default();
        metrics.total("etcd_server_is_leader") == Some(1.0)
    };
    let found = nodes.iter().find(leads).copied();
    found.ok_or_else(|| {
        "no node of etcd says that it leads: run this again, or with --no-etcd".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn version_of_the_output_of_etcd_is_etcds_version() {
        let version_output = "etcd Version: 3.7.3\nGit SHA: Not provided\nGo Version: go1.26.8\n";
        assert_eq!(version_of(version_output), Some("3.7.3"));
        assert_eq!(version_of("nginx version: 1.26"), None);
    }
}
