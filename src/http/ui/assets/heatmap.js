// A heat map of latency over time: a column a second, a row a bucket, the darker the more requests,
// with the percentiles as lines over it.

import { count, nanos } from "./format.js";
import { percentile } from "./latency.js";
import { stroke, trace } from "./lines.js";
import { Plot, colour } from "./plot.js";

/** The percentiles to draw. */
const SHARES = [
  { name: "p50", share: 0.5, colour: "ink" },
  { name: "p99", share: 0.99, colour: "ink", dash: "dashed" },
  { name: "p99.9", share: 0.999, colour: "ink", dash: "dotted" },
];

/** Minimum number of samples beyond a percentile for it to be drawn. */
const BEYOND = 10;

/** Number of shades of the scale. */
const SHADES = 24;

/** Interpolates the colors of the style sheet. */
function shades() {
  const stops = [0, 1, 2, 3].map((place) => {
    const hex = colour(`heat-${place}`).slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
  return Array.from({ length: SHADES }, (_, place) => {
    const way = (place / (SHADES - 1)) * (stops.length - 1);
    const from = Math.min(Math.floor(way), stops.length - 2);
    const mix = stops[from].map((low, at) => low + (stops[from + 1][at] - low) * (way - from));
    return `rgb(${mix.map(Math.round).join(",")})`;
  });
}

export class HeatMap extends Plot {
  constructor(host, cursor, options) {
    super(host, cursor, { ...options, keys: [...SHARES, { name: "requests", colour: "heat-3" }] });
    this.columns = [];
  }

  /** `columns`: bucket counts by second; `limits`: the buckets' bounds in nanoseconds. */
  update(view, columns, limits) {
    this.view = view;
    this.columns = columns;
    this.limits = limits;
    this.sums = columns.map((counts) => counts?.reduce((sum, count) => sum + count, 0) ?? 0);
    this.lines = SHARES.map(({ share }) => columns.map((counts, place) => {
      const enough = this.sums[place] * (1 - share) >= BEYOND || share === 0.5;
      return counts !== null && enough ? percentile(counts, limits, share) : null;
    }));
    this.redraw();
  }

  /** Returns the buckets to show: those with requests, and some around them. */
  rows() {
    let [low, high] = [Infinity, -Infinity];
    for (const counts of this.columns) {
      counts?.forEach((count, bucket) => {
        if (count === 0) return;
        low = Math.min(low, bucket);
        high = Math.max(high, bucket);
      });
    }
    if (low > high) return [17, 53];
    return [Math.max(0, low - 1), Math.min(this.limits.length - 1, Math.max(high + 1, low + 16))];
  }

  paint(pen, area) {
    const [low, high] = this.rows();
    const rows = high - low + 1;
    const row = (bucket) => area.y + area.h - ((bucket - low) / rows) * area.h;
    this.paintScale(pen, area, low, high, row);
    const palette = shades();
    const width = area.w / this.view.seconds;
    this.columns.forEach((counts, place) => {
      if (this.sums[place] === 0) return;
      const [left, right] = [this.x(area, place), this.x(area, place + 1)];
      const gap = width > 4 ? 0.5 : -0.3;
      for (let bucket = low; bucket <= high; bucket += 1) {
        if (counts[bucket] === 0) continue;
        // A logarithmic scale that starts at a thousandth of the second's requests, because rare
        // ones matter.
        const share = counts[bucket] / this.sums[place];
        const shade = Math.min(1, Math.max(0, 1 + Math.log10(share * 2) / 3));
        pen.fillStyle = palette[Math.round(shade * (SHADES - 1))];
        pen.fillRect(left, row(bucket + 1), right - left - gap, area.h / rows + 0.3);
      }
    });
    const y = (value) => this.level(value, low, high, row);
    SHARES.forEach((key, at) => {
      for (const [name, wide] of [["halo", 3.5], [key.colour, 1.5]]) {
        trace(pen, this.lines[at], (place) => this.x(area, place), y);
        stroke(pen, { ...key, colour: name, dash: name === "halo" ? "" : key.dash }, wide);
      }
    });
  }

  /** Returns the position of a latency: its bucket's row, and its place in it. */
  level(value, low, high, row) {
    let bucket = this.limits.findIndex((limit) => limit >= value);
    if (bucket < 0) bucket = this.limits.length - 1;
    const from = bucket === 0 ? 0 : this.limits[bucket - 1];
    const part = (value - from) / (this.limits[bucket] - from || 1);
    return Math.min(row(low), Math.max(row(high + 1), row(bucket + part)));
  }

  paintScale(pen, area, low, high, row) {
    const round = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9];
    const [from, to] = [this.limits[low] ?? 0, this.limits[Math.min(high, this.limits.length - 2)]];
    const shown = round.filter((value) => value > from && value < to);
    this.paintGrid(pen, area, shown, (value) => this.level(value, low, high, row), nanos);
  }

  readings(place) {
    const told = new Map([["requests", count(this.sums[place] ?? 0)]]);
    SHARES.forEach(({ name }, at) => {
      const value = this.lines?.[at][place];
      if (value !== null && value !== undefined) told.set(name, nanos(value));
    });
    return told;
  }
}
