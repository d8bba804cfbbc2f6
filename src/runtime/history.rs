//! The thread that takes a sample of the node each second, for dashboards that connect later.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::counters::clocks::wall_micros;
use crate::node::Node;
use crate::operations::history::{Sampler, until_next};

/// The thread that takes samples, until it is stopped.
pub(super) struct Sampling {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Sampling {
    /// Begins to take samples.
    pub(super) fn start(node: &Arc<Node>) -> io::Result<Self> {
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

    /// Ends the thread, and waits until it has ended.
    pub(super) fn stop(self) {
        drop(self.stop);
        // A panic in there was printed.
        let _ = self.thread.join();
    }
}
