// Line plots of series over time.

import { short } from "./format.js";
import { Plot, colour, ticks } from "./plot.js";

const DASHES = { dashed: [5, 3], dotted: [1.5, 2.5] };

/** Draws a path along `values`, with gaps where data are missing; `y` maps a value. */
export function trace(pen, values, x, y) {
  pen.beginPath();
  let begun = false;
  values.forEach((value, place) => {
    if (value === null) {
      begun = false;
      return;
    }
    const at = [x(place + 0.5), y(value)];
    if (begun) pen.lineTo(...at);
    else pen.moveTo(...at);
    begun = true;
  });
}

/** Strokes a line in the style of its legend. */
export function stroke(pen, key, width) {
  pen.strokeStyle = colour(key.colour);
  pen.lineWidth = width;
  pen.lineJoin = "round";
  pen.setLineDash(DASHES[key.dash] ?? []);
  pen.stroke();
  pen.setLineDash([]);
}

/** Lines over a common axis that begins at 0. */
export class Lines extends Plot {
  constructor(host, cursor, options) {
    super(host, cursor, options);
    this.format = options.format ?? short;
    this.most = options.most ?? 0;
    this.series = new Map();
  }

  /** `series`: values by the names of the legend. */
  update(view, series) {
    this.view = view;
    this.series = series;
    this.redraw();
  }

  paint(pen, area) {
    let most = this.most;
    for (const values of this.series.values()) {
      for (const value of values) most = Math.max(most, value ?? 0);
    }
    const marks = ticks(most, most <= 1 ? 1 : area.h < 90 ? 2 : 4);
    const top = marks[marks.length - 1];
    const y = (value) => area.y + area.h - (value / top) * area.h;
    this.paintGrid(pen, area, marks, y, this.format);
    for (const key of this.keys) {
      const values = this.series.get(key.name);
      if (values === undefined || values.every((value) => !value)) continue;
      trace(pen, values, (place) => this.x(area, place), y);
      stroke(pen, key, 1.5);
    }
  }

  readings(place) {
    const told = [...this.series].map(([name, values]) => [name, values[place]]);
    return new Map(told.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => [name, this.format(value)]));
  }
}

/** Draws a small line without axes; `bound` = the top, if there is one. */
export function spark(canvas, values, bound) {
  const scale = devicePixelRatio;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  if (w === 0) return;
  canvas.width = Math.round(w * scale);
  canvas.height = Math.round(h * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const most = Math.max(bound / 4, ...values.map((value) => value ?? 0)) || 1;
  pen.fillStyle = colour("grid");
  pen.fillRect(0, h - 1, w, 1);
  const x = (place) => (place / values.length) * w;
  trace(pen, values, x, (value) => h - 1.5 - (value / most) * (h - 3));
  stroke(pen, { colour: "accent" }, 1.25);
}
