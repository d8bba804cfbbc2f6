// Writes artificial run directories for the tests of the report. The figures come from simple
// formulas instead of measurements, so that every run of the tests sees the same page.
const fs = require('node:fs');
const path = require('node:path');

/** A text that closes every element which contains it, unless the report escapes it. */
const HOSTILE = 'wrk.body = "</script></pre><img src=x onerror=alert(1)>" -- \' & "';

/** Returns a spectrum as wrk2 prints it: five points each time the distance to 100 % halves. */
function spectrum(curve, count) {
  const points = [];
  for (let half = 1; 1 / half > 5 / count; half *= 2) {
    for (let step = 0; step < 5; step += 1) {
      const quantile = 1 - (1 / half) * (1 - step / 10);
      points.push({ value: curve(quantile), quantile, count: Math.floor(quantile * count) });
    }
  }
  points.push({ value: curve(1 - 1 / count), quantile: 1, count });
  return points;
}

function latency(from, base, tail, count) {
  const curve = (p) => base * (1 + 0.15 * Math.log(1 / (1 - p))) + tail * Math.max(0, p - 0.985) * 60;
  const points = spectrum(curve, count);
  return {
    from, method: '', count, mean: base * 1.2, stdev: base / 2, min: base / 2,
    max: points.at(-1).value, spectrum: points,
  };
}

/**
 * Returns the contents of a run's run.json. `base` is about the median latency, and `tail` the
 * additional latency of the slowest requests, both in milliseconds.
 */
function run({ rate = 20_000, seconds = 60, base = 0.8, tail = 20, nodes = 1, warnings = [], refused = 0, profiles = [], requests = 'put.lua', cpu = 50 }) {
  const planned = rate * seconds;
  const answered = planned - 120;
  const urls = Array.from({ length: nodes }, (_, node) => `http://127.0.0.1:${8080 + node}`);
  return {
    format: 1, source: 'load', tool: 'kvorum-bench 0.1.0 (a1b2c3d)',
    argv: ['kvorum-bench', 'load', '-t2', '-c64', `-d${seconds}s`, `-R${rate}`, '-s', 'put.lua', ...urls],
    started: '2026-11-22T03:00:00Z',
    machine: { host: 'bench', cpu: 'Example CPU @ 2.70GHz', cpus: 2, memory: 8 * 2 ** 30, kernel: '6.1.0' },
    plan: { targets: urls, threads: 2, connections: 64, rate, closed: false, arrival: 'even', warmup_s: 5, duration_s: seconds, requests, script: 'script.lua', seed: 1 },
    interrupted: false, elapsed_s: seconds + 0.2, throughput: answered / seconds,
    counts: { planned, answered, in_time: answered, unfinished: 120, statuses: refused ? { 201: answered - refused, 503: refused } : { 201: answered }, refused, connect_errors: 0, read_errors: 0, write_errors: 0, timeouts: 0, wrong_values: 0, bytes: answered * 75 },
    latency: [latency('intended', base, tail, answered), latency('written', base * 0.9, tail / 2, answered)],
    backlog: [0, 2, 3, 1, 0], client_cpu_s: seconds * 0.4,
    servers: urls.map((url, node) => ({
      url, about: { version: '0.1.0 (a1b2c3d)', sync: 'always', loops: '1' }, cpu_s: (answered * (cpu + node)) / 1e6, rss: 180 * 2 ** 20,
      metrics: { kv_block_cache_hits_total: 9000 + node, kv_block_cache_misses_total: 1000, kv_flushes_total: 7 },
    })),
    warnings, missing: [],
    profiles: profiles.map((event) => ({ url: urls[0], event, folded: `profile/127.0.0.1-8080-${event}.folded` })),
  };
}

function timeline(one) {
  const seconds = one.plan.duration_s;
  const urls = one.servers.map((server) => server.url);
  const metrics = ['kv_flushes_total', 'kv_compaction_bytes_total', 'kv_memtable_bytes'];
  const head = ['second', 'length_s', 'sent', 'answered', 'refused', 'lost', 'timeouts', 'connect_errors', 'bytes', 'backlog', 'p50_ms', 'p90_ms', 'p99_ms', 'p999_ms', 'max_ms'];
  const rows = [[...head, ...metrics.flatMap((metric) => urls.map((url) => `${url.slice(7)} ${metric}`))]];
  // Counters never decrease.
  const flushes = urls.map(() => 0), compacted = urls.map(() => 0);
  const p50 = one.latency[0].spectrum.find((point) => point.quantile >= 0.5).value;
  for (let second = 1; second <= seconds; second += 1) {
    // Every eighth second has a flush, which raises the tail.
    const flush = second % 8 === 0;
    const wave = 1 + 0.08 * Math.sin(second / 3);
    const p99 = p50 * (flush ? 14 : 3.2) * wave;
    const rate = one.plan.rate;
    const server = [
      urls.map((_, node) => (flushes[node] += Number((second + node) % 8 === 0))),
      urls.map((_, node) => (compacted[node] += (second + node) % 24 < 6 ? 30e6 * wave : 0)),
      urls.map((_, node) => 4e6 * ((second + node) % 8) + 1e6),
    ].flat();
    rows.push([second - 1, 1, rate, flush ? rate * 0.985 : rate + (second % 8 === 1 ? rate * 0.015 : 0), flush && one.counts.refused ? one.counts.refused / 8 : 0, 0, 0, 0, rate * 75, flush ? rate * 0.015 : 2, p50 * wave, p50 * 1.6 * wave, p99, p99 * 2, p99 * 3.1, ...server]);
  }
  return `${rows.map((row) => row.map((cell) => (typeof cell === 'number' ? Number(cell.toFixed(3)) : cell)).join(',')).join('\n')}\n`;
}

const foldedStacks = (parse, flush) => `loop-0;serve;parse ${parse}\nloop-0;serve;<b>put</b>;memtable 400\nkv-flush;flush;write ${flush}\n`;

/** Writes the run directory `directory`/`name`; returns its path. */
function write(directory, name, options = {}) {
  const one = run(options);
  const to = path.join(directory, name);
  fs.mkdirSync(path.join(to, 'profile'), { recursive: true });
  fs.writeFileSync(path.join(to, 'run.json'), JSON.stringify(one));
  fs.writeFileSync(path.join(to, 'timeline.csv'), timeline(one));
  fs.writeFileSync(path.join(to, 'script.lua'), HOSTILE);
  for (const [place, profile] of one.profiles.entries()) {
    fs.writeFileSync(path.join(to, profile.folded), foldedStacks(300 + 200 * place + (options.cpu ?? 0), 100));
  }
  return to;
}

function series(directory, name, fields, trials) {
  const to = path.join(directory, name);
  for (const { options, ...trial } of trials) write(to, trial.dir, { rate: trial.rate, seconds: 12, ...options });
  const all = trials.map(({ options, ...trial }) => ({ value: '', why: '', verdict: '', ...trial }));
  fs.writeFileSync(path.join(to, 'series.json'), JSON.stringify({
    format: 1, tool: 'kvorum-bench 0.1.0 (a1b2c3d)', started: '2026-11-22T03:00:00Z', interrupted: false, slo: '', server: [], findings: [], machine: {}, ...fields, trials: all,
  }));
  return to;
}

/** Writes a search that found the breaking point between 41,000 and 43,000 requests a second. */
function search(directory, name) {
  const trial = (number, role, rate, base, verdict, why = '') => ({ dir: `trial-${number}`, role, rate, verdict, why, options: { base, tail: base * 20, cpu: 40 } });
  return series(directory, name, {
    kind: 'search', argv: ['kvorum-bench', 'search', '--slo', 'p99<10ms,errors<0.1%', '--from', '10k', '--to', '100k'], slo: 'p99<10ms,errors<0.1%',
    server: ['kvorum', 'serve', '--listen', '127.0.0.1:8080'],
    findings: [{ value: '', passes: 41_000, fails: 43_000, ceiling: 48_000, limit: 'cpu', why: 'the server was on 0.98 of 1 core' }],
  }, [
    trial(1, 'bracket', 10_000, 0.3, 'pass'), trial(2, 'bracket', 20_000, 0.4, 'pass'), trial(3, 'bracket', 40_000, 0.9, 'pass'),
    trial(4, 'bracket', 80_000, 900, 'fail', 'p99 was 2.1 s, at most 10 ms'), trial(5, 'bisect', 56_000, 300, 'fail', 'the backlog grew'),
    trial(6, 'bisect', 47_000, 20, 'inconclusive', 'the client was limited'), trial(7, 'bisect', 43_000, 6, 'fail', 'p99 was 12 ms'),
    trial(8, 'confirm', 41_000, 1.1, 'pass'), trial(9, 'confirm', 43_000, 7, 'fail', 'p99 was 14 ms'),
  ]);
}

/** Writes a search for each of three values of a setting. */
function sweep(directory, name) {
  const trials = ['1', '2', '4'].flatMap((value, place) => [20_000, 30_000].map((rate) => ({
    dir: `loops-${value}-${rate}`, role: 'bisect', value, rate: rate * (place + 1), verdict: rate > 25_000 ? 'fail' : 'pass', options: { base: rate > 25_000 ? 20 : 1 },
  })));
  const findings = ['1', '2', '4'].map((value, place) => ({ value: `loops=${value}`, passes: 20_000 * (place + 1), fails: 30_000 * (place + 1), ceiling: 33_000 * (place + 1), limit: 'cpu', why: '' }));
  return series(directory, name, { kind: 'search', argv: ['kvorum-bench', 'search', '--sweep', 'loops=1,2,4'], slo: 'p99<10ms', findings }, trials);
}

/** Writes a comparison of cold and hot runs, four runs in all. */
function coldhot(directory, name) {
  const trial = (role, base, cpu) => ({ dir: role, role, rate: 10_000, options: { base, cpu, profiles: ['cpu'] } });
  return series(directory, name, { kind: 'coldhot', argv: ['kvorum-bench', 'coldhot'] }, [
    trial('put-cold', 0.9, 55), trial('put-hot', 0.8, 50), trial('get-cold', 1.4, 80), trial('get-hot', 0.7, 40),
  ]);
}

module.exports = { write, search, sweep, coldhot, HOSTILE };
