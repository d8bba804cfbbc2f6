//! Row 29 of docs/results/reliability.md: first ten times as many clients as a cluster can serve,
//! all of which retry refused requests; then half as many clients as the cluster can serve. The
//! rate of timely answers must not fall, memory must not grow, and afterwards the baseline must
//! return within seconds.
//!
//! ```text
//!  warm up ─▶ clients for the peak rate ─▶ half as many: the baseline ─▶ ten times as many ─▶ half
//! ```
//!
//! The clients run on the same cores as the nodes, so they use CPU time of the nodes at the peak as
//! well as under overload.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Failure;
use kit::client::{Client, target};
use kit::cluster::Cluster;
use kit::random::Random;
use kit::workload::curve::{self, Second};

use crate::Setup;

/// Number of clients that keep a node busy, and the factor by which overload exceeds this number.
const ENOUGH: usize = 16;
const TIMES: usize = 10;

/// Maximum latency of a good answer, measured from the first attempt.
const IN_TIME: Duration = Duration::from_secs(1);

/// Maximum pause in milliseconds before a client retries, far shorter than `Retry-After` asks for.
const RETRY_MILLIS: u64 = 20;

/// Minimum goodput under overload, in percent of the peak, over any window of `WINDOW` seconds.
const LEAST_PERCENT: u64 = 80;
const WINDOW: usize = 5;

/// Time in seconds in which the baseline must return.
const BACK_WITHIN: usize = 10;

/// The baseline has returned when goodput is as high as before the overload, and p99 is at most
/// this multiple of the earlier p99.
const BACK_RATIO: f64 = 3.0;

/// A p99 below this bound is acceptable at any ratio, because all processes share two cores.
const GOOD_P99: Duration = Duration::from_millis(50);

/// Memory budget of a node, and the maximum bytes that its process may use: the budget and 64 MiB.
const MEMORY: &str = "128MiB";
const MOST_RESIDENT: u64 = 192 << 20;

/// Maximum growth of memory in the last third of the overload, in percent of the earlier peak. A
/// short run does not check the growth, because its memtables and cache are still filling.
const FLAT_PERCENT: u64 = 20;

/// A class of values by size.
#[derive(Debug, Clone, Copy)]
struct OverloadKind {
    name: &'static str,
    bytes: usize,
    keys: u64,
}

const KINDS: [OverloadKind; 2] = [
    OverloadKind { name: "small", bytes: 500, keys: 20_000 },
    OverloadKind { name: "large", bytes: 256 << 10, keys: 200 },
];

/// Parameters of the clients.
#[derive(Debug, Clone, Copy)]
struct LoadParams {
    kind: OverloadKind,
    clients: usize,
    /// Requests per second over all clients. With `None`, each client sends its next request as
    /// soon as it has the answer.
    rate: Option<f64>,
    lasts: Duration,
}

/// Runs the load with each class of values, on three nodes and on one.
pub fn run(setup: &Setup) -> Result<String, Failure> {
    let (mut report, mut broken) = (Vec::new(), false);
    for (nodes, place) in [(3, "three"), (1, "one")] {
        for kind in KINDS {
            let name = format!("{}-{place}", kind.name);
            let curve = overload(setup, nodes, kind)?;
            if let Some(dir) = &setup.curves {
                keep(dir, &name, &curve)?;
            }
            // A failure of one class does not stop the others.
            report.push(check(setup, &name, &curve).unwrap_or_else(|failure| {
                broken = true;
                failure.to_string()
            }));
        }
    }
    let report = report.join("; ");
    if broken { Err(Failure::Broken(report)) } else { Ok(report) }
}

/// The results of all phases, second by second.
#[derive(Debug)]
struct Curve {
    seconds: Vec<Second>,
    peak: f64,
    /// First second of the overload, and the second after its end.
    over: (usize, usize),
    baseline_p99: Duration,
}

fn overload(setup: &Setup, nodes: usize, kind: OverloadKind) -> Result<Curve, Failure> {
    let args = ["--sync", "interval", "--memory", MEMORY];
    let cluster = Cluster::start(&setup.binary, nodes, None, &args)?;
    let clients = ENOUGH * nodes;
    let part = |clients, rate, full, quick| LoadParams {
        kind,
        clients,
        rate,
        lasts: Duration::from_secs(setup.size(full, quick)),
    };
    measure(&cluster, part(clients, None, 5, 2))?;
    let at_peak = measure(&cluster, part(clients, None, 10, 4))?;
    let peak = mean(&at_peak);
    let half = |full, quick| part(clients, Some(peak / 2.0), full, quick);
    let before = measure(&cluster, half(10, 4))?;
    let overload = measure(&cluster, part(TIMES * clients, None, 60, 8))?;
    let after = measure(&cluster, half(20, 12))?;
    let begin = at_peak.len() + before.len();
    let over = (begin, begin + overload.len());
    let baseline_p99 = median(before.iter().map(|second| second.p99).collect());
    let seconds = [at_peak, before, overload, after].concat();
    Ok(Curve { seconds, peak, over, baseline_p99 })
}

fn mean(seconds: &[Second]) -> f64 {
    seconds.iter().map(|second| second.good).sum::<u64>() as f64 / seconds.len().max(1) as f64
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn check(setup: &Setup, name: &str, curve: &Curve) -> Result<String, Failure> {
    let Curve { seconds, peak, over: (begin, end), baseline_p99 } = curve;
    let (overload, after) = (&seconds[*begin..*end], &seconds[*end..]);
    let worst = overload.windows(WINDOW).map(mean).fold(f64::INFINITY, f64::min) / peak * 100.0;
    let offered = peak / 2.0;
    let is_back = |second: &Second| {
        second.good as f64 >= 0.9 * offered
            && (second.p99 <= baseline_p99.mul_f64(BACK_RATIO) || second.p99 <= GOOD_P99)
    };
    let back = after.iter().position(is_back);
    let third = overload.len() / 3;
    let most = |part: &[Second]| part.iter().map(|second| second.resident).max().unwrap_or(0);
    let (early, late) = (most(&overload[..overload.len() - third]), most(&overload[2 * third..]));
    let report = format!(
        "{name}: peak {peak:.0}/s, under overload at least {worst:.0} % of it ({:.0}/s on average, \
         {} refused and {} unanswered in all), baseline (p99 {:.1} ms) back after {} s, RSS {} MiB",
        mean(overload),
        overload.iter().map(|second| second.refused).sum::<u64>(),
        overload.iter().map(|second| second.failed).sum::<u64>(),
        baseline_p99.as_secs_f64() * 1e3,
        back.map_or_else(|| "never".to_owned(), |back| (back + 1).to_string()),
        late >> 20
    );
    // A short run on a busy machine has too few windows for a minimum that means anything.
    if !setup.quick && worst < LEAST_PERCENT as f64 {
        return Err(Failure::Broken(format!("goodput falls: {report}")));
    }
    if back.is_none_or(|back| back >= BACK_WITHIN) {
        return Err(Failure::Broken(format!("it does not recover: {report}")));
    }
    let grows = !setup.quick && late > early + early * FLAT_PERCENT / 100;
    if grows || most(seconds) > MOST_RESIDENT {
        return Err(Failure::Broken(format!("memory grows: {report}")));
    }
    Ok(report)
}

fn keep(dir: &Path, name: &str, curve: &Curve) -> Result<(), Failure> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join(format!("overload-{name}.csv")), curve::csv(&curve.seconds))?;
    let title = format!("overload, {name}");
    let drawn = curve::svg(&title, &curve.seconds, curve.peak, &[curve.over]);
    Ok(fs::write(dir.join(format!("overload-{name}.svg")), drawn)?)
}

/// Runs clients for the time of `load`. Returns the results second by second.
fn measure(cluster: &Cluster, load: LoadParams) -> Result<Vec<Second>, Failure> {
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    let addresses = cluster.addresses();
    thread::scope(|scope| {
        let mut clients = Vec::new();
        for number in 0..load.clients {
            let over = &over;
            let ask = move || ask(addresses, number, load, begun, over);
            clients.push(thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, ask)?);
        }
        let mut resident = Vec::new();
        for second in 1..=load.lasts.as_secs() {
            thread::sleep((begun + Duration::from_secs(second)).duration_since(Instant::now()));
            let nodes = 0..addresses.len();
            let now = nodes.map(|node| Ok(cluster.node(node)?.resident()?.0));
            resident.push(now.collect::<Result<Vec<_>, Failure>>()?.into_iter().max().unwrap_or(0));
        }
        over.store(true, Ordering::Relaxed);
        let mut counts = vec![Counts::default(); resident.len()];
        for client in clients {
            let of = client.join();
            let of = of.map_err(|_| Failure::Environment("a client panicked".to_owned()))?;
            counts.iter_mut().zip(of).for_each(|(all, one)| all.add(one));
        }
        Ok(counts.into_iter().zip(resident).map(|(counts, at)| counts.sum_up(at)).collect())
    })
}

/// Counts of one second, of one client or of all clients. `good` has the latency of each good
/// answer in microseconds.
#[derive(Debug, Clone, Default)]
struct Counts {
    good: Vec<u32>,
    refused: u64,
    failed: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.good.extend(other.good);
        self.refused += other.refused;
        self.failed += other.failed;
    }

    fn sum_up(mut self, resident: u64) -> Second {
        self.good.sort_unstable();
        let at = |percent: usize| {
            let place = self.good.len() * percent / 100;
            let micros = self.good.get(place.min(self.good.len().saturating_sub(1)));
            Duration::from_micros(micros.copied().unwrap_or(0).into())
        };
        let (good, p50, p99) = (self.good.len() as u64, at(50), at(99));
        Second { good, refused: self.refused, failed: self.failed, p50, p99, resident }
    }
}

fn ask(
    addresses: &[SocketAddr],
    number: usize,
    load: LoadParams,
    begun: Instant,
    over: &AtomicBool,
) -> Vec<Counts> {
    let mut counts = vec![Counts::default(); load.lasts.as_secs() as usize];
    let mut random = Random::new((number as u64 + 1) << 20 ^ begun.elapsed().as_nanos() as u64);
    let value = vec![b'a' + (number % 26) as u8; load.kind.bytes];
    let mut connections: Vec<Option<Client>> = addresses.iter().map(|_| None).collect();
    let every = load.rate.map(|rate| Duration::from_secs_f64(load.clients as f64 / rate));
    let mut due = begun + every.unwrap_or_default().mul_f64(number as f64 / load.clients as f64);
    while !over.load(Ordering::Relaxed) {
        match every {
            Some(every) => {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                due += every;
            }
            None => due = Instant::now(),
        }
        let asked = every.map_or(due, |every| due - every);
        let key = target(&format!("o{}", random.below(load.kind.keys)));
        let method = if random.percent(50) { "PUT" } else { "GET" };
        let body = if method == "PUT" { &value[..] } else { b"" };
        for place in number.. {
            let place = place % addresses.len();
            let status = request(&mut connections[place], addresses[place], method, &key, body);
            let took = asked.elapsed();
            let Some(count) = counts.get_mut(begun.elapsed().as_secs() as usize) else { break };
            match status {
                Some(200 | 201 | 404) if took <= IN_TIME => {
                    count.good.push(took.as_micros() as u32)
                }
                Some(503) => count.refused += 1,
                _ => count.failed += 1,
            }
            let answered = matches!(status, Some(200 | 201 | 404));
            if answered || took > IN_TIME || over.load(Ordering::Relaxed) {
                break;
            }
            thread::sleep(Duration::from_millis(1 + random.below(RETRY_MILLIS)));
        }
    }
    counts
}

/// Makes one attempt of a request. Returns the status, or `None` if there was no answer.
fn request(
    connection: &mut Option<Client>,
    address: SocketAddr,
    method: &str,
    key: &str,
    body: &[u8],
) -> Option<u16> {
    let mut client = match connection.take() {
        Some(client) => client,
        None => Client::connect_within(address, 2 * IN_TIME).ok()?,
    };
    let answer = client.request(method, key, body).ok()?;
    if !answer.closes {
        *connection = Some(client);
    }
    Some(answer.status)
}
