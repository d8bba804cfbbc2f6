// The base of all plots over time: a canvas as sharp as the screen, an axis of seconds, a cursor
// that all plots share, and a legend with the values under it.
//
//   ┌────────────────────────────┐
//   │ legend: ■ get 1.2 k ■ put …│  values at the cursor, else the newest
//   │ y ┆                        │
//   │   ┆        canvas          │  ← → move the cursor, Escape takes it away
//   │   └─ 12:00:00 ── 12:00:30 ─│
//   └────────────────────────────┘

import { clock, element, say, trimmed } from "./format.js";
import { explain } from "./terms.js";

const LEFT = 54;
const RIGHT = 8;
const TOP = 6;
const BOTTOM = 20;

/** Steps between labels of the time axis, in seconds, and the minimum width for one, in pixels. */
const STEPS = [5, 10, 15, 30, 60, 120, 300];
const LABEL_ROOM = 76;

/** Height of the hatching where only some nodes lack data, in pixels. */
const HATCHED = 17;

/** Returns a color of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The second that all plots point at; null = none. */
export class Cursor {
  constructor() {
    this.slot = null;
    this.plots = [];
  }

  set(slot) {
    if (slot === this.slot) return;
    this.slot = slot;
    for (const plot of this.plots) plot.redraw();
  }
}

/** Returns round numbers from 0 to `most` or a little more, at most `parts` of them. */
export function ticks(most, parts) {
  if (!(most > 0)) return [0, 1];
  const rough = most / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((by) => by * power).find((by) => by >= rough);
  const made = [];
  for (let place = 0; made.length === 0 || made[made.length - 1] < most; place += 1) {
    made.push(place * step);
  }
  return made;
}

/** A plot; subclasses define `range()`, `paint(pen, area)` and `readings(place)`. */
export class Plot {
  /** `keys`: the entries of the legend, as {name, colour, dash}. */
  constructor(host, cursor, { label, height, keys }) {
    this.cursor = cursor;
    this.label = label;
    this.view = null;
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.style.height = height + "px";
    this.time = element("span", "time");
    this.lack = element("span", "lack");
    this.legend = element("figcaption", "legend", this.time, this.lack);
    this.values = new Map();
    this.setKeys(keys);
    host.append(element("figure", "plot", this.legend, this.canvas));
    cursor.plots.push(this);
    this.listen();
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  /** Replaces the entries of the legend. */
  setKeys(keys) {
    const names = keys.map((key) => key.name).join("\n");
    if (names === this.names) return;
    this.names = names;
    this.keys = keys;
    this.values.clear();
    this.legend.replaceChildren(this.time, this.lack);
    for (const key of keys) {
      const mark = element("i", "mark " + (key.dash ?? ""));
      mark.style.setProperty("--mark", `var(--${key.colour})`);
      const value = element("b");
      this.values.set(key.name, value);
      const name = explain(element("span", "", key.name), key.name);
      this.legend.append(element("span", "key", mark, name, " ", value));
    }
  }

  listen() {
    const { canvas, cursor } = this;
    canvas.addEventListener("pointermove", (event) => {
      if (this.view === null) return;
      const box = canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      const place = Math.floor(share * this.view.seconds);
      const inside = place >= 0 && place < this.view.seconds;
      cursor.set(inside ? this.view.end - this.view.seconds + 1 + place : null);
    });
    canvas.addEventListener("pointerleave", () => cursor.set(null));
    canvas.addEventListener("blur", () => cursor.set(null));
    canvas.addEventListener("keydown", (event) => {
      if (this.view === null) return;
      const { end, seconds } = this.view;
      const from = cursor.slot ?? end;
      const step = event.shiftKey ? 10 : 1;
      const to = {
        ArrowLeft: from - step, ArrowRight: from + step, Home: end - seconds + 1, End: end,
        Escape: null,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      cursor.set(to === null ? null : Math.min(end, Math.max(end - seconds + 1, to)));
    });
  }

  /** Requests a new picture, at most one for each frame of the screen. */
  redraw() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = undefined;
      this.draw();
    });
  }

  draw() {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (this.view === null || width === 0) return;
    const scale = devicePixelRatio;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const area = { x: LEFT, y: TOP, w: width - LEFT - RIGHT, h: height - TOP - BOTTOM };
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    this.paint(pen, area);
    this.paintGaps(pen, area);
    this.paintTime(pen, area);
    this.read();
  }

  /** Returns the left edge of a position in the series. */
  x(area, place) {
    return area.x + (place / this.view.seconds) * area.w;
  }

  paintTime(pen, area) {
    const { end, seconds } = this.view;
    const first = end - seconds + 1;
    const least = (LABEL_ROOM / area.w) * seconds;
    const step = STEPS.find((by) => by >= least) ?? STEPS[STEPS.length - 1];
    pen.fillStyle = colour("faint");
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (let slot = Math.ceil(first / step) * step; slot <= end; slot += step) {
      const x = this.x(area, slot - first);
      if (x < area.x + 20 || x > area.x + area.w - 24) continue;
      pen.fillText(clock(slot * 1000), x, area.y + area.h + 6);
      pen.fillRect(Math.round(x), area.y + area.h, 1, 3);
    }
    if (this.cursor.slot !== null && this.cursor.slot >= first && this.cursor.slot <= end) {
      pen.fillStyle = colour("cursor");
      pen.fillRect(Math.round(this.x(area, this.cursor.slot - first + 0.5)), area.y, 1, area.h);
    }
  }

  /** Returns the gap that contains a second. */
  gap(slot) {
    return (this.view.gaps ?? []).find(({ from, to }) => from <= slot && slot <= to);
  }

  /** Hatches the seconds in which some nodes lack data, and names the nodes. */
  paintGaps(pen, area) {
    const first = this.view.end - this.view.seconds + 1;
    for (const { from, to, isAll, text } of this.view.gaps ?? []) {
      const [left, right] = [this.x(area, from - first), this.x(area, to + 1 - first)];
      pen.save();
      pen.beginPath();
      // Only some nodes: the others' values stay visible.
      pen.rect(left, area.y, right - left, isAll ? area.h : Math.min(area.h, HATCHED));
      pen.clip();
      pen.strokeStyle = colour("faint");
      pen.globalAlpha = 0.35;
      pen.lineWidth = 1;
      pen.beginPath();
      for (let x = left - area.h; x < right; x += 6) {
        pen.moveTo(x, area.y + area.h);
        pen.lineTo(x + area.h, area.y);
      }
      pen.stroke();
      pen.restore();
      this.paintLabel(pen, text, left, right, area);
    }
  }

  /** Draws a text at the top of the plot, between these edges if it fits. */
  paintLabel(pen, text, left, right, area) {
    const { width } = pen.measureText(text);
    if (width + 8 > right - left) return;
    const x = (left + right) / 2;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    pen.fillStyle = colour("panel");
    pen.fillRect(x - width / 2 - 4, area.y, width + 8, 15);
    pen.fillStyle = colour("soft");
    pen.fillText(text, x, area.y + 2);
  }

  /** Draws horizontal lines with their values, below everything else. */
  paintGrid(pen, area, values, y, name) {
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of values) {
      const at = Math.round(y(value));
      pen.fillStyle = colour("grid");
      pen.fillRect(area.x, at, area.w, 1);
      pen.fillStyle = colour("faint");
      pen.fillText(trimmed(name(value)), area.x - 6, at);
    }
  }

  /** Shows the values under the cursor, or else the newest, in the legend. */
  read() {
    const { end, seconds } = this.view;
    const slot = this.cursor.slot ?? end;
    const place = slot - (end - seconds + 1);
    const readings = this.readings(place);
    say(this.time, clock(slot * 1000));
    const lack = this.gap(slot)?.text ?? "";
    say(this.lack, lack);
    const told = lack ? [lack] : [];
    for (const [name, value] of this.values) {
      const text = readings.get(name) ?? "–";
      say(value, text);
      told.push(`${name} ${text}`);
    }
    this.canvas.setAttribute("aria-label", `${this.label} at ${clock(slot * 1000)}: `
      + told.join(", "));
  }
}
