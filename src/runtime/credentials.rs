//! Reloads certificates, the cluster's secrets and the admin token when their files change, so
//! operators can replace them while the node runs. At SIGHUP the files are read at once.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use protocol::handshake::{Secret, Secrets};

use crate::node::Node;
use crate::runtime::notify;
use crate::settings::config::{Config, SecretFiles};
use crate::settings::secret::{self, SecretError};

/// Interval at which the files, of a few KiB, are read.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the cluster secrets, by which nodes authenticate each other.
pub(crate) fn secrets(config: &Config) -> Result<Secrets, SecretError> {
    let also = second_secret(&config.secret_files)?;
    Ok(Secrets::new(secret(config).unwrap_or_default(), also))
}

/// Returns the second secret that nodes may use; `None` if no file has one.
fn second_secret(files: &SecretFiles) -> Result<Option<Secret>, SecretError> {
    match &files.also {
        Some(path) => Ok(secret::SECOND.read_if_any(path)?.map(as_proof)),
        None => Ok(None),
    }
}

/// Returns the secret with which this node proves its membership; `None` in a cluster without a
/// secret.
pub(crate) fn secret(config: &Config) -> Option<Secret> {
    config.secret.clone().map(as_proof)
}

fn as_proof(secret: secret::Secret) -> Secret {
    Secret::new(secret.bytes().to_vec())
}

/// The thread that rereads the files.
pub(crate) struct Credentials {
    reload_requests: SyncSender<()>,
    thread: JoinHandle<()>,
}

/// The secrets and the admin token, which are replaced when their files change.
struct ReloadedSecrets {
    files: SecretFiles,
    secrets: Arc<Secrets>,
    admin: Arc<ArcSwapOption<secret::Secret>>,
    /// The last logged errors, of the secrets and of the admin token. A failure is logged once, not
    /// at each reading.
    logged: [Option<String>; 2],
}

impl Credentials {
    /// Starts the thread.
    pub(crate) fn watch(node: &Node) -> io::Result<Self> {
        let (reload_requests, asked) = mpsc::sync_channel(1);
        let tls = node.tls.clone();
        let mut replaced = ReloadedSecrets {
            files: node.config.secret_files.clone(),
            secrets: Arc::clone(&node.secrets),
            admin: node.access.admin_token(),
            logged: Default::default(),
        };
        let watch_files = move || {
            loop {
                let is_asked = match asked.recv_timeout(RELOAD_INTERVAL) {
                    Ok(()) => true,
                    Err(RecvTimeoutError::Timeout) => false,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if is_asked {
                    notify::report_reload();
                }
                if let Some(tls) = &tls {
                    tls.reload_if_changed();
                }
                replaced.reload();
                if is_asked {
                    tracing::info!(
                        "SIGHUP: the files of certificates, secrets and the admin token were \
                         looked at again; what changed or can't be used has a line of its own"
                    );
                    notify::report_ready(notify::SERVES);
                }
            }
        };
        let thread = thread::Builder::new().name("credentials".to_owned()).spawn(watch_files)?;
        Ok(Self { reload_requests, thread })
    }

    /// Makes the thread read the files now.
    pub(crate) fn reload_now(&self) {
        // If the channel is full, a reading is due already.
        let _ = self.reload_requests.try_send(());
    }

    /// Stops the thread, and waits for its end.
    pub(crate) fn stop(self) {
        drop(self.reload_requests);
        // If the thread panicked, the panic was already printed.
        let _ = self.thread.join();
    }
}

impl ReloadedSecrets {
    fn reload(&mut self) {
        let secrets = reload_secrets(&self.files, &self.secrets);
        let admin = reload_admin_token(&self.files, &self.admin);
        let failed = [secrets, admin].map(|looked| looked.err().map(|error| error.to_string()));
        let names = ["cluster secrets", "admin token"];
        for ((what, now), before) in names.into_iter().zip(failed).zip(&mut self.logged) {
            if let Some(error) = now.as_ref().filter(|_| now != *before) {
                tracing::error!("{what} not reloaded, what was in use stays in use: {error}");
            }
            *before = now;
        }
    }
}

/// Reads the admin token again, if it is in a file.
fn reload_admin_token(
    files: &SecretFiles,
    admin: &ArcSwapOption<secret::Secret>,
) -> Result<(), SecretError> {
    let Some(path) = &files.admin else { return Ok(()) };
    let (token, _) = secret::ADMIN.read(path)?;
    if admin.load().as_deref() != Some(&token) {
        admin.store(Some(Arc::new(token)));
        tracing::info!("admin token reloaded");
    }
    Ok(())
}

/// Reads the secrets again, if they are in files.
fn reload_secrets(files: &SecretFiles, secrets: &Secrets) -> Result<(), SecretError> {
    if files.own.is_none() && files.also.is_none() {
        return Ok(());
    }
    let own = match &files.own {
        Some(path) => Some(as_proof(secret::CLUSTER.read(path)?.0)),
        // The own secret comes from a variable.
        None => secrets.own(),
    };
    let also = second_secret(files)?;
    let Some(own) = own else { return Ok(()) };
    let two = also.is_some();
    if secrets.replace(own, also) {
        let accepted = if two { 2 } else { 1 };
        tracing::info!(accepted, "cluster secrets reloaded");
    }
    Ok(())
}
