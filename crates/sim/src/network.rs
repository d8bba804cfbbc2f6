//! Simulated TCP connections between event loops. Bytes arrive in order, but split differently from
//! the writes that sent them. Lost bytes are retransmitted until they arrive or their connection
//! closes. An end notices the loss of the other end late or never.
//!
//! ```text
//!  dialer (end 0) ══ pipe: in transit, arrived ═════▶ acceptor (end 1)
//!                 ◀══ pipe ═════════════════════════
//! ```
//!
//! Bytes within a pipe stay in order; different pipes and connections have no common order. Bytes
//! lost to a blocked path are retransmitted when the path heals. When an end closes, some of its
//! sent bytes stay in transit, in the buffers of either machine. These bytes may arrive after the
//! dialer has given up the connection, and even after the dialer has sent the same bytes again on
//! another connection. A closed end receives nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::random::Random;

/// Capacity of a pipe in bytes: the send buffer of one socket plus the receive buffer of the other.
const SOCKET_BYTES: usize = 128 << 10;

/// Writes per thousand that arrive in two parts.
const SPLIT: u64 = 60;

/// Minimum and maximum delay of a first retransmission, in microseconds: the range of usual TCP
/// timeouts. Each further retransmission doubles the delay.
const RETRY_DELAY_MICROS: (u64, u64) = (200_000, 400_000);

/// One end of a connection: an event loop of a node, in one boot of the node's process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopEnd {
    pub(crate) node: usize,
    pub(crate) life: u32,
    pub(crate) index: usize,
    pub(crate) open: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    /// Bytes in transit, each with the time of arrival. `None` marks the end of the stream.
    queue: VecDeque<(u64, Option<Vec<u8>>)>,
    /// Arrival time of the last entry.
    last: u64,
    /// Bytes that have arrived and are not yet read.
    arrived: Vec<u8>,
    /// True if the stream ends after the bytes that have arrived.
    ended: bool,
    /// Number of bytes in transit or unread.
    bytes: usize,
}

/// A simulated TCP connection: two ends and a pipe in each direction.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: [LoopEnd; 2],
    /// Pipes by the index of the receiving end.
    pipes: [Pipe; 2],
}

/// The path from one machine to another.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    /// Number of faults that currently block the path.
    blocked: u32,
    /// Packets per thousand that are lost.
    loss: u64,
    /// Additional delay in microseconds.
    slow: u64,
}

/// Delays of a healthy path, in microseconds, and the buffer size of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    pub(crate) least_micros: u64,
    pub(crate) most_micros: u64,
    /// Maximum number of bytes of messages that may wait on a connection.
    pub(crate) buffer: usize,
}

/// All connections and paths.
#[derive(Debug)]
pub(crate) struct Network {
    nodes: usize,
    speed: Speed,
    /// Paths with faults. A path without an entry is healthy.
    paths: BTreeMap<(usize, usize), Path>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    random: Random,
    /// Number of messages sent so far. `bytes` is the number of bytes sent so far.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Network {
    pub(crate) fn new(nodes: usize, speed: Speed, random: Random) -> Self {
        Self {
            nodes,
            speed,
            paths: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 1,
            random,
            messages: 0,
            bytes: 0,
        }
    }

    fn path(&self, from: usize, to: usize) -> Path {
        self.paths.get(&(from, to)).copied().unwrap_or_default()
    }

    pub(crate) fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.path(from, to).blocked > 0
    }

    /// Returns true if two machines can reach each other in both directions.
    pub(crate) fn is_connected(&self, one: usize, other: usize) -> bool {
        !self.is_blocked(one, other) && !self.is_blocked(other, one)
    }

    /// Begins or ends a fault that blocks a path.
    pub(crate) fn set_blocked(&mut self, from: usize, to: usize, begins: bool) {
        let path_state = self.paths.entry((from, to)).or_default();
        path_state.blocked =
            if begins { path_state.blocked + 1 } else { path_state.blocked.saturating_sub(1) };
    }

    /// Sets packet loss, per thousand, and additional delay, in microseconds, of all paths from and
    /// to a node.
    pub(crate) fn disturb(&mut self, node: usize, loss: u64, slow: u64) {
        for other in (0..self.nodes).filter(|other| *other != node) {
            for ends in [(node, other), (other, node)] {
                let path_state = self.paths.entry(ends).or_default();
                (path_state.loss, path_state.slow) = (loss, slow);
            }
        }
    }

    /// Makes all paths healthy.
    pub(crate) fn heal(&mut self) {
        self.paths.clear();
    }

    /// Draws the delay of a transmission on a path, in microseconds, including retransmissions.
    pub(crate) fn delay(&mut self, from: usize, to: usize) -> u64 {
        let path_state = self.path(from, to);
        let mut delay = self.random.spread(self.speed.least_micros, self.speed.most_micros);
        delay += path_state.slow;
        let mut tries = 0;
        while tries < 5 && self.random.permille(path_state.loss) {
            delay += self.random.between(RETRY_DELAY_MICROS.0, RETRY_DELAY_MICROS.1) << tries;
            tries += 1;
        }
        delay
    }

    pub(crate) fn connect(&mut self, dialer: LoopEnd, acceptor: LoopEnd) -> u64 {
        let id = self.next;
        self.next += 1;
        let connection = Connection { ends: [dialer, acceptor], pipes: Default::default() };
        self.connections.insert(id, connection);
        id
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Returns the open ends in a process: the ids of the connections and the indexes of the ends.
    pub(crate) fn connections_of_process(&self, node: usize, life: u32) -> Vec<(u64, usize)> {
        let mine = |end: &LoopEnd| end.node == node && end.life == life && end.open;
        let ends = |(id, connection): (&u64, &Connection)| {
            let mine = (0..2).filter(|end| mine(&connection.ends[*end]));
            mine.map(|end| (*id, end)).collect::<Vec<_>>()
        };
        self.connections.iter().flat_map(ends).collect()
    }

    /// Returns the ids of all connections.
    pub(crate) fn connection_ids(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    /// Accepts as many of `bytes` as the sockets' buffers have space for. Returns the number of
    /// accepted bytes, and their times of arrival. Accepts none if the connection does not exist.
    pub(crate) fn write(
        &mut self,
        now: u64,
        id: u64,
        from: usize,
        bytes: &[u8],
    ) -> (usize, Vec<u64>) {
        let Some(connection) = self.connections.get(&id) else { return (0, Vec::new()) };
        let (a, b) = (connection.ends[from].node, connection.ends[1 - from].node);
        let room = SOCKET_BYTES.saturating_sub(connection.pipes[1 - from].bytes);
        let taken = &bytes[..bytes.len().min(room)];
        if taken.is_empty() {
            return (0, Vec::new());
        }
        self.bytes += taken.len() as u64;
        let first = if self.random.permille(SPLIT) {
            self.random.between(1, taken.len() as u64) as usize
        } else {
            taken.len()
        };
        let mut times = Vec::new();
        let (first, second) = taken.split_at(first);
        for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
            let at = now + self.delay(a, b);
            let connection = self.connections.get_mut(&id).expect("found above");
            times.push(connection.pipes[1 - from].put(at, Some(part)));
        }
        (taken.len(), times)
    }

    /// Delivers the due bytes to an end. Returns the end, or `None` if the end is closed.
    pub(crate) fn arrive(&mut self, now: u64, id: u64, end: usize) -> Option<LoopEnd> {
        let connection = self.connections.get(&id)?;
        let (to, from) = (connection.ends[end].node, connection.ends[1 - end].node);
        let blocked = self.is_blocked(from, to);
        let connection = self.connections.get_mut(&id)?;
        let pipe = &mut connection.pipes[end];
        while !blocked && pipe.queue.front().is_some_and(|(at, _)| *at <= now) {
            match pipe.queue.pop_front().and_then(|(_, bytes)| bytes) {
                Some(bytes) => pipe.arrived.extend_from_slice(&bytes),
                None => pipe.ended = true,
            }
        }
        Some(connection.ends[end]).filter(|end| end.open)
    }

    /// Removes and returns the bytes that have arrived at an end. The flag is true if the stream
    /// ends after these bytes.
    pub(crate) fn read(&mut self, id: u64, end: usize) -> (Vec<u8>, bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return (Vec::new(), true) };
        let pipe = &mut connection.pipes[end];
        let bytes = std::mem::take(&mut pipe.arrived);
        pipe.bytes -= bytes.len();
        (bytes, pipe.ended)
    }

    /// Returns true if unread bytes, or the end of the stream, have arrived at an end.
    pub(crate) fn is_readable(&self, id: u64, end: usize) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            let pipe = &connection.pipes[end];
            pipe.ended || !pipe.arrived.is_empty()
        })
    }

    /// Returns the arrival time of the bytes that a blocked path held back and that are
    /// retransmitted now. Returns `None` if no bytes were held back.
    pub(crate) fn resend(&mut self, now: u64, id: u64, end: usize) -> Option<u64> {
        let waits = self.connections.get(&id)?.pipes[end].queue.front();
        let waits = waits.is_some_and(|(at, _)| *at <= now);
        waits.then(|| now + self.random.between(0, RETRY_DELAY_MICROS.1))
    }

    /// Closes an end. Some of the bytes that the end has sent still arrive at the other end.
    /// Returns the time at which the other end sees the end of the stream. Returns `None` if the
    /// other end cannot notice the close (`is_noticed` is false), or is closed already.
    pub(crate) fn close(&mut self, now: u64, id: u64, end: usize, is_noticed: bool) -> Option<u64> {
        let connection = self.connections.get(&id)?;
        let (a, b) = (connection.ends[end].node, connection.ends[1 - end].node);
        let at = now + self.delay(a, b);
        let connection = self.connections.get_mut(&id)?;
        connection.ends[end].open = false;
        connection.pipes[end] = Pipe::default();
        connection.pipes[1 - end].cut(&mut self.random);
        if !connection.ends[1 - end].open {
            self.connections.remove(&id);
            return None;
        }
        is_noticed.then(|| connection.pipes[1 - end].put(at, None))
    }

    /// Returns the arrival time of the last bytes in transit; 0 if no bytes were sent.
    pub(crate) fn last_arrival(&self) -> u64 {
        let pipes = self.connections.values().flat_map(|found| &found.pipes);
        pipes.map(|pipe| pipe.last).max().unwrap_or(0)
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.len() as u64
    }

    /// Sends resets for the connections of a machine's earlier boots. The restarted machine does
    /// not know these connections, so its TCP answers a ping on them with a reset. Returns each
    /// connection, its remaining end, and the time at which the reset arrives.
    pub(crate) fn reset(&mut self, now: u64, node: usize) -> Vec<(u64, usize, u64)> {
        let mut resets = Vec::new();
        for (id, connection) in &mut self.connections {
            let dead = (0..2)
                .find(|end| connection.ends[*end].node == node && !connection.ends[*end].open);
            let Some(end) = dead.map(|dead| 1 - dead) else { continue };
            let at = now + self.random.between(1_000, 500_000);
            resets.push((*id, end, connection.pipes[end].put(at, None)));
        }
        resets
    }
}

impl Pipe {
    /// Adds bytes, or the end of the stream (`None`). They arrive at `at`, but no earlier than the
    /// bytes added before. Returns the time of arrival.
    fn put(&mut self, at: u64, bytes: Option<&[u8]>) -> u64 {
        self.last = self.last.max(at);
        self.bytes += bytes.map_or(0, <[u8]>::len);
        self.queue.push_back((self.last, bytes.map(<[u8]>::to_vec)));
        self.last
    }

    /// Drops the tail of the bytes in transit, from a random byte on.
    fn cut(&mut self, random: &mut Random) {
        let kept = random.between(0, self.queue.len() as u64) as usize;
        for (_, bytes) in self.queue.drain(kept..) {
            self.bytes -= bytes.map_or(0, |bytes| bytes.len());
        }
        if let Some((_, Some(last))) = self.queue.back_mut() {
            let kept = random.between(1, last.len() as u64) as usize;
            self.bytes -= last.len() - kept;
            last.truncate(kept);
        }
    }
}
