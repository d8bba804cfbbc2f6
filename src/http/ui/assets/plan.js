// What a plan of other members would do, before anybody applies it.

import { bytes, count, element } from "./format.js";

function table(name, titles, lines) {
  const heads = titles.map((title) => {
    const head = element("th", "", title);
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

/** How full a node is, in relation to its share. */
function fill(ratio) {
  return ratio === undefined ? "–" : `${ratio.toFixed(3)} × its share`;
}

const atRate = (seconds) => (
  seconds === undefined ? "" : `, in ${count(seconds)} s at least, at this node's --stream-rate`);

/** Shows a plan with what can be done with it. */
export function showPlan(host, plan, { apply, discard }) {
  const nodes = plan.nodes.map(({ name, change, fill_before: before, fill_after: after }) => (
    [name, change, fill(before), fill(after)]));
  const moves = plan.moves.map(({ from, to, copies, bytes: size }) => (
    [from, to, count(copies), `about ${bytes(size)}`]));
  const all = plan.moved_copies === 0 ? "Nothing moves."
    : `In all ${count(plan.moved_copies)} copies of partitions move, `
      + `about ${bytes(plan.moved_bytes)}${atRate(plan.seconds_at_rate)}.`;
  const warnings = (plan.warnings ?? []).map((text) => (
    element("p", "warning", element("span", "badge warn", "warning"), text)));
  const button = (text, type, does) => {
    const made = element("button", "", text);
    made.type = type;
    made.addEventListener("click", does);
    return made;
  };
  const applies = button("Apply", "button", () => {
    applies.disabled = true;
    apply();
  });
  applies.classList.add("strong");
  host.replaceChildren(
    element("h3", "", `Plan for epoch ${plan.base_epoch}`),
    table("planned", ["Node", "Change", "Holds now", "Holds afterwards"], nodes),
    ...(moves.length > 0 ? [table("moves", ["From", "To", "Partitions", "Size"], moves)] : []),
    element("p", "", `${all} Council afterwards: ${plan.council.join(", ")}.`),
    ...warnings,
    element("div", "buttons", applies, button("Discard", "button", discard)),
  );
}
