// The effects of a plan, shown before it is applied.

import { confirm } from "./confirm.js";
import { bytes, count, element } from "./format.js";
import { explain } from "./terms.js";

/** Commands in the node's texts, and the controls of this page that replace them. */
const HERE = [
  ["remove it with --remove-dead in this plan", "choose “is lost with its disk” for it, and press Plan again"],
  ["plan fewer replicas with the same command", "lower “Copies of a key”, and press Plan again"],
  ["(change in /admin/layout)", "(it is shown above)"],
  ["wait for its end, or abort it, before the next one is planned",
    "wait for its end, or press “Abort the change”, before the next one is planned"],
];

/** Replaces the commands in a node's text by the controls of this page. */
export function onThisPage(text) {
  return HERE.reduce((told, [command, control]) => told.replaceAll(command, control), text);
}

function table(name, titles, lines) {
  const heads = titles.map((title) => {
    const head = element("th", "", explain(element("span", "", title), title));
    head.scope = "col";
    return head;
  });
  const rows = lines.map(([first, ...rest]) => {
    const head = element("th", "", first);
    head.scope = "row";
    const cells = rest.map((text, place) => {
      const cell = element("td", "", text);
      cell.dataset.label = titles[place + 1];
      return cell;
    });
    return element("tr", "", head, ...cells);
  });
  const made = element("table", name, element("thead", "", element("tr", "", ...heads)),
    element("tbody", "", ...rows));
  return made;
}

/** Formats how full a node is, relative to its share. */
function fill(ratio) {
  return ratio === undefined ? "–" : `${ratio.toFixed(3)} × its share`;
}

const atRate = (seconds) => (
  seconds === undefined ? "" : `, in ${count(seconds)} s at least, at this node's --stream-rate`);

/**
 * Returns the name to type before a plan is applied: that of the one node that joins or leaves, or
 * of this node.
 */
function nameOf(plan, layout) {
  const moved = plan.nodes.filter(({ change }) => change !== "stays");
  return moved.length === 1 ? moved[0].name : layout.node;
}

/** Describes a plan's effects in a sentence. */
function summary(plan) {
  const of = (wanted) => plan.nodes.filter(({ change }) => change === wanted)
    .map(({ name }) => name);
  const told = [["joins", of("joins")], ["leaves", of("leaves")]]
    .flatMap(([word, names]) => names.map((name) => `${name} ${word}`));
  return told.length > 0 ? `${told.join(", ")}.` : "Weights or copies change.";
}

function button(text, does) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", does);
  return made;
}

/** Shows a plan and its actions. `apply` resolves to true if the plan was applied. */
export function showPlan(host, plan, layout, { apply, discard }) {
  const nodes = plan.nodes.map(({ name, change, fill_before: before, fill_after: after }) => (
    [name, change, fill(before), fill(after)]));
  const moves = plan.moves.map(({ from, to, copies, bytes: size }) => (
    [from, to, count(copies), `about ${bytes(size)}`]));
  const all = plan.moved_copies === 0 ? "Nothing moves."
    : `In all ${count(plan.moved_copies)} copies of partitions move, `
      + `about ${bytes(plan.moved_bytes)}${atRate(plan.seconds_at_rate)}.`;
  const told = (plan.warnings ?? []).map(onThisPage);
  const warnings = told.map((text) => (
    element("p", "warning", element("span", "badge warn", "warning"), text)));
  const applies = button("Apply …", async () => {
    const sure = await confirm([summary(plan), all, ...told], nameOf(plan, layout));
    if (!sure) return applies.focus();
    applies.disabled = true;
    applies.disabled = await apply();
  });
  applies.classList.add("strong");
  host.replaceChildren(
    element("h3", "", `Plan for epoch ${plan.base_epoch}`),
    table("planned", ["Node", "Change", "Holds now", "Holds afterwards"], nodes),
    ...(moves.length > 0 ? [table("moves", ["From", "To", "Partitions", "Size"], moves)] : []),
    element("p", "", `${all} Council afterwards: ${plan.council.join(", ")}.`),
    ...warnings,
    element("div", "buttons", applies, button("Discard", discard)),
  );
}
