//! The measured etcd, which `bench/cluster.sh` builds, or which is installed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use bench_table::find;
use load::server::Metrics;

use crate::metrics::LIMIT;

/// Returns the path of etcd, which `bench/cluster.sh` puts in the environment variable `ETCD`.
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

fn version_of(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("etcd Version: ")).map(str::trim)
}

/// Returns the leader among these nodes. Any other node would only forward requests to the leader.
pub(crate) fn leader(nodes: &[SocketAddr]) -> Result<SocketAddr, String> {
    let leads = |node: &&SocketAddr| {
        let metrics = Metrics::scrape(**node, "/metrics", LIMIT).unwrap_or_default();
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
    fn the_version_is_found_in_what_etcd_says() {
        let said = "etcd Version: 3.7.3\nGit SHA: Not provided\nGo Version: go1.26.8\n";
        assert_eq!(version_of(said), Some("3.7.3"));
        assert_eq!(version_of("nginx version: 1.26"), None);
    }
}
