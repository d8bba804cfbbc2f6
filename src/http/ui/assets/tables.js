// Tables whose rows are kept while their cells change.

import { element } from "./format.js";
import { explain } from "./terms.js";

/** A table of these columns, each a name, a title and the term that explains it if that is another. */
export function table(className, columns, body) {
  const heads = columns.map(([name, title, term = title]) => {
    const head = element("th", name, explain(element("span", "", title), term));
    head.scope = "col";
    return head;
  });
  return element("table", className, element("thead", "", element("tr", "", ...heads)), body);
}

/** A row of such a table, and its cells by column; the one of its node is its head. */
export function tableRow(columns) {
  const cells = new Map();
  const tr = element("tr");
  for (const [name, title, term = title] of columns) {
    const cell = element(name === "node" ? "th" : "td", name);
    if (name === "node") cell.scope = "row";
    cell.dataset.label = title;
    explain(cell, term, false);
    cells.set(name, cell);
    tr.append(cell);
  }
  return { tr, cells };
}
