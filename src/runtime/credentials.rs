//! Certificates and the cluster's secrets, read at the start, and anew when their files change:
//! they are replaced while the node runs.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cluster::handshake::{Secret, Secrets};

use crate::node::Node;
use crate::settings::config::{Config, SecretFiles};
use crate::settings::secret::{self, SecretError};

/// How often the files are read. They are a few KiB.
const EVERY: Duration = Duration::from_secs(1);

/// What the nodes of the cluster know each other by.
pub(super) fn secrets(config: &Config) -> Result<Secrets, SecretError> {
    let also = also(&config.secret_files)?;
    Ok(Secrets::new(secret(config).unwrap_or_default(), also))
}

/// What they may know each other by besides.
fn also(files: &SecretFiles) -> Result<Option<Secret>, SecretError> {
    match &files.also {
        Some(path) => Ok(secret::ALSO.read_if_any(path)?.map(as_proof)),
        None => Ok(None),
    }
}

/// What this node proves itself with.
pub(super) fn secret(config: &Config) -> Option<Secret> {
    config.secret.clone().map(as_proof)
}

fn as_proof(secret: secret::Secret) -> Secret {
    Secret::new(secret.bytes().to_vec())
}

/// The thread that looks at the files.
pub(super) struct Credentials {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Credentials {
    /// Begins to look.
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
                // A line for each failure, and not for each look.
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

    /// Ends the thread, and waits until it has ended.
    pub(super) fn stop(self) {
        drop(self.stop);
        // A panic in there was printed.
        let _ = self.thread.join();
    }
}

/// Reads the secrets anew, if they are in files.
fn look_at(files: &SecretFiles, secrets: &Secrets) -> Result<(), SecretError> {
    if files.own.is_none() && files.also.is_none() {
        return Ok(());
    }
    let own = match &files.own {
        Some(path) => Some(as_proof(secret::CLUSTER.read(path)?.0)),
        // It is in a variable.
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
