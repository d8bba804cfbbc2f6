//! The Cassandra client in builds with the Cassandra driver: one session for all clients, and
//! conditional statements in a closed loop, on one thread.

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

use super::{LoopResults, StatementKind};
use crate::requests::VALUE;

/// Timeout of a statement, several times Cassandra's own timeout.
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);

/// Statements that create the keyspace and the table.
const TABLES: [&str; 2] = [
    "CREATE KEYSPACE bench WITH replication = \
     {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
    "CREATE TABLE bench.kv (k text PRIMARY KEY, v text)",
];

/// Significant decimal digits of latencies.
const DIGITS: u8 = 3;

impl StatementKind {
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

impl LoopResults {
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
    /// Connects to these nodes, with `clients` connections to each.
    pub(crate) fn connect(nodes: &[SocketAddr], clients: usize) -> Result<Self, String> {
        Self::with(SessionBuilder::new(), nodes, clients)
    }

    /// Connects like [`Client::connect`], with further settings of the driver in `builder`.
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
            let put = prepare(&self.session, StatementKind::Absent).await?;
            for number in 0..keys {
                let values = (format!("key{number}"), VALUE);
                execute_conditional(&self.session, &put, values).await?;
            }
            Ok(())
        })
    }

    /// Writes each of the first `keys` keys, to check that the nodes serve. Returns the first
    /// error.
    pub(crate) fn check_writable(&self, keys: u64) -> Result<(), String> {
        self.runtime.block_on(async {
            let update = prepare(&self.session, StatementKind::Equal).await?;
            for number in 0..keys {
                let values = (VALUE, format!("key{number}"), VALUE);
                execute_conditional(&self.session, &update, values).await?;
            }
            Ok(())
        })
    }

    /// Runs a closed loop for `duration`: each client sends its next statement as soon as its last
    /// one is answered.
    pub(crate) fn run(
        &self,
        statement_kind: StatementKind,
        keys: u64,
        duration: Duration,
    ) -> Result<LoopResults, String> {
        self.runtime.block_on(async {
            let statement = Arc::new(prepare(&self.session, statement_kind).await?);
            let begun = Instant::now();
            let clients: Vec<_> = (0..self.clients)
                .map(|client| {
                    let numbers = Numbers { random: fastrand::Rng::with_seed(client as u64), keys };
                    let (session, statement) = (self.session.clone(), statement.clone());
                    let until = begun + duration;
                    tokio::spawn(run_client(session, statement, statement_kind, numbers, until))
                })
                .collect();
            let mut results = LoopResults::new();
            for client in clients {
                results.add(client.await.map_err(|error| error.to_string())?);
            }
            results.took = begun.elapsed();
            Ok(results)
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

async fn run_client(
    session: Arc<Session>,
    statement: Arc<PreparedStatement>,
    statement_kind: StatementKind,
    mut numbers: Numbers,
    until: Instant,
) -> LoopResults {
    let mut results = LoopResults::new();
    while Instant::now() < until {
        let key = match statement_kind {
            StatementKind::Equal => format!("key{}", numbers.next()),
            StatementKind::EqualHot | StatementKind::Absent => "key0".to_owned(),
        };
        let begun = Instant::now();
        let answer = match statement_kind {
            StatementKind::Equal | StatementKind::EqualHot => {
                execute_conditional(&session, &statement, (VALUE, key, VALUE)).await
            }
            StatementKind::Absent => execute_conditional(&session, &statement, (key, VALUE)).await,
        };
        match answer {
            Ok(done) if done == statement_kind.applies() => {
                let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                results.latency.record(nanos).expect("histograms grow");
            }
            answer => {
                results.failed += 1;
                let why = answer.map_or_else(|why| why, |done| format!("applied: {done}"));
                results.why.get_or_insert(why);
            }
        }
    }
    results
}

async fn prepare(
    session: &Session,
    statement_kind: StatementKind,
) -> Result<PreparedStatement, String> {
    let text = statement_kind.text();
    session.prepare(text).await.map_err(|error| format!("`{text}`: {error}"))
}

/// Executes a conditional statement. Returns true if it was applied, which the first column of the
/// answer says.
async fn execute_conditional(
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
    fn key_numbers_are_uniformly_distributed() {
        let mut counts = [0_u32; 10];
        let mut numbers = Numbers { random: fastrand::Rng::with_seed(3), keys: 10 };
        (0..10_000).for_each(|_| counts[numbers.next() as usize] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn added_results_are_summed_and_keep_the_first_error() {
        let mut all = LoopResults::new();
        for why in [None, Some("first"), Some("second")] {
            let mut one = LoopResults::new();
            one.latency.record(7).unwrap();
            one.failed = u64::from(why.is_some());
            one.why = why.map(str::to_owned);
            all.add(one);
        }
        assert_eq!((all.latency.len(), all.failed), (3, 2));
        assert_eq!(all.why.as_deref(), Some("first"));
    }
}
