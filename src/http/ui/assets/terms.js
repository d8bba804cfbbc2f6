// The meanings of the page's terms: shown where the user points or taps, read out by screen
// readers, and listed in the help.

import { element, say } from "./format.js";

export const TERMS = {
  "requests/s": "Requests for keys and ranges that were answered, per second, the mean of 10 s.",
  "errors/s": "Of those, answers of 400 and above, but for 404: that there is no such key is an answer.",
  "p50": "Half of the requests were answered faster than this.",
  "p99": "99 of 100 requests were answered faster than this.",
  "p99.9": "999 of 1,000 requests were answered faster than this.",
  "cache hits": "The share of blocks that a read found in the block cache instead of on disk.",
  "keys": "Keys that have a value, each counted once: what the nodes hold, divided by the copies of a "
    + "key. An estimate. A lost node counts with what it said last, or as the mean of the others.",
  "disk": "Bytes of files in the data directories. A lost node counts with what it said last.",
  "Cluster": "The nodes, each with what it says of itself and what the others say of it.",
  "Node": "One process with one data directory, by its name.",
  "State": "Whether the node answers, and whether a key that it does not hold counts as not found.",
  "Requests/s": "Requests for keys and ranges that clients sent to this node, the mean of 5 s.",
  "CPU": "Processor time; 100 % is one core.",
  "Memory": "Resident memory, and the limit: --memory plus 64 MiB.",
  "Disk": "Bytes of files in the data directory.",
  "Keys": "Keys with a value on this node. An estimate: it also counts keys of which others hold copies.",
  "Hints for it": "Writes that this node missed and that others keep for it; delivered once it is back.",
  "Clock": "How far its clock is ahead of the clock of the node nearest to it.",
  "Round trip": "How long it took to answer the node nearest to it.",
  "Up for": "Time since the process started.",
  "Version": "The release of kvorum that it runs; of a record: when and by which node it was written.",
  "Latency": "Time from the head of a request to its answer, as the node measures it.",
  "requests": "Requests that were answered in that second.",
  "Requests": "Requests that were answered, by kind.",
  "Errors": "Answers of 400 and above, but for 404.",
  "get": "Reads of one key.",
  "put": "Writes of one key.",
  "delete": "Deletions of one key.",
  "add": "Additions to a number.",
  "range": "Reads of a range of keys.",
  "none": "No errors.",
  "other": "Answers with any other status.",
  "503 overloaded": "The node has more to do than it can do in time; nothing was changed.",
  "504 not enough replicas": "Fewer replicas answered in time than the request asked for.",
  "507 disk full": "A disk or a quota is full: writes are refused, reads are answered.",
  "500 storage failed": "A disk failed, or what is on it is damaged.",
  "400 bad request": "The request is wrong: the answer says how.",
  "Background work": "What the store does besides answering, as a share of each second.",
  "flush": "Writing a full memtable as a table.",
  "compaction": "Merging tables into fewer and larger ones.",
  "log and sync": "Writing the log, and waiting until the disk has it.",
  "writes delayed": "Writes wait, for flushes or compactions are behind.",
  "writes refused": "Writes are answered 503, for flushes or compactions are too far behind.",
  "Queues": "What waits, and how much of it may.",
  "disk reads": "Reads that wait for a thread that may wait for the disk.",
  "range pages": "Pages of ranges that wait for such a thread.",
  "writes to the log": "Bytes of writes that wait for the log.",
  "log batches": "Batches of writes that wait for the log.",
  "memtables to flush": "Full memtables that are not on disk as tables yet; their log is.",
  "bytes to compact": "Bytes that compactions have yet to move.",
  "Cache and filters": "How reads find their blocks, and what is written and sent, per second.",
  "blocks read": "Blocks of tables that were read from files.",
  "filter hits": "Of the tables without a key, the share that a filter let a read skip.",
  "skipped by filters": "Tables that a read skipped, for a filter knew that they lack the key.",
  "into the log": "Bytes written to the log.",
  "syncs of the log": "How often the log was synced to the disk.",
  "messages to nodes": "Messages that were sent to other nodes.",
  "Memory and disk": "Memory by part of --memory, and tables on disk by level.",
  "resident": "Memory that the processes take, of --memory plus 64 MiB each.",
  "memtables": "Records in memory that are not in tables yet.",
  "cache": "The block cache. It is there to be full.",
  "connections": "What open connections of clients take.",
  "request-bodies": "Long values on their way in.",
  "response-bodies": "Long values on their way out.",
  "peer-requests": "Long requests of other nodes.",
  "peer-responses": "Long values that are read for other nodes.",
  "writes": "Writes that wait for the log.",
  "pages": "Pages of ranges.",
  "level": "Tables of one age: level 0 has the newest. Of a lost node, as it said last.",
  "Hints": "Writes that a node missed and that others keep for it, until it is back.",
  "Repair": "Rounds that compare all replicas, and make equal what differs.",
  "Replicas": "Whether all replicas held the same at the end of the last round that this node drove.",
  "Last full round": "When a round last compared everything on all nodes.",
  "Last round": "The last round: a full one compares everything, an incremental one what was written since.",
  "Keys differed": "Keys that differed between replicas, and how many were made equal.",
  "Damaged ranges": "Ranges of keys that a node could not read, and how many were written anew.",
  "Purgeable": "Bytes of deleted and expired values that a compaction may drop, and up to when all "
    + "replicas are proven to hold the same.",
  "Key look-up": "Asks each replica of a key for itself. It repairs nothing.",
  "Replica": "A node that holds a copy of the key.",
  "Record": "What it holds: a value, a tombstone (a deletion), or nothing.",
  "Written": "When, and by which node.",
  "Expires": "When the value counts as deleted, by its time to live (TTL).",
  "Value": "Length of the value.",
  "Copies": "Copies that the write asked for (from).",
  "ETag": "Names this state of the value: for If-Match and If-None-Match.",
  "TTL": "Time that is left until the value expires.",
  "partition": "One of 65,536 parts of all keys. All keys of one have the same replicas.",
  "Members": "The nodes of the cluster, those that ask to join, and changes of that.",
  "Zone": "Nodes that fail together. Copies of a key are in different zones, if there are enough.",
  "Weight": "The share of the keys that a node is to hold, relative to the others.",
  "Share": "The share of all data that its weight gives it.",
  "Epoch": "The number of the last change of the cluster that the node has taken in.",
  "Change": "What a plan is to do with the node.",
  "council": "The nodes that decide changes of the cluster: a majority of them must agree.",
  "Copies of a key": "How many nodes hold each key (--replicas).",
  "Holds now": "What it holds, relative to its share.",
  "Holds afterwards": "What it will hold, relative to its share.",
  "From": "The node that hands partitions over.",
  "To": "The node that takes them.",
  "Partitions": "Copies of partitions, of 65,536 for each copy of a key.",
  "Size": "About how many bytes that is.",
  "Profile": "Records where this node spends its time, and draws that as flame graphs.",
  "CPU time": "Where processor time goes.",
  "Allocation": "Where memory is allocated.",
  "Locks": "Where threads wait for each other.",
  "Wall": "What all threads do, waiting included.",
  "up": "It answers, and what it does not hold counts as not found.",
  "unknown": "Nothing is known of it, for it can't be asked.",
  "unreachable": "The node that serves this page can't reach it.",
  "waiting": "It has not said anything to this page yet.",
  "accepts no writes": "Its disk failed, or a file is damaged. It answers reads.",
  "rebuilding": "It has lost its disk, or a part of it. Its data is streamed back; until then what it does "
    + "not hold does not count as not found.",
  "fenced": "Another process runs with a copy of its directory. It serves nothing.",
  "removed": "A change of the members removed it. It serves nothing.",
  "verifying": "Its directory may be an older copy: the other nodes are asked.",
  "starting": "It asks the other nodes what they know of it.",
  "joining": "It is new, and waits for connections to all other nodes.",
  "newest": "No replica that answered holds a newer record.",
  "older": "Another replica holds a newer record; hints, a read or a repair round bring it.",
  "missing": "Another replica holds a record of the key; hints, a read or a repair round bring it.",
  "not rebuilt yet": "It has lost its disk, and this key has not been streamed back yet.",
  "equal": "At its end all replicas held the same.",
  "not equal": "Not all replicas are known to hold the same; beside it stands why.",
  "no round yet": "This node has driven no round since it started.",
  "member": "It belongs to the cluster.",
  "member, not reached": "It belongs to the cluster, and can't be reached.",
  "member, unknown": "It belongs to the cluster. Nothing is known of it, for the node through which "
    + "it is reached sends nothing.",
  "asks to join": "It waits for a plan that lets it join.",
};

/** Terms of names that contain a number or a node, by the beginning of the name. */
const FAMILIES = [[/^level \d+$/, "level"], [/^for /, "Hints for it"]];

/** Returns the meaning of a term, if it has one. */
export function meaning(term) {
  const family = FAMILIES.find(([pattern]) => pattern.test(term));
  return TERMS[family ? family[1] : term];
}

/** Makes an element explain a term; `mark` gives it a visible marker (not for table cells). */
export function explain(target, term, mark = true) {
  const text = meaning(term);
  if (text === undefined) return target;
  target.dataset.term = term;
  target.setAttribute("aria-description", text);
  if (mark) target.classList.add("term");
  return target;
}

/** Lists all terms in the help. */
export function listTerms(list) {
  for (const [term, text] of Object.entries(TERMS)) {
    list.append(element("dt", "", term), element("dd", "", text));
  }
}

/** Space between a term and its tip, and between the tip and the window's edge, in pixels. */
const MARGIN = 8;

/**
 * Shows the meaning of the term pointed at or tapped, until the pointer leaves or Escape is
 * pressed.
 */
export function tips() {
  const tip = element("div", "tip");
  tip.id = "tip";
  tip.hidden = true;
  // Screen readers have the same text as a description of the term.
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  let shown = null;
  const hide = () => {
    shown = null;
    tip.hidden = true;
  };
  const show = (target) => {
    if (target === shown) return;
    const text = meaning(target.dataset.term);
    if (text === undefined) return hide();
    shown = target;
    say(tip, text);
    tip.hidden = false;
    // A dialog covers everything outside of it.
    (target.closest("dialog") ?? document.body).append(tip);
    const at = target.getBoundingClientRect();
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    const left = Math.min(at.left, innerWidth - width - MARGIN);
    const below = at.bottom + MARGIN;
    const top = below + height < innerHeight ? below : at.top - height - MARGIN;
    tip.style.left = `${Math.max(MARGIN, left)}px`;
    tip.style.top = `${Math.max(MARGIN, top)}px`;
  };
  const found = (event) => event.target.closest?.("[data-term]");
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || tip.contains(event.target)) return;
    const target = found(event);
    if (target) show(target);
    else hide();
  });
  document.addEventListener("click", (event) => {
    const target = found(event);
    if (target) show(target);
    else hide();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true });
}
