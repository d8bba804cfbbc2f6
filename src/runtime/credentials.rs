//! Reload of certificates and of the cluster's secrets when their files change, so that they can be
//! replaced while the node runs.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cluster::handshake::{Secret, Secrets};

use crate::node::Node;
use crate::settings::config::{Config, SecretFiles};
use crate::settings::secret::{self, SecretError};

/// Interval at which the files are read. They are a few KiB.
const EVERY: Duration = Duration::from_secs(1);

/// Returns the secrets by which nodes of the cluster recognize each other.
pub(super) fn secrets(config: &Config) -> Result<Secrets, SecretError> {
    let also = also(&config.secret_files)?;
    Ok(Secrets::new(secret(config).unwrap_or_default(), also))
}

/// Returns the second secret that nodes may use.
fn also(files: &SecretFiles) -> Result<Option<Secret>, SecretError> {
    match &files.also {
        Some(path) => Ok(secret::ALSO.read_if_any(path)?.map(as_proof)),
        None => Ok(None),
    }
}

/// Returns the secret with which this node proves its membership.
pub(super) fn secret(config: &Config) -> Option<Secret> {
    config.secret.clone().map(as_proof)
}

fn as_proof(secret: secret::Secret) -> Secret {
    Secret::new(secret.bytes().to_vec())
}

/// The thread that rereads the files.
pub(super) struct Credentials {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Credentials {
    /// Starts the thread.
    pub(super) fn watch(node: &Node) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (tls, secrets) = (node.tls.clone(), Arc::clone(&node.secrets));
        let files = node.config.secret_files.clone();
        let mut logged = None;
        let look = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if let Some(tls) = &tls {
                    tls.look();
                }
                // Logs each failure once, not at each read.
                let failed = look_at(&files, &secrets).err().map(|error| error.to_string());
                if let Some(error) = failed.as_ref().filter(|_| failed != logged) {
                    tracing::error!(
                        "cluster secrets not reloaded, the old ones stay in use: {error}"
                    );
                }
                logged = failed;
            }
        };
        let thread = thread::Builder::new().name("credentials".to_owned()).spawn(look)?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread and waits for it.
    pub(super) fn stop(self) {
        drop(self.stop);
        // The panic was already printed.
        let _ = self.thread.join();
    }
}

/// Rereads the secrets that are in files.
fn look_at(files: &SecretFiles, secrets: &Secrets) -> Result<(), SecretError> {
    if files.own.is_none() && files.also.is_none() {
        return Ok(());
    }
    let own = match &files.own {
        Some(path) => Some(as_proof(secret::CLUSTER.read(path)?.0)),
        // The secret is in a variable.
        None => secrets.own(),
    };
    let also = also(files)?;
    let Some(own) = own else { return Ok(()) };
    let two = also.is_some();
    if secrets.replace(own, also) {
        let accepted = if two { 2 } else { 1 };
        tracing::info!(accepted, "cluster secrets reloaded");
    }
    Ok(())
}
