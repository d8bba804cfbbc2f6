// The stream of snapshots, which begins anew whenever it ends.

/** How soon a stream that was refused is asked for again, in milliseconds. */
const AGAIN = 3000;

/** Why a node refuses its stream, as it says itself. */
async function reason() {
  try {
    const answer = await fetch("/ui/events");
    if (answer.ok) {
      await answer.body.cancel();
      return "its stream ended";
    }
    const problem = await answer.json();
    return problem.detail || problem.title;
  } catch {
    return "it can't be reached";
  }
}

/**
 * Calls `told.own(node)` with who answers, `told.snapshot(node, snapshot)`, `told.lost(node, why,
 * sinceMs)`, and `told.broken(why)` when the node that serves this page is gone itself.
 */
export function follow(told) {
  let source = null;
  const hear = (handler) => (event) => {
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return;
    }
    handler(data);
  };
  const open = () => {
    source = new EventSource("/ui/events");
    source.onmessage = hear((data) => told.snapshot(data.node, data.snapshot));
    source.addEventListener("own", hear((data) => told.own(data.node)));
    source.addEventListener("lost", hear((data) => told.lost(data.node, data.why, data.since_ms)));
    source.onerror = async () => {
      // A stream that broke is tried again by the browser; one that was refused is not.
      const closed = source.readyState === EventSource.CLOSED;
      told.broken(closed ? await reason() : "it can't be reached");
      if (closed) setTimeout(open, AGAIN);
    };
  };
  open();
  // Streams that are not ended here hold up whatever the browser loads next.
  addEventListener("pagehide", () => source.close());
}
