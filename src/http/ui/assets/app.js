// The dashboard: events go into the history, and once a second all panels are filled from it.
//
//   /ui/events ─▶ stream ─▶ history ─▶ view (nodes, time, paused?) ─▶ panels

import { Bands } from "./bands.js";
import { ClusterPanel } from "./cluster.js";
import { Controls } from "./controls.js";
import { element, say } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { History, KINDS } from "./history.js";
import { bounds } from "./latency.js";
import { Lines } from "./lines.js";
import { lookup } from "./lookup.js";
import { MembersPanel } from "./members.js";
import { Cache, Hints, Memory, Queues, Tiles } from "./panels.js";
import { Cursor } from "./plot.js";
import { Profile } from "./profile.js";
import { RepairPanel } from "./repair.js";
import { session } from "./session.js";
import { mood, outlook } from "./outlook.js";
import { follow } from "./stream.js";
import { explain, listTerms, tips } from "./terms.js";

const find = (id) => document.getElementById(id);

const history = new History();
const cursor = new Cursor();

/** Kinds of requests that are in the legend even if there are none. */
const BASIC = ["get", "put"];

/** Status codes in their order, each with a color and a dash of its own. */
const ERRORS = [
  { status: 503, name: "503 overloaded", colour: "error-1" },
  { status: 504, name: "504 not enough replicas", colour: "error-2", dash: "dashed" },
  { status: 507, name: "507 disk full", colour: "error-3" },
  { status: 500, name: "500 storage failed", colour: "error-4", dash: "dashed" },
  { status: 400, name: "400 bad request", colour: "error-5", dash: "dotted" },
];

const requests = new Lines(find("requests"), cursor, {
  label: "Requests per second by kind", height: 120, keys: [],
});
const errors = new Lines(find("errors"), cursor, {
  label: "Errors per second by status", height: 100, keys: [], most: 1,
});
const latency = new HeatMap(find("latency"), cursor, { label: "Latency", height: 250 });
const work = new Bands(find("work"), cursor, {
  label: "Background work",
  keys: [
    { name: "flush", axis: "flush", colour: "work-1" },
    { name: "compaction", axis: "compact", colour: "work-2" },
    { name: "log and sync", axis: "log", colour: "work-3" },
    { name: "writes delayed", axis: "slowed", colour: "work-4" },
    { name: "writes refused", axis: "refused", colour: "error-4" },
  ],
});
const cluster = new ClusterPanel(find("cluster"));
const tiles = new Tiles(find("tiles"));
const panels = [
  tiles, new Queues(find("queues")), new Cache(find("cache")), new Memory(find("memory")),
  new Hints(find("hints")), new RepairPanel(find("repair")), new MembersPanel(),
];

/** Minimum length of a plot, in seconds. */
const LEAST = 60;

let own = null;
let broken = null;
let refused = null;
let frozen = null;

const controls = new Controls(() => show(), () => {
  for (const plot of cursor.plots) plot.redraw();
});

/** Returns the current view: the nodes, the length and the end of the plots. */
function view() {
  if (!controls.paused) frozen = null;
  else frozen ??= history.end;
  const node = controls.nodes.value;
  const end = frozen ?? history.end;
  // Prevents a mostly empty plot right after the start.
  const heard = Math.max(LEAST, end - history.begin);
  const seconds = Math.min(Number(controls.window.value), heard);
  const shown = { names: node ? new Set([node]) : null, seconds, end };
  return { ...shown, gaps: history.gaps(shown) };
}

function showRequests(shown) {
  const of = (kind) => history.series(shown, (found) => found.requests[kind]);
  const series = new Map(KINDS.map((kind) => [kind, of(kind)]));
  const used = KINDS.filter((kind) => BASIC.includes(kind) || series.get(kind).some(Boolean));
  requests.setKeys(used.map((kind) => ({ name: kind, colour: kind })));
  requests.update(shown, new Map(used.map((kind) => [kind, series.get(kind)])));
}

function showErrors(shown) {
  const series = new Map();
  const seen = history.series(shown, (found) => found.errors, (a, b) => {
    const sum = { ...a };
    for (const [status, rate] of Object.entries(b)) sum[status] = (sum[status] ?? 0) + rate;
    return sum;
  });
  const statuses = new Set(seen.flatMap((rates) => Object.keys(rates ?? {})));
  const known = ERRORS.filter(({ status }) => statuses.delete(String(status)));
  const other = [...statuses];
  const keys = [...known];
  if (other.length > 0) keys.push({ name: "other", colour: "faint" });
  for (const { status, name } of known) {
    series.set(name, seen.map((rates) => rates && (rates[status] ?? 0)));
  }
  if (other.length > 0) {
    const add = (rates) => other.reduce((sum, status) => sum + (rates[status] ?? 0), 0);
    series.set("other", seen.map((rates) => rates && add(rates)));
  }
  errors.setKeys(keys.length > 0 ? keys : [{ name: "none", colour: "get" }]);
  if (keys.length === 0) series.set("none", seen.map((rates) => rates && 0));
  errors.update(shown, series);
}

function showWork(shown) {
  const nodes = Math.max(1, history.reached(shown.names).length);
  const series = (pick) => history.series(shown, pick);
  const share = (pick) => series(pick).map((value) => value === null ? null : value / nodes);
  work.update(shown, new Map([
    ["flush", { shares: share((s) => s.flush) }],
    ["compaction", { shares: share((s) => s.compaction) }],
    ["log and sync", { shares: share((s) => s.commit) }],
    ["writes delayed", { shares: share((s, { now }) => s.slowdown / (now?.loops ?? 1)) }],
    ["writes refused", {
      shares: share((s) => Math.min(1, s.refused)), values: series((s) => s.refused), unit: "/s",
    }],
  ]));
}

function showState() {
  const nodes = [...history.nodes.values()];
  const up = history.reached(null).length;
  const state = find("state");
  const lost = broken !== null;
  state.className = `state ${lost || refused || up < nodes.length ? "bad" : "good"}`;
  say(state, refused === 401 ? "not logged in" : refused ? "no access to metrics"
    : nodes.length === 0 ? "connecting …"
    : lost ? "not connected" : `${up} of ${nodes.length} nodes reached`);
  const notice = find("notice");
  notice.hidden = !lost;
  if (!lost) return;
  const since = new Date(broken.since).toLocaleTimeString("en-GB");
  const links = nodes.filter((node) => node.url && node.name !== own).flatMap((node) => {
    const link = element("a", "", node.name);
    link.href = `${node.url}/ui`;
    return [" ", link];
  });
  const text = `Since ${since} no data from ${own ?? "this node"}: ${broken.why}. `
    + "The page shows older data and resumes automatically.";
  if (notice.dataset.text === text) return;
  notice.dataset.text = text;
  notice.replaceChildren(text, ...(links.length > 0 ? [" Open another node:", ...links] : []));
}

/** Shows what works while nodes are lost. The page makes no claim about nodes it can't see. */
function showOutlook() {
  const said = find("outlook");
  const now = broken === null && refused === null ? history.outlook() : null;
  said.hidden = now === null;
  if (now === null) return;
  const { nodes, copies, lost } = now;
  const away = lost.length;
  const count = away === 0 ? "" : `${nodes - away} of ${nodes} nodes. `;
  const kept = away === 0 ? "" : ` What ${lost.join(", ")} holds stays on disk, and the writes that `
    + `${away === 1 ? "it misses" : "they miss"} are kept for ${away === 1 ? "it" : "them"}.`;
  say(said, `${count}${outlook(nodes, copies, away)}${kept}`);
  said.className = `outlook ${mood(nodes, copies, away)}`;
}

function show() {
  showState();
  showOutlook();
  const known = [...history.nodes.keys()];
  controls.offerNodes(known);
  cluster.update(history, own);
  const shown = view();
  const heard = [...history.nodes.values()].find((node) => node.now !== null);
  if (heard === undefined) return;
  for (const panel of panels) panel.update(history, shown);
  showRequests(shown);
  showErrors(shown);
  showWork(shown);
  const kind = controls.kinds.value;
  const { first_nanos: first, per_doubling: per, kinds } = heard.now;
  const limits = bounds(kinds[0].latency.length, first, per);
  latency.update(shown, history.buckets(shown, kind === "all" ? KINDS : [kind]), limits);
}

/** Delay after the first snapshot of a second until the others have arrived, in milliseconds. */
const SETTLE = 150;

let due;
function showSoon() {
  due ??= setTimeout(() => {
    due = undefined;
    if (!document.hidden) show();
  }, SETTLE);
}

follow({
  own(node) {
    own = node;
    broken = null;
    refused = null;
    document.title = `${node} · kvorum`;
  },
  past(node, piece) {
    history.past(node, piece);
    showSoon();
  },
  snapshot(node, snapshot) {
    history.snapshot(node, snapshot);
    showSoon();
  },
  lost(node, why, since) {
    history.lost(node, why, since);
    showSoon();
  },
  left(node) {
    history.left(node);
    showSoon();
  },
  broken(why, since) {
    broken = { why, since: broken?.since ?? since };
    history.broken(own, why, broken.since);
    showSoon();
  },
  refused(status) {
    refused = status;
    broken = null;
    showSoon();
  },
});
session();
tips();
listTerms(find("terms"));
for (const target of document.querySelectorAll("[data-explain]")) {
  explain(target, target.dataset.explain);
}
document.addEventListener("visibilitychange", () => !document.hidden && show());
lookup(find("lookup"), find("found"));
new Profile();
show();
