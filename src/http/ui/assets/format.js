// Number formats for people. Digits line up in columns, so each number has a fixed count of them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function scaled(value, step, units, spaced) {
  let place = 0;
  while (Math.abs(value) >= step && place + 1 < units.length) {
    value /= step;
    place += 1;
  }
  const digits = place === 0 && Number.isInteger(value) ? 0 : Math.abs(value) < 9.995 ? 2
    : Math.abs(value) < 99.95 ? 1 : 0;
  const unit = units[place];
  return value.toFixed(digits) + (unit === "" ? "" : spaced + unit);
}

/** Formats a count in full: 12,345. */
export function count(value) {
  return whole.format(value);
}

/** Formats a rate or count in short: 12.3 k. */
export function short(value) {
  if (value === 0) return "0";
  if (value < 0.005) return "< 0.01";
  return scaled(value, 1000, ["", "k", "M", "G", "T"], " ");
}

/** Formats bytes: 12.3 MiB. */
export function bytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], " ");
}

/** Formats a duration in nanoseconds: 1.23 ms. */
export function nanos(value) {
  if (value < 1e6) return scaled(value / 1e3, 1000, ["µs"], " ");
  return scaled(value / 1e6, 1000, ["ms", "s"], " ");
}

/** Removes zeros at the end of decimals: 2.50 k becomes 2.5 k. */
export function trimmed(text) {
  return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

/** Formats a share: 12.3 %. */
export function percent(share) {
  const value = share * 100;
  if (value === 0 || value === 100) return value + " %";
  if (value > 99.95) return "> 99.9 %";
  return (value < 9.995 ? value.toFixed(2) : value.toFixed(1)) + " %";
}

/** Formats a duration or an age in seconds: 3 min. */
export function span(seconds) {
  if (seconds < 100) return Math.max(0, Math.round(seconds)) + " s";
  if (seconds < 100 * 60) return Math.round(seconds / 60) + " min";
  if (seconds < 48 * 3600) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " d";
}

/** Formats the time of day of milliseconds since 1970. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** Formats the time of day, with the date unless that is today. */
export function moment(ms) {
  const then = new Date(ms);
  const today = then.toDateString() === new Date().toDateString();
  const day = then.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return today ? clock(ms) : `${day}, ${clock(ms)}`;
}

/** Formats a signed clock difference, given in microseconds. */
export function skew(micros) {
  return (micros >= 0 ? "+" : "−") + (Math.abs(micros) / 1000).toFixed(1) + " ms";
}

/** Creates an element with its class, text and children. */
export function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

/** Characters that are invisible, or change the look of their neighbors: shown by number. */
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu;

/** Makes every character of an untrusted text visible. */
export function visible(text) {
  return text.replace(HIDDEN, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

/** Changes a text only if it differs, so that screen readers are not disturbed. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
