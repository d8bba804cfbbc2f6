// The stream of snapshots, which is reopened whenever it ends. It is parsed by hand, because the
// browser's interface for such streams (EventSource) can't send a token.
//
//   ask ─▶ pieces ─▶ events ─▶ told        ended, refused, silent ─▶ a pause ─▶ ask

import { allow, ask, close, onLogin } from "./session.js";

/** Pause before a stream that ended is reopened, in milliseconds; doubled after a failure. */
const AGAIN = 1000;

/** Maximum pause, in milliseconds. */
const LATEST = 8000;

/** Interval of checks for input, in milliseconds: that of the node's snapshots. */
const BEAT = 1000;

/**
 * Number of checks in a row without input after which the node counts as lost: a process that
 * hangs, or a cable that is pulled, keeps its connections open. Checks are counted, not time,
 * because a page that was asleep has missed both.
 */
const SILENT_BEATS = 4;

/** Longest event, in characters: several times that of a node with hundreds of peers. */
const LONGEST = 1 << 20;

/** Calls `hear(name, data)` with each event of an answer, to its end. */
async function read(answer, hear) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop();
    if (rest.length > LONGEST) throw new Error("an event has no end");
    for (const event of events) {
      const field = (name) => event.split("\n").find((line) => line.startsWith(name))
        ?.slice(name.length);
      let data;
      try {
        data = JSON.parse(field("data: "));
      } catch {
        continue;
      }
      hear(field("event: ") ?? "", data);
    }
  }
}

/** Returns the reason why a node refuses the stream, in its own words. */
async function reason(answer) {
  try {
    const { detail, title } = await answer.json();
    return detail || title;
  } catch {
    return `it answers ${answer.status}`;
  }
}

class Stream {
  constructor(told) {
    this.told = told;
    this.heard = Date.now();
    this.pause = AGAIN;
    this.open();
  }

  open() {
    clearTimeout(this.due);
    this.current?.abort();
    this.current = new AbortController();
    this.silent = 0;
    this.follow(this.current.signal);
  }

  async follow(signal) {
    let why = "it is unreachable";
    try {
      const answer = await ask("/ui/events", { signal });
      this.silent = 0;
      if (answer.status === 401 || answer.status === 403) {
        this.current = null;
        await close("metrics", answer);
        this.told.refused(answer.status);
        return;
      }
      if (answer.ok) {
        allow("metrics");
        await read(answer, (name, data) => signal.aborted || this.hear(name, data));
        why = "its stream ended";
      } else {
        why = await reason(answer);
      }
    } catch {
      // The stream broke, or could not be opened: the initial reason stands.
    }
    if (signal.aborted) return;
    this.current = null;
    this.told.broken(why, this.heard);
    this.due = setTimeout(() => this.open(), this.pause);
    this.pause = Math.min(2 * this.pause, LATEST);
  }

  hear(name, data) {
    this.silent = 0;
    this.heard = Date.now();
    this.pause = AGAIN;
    if (name === "own") this.told.own(data.node);
    else if (name === "past") this.told.past(data.node, data.past);
    else if (name === "lost") this.told.lost(data.node, data.why, data.since_ms);
    else if (name === "left") this.told.left(data.node);
    else if (name === "") this.told.snapshot(data.node, data.snapshot);
  }

  beat() {
    if (this.current === null) return;
    this.silent += 1;
    if (this.silent < SILENT_BEATS) return;
    this.told.broken(`no response for ${SILENT_BEATS} s`, this.heard);
    // The node may be gone for good without having closed its connection.
    this.open();
  }
}

/**
 * Calls `told.own(node)` with the answering node, `told.past(node, piece)` with a node's stored
 * samples, `told.snapshot(node, snapshot)`, `told.lost(node, why, sinceMs)`, `told.left(node)` when
 * a node is no longer a member, `told.broken(why, sinceMs)` when the node that serves this page is
 * gone itself, and `told.refused(status)` when it requires another token.
 */
export function follow(told) {
  const stream = new Stream(told);
  setInterval(() => stream.beat(), BEAT);
  onLogin(() => stream.open());
  // A stream that is not ended here delays whatever the browser loads next.
  addEventListener("pagehide", () => stream.current?.abort());
}
