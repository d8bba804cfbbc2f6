//! What kvorum's nodes count themselves: their `/metrics`, before and after.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::fleet::get;

/// Sums over the nodes and all labels, by name without `kvorum_` and `_total`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts(BTreeMap<String, f64>);

impl Counts {
    /// Of these nodes, now; nothing of those that are not kvorum.
    pub(crate) fn of(nodes: &[SocketAddr]) -> Self {
        let mut counts = Self::default();
        for address in nodes {
            counts.add(&get(*address, "/metrics").unwrap_or_default());
        }
        counts
    }

    fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let name = name.split('{').next().unwrap_or(name);
            let Some(name) = name.strip_prefix("kvorum_") else { continue };
            let name = name.strip_suffix("_total").unwrap_or(name);
            if let Ok(value) = value.parse::<f64>() {
                *self.0.entry(name.to_owned()).or_default() += value;
            }
        }
    }

    /// What was counted since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let diff = |(name, value): (&String, &f64)| (name.clone(), value - before.get(name));
        Self(self.0.iter().map(diff).collect())
    }

    /// 0 if there is no such metric.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// One over the other, if both were counted.
    pub(crate) fn ratio(&self, of: &str, to: &str) -> Option<f64> {
        (self.get(to) > 0.0).then(|| self.get(of) / self.get(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_nodes_are_summed_and_differences_taken() {
        let text = "# HELP kvorum_peer_bytes_sent x\nkvorum_peer_bytes_sent_total 5\n\
                    kvorum_peer_bytes_sent_total{peer=\"a b\"} 7.5\nother 3\n\
                    kvorum_flushes_total 2\n";
        let mut counts = Counts::default();
        counts.add(text);
        assert_eq!(counts.get("peer_bytes_sent"), 12.5);
        let mut later = counts.clone();
        later.add(text);
        assert_eq!(later.since(&counts).get("peer_bytes_sent"), 12.5);
        assert_eq!(later.ratio("flushes", "peer_bytes_sent"), Some(4.0 / 25.0));
        assert_eq!(later.ratio("flushes", "nothing"), None);
    }
}
