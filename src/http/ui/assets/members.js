// The members of the cluster and its layout: the members, the nodes that ask to join, the progress
// of moving keys. Changes are planned in the same table, and applied from the view of `plan.js`.
//
//   /admin/layout, once a second ─▶ rows, progress ─▶ a choice for each row ─▶ plan

import { bytes, element, percent, say, short } from "./format.js";
import { onThisPage, showPlan } from "./plan.js";
import { allow, ask, close, onLogin, refusal } from "./session.js";
import { table, tableRow } from "./tables.js";
import { explain } from "./terms.js";

const COLUMNS = [
  ["node", "Node"], ["role", "State"], ["zone", "Zone"], ["weight", "Weight"],
  ["share", "Share"], ["epoch", "Epoch"], ["change", "Change"],
];

/** Possible changes of a member, and of a node that asks to join: the parameter, in words. */
const CHOICES = {
  member: [["", "stays"], ["remove", "leaves"], ["remove_dead", "is lost with its disk"]],
  joiner: [["", "waits"], ["add", "joins"]],
};

/** The condition for which each stage of a change waits. */
const STAGES = {
  prepare: "Waiting until all nodes are up and have dropped what earlier changes left.",
  "read old": "Keys move; waiting until all nodes hold what moves to them. Writes go to the previous and to the new replicas.",
  "read new": "Reads use the new replicas; waiting for a majority of the previous members to confirm.",
};

/** Interval of requests for the layout, in milliseconds. */
const PERIOD = 1000;

/** The progress of a change, in words. */
const PROGRESS = {
  asking: "The council is asked.",
  overtaken: "Another change was decided before: plan again.",
  given_up: "No majority of the council answered; the change may be decided all the same.",
};

function row(kind, name) {
  const { tr, cells } = tableRow(COLUMNS);
  const choice = element("select");
  choice.setAttribute("aria-label", `Change of ${name}`);
  for (const [value, text] of CHOICES[kind]) {
    const option = element("option", "", text);
    option.value = value;
    choice.append(option);
  }
  cells.get("change").append(choice);
  const weight = element("input");
  if (kind === "member") {
    Object.assign(weight, { type: "number", min: 1, max: 1000, required: true });
    weight.setAttribute("aria-label", `Weight of ${name}`);
    cells.get("weight").append(weight);
  }
  const [badge, seat] = [element("span", "badge"), element("span", "badge seat")];
  explain(seat, "council", false);
  cells.get("role").append(element("span", "", badge, seat));
  return { kind, tr, cells, choice, weight, badge, seat };
}

/** A bar for each node that pulls keys from others. */
class Moves {
  constructor(host) {
    this.host = host;
    this.bars = new Map();
  }

  update({ stage, moves = [] }) {
    const taking = stage === "settled" ? [] : moves.filter((told) => told.of_sources > 0);
    for (const name of this.bars.keys()) {
      if (!taking.some((told) => told.node === name)) this.bars.delete(name);
    }
    for (const told of taking) {
      if (!this.bars.has(told.node)) {
        const meter = element("meter");
        meter.setAttribute("aria-label", `${told.node} has taken`);
        const value = element("span", "value");
        const line = element("li", "", element("span", "", told.node), meter, value);
        this.bars.set(told.node, { line, meter, value });
      }
      const { meter, value } = this.bars.get(told.node);
      meter.max = told.of_sources;
      meter.value = told.sources;
      say(value, told.has_all ? `all, ${bytes(told.bytes)}`
        : `${bytes(told.bytes)}, ${told.sources} of ${told.of_sources} nodes`);
    }
    const lines = [...this.bars.values()].map(({ line }) => line);
    const same = lines.length === this.host.children.length
      && lines.every((line, place) => this.host.children[place] === line);
    if (!same) this.host.replaceChildren(...lines);
  }
}

export class MembersPanel {
  constructor() {
    const find = (id) => document.getElementById(id);
    this.form = find("change");
    this.told = find("layout");
    this.said = find("changing");
    this.abort = find("abort");
    this.planned = find("planned");
    this.moves = new Moves(find("moving"));
    this.rows = new Map();
    this.layout = null;
    /** The plan that is shown. */
    this.shown = null;
    /** The change that this page has requested, and its epoch. */
    this.asked = null;
    this.busy = false;
    this.refused = false;
    this.body = element("tbody");
    find("members").append(table("members", COLUMNS, this.body));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.plan();
    });
    this.abort.addEventListener("click", () => this.goBack());
    // A new token may permit what was refused.
    onLogin(() => {
      this.refused = false;
      this.look();
    });
    setInterval(() => this.look(), PERIOD);
    this.look();
  }

  /** Takes the nodes' history, which is sent only to tokens that permit metrics. */
  update(history) {
    this.heard = history.nodes;
    if (this.layout) this.fill(this.layout);
  }

  ask(method, target) {
    return ask(`/admin/layout${target}`, { method });
  }

  async look() {
    // While the node that serves the page is away it can't be asked.
    const isAway = Boolean(this.heard?.get(this.layout?.node)?.lost);
    if (this.busy || this.refused || isAway || document.hidden) return;
    this.busy = true;
    try {
      const answer = await this.ask("GET", "");
      if (answer.ok) {
        allow("admin");
        this.layout = await answer.json();
        this.fill(this.layout);
      } else if (answer.status === 401 || answer.status === 403) {
        this.refused = true;
        await close("admin", answer);
      } else {
        say(this.told, await refusal("admin", answer));
      }
    } catch {
      // The page reports the missing connection; the last data stay.
    } finally {
      this.busy = false;
    }
  }

  fill(layout) {
    const { epoch, stage, replicas, council, nodes, joining = [] } = layout;
    const copies = `${replicas} ${replicas === 1 ? "copy" : "copies"} of a key`;
    this.forget(layout);
    const isOurs = this.asked !== null && layout.change?.plan === this.asked.plan;
    const change = isOurs || layout.change?.progress === "asking"
      ? PROGRESS[layout.change?.progress] ?? "" : "";
    const far = layout.has_vote || stage === "settled" ? ""
      : "How far each node is, is shown by the dashboards of the council's nodes.";
    say(this.told, `Epoch ${epoch}, ${stage}: ${copies}, council ${council.join(", ")}. `
      + [STAGES[stage], far, change].filter(Boolean).join(" "));
    const field = this.form.elements.replicas;
    if (field.dataset.now !== String(replicas)) {
      field.value = replicas;
      field.dataset.now = replicas;
    }
    const total = nodes.reduce((sum, { weight }) => sum + weight, 0);
    const shown = new Set();
    for (const node of nodes) {
      shown.add(`member ${node.name}`);
      this.fillMember(this.row("member", node.name), node, layout, node.weight / total);
    }
    for (const node of joining) {
      shown.add(`joiner ${node.name}`);
      this.fillJoiner(this.row("joiner", node.name), node);
    }
    for (const key of this.rows.keys()) if (!shown.has(key)) this.rows.delete(key);
    const order = [...shown].map((key) => this.rows.get(key).tr);
    const same = order.length === this.body.children.length
      && order.every((tr, place) => this.body.children[place] === tr);
    if (!same) this.body.replaceChildren(...order);
    this.abort.hidden = stage !== "prepare" && stage !== "read old";
    this.moves.update(layout);
  }

  /** Removes the report of a settled change, and a plan that can't be applied. */
  forget({ epoch, stage }) {
    if (this.asked !== null && stage === "settled" && epoch > this.asked.epoch) {
      this.asked = null;
      this.tell("");
    }
    if (this.shown !== null && epoch > this.shown.base_epoch) {
      this.discard();
      this.tell(`The plan was for epoch ${epoch - 1} or before: press Plan again.`);
    }
  }

  /** Removes the plan that is shown. */
  discard() {
    this.shown = null;
    this.planned.replaceChildren();
  }

  row(kind, name) {
    const key = `${kind} ${name}`;
    if (!this.rows.has(key)) this.rows.set(key, row(kind, name));
    return this.rows.get(key);
  }

  fillMember({ cells, weight, badge, seat }, node, { epoch, council }, share) {
    say(cells.get("node"), node.name);
    const seen = this.heard?.get(node.name);
    const up = seen !== undefined && seen.now !== null && seen.lost === null;
    const isUnknown = seen?.isUnknown ?? false;
    const isAway = this.heard !== undefined && !up && !isUnknown;
    say(badge, isUnknown ? "member, unknown" : isAway ? "member, not reached" : "member");
    explain(badge, badge.textContent, false);
    badge.className = `badge ${up ? "good" : isAway ? "bad" : "idle"}`;
    const isSeated = council.includes(node.name);
    say(seat, isSeated ? "council" : "");
    seat.hidden = !isSeated;
    say(cells.get("zone"), node.zone ?? "–");
    if (weight.dataset.now !== String(node.weight)) {
      weight.value = node.weight;
      weight.dataset.now = node.weight;
    }
    say(cells.get("share"), percent(share));
    const at = up ? seen.now.status.epoch : undefined;
    say(cells.get("epoch"), at ?? "–");
    cells.get("epoch").classList.toggle("warn", at !== undefined && at !== epoch);
  }

  fillJoiner({ cells, badge, seat }, node) {
    say(cells.get("node"), node.name);
    say(badge, "asks to join");
    explain(badge, "asks to join", false);
    badge.className = "badge warn";
    seat.hidden = true;
    say(cells.get("zone"), node.zone ?? "–");
    say(cells.get("weight"), short(node.weight));
    say(cells.get("share"), "–");
    say(cells.get("epoch"), "–");
  }

  fail(text) {
    this.said.className = "error";
    say(this.said, text);
  }

  tell(text) {
    this.said.className = "";
    say(this.said, text);
  }

  /** Returns the choices in the table as the parameters of a plan. */
  query() {
    const wanted = new Map();
    const add = (name, value) => wanted.set(name, [...(wanted.get(name) ?? []), value]);
    for (const [key, { kind, choice, weight }] of this.rows) {
      const name = key.slice(key.indexOf(" ") + 1);
      if (choice.value) add(choice.value, name);
      const leaves = choice.value.startsWith("remove");
      if (kind === "member" && !leaves && weight.value !== weight.dataset.now) {
        add("weight", `${name}=${weight.value}`);
      }
    }
    const { value, dataset } = this.form.elements.replicas;
    if (value !== dataset.now) add("replicas", value);
    return [...wanted].map(([name, values]) => `${name}=${encodeURIComponent(values.join(","))}`)
      .join("&");
  }

  /** Sends a request that changes the shown state; returns the answer, unless it was refused. */
  async change(target, told) {
    this.tell(told);
    try {
      const answer = await this.ask("POST", target);
      if (answer.ok) return await answer.json();
      this.fail(onThisPage(await refusal("admin", answer)));
    } catch (error) {
      this.fail(`Cannot reach the node: ${error.message}`);
    }
    return null;
  }

  async plan() {
    this.discard();
    const plan = await this.change(`/plan?${this.query()}`, "planning …");
    if (plan === null) return;
    this.shown = plan;
    this.tell("Nothing is changed before the plan is applied.");
    showPlan(this.planned, plan, this.layout, {
      apply: () => this.apply(plan.plan),
      discard: () => {
        this.discard();
        this.tell("");
        this.form.querySelector("button").focus();
      },
    });
  }

  async apply(id) {
    const epoch = this.layout?.epoch ?? 0;
    const layout = await this.change(`/apply?plan=${id}`, "asking the council …");
    if (layout === null) return false;
    this.discard();
    this.asked = { plan: id, epoch };
    this.tell("The council is asked to decide the change.");
    for (const { choice } of this.rows.values()) choice.value = "";
    this.fill(layout);
    this.form.querySelector("button").focus();
    return true;
  }

  async goBack() {
    const layout = await this.change("/abort", "asking the council …");
    if (layout === null) return;
    this.asked = { plan: null, epoch: layout.epoch };
    this.tell("The council is asked to go back to the previous members.");
  }
}
