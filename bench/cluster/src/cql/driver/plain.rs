//! Unconditional statements. They write the data that will be repaired, load the nodes at a fixed
//! rate while repairs run or do not run, and read the nodes' history of repairs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::host_filter::AllowListHostFilter;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use super::super::FixedRateResults;
use super::{Client, DIGITS, Numbers, make_tables};
use crate::requests::{self, FIRST_LATE, LATE_SPACING};

const PUT: &str = "INSERT INTO bench.kv (k, v) VALUES (?, ?)";

const GET: &str = "SELECT v FROM bench.kv WHERE k = ?";

/// Start, end and error of a repair; `None` for what has not happened.
type Repair = (Option<CqlTimestamp>, Option<CqlTimestamp>, Option<String>);

impl Client {
    /// Connects to these nodes and to no others.
    pub(crate) fn only(nodes: &[SocketAddr], clients: usize) -> Result<Self, String> {
        let only = AllowListHostFilter::new(nodes).map_err(|error| error.to_string())?;
        Self::with(SessionBuilder::new().host_filter(Arc::new(only)), nodes, clients)
    }

    /// Creates the table and `keys` keys, each written to all its replicas.
    pub(crate) fn load(&self, keys: u64) -> Result<(), String> {
        self.runtime.block_on(async {
            make_tables(&self.session).await?;
            self.write((0..keys).collect(), Consistency::All).await
        })
    }

    /// Overwrites the late keys among the first `keys` keys, with consistency `QUORUM`.
    pub(crate) fn write_late(&self, keys: u64) -> Result<(), String> {
        let late = (0..keys / LATE_SPACING).map(|number| number * LATE_SPACING + FIRST_LATE);
        self.runtime.block_on(self.write(late.collect(), Consistency::Quorum))
    }

    async fn write(&self, keys: Vec<u64>, consistency: Consistency) -> Result<(), String> {
        let mut put = prepare(&self.session, PUT).await?;
        put.set_consistency(consistency);
        let (put, keys) = (Arc::new(put), Arc::new(keys));
        let clients: Vec<_> = (0..self.clients)
            .map(|client| {
                let (session, put) = (self.session.clone(), put.clone());
                let (keys, clients) = (keys.clone(), self.clients);
                tokio::spawn(async move {
                    for &number in keys.iter().skip(client).step_by(clients) {
                        let done = session.execute_unpaged(&put, key_and_value(number)).await;
                        done.map_err(|error| format!("`{PUT}`: {error}"))?;
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        for client in clients {
            client.await.map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    /// Runs `rate` statements per second for `duration`, half of them writes.
    pub(crate) fn run_at_fixed_rate(
        &self,
        keys: u64,
        rate: f64,
        duration: Duration,
    ) -> Result<FixedRateResults, String> {
        self.runtime.block_on(async {
            let put = Arc::new(prepare(&self.session, PUT).await?);
            let get = Arc::new(prepare(&self.session, GET).await?);
            let begun = Instant::now();
            let pause = Duration::from_secs_f64(self.clients as f64 / rate);
            let clients: Vec<_> = (0..self.clients)
                .map(|client| {
                    let first = begun + pause.mul_f64(client as f64 / self.clients as f64);
                    let client = FixedRateClient {
                        session: self.session.clone(),
                        statements: [get.clone(), put.clone()],
                        numbers: Numbers { random: fastrand::Rng::with_seed(client as u64), keys },
                        next: first,
                        pause,
                        until: begun + duration,
                    };
                    tokio::spawn(client.run())
                })
                .collect();
            let mut all = empty_results();
            for client in clients {
                let results = client.await.map_err(|error| error.to_string())?;
                all.get.add(&results.get).expect("histograms grow");
                all.put.add(&results.put).expect("histograms grow");
                all.failed += results.failed;
            }
            Ok(all)
        })
    }

    /// Returns the durations in seconds of all repairs that have ended. A failed repair is an
    /// error.
    pub(crate) fn repairs(&self) -> Result<Vec<f64>, String> {
        const TEXT: &str = "SELECT started_at, finished_at, exception_message \
                            FROM system_distributed.parent_repair_history";
        let rows = self.runtime.block_on(self.session.query_unpaged(TEXT, ()));
        let rows = rows.map_err(|error| format!("`{TEXT}`: {error}"))?;
        let rows = rows.into_rows_result().map_err(|error| error.to_string())?;
        let rows = rows.rows::<Repair>().map_err(|error| error.to_string())?;
        let mut took = Vec::new();
        for row in rows {
            match row.map_err(|error| error.to_string())? {
                (_, _, Some(why)) => return Err(format!("a repair failed: {why}")),
                (Some(began), Some(ended), None) => took.push((ended.0 - began.0) as f64 / 1e3),
                _ => {}
            }
        }
        Ok(took)
    }

    /// Returns the number of bytes that the connected node has sent to other nodes so far.
    pub(crate) fn sent_bytes(&self) -> Result<f64, String> {
        const TEXT: &str = "SELECT sent_bytes FROM system_views.internode_outbound";
        let rows = self.runtime.block_on(self.session.query_unpaged(TEXT, ()));
        let rows = rows.map_err(|error| format!("`{TEXT}`: {error}"))?;
        let rows = rows.into_rows_result().map_err(|error| error.to_string())?;
        let rows = rows.rows::<(i64,)>().map_err(|error| error.to_string())?;
        let bytes = rows.map(|row| row.map(|(bytes,)| bytes as f64));
        bytes.sum::<Result<f64, _>>().map_err(|error| error.to_string())
    }
}

/// A client that sends at fixed times.
struct FixedRateClient {
    session: Arc<Session>,
    /// The statements that read and write a key. The client alternates between the two.
    statements: [Arc<PreparedStatement>; 2],
    numbers: Numbers,
    next: Instant,
    pause: Duration,
    until: Instant,
}

impl FixedRateClient {
    async fn run(mut self) -> FixedRateResults {
        let mut results = empty_results();
        let mut is_put = false;
        while self.next < self.until {
            tokio::time::sleep_until(self.next.into()).await;
            let (key, value) = key_and_value(self.numbers.next());
            let [get, put] = &self.statements;
            let answer = match is_put {
                true => self.session.execute_unpaged(put, (key, value)).await,
                false => self.session.execute_unpaged(get, (key,)).await,
            };
            let nanos = u64::try_from(self.next.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let latency = if is_put { &mut results.put } else { &mut results.get };
            match answer {
                Ok(_) => latency.record(nanos).expect("histograms grow"),
                Err(_) => results.failed += 1,
            }
            self.next += self.pause;
            is_put = !is_put;
        }
        results
    }
}

fn empty_results() -> FixedRateResults {
    let latency = || Histogram::new(DIGITS).expect("this many digits are kept");
    FixedRateResults { get: latency(), put: latency(), failed: 0 }
}

/// Returns the key with this number and its value, both the same as in kvorum.
fn key_and_value(number: u64) -> (String, String) {
    let mut value = Vec::with_capacity(requests::LONG_LEN);
    requests::long_value(number, &mut value);
    let value = String::from_utf8(value).expect("its digits are ASCII");
    (format!("key{number}"), value)
}

async fn prepare(session: &Session, text: &str) -> Result<PreparedStatement, String> {
    session.prepare(text).await.map_err(|error| format!("`{text}`: {error}"))
}
