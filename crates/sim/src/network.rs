//! Connections between loops, as TCP makes them: bytes come in order or not at all, are sent again
//! until they arrive, and an end that is gone is noticed late or never.
//!
//! ```text
//!  asker (end 0) ══ pipe, small messages ══▶ ◀══ pipe ══ answerer (end 1)
//!                ══ pipe, bulk           ══▶ ◀══ pipe ══
//! ```
//!
//! Within a pipe nothing overtakes anything; between pipes and connections everything may. What a
//! blocked link swallows is sent again when it heals. An end that closes leaves a part of what it
//! had sent on its way, be it in its own or in the other machine's buffers: it may arrive after the
//! asker has given the connection up, and even after it has sent the same again on another one. To
//! an end that is closed nothing is delivered.

use std::collections::{BTreeMap, VecDeque};

use cluster::{Body, Class, Message, Reply, Request};

use crate::random::Random;

/// Messages of this many bytes and more go over the bulk pipe.
const BULK_BYTES: usize = 32 << 10;

/// How late what was lost is sent again, in microseconds: TCP's least and a usual second time-out.
const AGAIN_MICROS: (u64, u64) = (200_000, 400_000);

/// One turn's messages to one node.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) sender: Sender,
    pub(crate) messages: Vec<Message>,
}

/// What an envelope says of its sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) clock: u64,
    /// How far its log holds what it acknowledged.
    pub(crate) position: u64,
    /// Its disk, and its life on it.
    pub(crate) disk: (u64, u64),
}

/// What comes out of a pipe.
#[derive(Debug)]
pub(crate) enum Arrival {
    Envelope(Envelope),
    /// The other end is gone.
    Closed,
}

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
    /// By time of arrival.
    queue: VecDeque<(u64, usize, Arrival)>,
    /// When the last thing put in arrives.
    last: u64,
    bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: [End; 2],
    /// By the end that they lead to, then small and bulk.
    pipes: [[Pipe; 2]; 2],
    /// Pings in a row that the asker got no answer to.
    pub(crate) missed: u32,
}

/// The way from one machine to another.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    /// Faults that block it at the moment.
    blocked: u32,
    /// Packets of a thousand that are lost.
    loss: u64,
    /// Additional delay in microseconds.
    slow: u64,
}

/// What a link is like when nothing is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    pub(crate) least_micros: u64,
    pub(crate) most_micros: u64,
    /// Bytes that may wait in a pipe.
    pub(crate) buffer: usize,
}

/// All connections and links.
#[derive(Debug)]
pub(crate) struct Network {
    nodes: usize,
    speed: Speed,
    /// Only those that are not as they should be.
    links: BTreeMap<(usize, usize), Link>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    random: Random,
    /// Messages and bytes that were sent.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Network {
    pub(crate) fn new(nodes: usize, speed: Speed, random: Random) -> Self {
        Self {
            nodes,
            speed,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 1,
            random,
            messages: 0,
            bytes: 0,
        }
    }

    fn link(&self, from: usize, to: usize) -> Link {
        self.links.get(&(from, to)).copied().unwrap_or_default()
    }

    pub(crate) fn blocked(&self, from: usize, to: usize) -> bool {
        self.link(from, to).blocked > 0
    }

    /// Whether two machines hear each other.
    pub(crate) fn connected(&self, one: usize, other: usize) -> bool {
        !self.blocked(one, other) && !self.blocked(other, one)
    }

    /// A fault begins to block a link, or ends.
    pub(crate) fn block(&mut self, from: usize, to: usize, begins: bool) {
        let link = self.links.entry((from, to)).or_default();
        link.blocked = if begins { link.blocked + 1 } else { link.blocked.saturating_sub(1) };
    }

    /// Packets are lost, or slow, on all ways from and to a node.
    pub(crate) fn disturb(&mut self, node: usize, loss: u64, slow: u64) {
        for other in (0..self.nodes).filter(|other| *other != node) {
            for way in [(node, other), (other, node)] {
                let link = self.links.entry(way).or_default();
                (link.loss, link.slow) = (loss, slow);
            }
        }
    }

    /// All links are as they should be.
    pub(crate) fn heal(&mut self) {
        self.links.clear();
    }

    /// How long something takes from here to there, in microseconds.
    pub(crate) fn delay(&mut self, from: usize, to: usize) -> u64 {
        let link = self.link(from, to);
        let mut delay = self.random.spread(self.speed.least_micros, self.speed.most_micros);
        delay += link.slow;
        let mut tries = 0;
        while tries < 5 && self.random.permille(link.loss) {
            delay += self.random.between(AGAIN_MICROS.0, AGAIN_MICROS.1) << tries;
            tries += 1;
        }
        delay
    }

    pub(crate) fn connect(&mut self, asker: End, answerer: End) -> u64 {
        let id = self.next;
        self.next += 1;
        let connection =
            Connection { ends: [asker, answerer], pipes: Default::default(), missed: 0 };
        self.connections.insert(id, connection);
        id
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Connection> {
        self.connections.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
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

    /// Sends `messages` to the other end; those that don't fit what may wait are given back. The
    /// times are those at which something arrives.
    pub(crate) fn send(
        &mut self,
        now: u64,
        id: u64,
        from: usize,
        sender: Sender,
        messages: Vec<Message>,
    ) -> (Vec<u64>, Vec<Message>) {
        let Some(connection) = self.connections.get(&id) else { return (Vec::new(), messages) };
        let (a, b) = (connection.ends[from].node, connection.ends[1 - from].node);
        let mut parts = [(0, Vec::new()), (0, Vec::new())];
        let mut refused = Vec::new();
        for message in messages {
            let bytes = size_of(&message);
            let bulk = usize::from(is_bulk(&message, bytes));
            let waiting = connection.pipes[1 - from][bulk].bytes + parts[bulk].0;
            let bounded = matches!(message.body, Body::Request { .. });
            if bounded && waiting > 0 && waiting + bytes > self.speed.buffer {
                refused.push(message);
            } else {
                parts[bulk].0 += bytes;
                parts[bulk].1.push(message);
            }
        }
        let mut times = Vec::new();
        for (bulk, (bytes, messages)) in parts.into_iter().enumerate() {
            if messages.is_empty() {
                continue;
            }
            self.messages += messages.len() as u64;
            self.bytes += bytes as u64;
            let at = now + self.delay(a, b);
            let envelope = Arrival::Envelope(Envelope { sender, messages });
            let connection = self.connections.get_mut(&id).expect("found above");
            times.push(connection.pipes[1 - from][bulk].put(at, bytes, envelope));
        }
        (times, refused)
    }

    /// What has arrived at an end by now.
    pub(crate) fn take(&mut self, now: u64, id: u64, end: usize) -> Vec<Arrival> {
        let Some(connection) = self.connections.get(&id) else { return Vec::new() };
        let (to, from) = (connection.ends[end].node, connection.ends[1 - end].node);
        if self.blocked(from, to) {
            return Vec::new();
        }
        let connection = self.connections.get_mut(&id).expect("found above");
        let mut arrived = Vec::new();
        for pipe in &mut connection.pipes[end] {
            while pipe.queue.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, bytes, what) = pipe.queue.pop_front().expect("just looked at");
                pipe.bytes -= bytes;
                arrived.push(what);
            }
        }
        arrived
    }

    /// When what a link swallowed arrives now that it heals, if it swallowed anything.
    pub(crate) fn resend(&mut self, now: u64, id: u64, end: usize) -> Option<u64> {
        let waits = self.connections.get(&id)?.pipes[end].iter();
        let waits = waits.flat_map(|pipe| pipe.queue.front()).any(|(at, ..)| *at <= now);
        waits.then(|| now + self.random.between(0, AGAIN_MICROS.1))
    }

    /// An end closes: a part of what it sent still arrives, nothing arrives there any more. `told`:
    /// the other end gets to know, when the result says; otherwise it must find out.
    pub(crate) fn close(&mut self, now: u64, id: u64, end: usize, told: bool) -> Option<u64> {
        let connection = self.connections.get(&id)?;
        let (a, b) = (connection.ends[end].node, connection.ends[1 - end].node);
        let at = now + self.delay(a, b);
        let connection = self.connections.get_mut(&id)?;
        connection.ends[end].open = false;
        connection.pipes[end] = Default::default();
        for pipe in &mut connection.pipes[1 - end] {
            let kept = self.random.between(0, pipe.queue.len() as u64) as usize;
            pipe.queue.truncate(kept);
        }
        if !connection.ends[1 - end].open {
            self.connections.remove(&id);
            return None;
        }
        told.then(|| connection.pipes[1 - end][0].put(at, 0, Arrival::Closed))
    }

    /// When the last of what was lost, or is slow, will have arrived.
    pub(crate) fn settled_at(&self) -> u64 {
        let pipes = self.connections.values().flat_map(|found| found.pipes.iter().flatten());
        pipes.map(|pipe| pipe.last).max().unwrap_or(0)
    }

    /// How many there are.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.len() as u64
    }

    /// A machine is there again, and knows nothing of what its earlier lives were connected to:
    /// whoever pings one of those is told. The connections, the ends and the times.
    pub(crate) fn reset(&mut self, now: u64, node: usize) -> Vec<(u64, usize, u64)> {
        let mut told = Vec::new();
        for (id, connection) in &mut self.connections {
            let dead = (0..2)
                .find(|end| connection.ends[*end].node == node && !connection.ends[*end].open);
            let Some(end) = dead.map(|dead| 1 - dead) else { continue };
            let at = now + self.random.between(1_000, 500_000);
            told.push((*id, end, connection.pipes[end][0].put(at, 0, Arrival::Closed)));
        }
        told
    }
}

impl Pipe {
    /// Nothing arrives before what was put in before it.
    fn put(&mut self, at: u64, bytes: usize, what: Arrival) -> u64 {
        self.last = self.last.max(at);
        self.bytes += bytes;
        self.queue.push_back((self.last, bytes, what));
        self.last
    }
}

fn is_bulk(message: &Message, bytes: usize) -> bool {
    let background = matches!(
        &message.body,
        Body::Request { class: Class::Hint, .. } | Body::Request { request: Request::Page(_), .. }
    );
    background || bytes >= BULK_BYTES
}

/// About the bytes that a message takes.
fn size_of(message: &Message) -> usize {
    const HEAD: usize = 24;
    let content = match &message.body {
        Body::Request { request: Request::Read { key, .. }, .. } => key.len(),
        Body::Request { request: Request::Write { key, record }, .. } => {
            key.len() + record.bytes.len()
        }
        Body::Request { request: Request::Writes { items }, .. } => {
            items.iter().map(|(key, record)| key.len() + record.bytes.len()).sum()
        }
        Body::Request { .. } => 64,
        Body::Reply(Reply::Found { record, .. }) => record.bytes.len(),
        Body::Reply(Reply::Page(page)) => {
            page.items.iter().map(|(key, record)| key.len() + record.bytes.len()).sum()
        }
        Body::Reply(_) => 0,
    };
    HEAD + content
}
