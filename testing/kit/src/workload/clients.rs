//! Client threads of a scenario, which run until the scenario stops them.

use std::thread::{self, JoinHandle};

use crate::Failure;
use crate::random::Random;

/// The client threads of a scenario.
#[derive(Debug)]
pub struct Clients(Vec<JoinHandle<Result<(), Failure>>>);

impl Clients {
    /// Starts `count` clients. Each call of `play` gets the client's number, from 0 on, and a
    /// random generator of its own.
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

    /// Waits until the clients have returned. The scenario must have told them to stop. Returns the
    /// first failure of a client.
    pub fn join(self) -> Result<(), Failure> {
        for client in self.0 {
            client.join().map_err(|_| Failure::Environment("a client panicked".to_owned()))??;
        }
        Ok(())
    }
}
