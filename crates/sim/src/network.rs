//! Connections between loops, as TCP makes them: bytes come in order or not at all, in other pieces
//! than they were sent in, are sent again until they arrive, and an end that is gone is noticed
//! late or never.
//!
//! ```text
//!  dialer (end 0) ══ pipe: on their way, arrived ══▶ acceptor (end 1)
//!                 ◀══ pipe ═════════════════════════
//! ```
//!
//! Within a pipe nothing overtakes anything; between pipes and connections everything may. What a
//! blocked way swallows is sent again when it heals. An end that closes leaves a part of what it
//! had sent on its way, be it in its own or in the other machine's buffers: it may arrive after the
//! dialer has given the connection up, and even after it has sent the same again on another one. To
//! an end that is closed nothing is delivered.

use std::collections::{BTreeMap, VecDeque};

use crate::random::Random;

/// Bytes that a pipe takes before they are read at its other end: the buffers of two sockets.
const SOCKET_BYTES: usize = 128 << 10;

/// Writes of a thousand that arrive in two parts.
const SPLIT: u64 = 60;

/// How late what was lost is sent again, in microseconds: TCP's least and a usual second time-out.
const AGAIN_MICROS: (u64, u64) = (200_000, 400_000);

/// One end of a connection: a loop of a node, in one life of its process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) life: u32,
    pub(crate) index: usize,
    pub(crate) open: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    /// By time of arrival; `None` = the other end is gone.
    queue: VecDeque<(u64, Option<Vec<u8>>)>,
    /// When the last thing put in arrives.
    last: u64,
    /// What has arrived and was not read.
    arrived: Vec<u8>,
    /// Whether nothing comes behind that.
    ended: bool,
    /// Bytes on their way, and those that were not read.
    bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: [End; 2],
    /// By the end that they lead to.
    pipes: [Pipe; 2],
}

/// The way from one machine to another.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// Faults that block it at the moment.
    blocked: u32,
    /// Packets of a thousand that are lost.
    loss: u64,
    /// Additional delay in microseconds.
    slow: u64,
}

/// What a way is like when nothing is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    pub(crate) least_micros: u64,
    pub(crate) most_micros: u64,
    /// Bytes of messages that may wait on a connection.
    pub(crate) buffer: usize,
}

/// All connections and ways.
#[derive(Debug)]
pub(crate) struct Network {
    nodes: usize,
    speed: Speed,
    /// Only those that are not as they should be.
    ways: BTreeMap<(usize, usize), Way>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    random: Random,
    /// Messages that were sent, and bytes.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Network {
    pub(crate) fn new(nodes: usize, speed: Speed, random: Random) -> Self {
        Self {
            nodes,
            speed,
            ways: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 1,
            random,
            messages: 0,
            bytes: 0,
        }
    }

    fn way(&self, from: usize, to: usize) -> Way {
        self.ways.get(&(from, to)).copied().unwrap_or_default()
    }

    pub(crate) fn blocked(&self, from: usize, to: usize) -> bool {
        self.way(from, to).blocked > 0
    }

    /// Whether two machines receive what the other one sends.
    pub(crate) fn connected(&self, one: usize, other: usize) -> bool {
        !self.blocked(one, other) && !self.blocked(other, one)
    }

    /// A fault begins to block a way, or ends.
    pub(crate) fn block(&mut self, from: usize, to: usize, begins: bool) {
        let way = self.ways.entry((from, to)).or_default();
        way.blocked = if begins { way.blocked + 1 } else { way.blocked.saturating_sub(1) };
    }

    /// Packets are lost, or slow, on all ways from and to a node.
    pub(crate) fn disturb(&mut self, node: usize, loss: u64, slow: u64) {
        for other in (0..self.nodes).filter(|other| *other != node) {
            for ends in [(node, other), (other, node)] {
                let way = self.ways.entry(ends).or_default();
                (way.loss, way.slow) = (loss, slow);
            }
        }
    }

    /// All ways are as they should be.
    pub(crate) fn heal(&mut self) {
        self.ways.clear();
    }

    /// How long something takes from here to there, in microseconds.
    pub(crate) fn delay(&mut self, from: usize, to: usize) -> u64 {
        let way = self.way(from, to);
        let mut delay = self.random.spread(self.speed.least_micros, self.speed.most_micros);
        delay += way.slow;
        let mut tries = 0;
        while tries < 5 && self.random.permille(way.loss) {
            delay += self.random.between(AGAIN_MICROS.0, AGAIN_MICROS.1) << tries;
            tries += 1;
        }
        delay
    }

    pub(crate) fn connect(&mut self, dialer: End, acceptor: End) -> u64 {
        let id = self.next;
        self.next += 1;
        let connection = Connection { ends: [dialer, acceptor], pipes: Default::default() };
        self.connections.insert(id, connection);
        id
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Those with an end in this process.
    pub(crate) fn of_process(&self, node: usize, life: u32) -> Vec<(u64, usize)> {
        let mine = |end: &End| end.node == node && end.life == life && end.open;
        let ends = |(id, connection): (&u64, &Connection)| {
            let mine = (0..2).filter(|end| mine(&connection.ends[*end]));
            mine.map(|end| (*id, end)).collect::<Vec<_>>()
        };
        self.connections.iter().flat_map(ends).collect()
    }

    /// All open ones with things on their way, or perhaps so.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    /// Takes as many of `bytes` as the sockets have room for: how many, and the times at which
    /// something arrives.
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

    /// What is on its way to an end and due arrives there; returns that end if it is open.
    pub(crate) fn arrive(&mut self, now: u64, id: u64, end: usize) -> Option<End> {
        let connection = self.connections.get(&id)?;
        let (to, from) = (connection.ends[end].node, connection.ends[1 - end].node);
        let blocked = self.blocked(from, to);
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

    /// Reads what has arrived at an end, and whether that is the end of it.
    pub(crate) fn read(&mut self, id: u64, end: usize) -> (Vec<u8>, bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return (Vec::new(), true) };
        let pipe = &mut connection.pipes[end];
        let bytes = std::mem::take(&mut pipe.arrived);
        pipe.bytes -= bytes.len();
        (bytes, pipe.ended)
    }

    /// Whether something has arrived at an end that was not read.
    pub(crate) fn is_readable(&self, id: u64, end: usize) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            let pipe = &connection.pipes[end];
            pipe.ended || !pipe.arrived.is_empty()
        })
    }

    /// When what a way swallowed arrives now that it heals, if it swallowed anything.
    pub(crate) fn resend(&mut self, now: u64, id: u64, end: usize) -> Option<u64> {
        let waits = self.connections.get(&id)?.pipes[end].queue.front();
        let waits = waits.is_some_and(|(at, _)| *at <= now);
        waits.then(|| now + self.random.between(0, AGAIN_MICROS.1))
    }

    /// An end closes: a part of what it sent still arrives, nothing arrives there any more. If
    /// that `is_noticed`, the result says when the other end is; otherwise it must find out.
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

    /// When the last of what was lost, or is slow, will have arrived.
    pub(crate) fn settled_at(&self) -> u64 {
        let pipes = self.connections.values().flat_map(|found| &found.pipes);
        pipes.map(|pipe| pipe.last).max().unwrap_or(0)
    }

    /// How many there are.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.len() as u64
    }

    /// A machine is there again, and knows nothing of what its earlier lives were connected to:
    /// whoever pings one of those gets a reset. Returns the connections, the ends and the times.
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
    /// Nothing arrives before what was put in before it.
    fn put(&mut self, at: u64, bytes: Option<&[u8]>) -> u64 {
        self.last = self.last.max(at);
        self.bytes += bytes.map_or(0, <[u8]>::len);
        self.queue.push_back((self.last, bytes.map(<[u8]>::to_vec)));
        self.last
    }

    /// Loses the end of what is on its way, down to the byte.
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
