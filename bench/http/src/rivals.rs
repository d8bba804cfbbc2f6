//! The measured servers, and the commands that start them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{SERVER_CPU, Server, find, free_address, pinned_command};

/// Durability of a store's writes, as kvorum's `--sync` or Redis's `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncSetting {
    /// kvorum `never`; Redis without its append-only file.
    Never,
    /// kvorum `interval:100`; Redis `everysec`.
    Interval,
    /// kvorum and Redis: each write is synced before its answer.
    Always,
}

impl fmt::Display for SyncSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "never",
            Self::Interval => "interval",
            Self::Always => "always",
        })
    }
}

/// A server to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rival {
    /// hyper with one runtime, no routing and no store.
    Hyper,
    /// nginx, with `return 200` for every request.
    Nginx,
    /// Redis with this `appendfsync`.
    Redis(SyncSetting),
    /// kvorum, with further flags.
    Kvorum(SyncSetting, Vec<String>),
}

impl Rival {
    /// Returns kvorum with this `--sync`, and otherwise default settings.
    pub(crate) fn kvorum(sync: SyncSetting) -> Self {
        Self::Kvorum(sync, Vec::new())
    }
}

/// Starts servers, each in a directory of its own.
pub(crate) struct Launcher {
    /// Directory on a real disk; each server has a subdirectory.
    pub(crate) root: PathBuf,
    /// Directory of the `kvorum` and `hyper-hello` binaries.
    pub(crate) binaries: PathBuf,
    /// Number of servers started so far, which is the name of the last server's directory.
    pub(crate) started: u32,
}

impl Launcher {
    /// Creates directories under `root`, and uses the binaries beside this program.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let binaries = own.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { root: root.to_owned(), binaries, started: 0 })
    }

    /// Starts a server in a directory of its own, and waits until it listens. The error is the
    /// reason why the server can't be started.
    pub(crate) fn start(&mut self, rival: &Rival) -> Result<Server, String> {
        self.started += 1;
        let dir = self.root.join(self.started.to_string());
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let address = free_address().map_err(|error| format!("no free port: {error}"))?;
        let port = address.port();
        let command = match rival {
            Rival::Hyper => {
                let mut command = self.own("hyper-hello")?;
                command.arg(address.to_string());
                command
            }
            Rival::Kvorum(sync, flags) => {
                let mut command = self.own("kvorum")?;
                command.args(["serve", "--listen", &address.to_string(), "--data"]);
                command.arg(dir.join("data"));
                let sync =
                    if *sync == SyncSetting::Interval { "interval:100" } else { &sync.to_string() };
                command.args(["--sync", sync, "--loops", "1"]).args(flags);
                command
            }
            Rival::Nginx => {
                let config = dir.join("nginx.conf");
                fs::write(&config, nginx_config(port))
                    .map_err(|error| format!("{}: {error}", config.display()))?;
                let mut command = installed_command("nginx", "nginx")?;
                command.arg("-p").arg(&dir).arg("-c").arg(&config);
                command
            }
            Rival::Redis(sync) => {
                let mut command = installed_command("redis-server", "redis-server")?;
                command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
                command.arg("--dir").arg(&dir);
                match sync {
                    SyncSetting::Never => command.args(["--appendonly", "no"]),
                    SyncSetting::Interval => {
                        command.args(["--appendonly", "yes", "--appendfsync", "everysec"])
                    }
                    SyncSetting::Always => {
                        command.args(["--appendonly", "yes", "--appendfsync", "always"])
                    }
                };
                command
            }
        };
        Server::start(command, address, &dir.join("log"))
    }

    fn own(&self, name: &str) -> Result<Command, String> {
        let path = self.binaries.join(name);
        if path.exists() {
            Ok(pinned_command(SERVER_CPU, path))
        } else {
            Err(format!("{} is missing: run bench/http.sh, which builds it", path.display()))
        }
    }
}

/// Returns the command of an installed program, pinned to the servers' CPU. The error names the
/// Debian package to install.
pub(crate) fn installed_command(program: &str, package: &str) -> Result<Command, String> {
    find(program, package).map(|path| pinned_command(SERVER_CPU, path))
}

/// Returns a configuration of one process without a log, in which nginx answers as soon as it has
/// parsed a request. The answer is as long as the values that other servers return.
fn nginx_config(port: u16) -> String {
    let value = "v".repeat(64);
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid nginx.pid;\n\
         error_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000000;\n  keepalive_timeout 1h;\n\
         \x20 client_body_temp_path body;\n  proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n\
         \x20 uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;\n\
         \x20 server {{\n    listen 127.0.0.1:{port} reuseport;\n\
         \x20   location / {{ default_type text/plain; return 200 '{value}'; }}\n  }}\n}}\n"
    )
}
