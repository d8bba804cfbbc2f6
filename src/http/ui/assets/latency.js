// Latency buckets, as src/counters/latency.rs counts them: log-linear, each doubling in equal
// parts.

/** Returns the greatest latency of a bucket, in nanoseconds; the last bucket has none. */
export function bound(bucket, firstNanos, perDoubling) {
  if (bucket === 0) return firstNanos;
  const doubling = Math.floor((bucket - 1) / perDoubling);
  const part = (bucket - 1) % perDoubling;
  const from = firstNanos * 2 ** doubling;
  return from + (from / perDoubling) * (part + 1);
}

/** Returns all bounds of `buckets` buckets. */
export function bounds(buckets, firstNanos, perDoubling) {
  return Array.from({ length: buckets }, (_, place) => bound(place, firstNanos, perDoubling));
}

/**
 * Returns the latency below which a share of the requests stayed, in nanoseconds; null = no
 * requests.
 */
export function percentile(counts, limits, share) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return null;
  let left = all * share;
  for (let bucket = 0; bucket < counts.length; bucket += 1) {
    if (counts[bucket] >= left && counts[bucket] > 0) {
      const low = bucket === 0 ? 0 : limits[bucket - 1];
      const high = bucket + 1 === counts.length ? low : limits[bucket];
      return low + (high - low) * (left / counts[bucket]);
    }
    left -= counts[bucket];
  }
  return limits[counts.length - 2];
}
