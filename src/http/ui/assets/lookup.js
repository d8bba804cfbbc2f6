// Look-up of a key: its value, ETag, expiry, and the version that each replica holds.

import { bytes, element, moment, span, visible } from "./format.js";
import { ask, refusal } from "./session.js";
import { explain } from "./terms.js";

const SAYS = {
  value: "value", tombstone: "tombstone", superseded: "superseded",
  absent: "not found", unreachable: "unreachable", busy: "overloaded",
  failed: "storage failed",
};

const COLUMNS = ["Replica", "Record", "Version", "Written", "Value", "Copies"];

/** Length from which on a node does not read a value for a look-up, in bytes. */
const LONG = 16 * 1024;

/** Encodes a key for a query, but sends % as it is: %XX stands for a byte. */
function encoded(key) {
  return encodeURIComponent(key).replaceAll("%25", "%");
}

/** Returns the text that orders replicas' records; nothing if there is no record. */
function rank({ version, ballot }) {
  return version === undefined ? undefined : `${version} ${ballot ?? "0".repeat(16)}`;
}

/** Describes the writer and the time of a record. */
function written({ version, ballot, timestamp_ms: when, origin }) {
  if (version === undefined) return "–";
  const who = ballot === undefined ? origin || "an unknown node" : "a conditional write";
  return `${moment(when)} by ${who}`;
}

/** Describes the expiry of a record's value, by the clock of the asked node. */
function life({ expires_ms: when, expired }) {
  if (when === undefined) return "";
  return expired ? `, expired ${moment(when)}` : ` until ${moment(when)}`;
}

/** Compares a replica's record with the newest one. */
function judge(replica, newest) {
  if (replica.version !== undefined) {
    return rank(replica) === newest ? ["newest", "good"] : ["older", "warn"];
  }
  if (replica.holds !== "absent") return ["unknown", "bad"];
  if (newest !== undefined) return [replica.authoritative ? "missing" : "not rebuilt yet", "warn"];
  return ["", "idle"];
}

function row(replica, newest) {
  const [word, mood] = judge(replica, newest);
  const badge = word ? [" ", explain(element("span", `badge ${mood}`, word), word, false)] : [];
  const step = replica.step === undefined ? "" : ` step ${replica.step}`;
  const cells = [
    [(SAYS[replica.holds] ?? replica.holds) + life(replica), ...badge],
    replica.version ? [element("code", "", replica.version), step] : ["–"],
    [written(replica)],
    [replica.holds === "value" ? bytes(replica.value_bytes) : "–"],
    [replica.version === undefined ? "–" : replica.copies || "default"],
  ];
  const head = element("th", "", replica.node);
  head.scope = "row";
  const made = cells.map((content, place) => {
    const cell = element("td", "", ...content);
    cell.dataset.label = COLUMNS[place + 1];
    return cell;
  });
  head.dataset.label = COLUMNS[0];
  return element("tr", "", head, ...made);
}

function verdict(replicas, newest) {
  const silent = replicas.filter((replica) => replica.authoritative === undefined).length;
  const but = silent === 0 ? "" : ` ${silent} of ${replicas.length} replicas did not answer.`;
  const holders = replicas.filter((replica) => replica.version !== undefined);
  if (holders.length === 0) return `No replica that answered has this key.${but}`;
  const holding = holders.filter((replica) => rank(replica) === newest);
  const same = holding.length;
  const chosen = holding[0].ballot === undefined ? ""
    : same * 2 > replicas.length ? " It is chosen." : " It is not chosen yet.";
  if (same === replicas.length) return `All ${same} replicas hold the same version.${chosen}`;
  return `${same} of ${replicas.length} replicas hold the newest version that was found.`
    + `${chosen}${but}`;
}

/** Describes the remaining time to live, by this browser's clock. */
function left({ expires_ms: when, expired, value_bytes: length }) {
  if (when !== undefined) {
    const at = moment(when);
    return expired ? `expired, ${at}` : `${span((when - Date.now()) / 1000)}, until ${at}`;
  }
  return length > LONG ? "not looked at: the value is long" : "none: it does not expire";
}

/** Shows the beginning of the value, as text or as hex digits. */
function content(value, { value_bytes: length, expired }) {
  if (expired) return element("p", "none", "The value has expired.");
  if (value === undefined) {
    return element("p", "none", `${bytes(length)}: too long to be shown here. `
      + "kvorum get prints it.");
  }
  const { text, hex, bytes: shown } = value;
  const pre = element("pre", "content", text === undefined ? hex : visible(text));
  pre.tabIndex = 0;
  pre.setAttribute("aria-label", "Value");
  const kind = text === undefined ? ", not UTF-8: in hex digits" : "";
  const cut = shown < length ? `, the first ${bytes(shown)}` : "";
  const empty = length === 0 ? " (empty)" : "";
  return element("div", "", element("p", "", element("small", "",
    `${bytes(length)}${empty}${cut}${kind}`)), ...(length > 0 ? [pre] : []));
}

/** Shows value, ETag and time to live of the newest record, if that is a value. */
function facts(value, replicas, newest) {
  const held = replicas.find((replica) => rank(replica) === newest && replica.holds === "value");
  if (newest === undefined || held === undefined) return [];
  const line = (term, ...told) => [explain(element("dt", "", term), term, false),
    element("dd", "", ...told)];
  const etag = held.etag === undefined ? "not known: the record is long"
    : element("code", "", held.etag);
  return [element("dl", "facts", ...line("Value", content(value, held)), ...line("ETag", etag),
    ...line("TTL", left(held)))];
}

function show(host, { key, partition, replicas, value }) {
  const newest = replicas.map(rank).filter(Boolean).sort().at(-1);
  const heads = COLUMNS.map((title) => {
    const head = element("th", "", explain(element("span", "", title), title));
    head.scope = "col";
    return head;
  });
  const body = element("tbody", "", ...replicas.map((replica) => row(replica, newest)));
  host.replaceChildren(
    element("p", "", element("code", "", visible(key)), " is in ",
      explain(element("span", "", `partition ${partition}`), "partition"), ". ",
      verdict(replicas, newest)),
    ...facts(value, replicas, newest),
    element("table", "replicas", element("thead", "", element("tr", "", ...heads)), body),
  );
}

/** Connects the form to the look-up. */
export function lookup(form, host) {
  let asked = 0;
  // The browser does not submit an empty key; the answer still shown would be for another key.
  form.elements.key.addEventListener("invalid", () => {
    asked += 1;
    host.replaceChildren(element("p", "error", "The key must not be empty."));
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    asked += 1;
    const own = asked;
    host.replaceChildren(element("p", "", "asking the replicas …"));
    try {
      const answer = await ask(`/ui/key?id=${encoded(form.elements.key.value)}`);
      const told = answer.ok ? await answer.json() : await refusal("data", answer);
      if (own !== asked) return;
      if (answer.ok) show(host, told);
      else host.replaceChildren(element("p", "error", told));
    } catch (error) {
      if (own !== asked) return;
      host.replaceChildren(element("p", "error", `Cannot reach the node: ${error.message}`));
    }
  });
}
