// The stream of snapshots, which begins anew whenever it ends. It is read by hand, for what browsers
// have for it (EventSource) can't send a token.
//
//   ask ─▶ pieces ─▶ events ─▶ told        ended, refused, silent ─▶ a pause ─▶ ask

import { allow, ask, close, onLogin } from "./session.js";

/** How soon a stream that ended is asked for again, in milliseconds; twice that if it is in vain. */
const AGAIN = 1000;

/** And how late at most. */
const LATEST = 8000;

/** How often it is looked whether anything came, in milliseconds: as often as the node speaks. */
const BEAT = 1000;

/**
 * So many beats in a row without a word, and the node is taken for lost: a process that hangs, or a
 * cable that is pulled, keeps its connections open. Beats are counted, not time, for a page that was
 * asleep has missed both.
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

/** Why a node has no stream for us, as it says itself. */
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
      // It broke, or was never there: that is what is said.
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
    // It may be gone for good without having closed its connection.
    this.open();
  }
}

/**
 * Calls `told.own(node)` with who answers, `told.past(node, piece)` with what a node kept before,
 * `told.snapshot(node, snapshot)`, `told.lost(node, why, sinceMs)`, `told.left(node)` when one is no member any more, `told.broken(why, sinceMs)` when the
 * node that serves this page is gone itself, and `told.refused(status)` when it wants another token.
 */
export function follow(told) {
  const stream = new Stream(told);
  setInterval(() => stream.beat(), BEAT);
  onLogin(() => stream.open());
  // Streams that are not ended here hold up whatever the browser loads next.
  addEventListener("pagehide", () => stream.current?.abort());
}
