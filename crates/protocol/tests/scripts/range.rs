//! Script commands for a range read of the cluster: pages that arrive, nodes that fail.

use bytes::Bytes;
use protocol::{Filter, Kind, PartitionFilter, Rank, Scan, ScanStep, Version};

use crate::words::{self, next, node};
use crate::world::{Split, World};

impl World {
    /// Executes `range a..c [2/3]`, `range local a..`, `range page n1 ITEM… [next=c]
    /// [non-authoritative]`, `range fails n1`, `range busy n1` or `range anew`, and then continues
    /// the scan as far as possible. `range served` prints whether enough nodes have sent a page.
    pub(crate) fn of_range(&mut self, words: &mut Split<'_>) -> Result<Vec<String>, String> {
        let what = next(words, "what")?;
        let begun = "begin with a range".to_owned();
        match what {
            "page" => {
                let (node, page) = (node(next(words, "a node")?)?, self.words.page(words)?);
                self.range.as_mut().ok_or(begun)?.page(node, page);
            }
            "fails" => {
                self.range.as_mut().ok_or(begun)?.exclude_node(node(next(words, "a node")?)?)
            }
            "served" => {
                let served = self.range.as_ref().ok_or(begun)?.is_served();
                return Ok(vec![(if served { "served" } else { "not served" }).to_owned()]);
            }
            "anew" => self.range.as_mut().ok_or(begun)?.restart_without_pages(),
            "busy" => self.range.as_mut().ok_or(begun)?.retry(node(next(words, "a node")?)?),
            local_or_range => {
                let local = local_or_range == "local";
                let range = if local { next(words, "a range")? } else { local_or_range };
                let (start, end) = range.split_once("..").ok_or("a range is like a..b")?;
                let start = Bytes::from(start.to_owned());
                let end = (!end.is_empty()).then(|| Bytes::from(end.to_owned()));
                let (quorum, _) = self.quorum(words.next())?;
                self.range = Some(if local {
                    Scan::local(&self.shared, start, end)
                } else {
                    Scan::new(&self.shared, quorum.into(), start, end)
                });
            }
        }
        Ok(self.walk())
    }

    fn walk(&mut self) -> Vec<String> {
        let Some(scan) = &mut self.range else { return Vec::new() };
        let mut lines = Vec::new();
        if scan.take_restarted() {
            lines.push("pages asked for before are void".to_owned());
        }
        loop {
            let step = scan.step();
            lines.push(self.words.step(&step));
            if matches!(step, ScanStep::Wait | ScanStep::End | ScanStep::OutOfReach) {
                return lines;
            }
        }
    }

    /// Executes `filter chosen 2/3 n2 n0 n1 : a b c` (the nodes that are asked, best first) or
    /// `filter heldby n1 : a b*1` (with the number of copies; `a~` has a tombstone). Returns, for
    /// each node, the keys that its page contains.
    pub(crate) fn filter(&mut self, words: &mut Split<'_>) -> Result<Vec<String>, String> {
        let filter = match next(words, "a filter")? {
            "heldby" => {
                let node = node(next(words, "a node")?)?;
                let filter = Filter::HeldBy { node, since: 0, promise: 0, partitions: Vec::new() };
                next(words, ":")?;
                filter
            }
            _ => {
                let (ack, from) = words::quorum(next(words, "ack/from")?)?;
                let nodes = words.take_while(|word| *word != ":").map(node);
                let preference = nodes.collect::<Result<_, _>>()?;
                Filter::Chosen { ack: ack as u8, from: from as u8, preference }
            }
        };
        let keys: Vec<&str> = words.collect();
        let mut lines = Vec::new();
        let view = self.shared.view();
        for own in view.topology.ids() {
            let mut line = format!("n{}:", own.0);
            for text in &keys {
                let (name, is_value) = text.strip_suffix('~').map_or((*text, true), |n| (n, false));
                let (name, copies) = name.split_once('*').unwrap_or((name, "0"));
                let key = self.words.key(name)?;
                let copies = copies.parse().map_err(|_| format!("{text:?} has no copies"))?;
                let mut filter = PartitionFilter::new(&view, own, 0, &filter);
                let kind = if is_value { Kind::Value } else { Kind::Tombstone };
                let version = Version { time: 1, origin: 0 };
                let rank = Rank { version, ballot: 0, kind, check: 0 };
                if filter.wants(&key, copies, rank) {
                    line += &format!(" {text}");
                }
            }
            lines.push(line);
        }
        Ok(lines)
    }
}
