//! Who this node is, as its data directory knows it: name, incarnation, the topology that its data
//! was placed by, and whom it has met. Kept in [`Space::Node`]; byte by byte in
//! `docs/file-format.md`.
//!
//! ```text
//!   start ─▶ directory's identity ─┬─ none, nothing else either ─▶ made: new incarnation
//!                                  ├─ none, but data: an earlier release's ─▶ adopted, if alone
//!                                  ├─ of this node and topology ─▶ goes on
//!                                  └─ of another ─▶ refused, with what differs
//! ```
//!
//! The incarnation is what tells a node from one of the same name whose disk was wiped.
//!
//! **A node alone** has nobody to agree with. If the settings do not name it, its name is where it
//! listened when the directory was made, which no later start is held to.

mod format;
mod marker;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{Claim, Life, Lineage, Missed, NodeId, Standing, difference};
use lsm::{Batch, Core, Db, Lookup, Record, Space, Version, Wait};
use xxhash_rust::xxh3::xxh3_64;

use crate::node::clock::BOUND_KEY;
use crate::settings::members::Membership;
use format::Kept;
use marker::Marker;

/// Where the identity is stored.
const KEY: &[u8] = b"identity";

/// Where the directory's lives are stored.
const LIVES: &[u8] = b"lives";

/// What precedes a node's name in the key of what it is marked to lack.
const LACKS: &[u8] = b"lacks/";

/// What precedes a peer's name in the key of what is known of it.
const PEER: &[u8] = b"peer/";
/// The least key after all of those.
const PEERS_END: &[u8] = b"peer0";

/// Who this node is. Changes are in the store when a method returns.
pub(crate) struct Identity {
    db: Arc<Db>,
    incarnation: u64,
    cluster: u64,
    born: u64,
    state: Mutex<State>,
}

struct State {
    kept: Kept,
    /// Version of the newest record written here; each one is newer.
    version: Version,
    /// What is known of each peer that was met, by name.
    peers: BTreeMap<String, Claim>,
}

/// What is found in a store before anything is written to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovered {
    sequence: u64,
    newest: u64,
}

impl Recovered {
    /// To be called before the first write.
    pub(crate) fn of(db: &Db) -> Self {
        Self { sequence: db.sequence(), newest: db.greatest_time() }
    }
}

/// The name that the data directory has for its node.
pub(crate) fn kept_name(db: &Db) -> Result<Option<String>, String> {
    Ok(read(db)?.map(|(kept, _)| kept.name))
}

/// Whether a stopped node's directory is that of a node alone, or of none.
pub(crate) fn is_alone(core: &Core) -> Result<bool, String> {
    Ok(read_from(core)?.is_none_or(|(kept, _)| kept.is_alone()))
}

/// A stopped node's directory has lost some of what the node ever held, stamped up to `born`: from
/// its next start on it is as one whose disk was replaced, until the others have streamed back what
/// it is to hold.
pub(crate) fn lose(core: &Core, born: u64) -> Result<(), String> {
    let Some((kept, mut version)) = read_from(core)? else { return Ok(()) };
    let kept = Kept { standing: Standing::Amnesiac, born: born.max(kept.born), ..kept };
    version.time += 1;
    let mut batch = Batch::new();
    let put = batch.put(Space::Node, KEY, version, &kept.encode());
    let written = put.and_then(|()| core.commit(std::iter::once(&batch)));
    written.map(drop).map_err(|error| format!("the node's identity: {error}"))
}

impl Identity {
    /// The identity of the directory that `db` is in, made if it has none yet. `born` is the
    /// greatest time of a stamp that a former life of this node may have acknowledged, if it is
    /// made now. An error is one line; nothing was changed then.
    pub(crate) fn open(db: &Arc<Db>, members: &Membership, born: u64) -> Result<Self, String> {
        let origin = cluster::origin_of(members.name());
        let (stored, mut version) = match read(db)? {
            Some((kept, version)) => (Some(kept), version),
            None => (None, Version { time: 0, origin }),
        };
        let differs = match &stored {
            Some(kept) => differs(kept, members),
            None => earlier(db, members)?,
        };
        if let Some(differs) = differs {
            return Err(refusal(&differs));
        }
        let peers = peers(db)?;
        version.time = version.time.max(newest(db)?);
        let kept = agreed(stored.as_ref(), members, born);
        let identity = Self {
            db: Arc::clone(db),
            incarnation: kept.incarnation,
            cluster: kept.cluster,
            born: kept.born,
            state: Mutex::new(State { kept, version, peers }),
        };
        let mut state = identity.lock();
        if stored.as_ref() != Some(&state.kept) {
            let encoded = state.kept.encode();
            let written = identity.write(&mut state, KEY, &encoded);
            written.map_err(|error| format!("the node's identity: {error}"))?;
        }
        drop(state);
        Ok(identity)
    }

    /// The store that it is kept in.
    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// Random, never 0: made once for the directory.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Of the cluster that the directory was made in.
    pub(crate) fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Greatest time of a stamp that a former life of this node may have acknowledged.
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// What the node's word is worth.
    pub(crate) fn standing(&self) -> Standing {
        self.lock().kept.standing
    }

    /// Changes it and, in one step, what this node is marked to lack.
    pub(crate) fn set_standing(
        &self,
        standing: Standing,
        own: NodeId,
        missed: &Missed,
    ) -> Result<(), lsm::Error> {
        let mut state = self.lock();
        let kept = Kept { standing, ..state.kept.clone() };
        let name = kept.name.clone();
        let (lacks, changes) = missed.encode(own);
        let lacks_key = [LACKS, name.as_bytes()].concat();
        self.write_all(&mut state, &[(KEY, &kept.encode()), (&lacks_key, &lacks)])?;
        missed.kept(own, changes);
        state.kept = kept;
        Ok(())
    }

    /// What is known of the peer of this name.
    pub(crate) fn known(&self, peer: &str) -> Option<Claim> {
        self.lock().peers.get(peer).copied()
    }

    /// Keeps what is known of a peer. Writes, and may wait for the disk, only if that is new.
    pub(crate) fn remember(&self, peer: &str, claim: &Claim) -> Result<(), lsm::Error> {
        let mut state = self.lock();
        if state.peers.get(peer) == Some(claim) {
            return Ok(());
        }
        let key = [PEER, peer.as_bytes()].concat();
        self.write(&mut state, &key, &format::encode_peer(claim))?;
        state.peers.insert(peer.to_owned(), *claim);
        Ok(())
    }

    /// Keeps what a node is marked to lack.
    pub(crate) fn keep_missed(
        &self,
        node: NodeId,
        name: &str,
        missed: &Missed,
    ) -> Result<(), lsm::Error> {
        // Under the lock, so that what is kept last is what was marked last.
        let mut state = self.lock();
        let (lacks, changes) = missed.encode(node);
        let key = [LACKS, name.as_bytes()].concat();
        self.write(&mut state, &key, &lacks)?;
        missed.kept(node, changes);
        Ok(())
    }

    /// Takes in what nodes were marked to lack.
    pub(crate) fn load_missed(&self, shared: &cluster::Shared) -> Result<(), String> {
        let view = shared.view();
        for node in view.topology.ids() {
            let name = &view.topology.member(node).name;
            let key = [LACKS, name.as_bytes()].concat();
            let stored = self.db.get(Space::Node, &key).map_err(|error| error.to_string())?;
            if let Some(record) = stored {
                let found = shared.missed.found(node, &record.value());
                found.map_err(|why| format!("what node {name} is marked to lack: {why}"))?;
            }
        }
        Ok(())
    }

    /// Begins a life of the directory: to be called once, before anything is told to anybody.
    /// `now` is the wall clock's time. A member whose directory is not the one that it was when the
    /// last life began stands as copied from here on, if there are others to ask.
    pub(crate) fn begin_life(
        &self,
        data: &Path,
        recovered: Recovered,
        now: u64,
        alone: bool,
    ) -> Result<Lineage, String> {
        let failed = |error: &dyn std::fmt::Display| format!("the directory's lives: {error}");
        let stored = self.db.get(Space::Node, LIVES).map_err(|error| failed(&error))?;
        let stored = stored.map(|record| format::decode_lives(&record.value()));
        let stored = stored.transpose().map_err(|why| failed(&why))?;
        let mut state = self.lock();
        if let Some((marker, _)) = &stored
            && !marker.is_in(data)
            && !alone
            && state.kept.standing == Standing::Member
        {
            let kept = Kept { standing: Standing::Copied, ..state.kept.clone() };
            self.write(&mut state, KEY, &kept.encode()).map_err(|error| failed(&error))?;
            state.kept = kept;
        }
        let earlier = stored.map_or(Vec::new(), |(_, lives)| lives);
        let id = now.max(earlier.last().map_or(0, |last: &Life| last.id) + 1);
        let Recovered { sequence: begins, newest } = recovered;
        let lineage = Lineage::new(earlier, Life { id, begins, newest });
        let number = RandomState::new().hash_one("life");
        let marker = Marker::make(data, number).map_err(|error| failed(&error))?;
        let lives = format::encode_lives(&marker, &lineage);
        self.write(&mut state, LIVES, &lives).map_err(|error| failed(&error))?;
        Marker::settle(data).map_err(|error| failed(&error))?;
        Ok(lineage)
    }

    fn write(&self, state: &mut State, key: &[u8], value: &[u8]) -> Result<(), lsm::Error> {
        self.write_all(state, &[(key, value)])
    }

    /// Writes past the store's backlog: small records must not wait for compactions.
    fn write_all(&self, state: &mut State, items: &[(&[u8], &[u8])]) -> Result<(), lsm::Error> {
        let mut version = state.version;
        version.time += 1;
        let mut batch = Batch::new();
        for (key, value) in items {
            batch.put(Space::Node, key, version, value)?;
        }
        // One that fails may be found after a restart, so no version is used twice.
        state.version = version;
        self.db.commit(batch)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the directory is to keep: what it has, and what the settings of a node alone say now.
fn agreed(stored: Option<&Kept>, members: &Membership, born: u64) -> Kept {
    let mut kept = stored.cloned().unwrap_or_else(|| made(members, born));
    kept.named |= members.named;
    kept.digest = members.topology.digest();
    kept.description = members.topology.describe();
    members.name().clone_into(&mut kept.name);
    kept
}

fn made(members: &Membership, born: u64) -> Kept {
    let topology = &members.topology;
    let names: Vec<&str> =
        topology.ids().map(|id| topology.member(id).name.as_str()).collect();
    Kept {
        // What a lone node lost nobody else has.
        standing: if names.len() == 1 { Standing::Member } else { Standing::New },
        named: members.named,
        cluster: xxh3_64(names.join("\n").as_bytes()),
        incarnation: RandomState::new().hash_one("incarnation").max(1),
        born,
        digest: topology.digest(),
        name: members.name().to_owned(),
        description: topology.describe(),
    }
}

/// What keeps the node from going on with a directory that has no identity: data of an earlier
/// release, which knew one node.
fn earlier(db: &Db, members: &Membership) -> Result<Option<String>, String> {
    let used = db.get(Space::Node, BOUND_KEY).map_err(|error| error.to_string())?.is_some();
    let nodes = members.topology.nodes();
    Ok((used && nodes > 1)
        .then(|| format!("it has the data of one node alone, and we are {nodes}")))
}

/// What keeps the node from going on with this directory.
fn differs(kept: &Kept, members: &Membership) -> Option<String> {
    const WHOSE: &str = "the data directory's";
    let (own, theirs) = (members.name(), &kept.name);
    let alone = members.topology.nodes() == 1 && kept.is_alone();
    if alone {
        let other = kept.named && members.named && own != theirs;
        return other.then(|| format!("this is node {own}, and it belongs to node {theirs}"));
    }
    let topology = difference(&members.topology.describe(), &kept.description, WHOSE);
    topology.or_else(|| {
        let other = own != theirs;
        other.then(|| format!("this is node {own}, and it belongs to node {theirs}"))
    })
}

fn refusal(differs: &str) -> String {
    format!(
        "the data directory was made by another node or for another cluster: {differs}. It was not \
         changed: start as it was made, or with an empty --data"
    )
}

/// The identity in the directory, and the version of its record.
fn read(db: &Db) -> Result<Option<(Kept, Version)>, String> {
    let record = db.get(Space::Node, KEY).map_err(|error| error.to_string())?;
    record.map(|record| decode(&record)).transpose()
}

/// The same of a directory whose node does not run.
fn read_from(core: &Core) -> Result<Option<(Kept, Version)>, String> {
    match core.get(Space::Node, KEY, Wait::Yes).map_err(|error| error.to_string())? {
        Lookup::Found(record) => decode(&record).map(Some),
        Lookup::Absent | Lookup::WouldBlock | Lookup::TooLong(_) => Ok(None),
    }
}

fn decode(record: &Record) -> Result<(Kept, Version), String> {
    let kept =
        Kept::decode(&record.value()).map_err(|why| format!("the node's identity: {why}"))?;
    Ok((kept, record.view().version()))
}

/// The peers that were met.
fn peers(db: &Db) -> Result<BTreeMap<String, Claim>, String> {
    let mut peers = BTreeMap::new();
    let mut scan = db.scan(Space::Node, PEER, Some(PEERS_END));
    while let Some((key, record)) = scan.next().map_err(|error| error.to_string())? {
        let name = String::from_utf8_lossy(&key[PEER.len()..]).into_owned();
        let claim = format::decode_peer(record.value())
            .map_err(|why| format!("what is known of node {}: {why}", name.escape_debug()))?;
        peers.insert(name, claim);
    }
    Ok(peers)
}

/// The greatest time of a version of what a node keeps for itself.
fn newest(db: &Db) -> Result<u64, String> {
    let mut newest = 0;
    let mut scan = db.scan(Space::Node, &[], None);
    while let Some((_, record)) = scan.next().map_err(|error| error.to_string())? {
        newest = newest.max(record.version().time);
    }
    Ok(newest)
}
