// Repair rounds: a row for each node, with the results of the rounds that it drove.

import { bytes, count, element, moment, percent, say, short, span } from "./format.js";
import { table, tableRow } from "./tables.js";
import { explain } from "./terms.js";

const COLUMNS = [
  ["node", "Node"], ["result", "Replicas"], ["full", "Last full round"], ["last", "Last round"],
  ["keys", "Keys", "Keys differed"], ["damage", "Damaged ranges"], ["purgeable", "Purgeable"],
];

/** Age in seconds from which on a full round is late: two of the default intervals. */
const LATE = 14 * 86400;

function row() {
  const { tr, cells } = tableRow(COLUMNS);
  const badge = element("span", "badge");
  const why = element("small");
  cells.get("result").append(element("span", "", badge, why));
  return { tr, cells, badge, why };
}

/** Describes a node's round that is under way, or about to begin. */
function running({ current, waiting }) {
  if (!current) return waiting ? "a round was requested" : "";
  const kind = current.full ? "full" : "incremental";
  const { records, of_records: all } = current;
  // The number of records that an incremental round compares is not known before its end.
  const far = all > 0 ? percent(Math.min(1, records / all)) : `${short(records)} records`;
  return `${kind} round: ${far} so far`;
}

/** Returns the reasons why the replicas are not known to be equal after a round. */
function reasons(round) {
  const told = [];
  if (round.stopped) told.push(`the round ended early: ${round.stopped}`);
  if (round.absent) told.push(`not compared with ${round.absent.join(", ")}`);
  if (round.failed > 0) told.push(`${count(round.failed)} keys could not be made equal`);
  for (const { node, keys, why } of round.unrepaired ?? []) {
    told.push(`${node}, ${count(keys)} keys: ${why}`);
  }
  for (const { node, first, last, why } of round.unhealed ?? []) {
    told.push(`${node} cannot read ${first} to ${last ?? "the last key"}: ${why}`);
  }
  const unnamed = round.damaged - round.healed - (round.unhealed ?? []).length;
  if (unnamed > 0) told.push(`${count(unnamed)} more damaged ranges are not healed`);
  return told.join("; ");
}

function judge(repair) {
  const { last } = repair;
  const busy = running(repair);
  if (!last) return ["no round yet", "idle", busy];
  const why = last.equal ? "" : reasons(last);
  const all = [why, busy].filter(Boolean).join(". ");
  return last.equal ? ["equal", "good", all] : ["not equal", "bad", all];
}

export class RepairPanel {
  constructor(host) {
    this.rows = new Map();
    this.body = element("tbody");
    this.none = element("p", "none", "A single node has no replicas to compare with.");
    host.append(table("repair", COLUMNS, this.body), this.none);
  }

  update(history, view) {
    this.none.hidden = history.nodes.size > 1;
    const all = [...history.nodes.values()].filter((node) => node.now !== null);
    const nodes = all.filter((node) => view.names === null || view.names.has(node.name));
    for (const node of nodes) {
      if (!this.rows.has(node.name)) this.rows.set(node.name, row());
      this.fill(this.rows.get(node.name), node);
    }
    const order = nodes.map((node) => this.rows.get(node.name).tr);
    const same = order.length === this.body.children.length
      && order.every((tr, place) => this.body.children[place] === tr);
    if (!same) this.body.replaceChildren(...order);
  }

  fill({ tr, cells, badge, why }, { name, now, lost }) {
    const put = (cell, text) => say(cells.get(cell), text);
    const { status, at_ms: at } = now;
    put("node", name);
    tr.classList.toggle("gone", lost !== null);
    put("purgeable", bytes(status.purgeable_bytes));
    const repair = status.repair;
    if (!repair) {
      say(badge, "–");
      for (const cell of ["full", "last", "keys", "damage"]) put(cell, "–");
      return;
    }
    const [result, mood, reason] = judge(repair);
    say(badge, result);
    badge.className = `badge ${mood}`;
    explain(badge, result, false);
    say(why, reason);
    const ago = (ms) => `${span((at - ms) / 1000)} ago`;
    const proven = repair.proven_ms;
    const known = proven ? `proven up to ${ago(proven)}` : "nothing proven yet";
    put("purgeable", `${bytes(status.purgeable_bytes)}, ${known}`);
    const full = repair.last_full_ms;
    put("full", full ? `${ago(full)}, ${moment(full)}` : "none since the start");
    cells.get("full").classList.toggle("warn", at - (full ?? at) > LATE * 1000);
    const { last } = repair;
    if (!last) {
      for (const cell of ["last", "keys", "damage"]) put(cell, "–");
      return;
    }
    const kind = last.full ? "full" : "incremental";
    const took = last.took_ms ?? 0;
    const time = took < 10_000 ? `${(took / 1000).toFixed(1)} s` : span(took / 1000);
    put("last", `${kind}, ${ago(last.began_ms + took)}, took ${time}`);
    put("keys", `${short(last.differing)} differed, ${short(last.repaired)} repaired`);
    put("damage", `${short(last.damaged)} found, ${short(last.healed)} healed`);
    cells.get("keys").classList.toggle("warn", last.failed > 0);
    cells.get("damage").classList.toggle("warn", last.damaged > last.healed);
  }
}
