"use strict";
// Draws flame graphs into every <div class="flame">, from the JSON in its <script>:
//   { "stacks": { "NUMBER": … }, "tabs": [ { "name", "unit", "note", "folded", "counts", "base" } ] }
// "folded", "counts" and "base" are numbers of stacks, which may be in the JSON of another element.
// Stacks are lines "root;frame;frame WEIGHT", compressed with gzip and encoded in base64. "counts"
// has the stacks of "folded" weighted by number of events, or is null. "base" has the stacks of
// another profile, or is null. With "base", the graph shows the difference between both profiles,
// each as shares of its own total. Roots are at the top. The script needs neither network nor
// libraries.
(() => {
  const ROW = 18;
  const PAD = 4;
  const FONT = "12px ui-monospace, monospace";
  const THIN = 0.4;
  const TABLE_ROWS = 200;

  // ---- figures ------------------------------------------------------------------------------

  const scaled = (value, steps) => {
    let [unit, size] = [steps[0][0], steps[0][1]];
    for (const [name, least] of steps) if (value >= least) [unit, size] = [name, least];
    const shown = value / size;
    return `${shown >= 100 || Number.isInteger(shown) ? Math.round(shown) : shown.toPrecision(3)} ${unit}`;
  };
  const UNITS = {
    ns: (v) => scaled(v, [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]]),
    bytes: (v) => scaled(v, [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]),
    count: (v) => Math.round(v).toLocaleString("en"),
  };
  const percent = (share) => `${(100 * share).toFixed(2)} %`;
  const points = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(2)} pp`;

  // ---- the tree -----------------------------------------------------------------------------

  const node = (name, parent) => ({
    name, parent, depth: parent ? parent.depth + 1 : 0, kids: new Map(), value: 0, self: 0, base: 0,
    baseSelf: 0,
  });

  function add(root, folded, value, self) {
    for (const line of folded.split("\n")) {
      const cut = line.lastIndexOf(" ");
      const weight = Number(line.slice(cut + 1));
      if (cut <= 0 || !(weight > 0)) continue;
      let at = root;
      at[value] += weight;
      for (const name of line.slice(0, cut).split(";")) {
        let kid = at.kids.get(name);
        if (!kid) at.kids.set(name, kid = node(name, at));
        kid[value] += weight;
        at = kid;
      }
      at[self] += weight;
    }
  }

  function buildTree(folded, base) {
    const root = node("all", null);
    add(root, folded, "value", "self");
    if (base !== null) add(root, base, "base", "baseSelf");
    return root;
  }

  // The packed lines of all elements, by number.
  const stacks = new Map();

  async function lines(number) {
    if (number === null) return null;
    const bytes = Uint8Array.from(atob(stacks.get(number)), (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).text();
  }

  // Returns the module of a Rust path without generics: the path up to the type or the function.
  function moduleOf(name, level) {
    if (level === "function") return name;
    let path = name.replace(/^\[.*|^(lock|queue|file|idle|held by)[: ].*/, "");
    if (path === "") return name.replace(/:.*/, "");
    path = path.replace(/^[<&*({\s]+(?:mut |dyn |const )?/, "").split(" as ")[0];
    const parts = [];
    let depth = 0;
    for (const part of path.split("::")) {
      const plain = part.replace(/[<({].*/, "");
      if (depth === 0 && plain) parts.push(plain);
      for (const c of part) depth += (c === "<") - (c === ">");
    }
    if (parts.length < 2) return path.includes("::") ? parts[0] || name : "[native]";
    const type = parts.findIndex((part) => /^[A-Z]/.test(part));
    const modules = parts.slice(0, type > 0 ? type : parts.length - 1);
    return level === "crate" ? modules[0] : modules.join("::");
  }

  function hue(text) {
    let hash = 2166136261;
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
    return (hash >>> 0) % 360;
  }

  // ---- one graph ----------------------------------------------------------------------------

  class Graph {
    // In `tab`, lines of stacks replace the numbers of the stacks.
    constructor(pane, tab) {
      this.tab = tab;
      this.isDiff = tab.base !== null;
      this.trees = { weight: () => buildTree(tab.folded, tab.base), count: () => buildTree(tab.counts) };
      this.selectMetric("weight", tab.unit);
      this.buildControls(pane, tab.name);
      this.query = null;
      new ResizeObserver(() => this.draw()).observe(this.canvas);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
      this.show();
    }

    selectMetric(metric, unit) {
      if (typeof this.trees[metric] === "function") this.trees[metric] = this.trees[metric]();
      this.root = this.focus = this.selected = this.trees[metric];
      this.formatValue = UNITS[unit] || UNITS.count;
      this.side = "value";
    }

    buildControls(pane, name) {
      const make = (html) => {
        const holder = document.createElement("template");
        holder.innerHTML = html;
        return pane.appendChild(holder.content.firstElementChild);
      };
      if (this.tab.note) make('<p class="flame-note"></p>').textContent = this.tab.note;
      const bar = make(`<div class="flame-bar"><input type="search" aria-label="Search by regular
        expression" placeholder="Search by regular expression"><output></output>
        <button type="button" data-do="reset">Reset zoom</button></div>`);
      this.input = bar.querySelector("input");
      this.found = bar.querySelector("output");
      if (this.tab.counts !== null) {
        this.metric = this.select(bar, "Weigh by", { weight: this.tab.unit, count: "events" });
        this.metric.onchange = () => {
          this.selectMetric(this.metric.value, this.metric.value === "count" ? "count" : this.tab.unit);
          this.show();
        };
      }
      if (this.isDiff) {
        const sides = this.select(bar, "Widths of", { value: "the second", base: "the first" });
        sides.onchange = () => { this.side = sides.value; this.show(); };
      }
      this.map = make('<div class="flame-map"></div>');
      this.canvas = document.createElement("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", `Flame graph: ${name}. Arrow keys move, Enter zooms, ` +
        "Escape zooms out, slash searches.");
      this.map.append(this.canvas);
      this.info = make('<div class="flame-info" aria-live="polite"></div>');
      // If a page has several graphs, the tables are closed, so that the graphs come first.
      const open = document.querySelectorAll(".flame").length > 1 ? "" : " open";
      const table = make(`<details${open}><summary>Shares by module</summary></details>`);
      this.level = this.select(table, "By", {
        module: "module", crate: "crate", function: "function" });
      this.level.onchange = () => this.tabulate();
      this.order = "total";
      this.table = table.appendChild(document.createElement("table"));
      this.listen(bar);
    }

    select(into, label, options) {
      const made = document.createElement("label");
      made.append(`${label} `);
      const list = made.appendChild(document.createElement("select"));
      for (const [value, text] of Object.entries(options)) list.add(new Option(text, value));
      into.append(made);
      return list;
    }

    listen(bar) {
      const at = (event) => {
        const box = this.canvas.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        return this.boxes.find((b) => y >= b.y && y < b.y + ROW && x >= b.x && x < b.x + b.w);
      };
      this.canvas.onmousemove = (event) => this.showInfo((at(event) || { of: this.selected }).of);
      this.canvas.onmouseleave = () => this.showInfo(this.selected);
      this.canvas.onclick = (event) => { const box = at(event); if (box) this.zoom(box.of); };
      this.canvas.onkeydown = (event) => this.key(event);
      this.input.oninput = () => this.search(this.input.value);
      this.input.onkeydown = (event) => {
        if (event.key === "Escape") { this.input.value = ""; this.search(""); this.canvas.focus(); }
      };
      bar.querySelector("[data-do=reset]").onclick = () => this.zoom(this.root);
    }

    key(event) {
      const go = {
        ArrowUp: () => this.selected.parent,
        ArrowDown: () => this.sorted(this.selected)
          .reduce((a, b) => (!a || this.width(b) > this.width(a) ? b : a), null),
        ArrowLeft: () => this.beside(-1),
        ArrowRight: () => this.beside(1),
      }[event.key];
      if (go) {
        const next = go();
        if (next && (this.width(next) > 0)) this.selected = next;
        this.draw();
        this.showInfo(this.selected);
        const top = this.selected.depth * ROW;
        if (top < this.map.scrollTop || top + ROW > this.map.scrollTop + this.map.clientHeight) {
          this.map.scrollTop = top - this.map.clientHeight / 2;
        }
      } else if (event.key === "Enter") this.zoom(this.selected);
      else if (event.key === "Escape") this.zoom(this.root);
      else if (event.key === "/") this.input.focus();
      else return;
      event.preventDefault();
    }

    beside(step) {
      const { parent } = this.selected;
      if (!parent) return null;
      const kids = this.sorted(parent);
      return kids[kids.indexOf(this.selected) + step];
    }

    width(of) { return of[this.side]; }

    sorted(of) {
      of.order ||= [...of.kids.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
      return of.order.filter((kid) => this.width(kid) > 0);
    }

    zoom(to) {
      this.focus = this.selected = to;
      this.draw();
      this.showInfo(to);
    }

    show() {
      this.search(this.input.value);
      this.showInfo(this.selected);
      this.tabulate();
    }

    search(text) {
      this.query = null;
      this.input.classList.remove("flame-wrong");
      this.found.textContent = "";
      if (text) {
        try {
          this.query = new RegExp(text, "i");
        } catch (error) {
          this.input.classList.add("flame-wrong");
          this.found.textContent = error.message;
        }
      }
      if (this.query) {
        const total = this.width(this.root);
        const matched = this.matched(this.root);
        this.found.textContent = `${percent(total ? matched / total : 0)} matched, ` +
          `${this.formatValue(matched)} of ${this.formatValue(total)}`;
      }
      this.draw();
    }

    // Each stack counts once, however many of its frames match.
    matched(of) {
      if (of !== this.root && this.query.test(of.name)) return this.width(of);
      let sum = 0;
      for (const kid of of.kids.values()) sum += this.matched(kid);
      return sum;
    }

    shares(of) {
      const share = this.root.value ? of.value / this.root.value : 0;
      return [share, this.root.base ? of.base / this.root.base : 0];
    }

    showInfo(of) {
      const [share, before] = this.shares(of);
      const self = this.root.value ? of.self / this.root.value : 0;
      const text = this.isDiff
        ? `${percent(before)} → ${percent(share)} (${points(share - before)})`
        : `${this.formatValue(of.value)}, ${percent(share)}; itself ${percent(self)}`;
      this.info.textContent = `${of.name}\n${text}`;
      this.info.style.whiteSpace = "pre-line";
    }

    colours(of) {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      if (this.isDiff) {
        const [share, before] = this.shares(of);
        const change = Math.max(-1, Math.min(1, (share - before) * 8));
        const light = dark ? 26 + 20 * Math.abs(change) : 92 - 36 * Math.abs(change);
        return `hsl(${change > 0 ? 5 : 215} ${Math.abs(change) < 0.005 ? 0 : 75}% ${light}%)`;
      }
      return `hsl(${hue(moduleOf(of.name, "crate"))} ${dark ? 40 : 60}% ${dark ? 34 : 78}%)`;
    }

    draw() {
      const width = this.canvas.clientWidth;
      if (!width) return;
      this.boxes = [];
      const focus = this.width(this.focus) || 1;
      const above = new Set();
      for (let at = this.focus; at; at = at.parent) above.add(at);
      const place = (of, x) => {
        const w = above.has(of) ? width : width * (this.width(of) / focus);
        if (w < THIN) return;
        this.boxes.push({ of, x, y: of.depth * ROW, w });
        const next = this.sorted(of).find((kid) => above.has(kid));
        if (next) return place(next, 0);
        let left = x;
        for (const kid of this.sorted(of)) {
          place(kid, left);
          left += width * (this.width(kid) / focus);
        }
      };
      place(this.root, 0);
      const deepest = this.boxes.reduce((most, box) => Math.max(most, box.of.depth), 0);
      const ratio = devicePixelRatio || 1;
      const height = (deepest + 1) * ROW;
      this.canvas.style.height = `${height}px`;
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      const pen = this.canvas.getContext("2d");
      pen.scale(ratio, ratio);
      this.paint(pen, above);
      this.canvas.dataset.boxes = this.boxes.length;
    }

    paint(pen, above) {
      const style = getComputedStyle(this.canvas.closest(".flame"));
      const ink = style.getPropertyValue("--ink");
      const hit = style.getPropertyValue("--hit");
      pen.font = FONT;
      pen.textBaseline = "middle";
      const letter = pen.measureText("m").width;
      for (const { of, x, y, w } of this.boxes) {
        pen.globalAlpha = above.has(of) && of !== this.focus ? 0.55 : 1;
        pen.fillStyle = this.query && of !== this.root && this.query.test(of.name)
          ? hit : of === this.root ? style.getPropertyValue("--panel") : this.colours(of);
        pen.fillRect(x, y, Math.max(w - (w > 3 ? 1 : 0), THIN), ROW - 1);
        const room = Math.floor((w - 2 * PAD) / letter);
        if (room >= 3) {
          pen.fillStyle = ink;
          const text = of.name.length <= room ? of.name : `${of.name.slice(0, room - 1)}…`;
          pen.fillText(text, x + PAD, y + ROW / 2);
        }
        if (of === this.selected) {
          pen.strokeStyle = ink;
          pen.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1, 1), ROW - 2);
        }
      }
      pen.globalAlpha = 1;
      if (!this.width(this.root)) {
        pen.fillStyle = ink;
        pen.fillText("nothing was recorded", PAD + 60, ROW / 2);
      }
    }

    // ---- the table ----------------------------------------------------------------------------

    tabulate() {
      const rows = new Map();
      const level = this.level.value;
      const row = (key) => {
        let found = rows.get(key);
        if (!found) rows.set(key, found = { key, total: 0, self: 0, base: 0, change: 0 });
        return found;
      };
      const visit = (of, seen) => {
        const key = moduleOf(of.name, level);
        const mine = row(key);
        const first = !seen.has(key);
        if (first) {
          seen.add(key);
          mine.total += of.value;
          mine.base += of.base;
        }
        mine.self += of.self;
        for (const kid of of.kids.values()) visit(kid, seen);
        if (first) seen.delete(key);
      };
      // The threads, which are the first row of the graph, belong to no module.
      for (const thread of this.root.kids.values()) {
        for (const kid of thread.kids.values()) visit(kid, new Set());
      }
      const [all, base] = [this.root.value || 1, this.root.base || 1];
      const list = [...rows.values()];
      for (const one of list) one.change = one.total / all - one.base / base;
      const size = (one) => Math.abs(one[this.order]);
      list.sort((a, b) => size(b) - size(a) || (a.key < b.key ? -1 : 1));
      this.write(list.slice(0, TABLE_ROWS), all, base);
    }

    write(list, all, base) {
      const columns = this.isDiff
        ? [["base", "First"], ["total", "Second"], ["change", "Change"]]
        : [["total", "Total"], ["self", "Self"]];
      this.table.replaceChildren();
      const head = this.table.createTHead().insertRow();
      head.appendChild(document.createElement("th")).textContent = "Name";
      for (const [key, title] of columns) {
        const cell = head.appendChild(document.createElement("th"));
        cell.ariaSort = this.order === key ? "descending" : "none";
        const button = cell.appendChild(document.createElement("button"));
        button.type = "button";
        button.textContent = title + (this.order === key ? " ▾" : "");
        button.onclick = () => { this.order = key; this.tabulate(); };
      }
      const body = this.table.createTBody();
      for (const one of list) {
        const row = body.insertRow();
        row.insertCell().textContent = one.key;
        for (const [key] of columns) {
          row.insertCell().textContent = key === "change" ? points(one.change)
            : percent(one[key] / (key === "base" ? base : all));
        }
      }
    }
  }

  // ---- tabs ---------------------------------------------------------------------------------

  let panes = 0;

  async function draw(pane, tab) {
    try {
      const numbers = [tab.folded, tab.counts, tab.base];
      const [folded, counts, base] = await Promise.all(numbers.map(lines));
      new Graph(pane, { ...tab, folded, counts, base });
    } catch (error) {
      pane.textContent = `This graph could not be unpacked: ${error.message}`;
    }
  }

  function mount(place, tabs) {
    const list = document.createElement("div");
    list.className = "flame-tabs";
    list.setAttribute("role", "tablist");
    place.append(list);
    const drawn = new Set();
    const open = (chosen) => {
      for (const [button, pane, tab] of all) {
        button.ariaSelected = String(button === chosen);
        button.tabIndex = button === chosen ? 0 : -1;
        pane.hidden = button !== chosen;
        if (button !== chosen || drawn.has(pane)) continue;
        drawn.add(pane);
        draw(pane, tab);
      }
    };
    const all = tabs.map((tab) => {
      const [button, pane] = [document.createElement("button"), document.createElement("div")];
      pane.id = `flame-pane-${panes++}`;
      pane.setAttribute("role", "tabpanel");
      button.type = "button";
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", pane.id);
      button.textContent = tab.name;
      button.onclick = () => open(button);
      list.append(button);
      place.append(pane);
      return [button, pane, tab];
    });
    list.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const at = all.findIndex(([button]) => button === document.activeElement);
      const [next] = all[(at + step + all.length) % all.length];
      open(next);
      next.focus();
    };
    list.hidden = tabs.length < 2;
    if (all.length) open(all[0][0]);
  }

  function mountAll() {
    const places = [...document.querySelectorAll(".flame")].map((place) => (
      [place, JSON.parse(place.querySelector("script").textContent)]));
    for (const [, data] of places) {
      for (const [number, packed] of Object.entries(data.stacks)) stacks.set(Number(number), packed);
    }
    for (const [place, { tabs }] of places) mount(place, tabs);
  }

  if (document.readyState === "loading") addEventListener("DOMContentLoaded", mountAll);
  else mountAll();
})();
