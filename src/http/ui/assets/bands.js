// Activity over time: a row for each kind of work. The longer the work took in a second, the fuller
// the row is there.

import { percent, short } from "./format.js";
import { Plot, colour } from "./plot.js";

const ROW = 22;
const GAP = 5;

export class Bands extends Plot {
  constructor(host, cursor, { label, keys }) {
    super(host, cursor, { label, height: keys.length * ROW + 26, keys });
    this.series = new Map();
  }

  /** `series`: by name {shares, values, unit}: the fill, and the values for the legend. */
  update(view, series) {
    this.view = view;
    this.series = series;
    this.redraw();
  }

  paint(pen, area) {
    this.keys.forEach((key, number) => {
      const top = area.y + number * ROW;
      const height = ROW - GAP;
      pen.fillStyle = colour("grid");
      pen.fillRect(area.x, top, area.w, height);
      pen.fillStyle = colour("faint");
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(key.axis, area.x - 6, top + height / 2);
      pen.fillStyle = colour(key.colour);
      this.series.get(key.name)?.shares.forEach((share, place) => {
        if (!share) return;
        const [left, right] = [this.x(area, place), this.x(area, place + 1)];
        // Any activity is visible, and activity for the whole second fills the row.
        const full = Math.max(1.5, Math.min(1, share) * height);
        pen.fillRect(left, top + height - full, Math.max(1, right - left - 0.3), full);
      });
    });
  }

  readings(place) {
    const told = [...this.series].map(([name, { shares, values, unit }]) => {
      if (shares[place] === null || shares[place] === undefined) return [name, "–"];
      const text = percent(Math.min(1, shares[place]));
      return [name, values === undefined ? text : `${short(values[place] ?? 0)}${unit}`];
    });
    return new Map(told);
  }
}
