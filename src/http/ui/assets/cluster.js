// The nodes: a row for each, with its own report and what the other nodes report of it.

import { KINDS } from "./history.js";
import {
  bytes, count, element, moment, nanos, percent, say, short, skew, span,
} from "./format.js";
import { bounds, percentile } from "./latency.js";
import { table, tableRow } from "./tables.js";
import { explain } from "./terms.js";

const COLUMNS = [
  ["node", "Node"], ["membership", "State"], ["rate", "Requests/s"], ["p99", "p99"],
  ["cpu", "CPU"], ["rss", "Memory"], ["disk", "Disk"], ["keys", "Keys"], ["hints", "Hints for it"],
  ["skew", "Clock"], ["rtt", "Round trip"], ["up", "Up for"], ["version", "Version"],
];

/** Columns that only the node itself reports. */
const UNHEARD = ["rate", "p99", "cpu", "rss", "disk", "keys", "up", "version"];

/** Seconds over which a row's figures are taken. */
const RECENT = 5;

function row() {
  const { tr, cells } = tableRow(COLUMNS);
  const link = element("a");
  cells.get("node").append(link);
  const badge = element("span", "badge");
  cells.get("membership").append(badge, element("small"));
  return { tr, cells, link, badge, why: badge.nextSibling };
}

/** Combines the other nodes' reports of a node, as far as they can be reached. */
function seenBy(nodes, name) {
  const peers = nodes.filter((node) => node.now !== null && node.lost === null)
    .flatMap((node) => node.now.status.peers.filter((peer) => peer.name === name));
  const met = peers.filter((peer) => peer.rtt_us > 0);
  met.sort((a, b) => a.rtt_us - b.rtt_us);
  return { hints: peers.reduce((sum, peer) => sum + peer.hints, 0), nearest: met[0] };
}

function judge(node) {
  if (node.isUnknown) {
    const why = `since ${moment(node.lost.since)}: reached only through ${node.lost.through}`;
    return ["unknown", "idle", why];
  }
  if (node.lost !== null) {
    const last = node.now === null ? "" : `; grey: as of ${moment(node.now.at_ms)}`;
    const why = `since ${moment(node.lost.since)}: ${node.lost.why}${last}`;
    return ["unreachable", "bad", why];
  }
  if (node.now === null) return ["waiting", "idle", "no data yet"];
  const { failed, membership } = node.now.status;
  if (failed) return ["accepts no writes", "bad", failed];
  if (membership === "rebuilding") return ["rebuilding", "warn", "data streams back from other nodes"];
  if (membership === "fenced") return ["fenced", "bad", "a copy of it was started later"];
  if (membership === "removed") return ["removed", "bad", "it is not a member of the cluster any more"];
  if (membership === "verifying") return ["verifying", "warn", "not confirmed by all other nodes yet"];
  if (membership === "starting") return ["starting", "warn", "waiting for the other nodes"];
  if (membership === "joining") return ["joining", "warn", "not connected to all other nodes yet"];
  return ["up", "good", ""];
}

export class ClusterPanel {
  constructor(host) {
    this.rows = new Map();
    this.body = element("tbody");
    host.append(table("cluster", COLUMNS, this.body));
  }

  update(history, own) {
    const nodes = [...history.nodes.values()];
    for (const node of nodes) {
      if (!this.rows.has(node.name)) this.rows.set(node.name, row());
      this.fill(this.rows.get(node.name), node, history, nodes, own);
    }
    const order = nodes.map((node) => this.rows.get(node.name).tr);
    for (const name of this.rows.keys()) if (!history.nodes.has(name)) this.rows.delete(name);
    const isShown = order.every((tr, place) => this.body.children[place] === tr);
    if (!isShown || order.length !== this.body.children.length) {
      this.body.replaceChildren(...order);
    }
  }

  fill({ tr, cells, link, badge, why }, node, history, nodes, own) {
    const [state, mood, reason] = judge(node);
    const put = (name, text) => say(cells.get(name), text);
    say(link, node.name);
    if (node.url) link.href = `${node.url}/ui`;
    link.title = node.name === own ? "serves this page" : `open the dashboard at ${node.url}`;
    tr.classList.toggle("own", node.name === own);
    tr.classList.toggle("gone", node.lost !== null);
    say(badge, state);
    badge.className = `badge ${mood}`;
    explain(badge, state, false);
    say(why, reason);
    const { hints, nearest } = seenBy(nodes, node.name);
    put("hints", nodes.length === 1 ? "–" : count(hints));
    cells.get("hints").classList.toggle("warn", hints > 0);
    put("skew", nearest && node.lost === null ? skew(nearest.clock_skew_us) : "–");
    put("rtt", nearest && node.lost === null ? nanos(nearest.rtt_us * 1000) : "–");
    const isLast = node.lost !== null && node.now !== null;
    tr.title = isLast ? `grey: what it said last, ${moment(node.now.at_ms)}` : "";
    if (node.now === null) {
      for (const name of UNHEARD) put(name, "–");
      return;
    }
    this.figures(put, node, history);
  }

  figures(put, node, history) {
    const { status, memory, store, first_nanos: first, per_doubling: per } = node.now;
    const view = { names: new Set([node.name]), seconds: RECENT, end: history.end };
    const heard = history.series(view, (found) => found).filter((found) => found !== null);
    const live = node.lost === null && heard.length > 0;
    const mean = (pick) => heard.reduce((sum, found) => sum + pick(found), 0) / heard.length;
    const all = (found) => KINDS.reduce((sum, kind) => sum + found.requests[kind], 0);
    put("rate", live ? short(mean(all)) : "–");
    put("cpu", live ? percent(mean((found) => found.cpu)) : "–");
    put("p99", live ? this.p99(history, view, first, per) : "–");
    put("rss", `${bytes(memory.resident)} of ${bytes(memory.limit)}`);
    put("disk", bytes(store.disk_bytes));
    put("keys", short(status.keys));
    put("up", live ? span(status.uptime_s) : "–");
    put("version", status.version);
  }

  p99(history, view, first, per) {
    const columns = history.buckets(view, KINDS).filter((counts) => counts !== null);
    if (columns.length === 0) return "–";
    const sums = columns.reduce((a, b) => a.map((number, place) => number + b[place]));
    const found = percentile(sums, bounds(sums.length, first, per), 0.99);
    return found === null ? "–" : nanos(found);
  }
}
