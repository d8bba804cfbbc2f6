// Panels of figures, bars and small lines: at a glance, queues, cache, memory, hints.

import { KINDS } from "./history.js";
import { bytes, count, element, nanos, percent, say, short } from "./format.js";
import { bounds, percentile } from "./latency.js";
import { spark } from "./lines.js";
import { explain } from "./terms.js";

/** Seconds over which figures at a glance are taken: enough requests for a p99.9 at 1,000/s. */
const RECENT = 10;

/** Minimum number of samples beyond a percentile for it to be shown. */
const BEYOND = 10;

/** A list of rows, created when they first appear: name, small line, value, and its bound. */
class Rows {
  constructor(host, className) {
    this.list = element("ul", `rows ${className}`);
    this.rows = new Map();
    host.append(this.list);
  }

  row(name, withLine) {
    if (!this.rows.has(name)) {
      const made = { canvas: withLine ? element("canvas", "spark") : null };
      made.value = element("b");
      made.of = element("small");
      made.name = element("span", "name", explain(element("span", "", name), name));
      made.line = element("li", "", made.name);
      if (made.canvas) {
        made.canvas.setAttribute("aria-hidden", "true");
        made.line.append(made.canvas);
      }
      made.line.append(element("span", "value", made.value, " ", made.of));
      this.rows.set(name, made);
      this.list.append(made.line);
    }
    return this.rows.get(name);
  }

  /** Keeps only the rows with these names, in their order. */
  arrange(names) {
    const kept = names.filter((name) => this.rows.has(name));
    for (const name of this.rows.keys()) if (!kept.includes(name)) this.rows.delete(name);
    const lines = kept.map((name) => this.rows.get(name).line);
    const { children } = this.list;
    const same = lines.length === children.length
      && lines.every((line, place) => children[place] === line);
    if (!same) this.list.replaceChildren(...lines);
  }

  put(name, value, of, values, bound) {
    const row = this.row(name, values !== undefined);
    say(row.value, value);
    say(row.of, of);
    if (row.canvas) spark(row.canvas, values, bound);
    return row;
  }
}

/** Returns the newest value that is not missing. */
function newest(values) {
  return values.findLast((value) => value !== null) ?? 0;
}

function sums(columns) {
  const heard = columns.filter((counts) => counts !== null);
  return heard.reduce((a, b) => a.map((number, place) => number + b[place]), heard[0] ?? []);
}

/** Estimates the number of keys, each counted once, from the nodes that have reported. */
function keysOnce(known, nodes, copies) {
  const held = known.map((node) => node.now.status.keys).sort((a, b) => a - b);
  if (held.length === 0) return 0;
  // If each node holds each key, a node that counts too many, until it has compacted, is ignored.
  if (copies >= nodes) return held[Math.floor((held.length - 1) / 2)];
  return (held.reduce((sum, keys) => sum + keys, 0) * nodes) / held.length / copies;
}

/** Figures at a glance. */
export class Tiles {
  constructor(host) {
    this.tiles = new Map();
    for (const [name, title] of [["rate", "requests/s"], ["errors", "errors/s"], ["p50", "p50"],
      ["p99", "p99"], ["p999", "p99.9"], ["hits", "cache hits"], ["keys", "keys"],
      ["disk", "disk"]]) {
      const value = element("b");
      const note = element("small");
      const label = explain(element("span", "", title), title);
      const tile = element("div", "tile", element("span", "", label), value, note);
      this.tiles.set(name, { tile, value, note });
      host.append(tile);
    }
  }

  put(name, value, note = "") {
    const tile = this.tiles.get(name);
    say(tile.value, value);
    say(tile.note, note);
  }

  update(history, view) {
    const recent = { ...view, seconds: RECENT };
    const mean = (pick) => {
      const heard = history.series(recent, pick).filter((value) => value !== null);
      return heard.reduce((sum, value) => sum + value, 0) / (heard.length || 1);
    };
    const add = (numbers) => Object.values(numbers).reduce((sum, number) => sum + number, 0);
    const [rate, errors] = [mean((s) => add(s.requests)), mean((s) => add(s.errors))];
    this.put("rate", short(rate));
    this.put("errors", short(errors), rate > 0 ? percent(errors / rate) : "");
    this.tiles.get("errors").tile.classList.toggle("bad", errors > 0);
    this.percentiles(history, recent);
    const [hits, misses] = [mean((s) => s.hits), mean((s) => s.misses)];
    this.put("hits", hits + misses > 0 ? percent(hits / (hits + misses)) : "–");
    this.held(history, view);
  }

  /** Shows the stored keys and bytes, including those on lost nodes. */
  held(history, view) {
    const known = history.known(view.names);
    const of = (pick) => known.reduce((sum, node) => sum + pick(node.now), 0);
    const [keys, disk] = [of((now) => now.status.keys), of((now) => now.store.disk_bytes)];
    const last = known.filter((node) => node.lost !== null);
    const { nodes = 1, copies = 1, lost = [] } = history.outlook() ?? {};
    const isUnknown = [...history.nodes.values()].some((node) => node.isUnknown);
    const up = isUnknown ? "as they said last" : `${nodes - lost.length} of ${nodes} nodes up`;
    if (view.names !== null) {
      this.put("keys", `≈ ${short(keys)}`, last.length > 0 ? "as it said last" : "on this node");
      this.put("disk", bytes(disk), last.length > 0 ? "as it said last" : "");
      return;
    }
    const once = keysOnce(known, nodes, copies);
    const each = `${copies} ${copies === 1 ? "copy" : "copies"} each`;
    this.put("keys", known.length === 0 ? "–" : `≈ ${short(once)}`, lost.length > 0 ? up : each);
    const without = lost.length - last.length;
    this.put("disk", bytes(disk), without > 0 ? `without ${without} of ${nodes} nodes`
      : last.length > 0 ? "with lost nodes" : "");
  }

  percentiles(history, recent) {
    const counts = sums(history.buckets(recent, KINDS));
    const now = history.reached(null)[0]?.now;
    const all = counts.reduce((sum, number) => sum + number, 0);
    for (const [name, share] of [["p50", 0.5], ["p99", 0.99], ["p999", 0.999]]) {
      const enough = now !== undefined && all * (1 - share) >= BEYOND;
      if (!enough) {
        this.put(name, "–", all > 0 ? "too few requests" : "no requests");
        continue;
      }
      const limits = bounds(counts.length, now.first_nanos, now.per_doubling);
      this.put(name, nanos(percentile(counts, limits, share)), `last ${RECENT} s`);
    }
  }
}

const UNITS = { bytes, jobs: count, batches: count, tables: count };

/** The queues: the waiting work, and its bounds. */
export class Queues {
  constructor(host) {
    this.rows = new Rows(host, "queues");
  }

  update(history, view) {
    const nodes = history.reached(view.names);
    if (nodes.length === 0) return;
    nodes[0].now.queues.forEach(({ name, unit, bound }, place) => {
      const values = history.series(view, (found) => found.queues[place]);
      const [now, most] = [newest(values), Math.max(0, ...values)];
      const all = bound * nodes.length;
      const say = UNITS[unit];
      const of = bound > 0 ? `of ${say(all)}` : `most ${say(most)}`;
      const row = this.rows.put(name, say(now), of, values, all);
      row.line.classList.toggle("warn", bound > 0 && now > all / 2);
    });
  }
}

/** Hit rates of the block cache and of the bloom filters. */
export class Cache {
  constructor(host) {
    this.rows = new Rows(host, "cache");
  }

  update(history, view) {
    const series = (pick) => history.series(view, pick);
    const [hits, misses, skips] = [(s) => s.hits, (s) => s.misses, (s) => s.skips].map(series);
    this.putShare("cache hits", "of blocks", hits, misses);
    this.rows.put("blocks read", short(newest(misses)), "/s", misses, 0);
    this.putShare("filter hits", "of absent", skips, series((s) => s.inVain));
    this.rows.put("skipped by filters", short(newest(skips)), "tables/s", skips, 0);
    const logged = series((s) => s.logged);
    this.rows.put("into the log", bytes(newest(logged)), "/s", logged, 0);
    const syncs = series((s) => s.syncs);
    this.rows.put("syncs of the log", short(newest(syncs)), "/s", syncs, 0);
    const messages = series((s) => s.messages);
    this.rows.put("messages to nodes", short(newest(messages)), "/s", messages, 0);
  }

  /** Shows the share of `hits` in the sum. */
  putShare(name, unit, hits, misses) {
    const rate = hits.map((hit, place) => {
      return hit === null || hit + misses[place] === 0 ? null : hit / (hit + misses[place]);
    });
    const last = rate.findLast((share) => share !== null);
    this.rows.put(name, last === undefined ? "–" : percent(last), unit, rate, 4);
  }
}

/** Memory in use, and the bytes on disk by their place. */
export class Memory {
  constructor(host) {
    this.bars = element("ul", "bars");
    host.append(this.bars);
    this.made = new Map();
  }

  bar(name, used, budget, text) {
    if (!this.made.has(name)) {
      const meter = element("meter");
      meter.min = 0;
      meter.setAttribute("aria-label", name);
      const value = element("span", "value");
      const label = element("span", "name", explain(element("span", "", name), name));
      this.bars.append(element("li", "", label, meter, value));
      this.made.set(name, { meter, value });
    }
    const { meter, value } = this.made.get(name);
    meter.max = budget;
    // A cache is meant to be full.
    meter.high = name === "cache" ? budget : budget * 0.9;
    meter.value = used;
    say(value, text ?? `${bytes(used)} of ${bytes(budget)}`);
  }

  update(history, view) {
    const nodes = history.reached(view.names).map((node) => node.now);
    if (nodes.length === 0) return;
    const add = (pick) => nodes.reduce((sum, now) => sum + pick(now), 0);
    this.bar("resident", add((now) => now.memory.resident), add((now) => now.memory.limit));
    nodes[0].memory.parts.forEach(({ name }, place) => {
      const most = add((now) => now.memory.parts[place].budget);
      this.bar(name, add((now) => now.memory.parts[place].used), most);
    });
    // The data on a lost node's disk still exist.
    const known = history.known(view.names).map((node) => node.now);
    const all = (pick) => known.reduce((sum, now) => sum + pick(now), 0);
    const disk = all((now) => now.store.disk_bytes);
    nodes[0].store.levels.forEach((_, level) => {
      const held = all((now) => now.store.levels[level]?.[1] ?? 0);
      if (held > 0 || this.made.has(`level ${level}`)) {
        this.bar(`level ${level}`, held, disk, `${bytes(held)} on disk`);
      }
    });
  }
}

/** Writes that nodes missed. */
export class Hints {
  constructor(host) {
    this.rows = new Rows(host, "hints");
    this.none = element("p", "none", "A single node keeps no hints.");
    host.append(this.none);
  }

  update(history, view) {
    this.none.hidden = history.nodes.size > 1;
    for (const { name } of history.nodes.values()) {
      const peers = history.reached(null).flatMap((node) => node.now.status.peers)
        .filter((peer) => peer.name === name);
      if (peers.length === 0) continue;
      const add = (field) => peers.reduce((sum, peer) => sum + peer[field], 0);
      const kept = (found) => found.hintsFor[name] ?? 0;
      const values = history.series({ ...view, names: null }, kept);
      const [dropped, repair] = [add("hints_dropped"), add("partitions_to_repair")];
      const more = dropped + repair > 0
        ? `, ${count(dropped)} dropped, ${count(repair)} partitions to repair` : "";
      const row = this.rows.put(`for ${name}`, count(add("hints")),
        bytes(add("hint_bytes")) + more, values, 0);
      row.line.classList.toggle("warn", add("hints") > 0 || dropped > 0);
    }
    this.rows.arrange([...history.nodes.keys()].map((name) => `for ${name}`));
  }
}
