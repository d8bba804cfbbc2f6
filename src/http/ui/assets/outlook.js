// Availability of reads and writes while nodes are lost, and after one more failure, for the
// default copies of a key and the default quorum.
//
//   nodes, copies, lost ─▶ the fewest and the most copies of a key that can be reached ─▶ sentences

/**
 * Returns whether all keys, some or none have `needed` copies in reach while `lost` nodes are away.
 */
function reach(nodes, copies, lost, needed) {
  const fewest = copies - Math.min(copies, lost);
  const most = copies - Math.max(0, lost - (nodes - copies));
  if (fewest >= needed) return "all";
  return most >= needed ? "some" : "none";
}

/** Describes a quorum in words. */
function of(quorum, copies) {
  if (copies === 1) return "the only copy of a key";
  if (quorum === copies) return `all ${copies} copies of a key`;
  return `${quorum} of the ${copies} copies of a key`;
}

function now(nodes, copies, lost, quorum) {
  const needs = `they need ${of(quorum, copies)}`;
  const at = reach(nodes, copies, lost, quorum);
  if (at === "all") return `Reads and writes ${lost > 0 ? "still " : ""}work: ${needs}.`;
  if (lost >= nodes) return "No node can be reached: nothing is answered.";
  const bare = { all: " Requests with ack=1 still work.", none: "",
    some: " Requests with ack=1 work for keys with a copy on another node." };
  const rest = bare[reach(nodes, copies, lost, 1)];
  if (at === "none") return `Reads and writes are answered 504: ${needs}.${rest}`;
  const stopped = copies - quorum + 1;
  return `Reads and writes work for keys with fewer than ${stopped} copies on lost nodes, and are `
    + `answered 504 for the others: ${needs}.${rest}`;
}

function next(nodes, copies, lost, quorum) {
  if (lost >= nodes) return "";
  const one = lost > 0 ? "One more failure" : nodes === 1 ? "Its failure" : "One failure";
  if (lost + 1 >= nodes) return `${one} would stop everything.`;
  const [before, after] = [lost, lost + 1].map((away) => reach(nodes, copies, away, quorum));
  const [bare, barely] = [lost, lost + 1].map((away) => reach(nodes, copies, away, 1));
  const stopped = copies - quorum + 1;
  if (after === "all") return `${one} would stop none of them.`;
  if (before === "all" && after === "some") {
    return `${one} would stop them for keys with ${stopped} copies on lost nodes.`;
  }
  if (before !== "none" && after === "none") {
    const rest = barely === "all" ? "; requests with ack=1 would still work" : "";
    return `${one} would stop them${rest}.`;
  }
  if (after === "some") return `${one} would stop them for more keys.`;
  if (bare === "all" && barely !== "all") {
    return `${one} would stop requests with ack=1 too, for keys with no copy elsewhere.`;
  }
  return `${one} would stop requests with ack=1 for more keys.`;
}

/** Returns both sentences, for `lost` of `nodes` nodes, with `copies` copies of a key. */
export function outlook(nodes, copies, lost) {
  const quorum = Math.floor(copies / 2) + 1;
  return [now(nodes, copies, lost, quorum), next(nodes, copies, lost, quorum)]
    .filter(Boolean).join(" ");
}

/** Returns the color class: nothing lost, nothing stopped, or something stopped. */
export function mood(nodes, copies, lost) {
  if (lost === 0) return "good";
  const quorum = Math.floor(copies / 2) + 1;
  return reach(nodes, copies, lost, quorum) === "all" ? "warn" : "bad";
}
