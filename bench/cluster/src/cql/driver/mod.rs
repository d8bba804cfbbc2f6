//! The Cassandra client in builds with the Cassandra driver: conditional statements in a closed
//! loop, on one thread (see `cql/mod.rs`).

mod plain;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::Row;
use tokio::runtime::{Builder, Runtime};

use super::{Ask, Seen};
use crate::requests::VALUE;

/// Longest time for one statement, several times Cassandra's own limit.
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);

/// The keyspace, and the table of both kinds of statements.
const TABLES: [&str; 2] = [
    "CREATE KEYSPACE bench WITH replication = \
     {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
    "CREATE TABLE bench.kv (k text PRIMARY KEY, v text)",
];

/// Significant decimal digits of latencies.
const DIGITS: u8 = 3;

impl Ask {
    const fn text(self) -> &'static str {
        match self {
            Self::Equal | Self::EqualHot => "UPDATE bench.kv SET v = ? WHERE k = ? IF v = ?",
            Self::Absent => "INSERT INTO bench.kv (k, v) VALUES (?, ?) IF NOT EXISTS",
        }
    }

    /// Returns true if the answer must report that the write was applied.
    const fn applies(self) -> bool {
        !matches!(self, Self::Absent)
    }
}

impl Seen {
    fn new() -> Self {
        let latency = Histogram::new(DIGITS).expect("this many digits are kept");
        Self { latency, failed: 0, why: None, took: Duration::ZERO }
    }

    /// Adds another client's results.
    fn add(&mut self, other: Self) {
        self.latency.add(&other.latency).expect("histograms grow");
        self.failed += other.failed;
        self.why = self.why.take().or(other.why);
    }
}

/// A driver session that runs on the caller's thread.
pub(crate) struct Client {
    runtime: Runtime,
    session: Arc<Session>,
    clients: usize,
}

impl Client {
    /// Connects for `clients` concurrent clients.
    pub(crate) fn connect(nodes: &[SocketAddr], clients: usize) -> Result<Self, String> {
        Self::with(SessionBuilder::new(), nodes, clients)
    }

    /// Connects with further settings of the driver.
    fn with(builder: SessionBuilder, nodes: &[SocketAddr], clients: usize) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        // Without shuffling, all statements of a key go to the first of its replicas.
        let policy = DefaultPolicy::builder().token_aware(true).enable_shuffling_replicas(false);
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::Quorum)
            .serial_consistency(Some(SerialConsistency::Serial))
            .request_timeout(Some(STATEMENT_LIMIT))
            .load_balancing_policy(policy.build())
            .build();
        let size = NonZeroUsize::new(clients).ok_or("there is no client")?;
        let session = runtime.block_on(
            builder
                .known_nodes_addr(nodes)
                .pool_size(PoolSize::PerHost(size))
                .default_execution_profile_handle(profile.into_handle())
                .build(),
        );
        let session = Arc::new(session.map_err(|error| format!("Cassandra: {error}"))?);
        Ok(Self { runtime, session, clients })
    }

    /// Creates the table and writes `keys` keys, all with the same value.
    pub(crate) fn fill(&self, keys: u64) -> Result<(), String> {
        self.runtime.block_on(async {
            make_tables(&self.session).await?;
            let put = prepared(&self.session, Ask::Absent).await?;
            for number in 0..keys {
                let values = (format!("key{number}"), VALUE);
                applied(&self.session, &put, values).await?;
            }
            Ok(())
        })
    }

    /// Checks that each of these keys can be written now.
    pub(crate) fn serves(&self, keys: u64) -> Result<(), String> {
        self.runtime.block_on(async {
            let update = prepared(&self.session, Ask::Equal).await?;
            for number in 0..keys {
                let values = (VALUE, format!("key{number}"), VALUE);
                applied(&self.session, &update, values).await?;
            }
            Ok(())
        })
    }

    /// Runs a closed loop for `duration`. Each client sends its next statement when the last is
    /// answered.
    pub(crate) fn run(&self, ask: Ask, keys: u64, duration: Duration) -> Result<Seen, String> {
        self.runtime.block_on(async {
            let statement = Arc::new(prepared(&self.session, ask).await?);
            let begun = Instant::now();
            let clients: Vec<_> = (0..self.clients)
                .map(|client| {
                    let numbers = Numbers { random: fastrand::Rng::with_seed(client as u64), keys };
                    let (session, statement) = (self.session.clone(), statement.clone());
                    let until = begun + duration;
                    tokio::spawn(one_client(session, statement, ask, numbers, until))
                })
                .collect();
            let mut seen = Seen::new();
            for client in clients {
                seen.add(client.await.map_err(|error| error.to_string())?);
            }
            seen.took = begun.elapsed();
            Ok(seen)
        })
    }
}

async fn make_tables(session: &Session) -> Result<(), String> {
    for text in TABLES {
        let made = session.query_unpaged(text, ()).await;
        made.map_err(|error| format!("`{text}`: {error}"))?;
    }
    Ok(())
}

async fn one_client(
    session: Arc<Session>,
    statement: Arc<PreparedStatement>,
    ask: Ask,
    mut numbers: Numbers,
    until: Instant,
) -> Seen {
    let mut seen = Seen::new();
    while Instant::now() < until {
        let key = match ask {
            Ask::Equal => format!("key{}", numbers.next()),
            Ask::EqualHot | Ask::Absent => "key0".to_owned(),
        };
        let begun = Instant::now();
        let answer = match ask {
            Ask::Equal | Ask::EqualHot => applied(&session, &statement, (VALUE, key, VALUE)).await,
            Ask::Absent => applied(&session, &statement, (key, VALUE)).await,
        };
        match answer {
            Ok(done) if done == ask.applies() => {
                let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                seen.latency.record(nanos).expect("histograms grow");
            }
            answer => {
                seen.failed += 1;
                let why = answer.map_or_else(|why| why, |done| format!("applied: {done}"));
                seen.why.get_or_insert(why);
            }
        }
    }
    seen
}

async fn prepared(session: &Session, ask: Ask) -> Result<PreparedStatement, String> {
    let text = ask.text();
    session.prepare(text).await.map_err(|error| format!("`{text}`: {error}"))
}

/// Returns true if a conditional statement was applied, by the first column of its answer.
async fn applied(
    session: &Session,
    statement: &PreparedStatement,
    values: impl scylla::serialize::row::SerializeRow,
) -> Result<bool, String> {
    let answer = session.execute_unpaged(statement, values).await;
    let rows = answer.map_err(|error| error.to_string())?.into_rows_result();
    let row: Row = rows.map_err(|e| e.to_string())?.first_row().map_err(|e| e.to_string())?;
    let first = row.columns.first().and_then(Option::as_ref);
    let first = first.and_then(scylla::value::CqlValue::as_boolean);
    first.ok_or_else(|| "the answer does not tell whether it was applied".to_owned())
}

/// Uniformly distributed key numbers.
struct Numbers {
    random: fastrand::Rng,
    keys: u64,
}

impl Numbers {
    fn next(&mut self) -> u64 {
        self.random.u64(..self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_written_alike() {
        let mut counts = [0_u32; 10];
        let mut numbers = Numbers { random: fastrand::Rng::with_seed(3), keys: 10 };
        (0..10_000).for_each(|_| counts[numbers.next() as usize] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn what_clients_saw_is_summed_and_the_first_failure_kept() {
        let mut all = Seen::new();
        for why in [None, Some("first"), Some("second")] {
            let mut one = Seen::new();
            one.latency.record(7).unwrap();
            one.failed = u64::from(why.is_some());
            one.why = why.map(str::to_owned);
            all.add(one);
        }
        assert_eq!((all.latency.len(), all.failed), (3, 2));
        assert_eq!(all.why.as_deref(), Some("first"));
    }
}
