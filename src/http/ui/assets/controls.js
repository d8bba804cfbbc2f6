// Controls of the view: nodes, time, theme, pause, and their keys.

import { element, say } from "./format.js";

const WINDOWS = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];
const THEMES = ["system", "light", "dark"];

const SHORTCUTS = [
  ["/", "look up a key"], ["0", "show all nodes"], ["1 … 9", "show one node"],
  ["w", "next time range"], ["k", "next kind of request"], ["p", "pause or resume"],
  ["t", "next theme"], ["r", "record a profile"],
  ["← →", "in a plot: move the cursor (with Shift, by 10 s)"],
  ["Esc", "in a plot: hide the cursor"], ["?", "show this help, with the meaning of all terms"],
];

/** A set of radio buttons that look like one control. */
export class Choice {
  constructor(host, name, told) {
    this.host = host;
    this.name = name;
    this.told = told;
    this.inputs = [];
  }

  /** `options`: [value, title]; the current choice is kept if it is still among them. */
  offer(options, chosen) {
    const same = this.inputs.length === options.length
      && options.every(([value], place) => this.inputs[place].value === String(value));
    if (same) return;
    const before = this.value ?? String(chosen);
    const labels = options.map(([value, title]) => {
      const input = element("input");
      Object.assign(input, { type: "radio", name: this.name, value: String(value) });
      input.checked = String(value) === before;
      input.addEventListener("change", () => this.told(input.value));
      return element("label", "", input, element("span", "", title));
    });
    this.inputs = labels.map((label) => label.firstChild);
    this.host.querySelectorAll("label").forEach((label) => label.remove());
    this.host.append(...labels);
  }

  get value() {
    return this.inputs.find((input) => input.checked)?.value;
  }

  choose(place) {
    const input = this.inputs[place];
    if (input === undefined) return;
    input.checked = true;
    this.told(input.value);
  }

  next() {
    const place = this.inputs.findIndex((input) => input.checked);
    this.choose((place + 1) % this.inputs.length);
  }
}

/** Stores a setting, if the browser has storage. */
function remember(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch {
    // Storage is off.
  }
  return null;
}

export class Controls {
  /** `changed()` is called when the view changes, `repaint()` when the colors do. */
  constructor(changed, repaint) {
    const find = (id) => document.getElementById(id);
    this.repaint = repaint;
    this.pause = find("pause");
    this.theme = find("theme");
    this.dialog = find("shortcuts");
    this.nodes = new Choice(find("nodes"), "nodes", changed);
    this.window = new Choice(find("window"), "window", changed);
    this.kinds = new Choice(find("kinds"), "kinds", changed);
    this.window.offer(WINDOWS, 300);
    this.kinds.offer([["all", "all"], ["get", "get"], ["put", "put"], ["delete", "delete"],
      ["add", "add"], ["range", "range"]], "all");
    this.offerNodes([]);
    this.pause.addEventListener("click", () => {
      const paused = this.pause.getAttribute("aria-pressed") !== "true";
      this.pause.setAttribute("aria-pressed", String(paused));
      say(this.pause, paused ? "Resume" : "Pause");
      changed();
    });
    this.setTheme(remember("kvorum-theme") ?? "system");
    this.theme.addEventListener("click", () => {
      const place = THEMES.indexOf(document.documentElement.dataset.theme);
      this.setTheme(THEMES[(place + 1) % THEMES.length]);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    find("help").addEventListener("click", () => this.dialog.showModal());
    const list = find("keys");
    for (const [key, what] of SHORTCUTS) {
      list.append(element("dt", "", element("kbd", "", key)), element("dd", "", what));
    }
    addEventListener("keydown", (event) => this.press(event));
  }

  offerNodes(names) {
    this.nodes.offer([["", "all"], ...names.map((name) => [name, name])], "");
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = THEMES.includes(theme) ? theme : "system";
    say(this.theme, `Theme: ${document.documentElement.dataset.theme}`);
    remember("kvorum-theme", theme);
    this.repaint();
  }

  get paused() {
    return this.pause.getAttribute("aria-pressed") === "true";
  }

  press(event) {
    const typing = event.target.closest("input:not([type=radio], [type=checkbox]), dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      "/": () => document.getElementById("key").focus(),
      w: () => this.window.next(),
      k: () => this.kinds.next(),
      p: () => this.pause.click(),
      t: () => this.theme.click(),
      r: () => document.querySelector("#profile button").focus(),
      "?": () => this.dialog.showModal(),
    }[event.key] ?? (/^[0-9]$/.test(event.key) && (() => this.nodes.choose(Number(event.key))));
    if (!act) return;
    event.preventDefault();
    act();
  }
}
