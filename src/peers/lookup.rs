//! Lookups of the host names in a peer's URLs.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

/// Maximum number of unfinished lookups of a peer, because a peer's URLs in the settings and in the
/// layout may have different host names.
const MAX_UNFINISHED: usize = 2;

/// The lookups of one peer that did not end in time. A later call for the same name waits for the
/// same lookup. If each call began a new lookup, a silent name server would occupy more and more
/// threads, and a name server slower than the time limit of a call would never deliver an address.
#[derive(Default)]
pub(crate) struct Lookups {
    unfinished: RefCell<Vec<Lookup>>,
}

/// A lookup of `HOST:PORT`. Each lookup occupies a thread of the runtime.
struct Lookup {
    authority: String,
    task: JoinHandle<io::Result<Vec<SocketAddr>>>,
}

impl Lookups {
    /// Returns the addresses of `HOST:PORT`; `None` if the lookup takes longer than `limit`.
    pub(super) async fn addresses(
        &self,
        authority: &str,
        limit: Duration,
    ) -> Option<io::Result<Vec<SocketAddr>>> {
        if let Ok(address) = authority.parse() {
            return Some(Ok(vec![address]));
        }
        self.wait(authority, limit, async |name| Ok(lookup_host(name).await?.collect())).await
    }

    async fn wait(
        &self,
        authority: &str,
        limit: Duration,
        look_up: impl AsyncFnOnce(String) -> io::Result<Vec<SocketAddr>> + 'static,
    ) -> Option<io::Result<Vec<SocketAddr>>> {
        let begun = self.take(authority);
        let mut task = begun.unwrap_or_else(|| spawn_local(look_up(authority.to_owned())));
        let Ok(ended) = timeout(limit, &mut task).await else {
            let mut unfinished = self.unfinished.borrow_mut();
            if unfinished.len() == MAX_UNFINISHED {
                // The oldest lookup is of a URL that the peer no longer has.
                unfinished.remove(0);
            }
            unfinished.push(Lookup { authority: authority.to_owned(), task });
            return None;
        };
        Some(ended.unwrap_or_else(|_| Err(io::Error::other("name lookup aborted"))))
    }

    fn take(&self, authority: &str) -> Option<JoinHandle<io::Result<Vec<SocketAddr>>>> {
        let mut unfinished = self.unfinished.borrow_mut();
        let at = unfinished.iter().position(|lookup| lookup.authority == authority)?;
        Some(unfinished.remove(at).task)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn on_one_thread(test: impl Future<Output = ()>) {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().build_local(LocalOptions::default());
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn a_slow_lookup_is_kept_while_another_name_of_the_peer_is_tried() {
        on_one_thread(async {
            let lookups = Lookups::default();
            let (answer, answered) = oneshot::channel();
            let slow = async move |_| Ok(vec![answered.await.unwrap()]);
            assert!(lookups.wait("old:1", LIMIT, slow).await.is_none());
            let silent = async |_| std::future::pending().await;
            assert!(lookups.wait("new:1", LIMIT, silent).await.is_none());
            let address: SocketAddr = "192.0.2.1:1".parse().unwrap();
            answer.send(address).unwrap();
            let unused = async |_| panic!("a second lookup of the same name");
            let found = lookups.wait("old:1", LONG, unused).await;
            assert_eq!(found.unwrap().unwrap(), [address]);
        });
    }

    #[test]
    fn a_peer_keeps_two_unfinished_lookups_at_most() {
        on_one_thread(async {
            let lookups = Lookups::default();
            let begun = Rc::new(Cell::new(0));
            for name in ["a:1", "b:1", "c:1", "b:1", "c:1"] {
                let counter = Rc::clone(&begun);
                let silent = async move |_| {
                    counter.set(counter.get() + 1);
                    std::future::pending().await
                };
                assert!(lookups.wait(name, LIMIT, silent).await.is_none());
            }
            assert_eq!((begun.get(), lookups.unfinished.borrow().len()), (3, MAX_UNFINISHED));
        });
    }
}
