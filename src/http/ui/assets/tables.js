// Tables whose rows are kept while their cells change.

import { element } from "./format.js";
import { explain } from "./terms.js";

/**
 * Creates a table with these columns, each a name, a title, and the term that explains it if that
 * differs.
 */
export function table(className, columns, body) {
  const heads = columns.map(([name, title, term = title]) => {
    const head = element("th", name, explain(element("span", "", title), term));
    head.scope = "col";
    return head;
  });
  return element("table", className, element("thead", "", element("tr", "", ...heads)), body);
}

/**
 * Creates a row of such a table, and its cells by column; the cell of the node is the row's head.
 */
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
