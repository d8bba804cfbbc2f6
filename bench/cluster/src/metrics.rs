//! Counters of nodes, read from `/metrics`, and their growth between two scrapes.

use std::net::SocketAddr;
use std::time::Duration;

use load::server::Metrics;

/// Time limit of a scrape.
pub(crate) const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Metrics of several nodes. A value is the sum over all nodes and all labels. Names omit the
/// suffix `_total`; names of kvorum's metrics also omit the prefix `kvorum_`.
#[derive(Debug)]
pub(crate) struct Counts(Vec<Metrics>);

impl Counts {
    /// Scrapes these nodes. A node that does not answer has no metrics.
    pub(crate) fn of(nodes: &[SocketAddr]) -> Self {
        let of = |node: &SocketAddr| {
            Metrics::scrape(*node, "/metrics", SCRAPE_TIMEOUT).unwrap_or_default()
        };
        Self(nodes.iter().map(of).collect())
    }

    /// Returns the growth since `before`, which must be a scrape of the same nodes.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let nodes = self.0.iter().zip(&before.0);
        Self(nodes.map(|(now, before)| now.since(before)).collect())
    }

    /// Returns the value of a metric, or 0 if there is none.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.get_by_full_name(&format!("kvorum_{name}"))
    }

    /// Returns the value of a metric of any system, or 0 if there is none. Only `_total` is omitted
    /// from the name.
    pub(crate) fn get_by_full_name(&self, name: &str) -> f64 {
        self.0.iter().filter_map(|node| node.total(name)).sum()
    }

    /// Returns the ratio of the metric `of` to the metric `to`, or `None` if `to` is 0 or missing.
    pub(crate) fn ratio(&self, of: &str, to: &str) -> Option<f64> {
        (self.get(to) > 0.0).then(|| self.get(of) / self.get(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_labels_and_nodes_and_subtracted_by_since() {
        let text = "# HELP kvorum_peer_bytes_sent x\nkvorum_peer_bytes_sent_total 5\n\
                    kvorum_peer_bytes_sent_total{peer=\"a b\"} 7.5\nother 3\n\
                    kvorum_flushes_total 2\n";
        let counts = Counts(vec![Metrics::parse(text)]);
        assert_eq!(counts.get("peer_bytes_sent"), 12.5);
        let twice = text.replace(" 5\n", " 10\n").replace(" 7.5", " 15").replace(" 2\n", " 4\n");
        let later = Counts(vec![Metrics::parse(&twice)]);
        assert_eq!(later.since(&counts).get("peer_bytes_sent"), 12.5);
        assert_eq!(later.ratio("flushes", "peer_bytes_sent"), Some(4.0 / 25.0));
        assert_eq!(later.ratio("flushes", "nothing"), None);
        let two = Counts(vec![Metrics::parse(text), Metrics::parse(text)]);
        assert_eq!(two.get("peer_bytes_sent"), 25.0);
    }
}
