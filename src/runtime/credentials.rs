//! Certificates and the cluster's secrets, read at the start, and anew when their files change:
//! they are replaced while the node runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cluster::handshake::{Secret, Secrets};

use crate::node::Node;
use crate::settings::config::{Config, SecretFiles};
use crate::settings::secret;
use crate::transport::Tls;

/// How often the files are read. They are a few KiB.
const EVERY: Duration = Duration::from_secs(1);

/// The node's certificates, if it has any. An error is one line.
pub(super) fn tls(config: &Config) -> Result<Option<Tls>, String> {
    let files = config.tls.clone();
    files.map(Tls::load).transpose().map_err(|error| error.to_string())
}

/// What the nodes of the cluster know each other by. An error is one line.
pub(super) fn secrets(config: &Config) -> Result<Secrets, String> {
    let also = match &config.secret_files.also {
        Some(path) => secret::ALSO.load_if_any(path)?,
        None => None,
    };
    Ok(Secrets::new(secret(config).unwrap_or_default(), also.map(as_proof)))
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
    pub(super) fn watch(node: &Node) -> Result<Self, String> {
        let (stop, stopped) = mpsc::channel();
        let (tls, secrets) = (node.tls.clone(), Arc::clone(&node.secrets));
        let files = node.config.secret_files.clone();
        let mut failed = None;
        let look = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if let Some(tls) = &tls {
                    tls.look();
                }
                let read = look_at(&files, &secrets);
                if let Err(error) = &read
                    && failed.as_ref() != Some(error)
                {
                    tracing::error!(
                        "cluster secrets not reloaded, the old ones stay in use: {error}"
                    );
                }
                failed = read.err();
            }
        };
        let thread = thread::Builder::new().name("credentials".to_owned()).spawn(look);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
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
fn look_at(files: &SecretFiles, secrets: &Secrets) -> Result<(), String> {
    if files.own.is_none() && files.also.is_none() {
        return Ok(());
    }
    let own = match &files.own {
        Some(path) => Some(as_proof(read(path)?)),
        // It is in a variable.
        None => secrets.own(),
    };
    let also = match &files.also {
        Some(path) => secret::ALSO.load_if_any(path)?.map(as_proof),
        None => None,
    };
    let Some(own) = own else { return Ok(()) };
    let two = also.is_some();
    if secrets.replace(own, also) {
        let accepted = if two { 2 } else { 1 };
        tracing::info!(accepted, "cluster secrets reloaded");
    }
    Ok(())
}

fn read(path: &Path) -> Result<secret::Secret, String> {
    let (read, _) = secret::CLUSTER.load(Some(path), None)?;
    read.ok_or_else(|| format!("{} is empty", path.display()))
}
