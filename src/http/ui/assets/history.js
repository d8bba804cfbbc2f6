// What was heard of each node, second by second. Counters become rates here.

/** Seconds that are kept. */
export const KEPT = 900;

/** Kinds of requests that are shown; whatever else is asked is about the node itself. */
export const KINDS = ["get", "put", "delete", "range"];

/** Longest gap, in seconds, over which a rate is spread. */
const SPREAD = 5;

function kindOf(snapshot, name) {
  return snapshot.kinds.find((kind) => kind.kind === name);
}

function less(now, before) {
  return now.map((count, place) => count - before[place]);
}

/** The second between two snapshots of one process, all rates per second. */
function sample(before, now) {
  const seconds = (now.up_ms - before.up_ms) / 1000;
  const rate = (later, earlier) => (later - earlier) / seconds;
  const of = (name) => rate(now.store[name], before.store[name]);
  const requests = {};
  const latency = {};
  const errors = {};
  for (const name of KINDS) {
    const [later, earlier] = [kindOf(now, name), kindOf(before, name)];
    const known = new Map(earlier.statuses);
    requests[name] = 0;
    for (const [status, number] of later.statuses) {
      const each = rate(number, known.get(status) ?? 0);
      requests[name] += each;
      // That there is no such key is an answer.
      const failed = status === 0 || (status >= 400 && status !== 404);
      if (failed && each > 0) errors[status] = (errors[status] ?? 0) + each;
    }
    latency[name] = less(later.latency, earlier.latency);
  }
  return {
    seconds,
    requests,
    errors,
    latency,
    cpu: rate(now.cpu_ms, before.cpu_ms) / 1000,
    flush: of("flush_nanos") / 1e9,
    compaction: of("compaction_nanos") / 1e9,
    commit: of("commit_nanos") / 1e9,
    slowdown: of("slowdown_nanos") / 1e9 / now.loops,
    flushed: of("flush_bytes"),
    compacted: of("compaction_bytes"),
    logged: of("wal_bytes"),
    syncs: of("wal_syncs"),
    slowed: of("slowed"),
    refused: of("refused"),
    hits: of("cache_hits"),
    misses: of("cache_misses"),
    skips: of("bloom_skips"),
    inVain: of("bloom_false_positives"),
    messages: rate(now.peer_messages, before.peer_messages),
    queues: now.queues.map((queue) => queue.depth),
    hintsFor: Object.fromEntries(now.status.peers.map((peer) => [peer.name, peer.hints])),
    disk: now.store.disk_bytes,
    resident: now.memory.resident,
  };
}

/** One node. */
class Node {
  constructor(name) {
    this.name = name;
    this.now = null;
    this.lost = null;
    this.samples = new Map();
  }

  hear(snapshot) {
    const before = this.now;
    this.now = snapshot;
    this.lost = null;
    const slot = Math.floor(snapshot.at_ms / 1000);
    // After a restart its counters began anew.
    if (before === null || snapshot.up_ms <= before.up_ms) return slot;
    if (snapshot.status.incarnation !== before.status.incarnation) return slot;
    const made = sample(before, snapshot);
    const first = slot - Math.min(Math.round(made.seconds), SPREAD) + 1;
    for (let place = Math.min(first, slot); place <= slot; place += 1) {
      if (!this.samples.has(place) || place === slot) this.samples.set(place, made);
    }
    for (const old of this.samples.keys()) {
      if (old > slot - KEPT) break;
      this.samples.delete(old);
    }
    return slot;
  }
}

/** All nodes. */
export class History {
  constructor() {
    this.nodes = new Map();
    /** The first second that was heard of, and the last. */
    this.begin = null;
    this.end = 0;
  }

  node(name) {
    if (!this.nodes.has(name)) {
      this.nodes.set(name, new Node(name));
      this.nodes = new Map([...this.nodes].sort(([a], [b]) => (a < b ? -1 : 1)));
    }
    return this.nodes.get(name);
  }

  snapshot(name, snapshot) {
    for (const peer of snapshot.status.peers) this.node(peer.name).url ??= peer.url;
    const node = this.node(name);
    node.url = snapshot.status.url;
    this.end = Math.max(this.end, node.hear(snapshot));
    this.begin ??= this.end;
  }

  left(name) {
    this.nodes.delete(name);
  }

  lost(name, why, since) {
    this.node(name).lost = { why, since };
  }

  /** Nothing comes from the node through which the others are asked: of those nothing is known. */
  broken(through, why, since) {
    for (const node of this.nodes.values()) {
      if (node.name === through) node.lost = { why, since };
      else node.lost ??= { since, through };
    }
  }

  /** The nodes of these names that are reached. */
  reached(names) {
    const all = [...this.nodes.values()].filter((node) => names === null || names.has(node.name));
    return all.filter((node) => node.now !== null && node.lost === null);
  }

  /**
   * Second by second up to the end, what `pick` says of each node's sample, put together by `join`
   * (by default, a sum); null = nothing was heard.
   */
  series(view, pick, join = (a, b) => a + b) {
    const nodes = [...this.nodes.values()];
    const chosen = nodes.filter((node) => view.names === null || view.names.has(node.name));
    return Array.from({ length: view.seconds }, (_, place) => {
      const slot = view.end - view.seconds + 1 + place;
      let sum = null;
      for (const node of chosen) {
        const found = node.samples.get(slot);
        if (found === undefined) continue;
        const value = pick(found, node);
        sum = sum === null ? value : join(sum, value);
      }
      return sum;
    });
  }

  /** Latency buckets of some kinds, second by second. */
  buckets(view, kinds) {
    const add = (a, b) => a.map((count, place) => count + b[place]);
    const pick = (found) => kinds.map((kind) => found.latency[kind]).reduce(add);
    return this.series(view, pick, add);
  }
}
