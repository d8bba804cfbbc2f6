//! The thread that samples the node's counters once a second, for dashboards that connect later.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::counters::clocks::wall_micros;
use crate::node::Node;
use crate::sample_history::samples::{Sampler, until_next};

/// The sampling thread.
pub(crate) struct Sampling {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Sampling {
    /// Starts the thread.
    pub(crate) fn start(node: &Arc<Node>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let node = Arc::clone(node);
        let sample = move || {
            let mut sampler = Sampler::new(&node);
            let pause = || until_next(wall_micros() / 1000);
            while stopped.recv_timeout(pause()) == Err(mpsc::RecvTimeoutError::Timeout) {
                sampler.sample(&node);
            }
        };
        let thread = thread::Builder::new().name("history".to_owned()).spawn(sample)?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread, and waits for its end.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // If the thread panicked, the panic was already printed.
        let _ = self.thread.join();
    }
}
