//! Client threads of a row, which run until the row stops them.

use std::thread::{self, JoinHandle};

use crate::Failure;
use crate::random::Random;

/// The client threads of a row.
#[derive(Debug)]
pub struct Clients(Vec<JoinHandle<Result<(), Failure>>>);

impl Clients {
    /// Starts `count` clients. Passes `play` the client's number, from 0 on, and a random generator
    /// of the client's own.
    pub fn start<F>(count: usize, random: &mut Random, play: F) -> Result<Self, Failure>
    where
        F: Fn(usize, Random) -> Result<(), Failure> + Clone + Send + 'static,
    {
        let client = |number| {
            let (play, random) = (play.clone(), Random::new(random.number()));
            let builder = thread::Builder::new().stack_size(256 << 10);
            Ok(builder.spawn(move || play(number, random))?)
        };
        (0..count).map(client).collect::<Result<_, _>>().map(Self)
    }

    /// Waits until the clients have ended. The row must have told them to stop.
    pub fn join(self) -> Result<(), Failure> {
        for client in self.0 {
            client.join().map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok(())
    }
}
