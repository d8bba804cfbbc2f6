// The stream of snapshots, which begins anew whenever it ends.

/** How soon a stream that was refused is asked for again, in milliseconds. */
const AGAIN = 3000;

/** How often it is looked whether anything came, in milliseconds: as often as the node speaks. */
const BEAT = 1000;

/**
 * So many beats in a row without a word, and the node is taken for lost: a process that hangs, or a
 * cable that is pulled, keeps its connections open. Beats are counted, not time, for a page that was
 * asleep has missed both.
 */
const SILENT_BEATS = 4;

/** How long a refused stream's reason is waited for, in milliseconds. */
const PATIENCE = 3000;

/** Why a node refuses its stream, as it says itself. */
async function reason() {
  try {
    const answer = await fetch("/ui/events", { signal: AbortSignal.timeout(PATIENCE) });
    if (answer.ok) {
      await answer.body.cancel();
      return "its stream ended";
    }
    const problem = await answer.json();
    return problem.detail || problem.title;
  } catch {
    return "it is unreachable";
  }
}

/**
 * Calls `told.own(node)` with who answers, `told.snapshot(node, snapshot)`, `told.lost(node, why,
 * sinceMs)`, `told.left(node)` when one is no member any more, and `told.broken(why, sinceMs)` when the node that serves this page is gone itself.
 */
export function follow(told) {
  let source = null;
  let silent = 0;
  let heard = Date.now();
  const hear = (handler) => (event) => {
    silent = 0;
    heard = Date.now();
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return;
    }
    handler(data);
  };
  const open = () => {
    const own = new EventSource("/ui/events");
    source = own;
    silent = 0;
    source.onmessage = hear((data) => told.snapshot(data.node, data.snapshot));
    source.addEventListener("own", hear((data) => told.own(data.node)));
    source.addEventListener("lost", hear((data) => told.lost(data.node, data.why, data.since_ms)));
    source.addEventListener("left", hear((data) => told.left(data.node)));
    source.onerror = async () => {
      silent = 0;
      // A stream that broke is tried again by the browser; one that was refused is not.
      const closed = own.readyState === EventSource.CLOSED;
      told.broken(closed ? await reason() : "it is unreachable", heard);
      if (closed) setTimeout(() => source === own && open(), AGAIN);
    };
  };
  open();
  setInterval(() => {
    silent += 1;
    if (silent < SILENT_BEATS) return;
    told.broken(`no response for ${SILENT_BEATS} s`, heard);
    // It may be gone for good without having closed its connection.
    source.close();
    open();
  }, BEAT);
  // Streams that are not ended here hold up whatever the browser loads next.
  addEventListener("pagehide", () => source.close());
}
