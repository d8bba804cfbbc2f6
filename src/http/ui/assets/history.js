// The history of each node, second by second. Counters become rates here.

/** Number of seconds that are kept. */
export const KEPT = 900;

/** Kinds of requests that are shown; all others are about the node itself. */
export const KINDS = ["get", "put", "delete", "add", "range"];

/** Longest gap, in seconds, over which a rate is spread. */
const SPREAD = 5;

/** Minimum length of a gap, in seconds without data: a single one is a late snapshot. */
const GAP = 3;

/** Maximum number of nodes that a gap names. */
const NAMED = 3;

function less(now, before) {
  return now.map((count, place) => count - before[place]);
}

/** Returns the differences between two snapshots of one process. */
function between(before, now) {
  const store = {};
  for (const [name, value] of Object.entries(now.store)) store[name] = value - before.store[name];
  const kinds = {};
  for (const name of KINDS) {
    const [later, earlier] = [now, before].map(({ kinds: all }) => (
      all.find(({ kind }) => kind === name)));
    const known = new Map(earlier.statuses);
    const statuses = later.statuses.map(([status, n]) => [status, n - (known.get(status) ?? 0)]);
    kinds[name] = { statuses: Object.fromEntries(statuses) };
    kinds[name].latency = less(later.latency, earlier.latency);
  }
  return {
    ms: now.up_ms - before.up_ms,
    cpu_ms: now.cpu_ms - before.cpu_ms,
    peer_messages: now.peer_messages - before.peer_messages,
    store,
    kinds,
    queues: now.queues.map((queue) => queue.depth),
    hints: Object.fromEntries(now.status.peers.map((peer) => [peer.name, peer.hints])),
    disk: now.store.disk_bytes,
    resident: now.memory.resident,
  };
}

/** Maps the values of a node's samples by their names: `put.latency.17`, `store.refused`. */
class Past {
  constructor(fields) {
    this.paths = fields.map((field) => field.split("."));
    const longest = (name) => this.paths.filter(([kind, what]) => kind === name && what === "latency");
    this.buckets = Object.fromEntries(KINDS.map((name) => [name, longest(name).length]));
    const below = (name) => this.paths.filter(([kind]) => kind === name).map(([, field]) => field);
    this.store = below("store");
    this.queues = below("queues").length;
  }

  /** Converts a sample of one second to the form of `between`. */
  second([, ms, values, hints]) {
    const made = { ms, cpu_ms: 0, peer_messages: 0, store: {}, hints, disk: 0, resident: 0 };
    for (const field of this.store) made.store[field] = 0;
    made.queues = new Array(this.queues).fill(0);
    made.kinds = Object.fromEntries(KINDS.map((name) => (
      [name, { statuses: {}, latency: new Array(this.buckets[name]).fill(0) }])));
    for (const [place, value] of values) {
      const [name, what, which] = this.paths[place];
      if (which !== undefined) made.kinds[name][what][which] = value;
      else if (what !== undefined) made[name][what] = value;
      else made[name] = value;
    }
    return made;
  }
}

/** Returns the history's entry for a second of a node, all rates per second. */
function sample(made) {
  const seconds = made.ms / 1000;
  const of = (name) => made.store[name] / seconds;
  const requests = {};
  const latency = {};
  const errors = {};
  for (const name of KINDS) {
    requests[name] = 0;
    for (const [status, number] of Object.entries(made.kinds[name].statuses)) {
      const each = number / seconds;
      requests[name] += each;
      // A 404 for an absent key is a normal answer.
      const failed = status === "0" || (status >= 400 && status !== "404");
      if (failed && each > 0) errors[status] = (errors[status] ?? 0) + each;
    }
    latency[name] = made.kinds[name].latency;
  }
  return {
    seconds,
    requests,
    errors,
    latency,
    cpu: made.cpu_ms / made.ms,
    flush: of("flush_nanos") / 1e9,
    compaction: of("compaction_nanos") / 1e9,
    commit: of("commit_nanos") / 1e9,
    slowdown: of("slowdown_nanos") / 1e9,
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
    messages: made.peer_messages / seconds,
    queues: made.queues,
    hintsFor: made.hints,
    disk: made.disk,
    resident: made.resident,
  };
}

/** The history of one node. */
class Node {
  constructor(name) {
    this.name = name;
    this.now = null;
    this.lost = null;
    this.samples = new Map();
    /** The last second with data. */
    this.newest = 0;
    this.past = null;
  }

  /** Returns the second in which the node's process began. */
  get begun() {
    return this.now === null ? null : Math.floor((this.now.at_ms - this.now.up_ms) / 1000);
  }

  /** Adds samples that the node stored before: a list of names first, then seconds, in pieces. */
  recall({ fields, seconds }) {
    if (fields) this.past = new Past(fields);
    for (const second of this.past === null ? [] : seconds ?? []) {
      if (second[1] > 0) this.keep(second[0], sample(this.past.second(second)), false);
    }
  }

  /** Keeps a sample for the seconds that it covers and for which there are no better data. */
  keep(slot, made, replaces) {
    const first = slot - Math.max(1, Math.min(Math.round(made.seconds), SPREAD)) + 1;
    for (let place = first; place <= slot; place += 1) {
      if (!this.samples.has(place) || (replaces && place === slot)) this.samples.set(place, made);
    }
    this.newest = Math.max(this.newest, slot);
    for (const old of this.samples.keys()) if (old <= this.newest - KEPT) this.samples.delete(old);
  }

  /** True if the node's state is unknown: the node through which it is asked sends nothing. */
  get isUnknown() {
    return this.lost?.through !== undefined;
  }

  /** Returns true if a second lacks data that should exist. */
  lacks(slot) {
    const isDue = this.lost !== null || slot <= this.newest;
    return isDue && !this.samples.has(slot);
  }

  hear(snapshot) {
    const before = this.now;
    this.now = snapshot;
    this.lost = null;
    const slot = Math.floor(snapshot.at_ms / 1000);
    // After a restart the counters began anew.
    if (before === null || snapshot.up_ms <= before.up_ms) return slot;
    if (snapshot.status.incarnation !== before.status.incarnation) return slot;
    this.keep(slot, sample(between(before, snapshot)), true);
    return slot;
  }
}

/** The history of all nodes. */
export class History {
  constructor() {
    this.nodes = new Map();
    /** The first second with data, and the last. */
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
    this.begin = Math.min(this.begin ?? this.end, this.end);
  }

  /** Adds a piece of a node's stored samples. */
  past(name, piece) {
    this.node(name).recall(piece);
    const seconds = (piece.seconds ?? []).map(([second]) => second);
    if (seconds.length === 0) return;
    this.end = Math.max(this.end, ...seconds);
    this.begin = Math.min(this.begin ?? this.end, ...seconds);
  }

  chosen(names) {
    return [...this.nodes.values()].filter((node) => names === null || names.has(node.name));
  }

  /** Returns the nodes with these names that have data, lost ones with their last report. */
  known(names) {
    return this.chosen(names).filter((node) => node.now !== null);
  }

  /** Returns the number of nodes, the copies of a key, and the number of lost nodes. */
  outlook() {
    // A node of an earlier release does not report the copies.
    const heard = [...this.nodes.values()].filter((node) => node.now?.copies !== undefined);
    const newest = heard.reduce((a, b) => (a && a.now.at_ms > b.now.at_ms ? a : b), null);
    if (newest === null) return null;
    const { members, copies } = newest.now;
    const lost = [...this.nodes.values()].filter((node) => node.lost !== null);
    return { nodes: Math.max(members, lost.length), copies, lost: lost.map(({ name }) => name) };
  }

  /** Returns the runs of seconds without data of some of the nodes shown. */
  gaps(view) {
    const chosen = this.chosen(view.names);
    const runs = [];
    let open = null;
    for (let slot = view.end - view.seconds + 1; slot <= view.end; slot += 1) {
      const lacking = chosen.filter((node) => node.lacks(slot));
      const names = lacking.map(({ name }) => name).join("\n");
      if (open !== null && open.names === names) {
        open.to = slot;
        continue;
      }
      open = names ? { names, from: slot, to: slot, lacking } : null;
      if (open !== null) runs.push(open);
    }
    const gaps = runs.filter(({ from, to }) => to - from + 1 >= GAP);
    return gaps.map(({ from, to, lacking }) => {
      const isAll = lacking.length === chosen.length;
      return { from, to, isAll, text: this.why(lacking, isAll, to) };
    });
  }

  /** Returns the label of a gap. */
  why(lacking, isAll, to) {
    // The gap ends where the process began.
    const began = lacking.every(({ begun }) => begun !== null && Math.abs(begun - to) <= 2);
    const what = began ? "not running" : "no data";
    if (isAll && lacking.length > 1) return what;
    const names = lacking.slice(0, NAMED).map(({ name }) => name);
    if (lacking.length > NAMED) names.push(`${lacking.length - NAMED} more`);
    return began ? `${names.join(", ")} not running` : `no data from ${names.join(", ")}`;
  }

  left(name) {
    this.nodes.delete(name);
  }

  lost(name, why, since) {
    this.node(name).lost = { why, since };
  }

  /** Marks all nodes as unknown: the node through which they are asked sends nothing. */
  broken(through, why, since) {
    for (const node of this.nodes.values()) {
      if (node.name === through) node.lost = { why, since };
      else node.lost ??= { since, through };
    }
  }

  /** Returns the nodes with these names that can be reached. */
  reached(names) {
    return this.chosen(names).filter((node) => node.now !== null && node.lost === null);
  }

  /**
   * Returns the values of `pick` for each second up to the end, over all nodes, combined by `join`
   * (by default, a sum); null = no data.
   */
  series(view, pick, join = (a, b) => a + b) {
    const chosen = this.chosen(view.names);
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

  /** Returns the latency buckets of some kinds, second by second. */
  buckets(view, kinds) {
    const add = (a, b) => a.map((count, place) => count + b[place]);
    const pick = (found) => kinds.map((kind) => found.latency[kind]).reduce(add);
    return this.series(view, pick, add);
  }
}
