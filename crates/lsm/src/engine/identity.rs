//! The file `STORE`: the identity of a store, and its format. The file is written before anything
//! else, and again whenever the format is raised.

use xxhash_rust::xxh3::xxh3_64;

use super::store_format::check_format;
use crate::disk::Disk;
use crate::error::{Error, IoOp};
use crate::format_range::FormatRange;
use crate::options::Options;

pub(super) const STORE: &str = "STORE";
const STORE_TEMPORARY: &str = "STORE.tmp";
const STORE_MAGIC: &[u8; 8] = b"KVORUMDB";
const STORE_LEN: usize = 32;
/// log2 of the maximum number of trees: the manifest encodes a tree in one byte.
const MAX_TREE_BITS: u8 = 7;

/// Identity of a store, written once before anything else, and its format, which can be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) store_id: u64,
    pub(super) tree_bits: u8,
    pub(super) format: u32,
}

impl Identity {
    fn encode(&self) -> [u8; STORE_LEN] {
        let mut bytes = [0; STORE_LEN];
        bytes[..8].copy_from_slice(STORE_MAGIC);
        bytes[8..12].copy_from_slice(&self.format.to_le_bytes());
        bytes[12] = self.tree_bits;
        bytes[16..24].copy_from_slice(&self.store_id.to_le_bytes());
        let check = xxh3_64(&bytes[..24]);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], formats: FormatRange) -> Result<Self, Error> {
        let corrupt = |what: &str| Error::corrupt(STORE, 0, what);
        if bytes.len() != STORE_LEN || &bytes[..8] != STORE_MAGIC {
            return Err(corrupt("it is not the file of a kvorum store"));
        }
        let field = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        if field(24) != xxh3_64(&bytes[..24]) {
            return Err(corrupt("its checksum does not match"));
        }
        let format = field(8) as u32;
        check_format(formats, STORE, format)?;
        if bytes[12] > MAX_TREE_BITS {
            return Err(corrupt("its number of trees is out of range"));
        }
        Ok(Self { store_id: field(16), tree_bits: bytes[12], format })
    }

    /// Replaces the file `STORE`. After a crash during the call, the file has its old or its new
    /// content.
    pub(super) fn write(&self, disk: &dyn Disk) -> Result<(), Error> {
        let failed = |operation| move |error| Error::io(operation, STORE_TEMPORARY, error);
        let names = disk.list().map_err(|error| Error::io(IoOp::List, "directory", error))?;
        if names.iter().any(|name| name == STORE_TEMPORARY) {
            disk.remove(STORE_TEMPORARY).map_err(failed(IoOp::Remove))?;
        }
        let file = disk.create(STORE_TEMPORARY).map_err(failed(IoOp::Create))?;
        file.write_all_at(&self.encode(), 0).map_err(failed(IoOp::Write))?;
        file.sync_data().map_err(failed(IoOp::Sync))?;
        disk.rename(STORE_TEMPORARY, STORE).map_err(failed(IoOp::Rename))?;
        disk.sync_dir().map_err(|error| Error::io(IoOp::Sync, "directory", error))
    }
}

/// Returns the identity of the store on `disk`; creates an identity if the disk is empty. A new
/// store has the earliest format of the release, so that the previous release can open it too.
/// Fails with [`Error::NotAStore`] if the disk has other files but no file `STORE`.
pub(super) fn identify(
    disk: &dyn Disk,
    names: &[String],
    options: &Options,
) -> Result<Identity, Error> {
    if names.iter().any(|name| name == STORE) {
        let failed = |error| Error::io(IoOp::Read, STORE, error);
        let file = disk.open(STORE).map_err(failed)?;
        let mut bytes = vec![0; file.len().map_err(failed)?.min(4096) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        return Identity::decode(&bytes, options.formats);
    }
    if let Some(found) = names.iter().find(|name| *name != STORE_TEMPORARY) {
        return Err(Error::NotAStore { found: found.clone() });
    }
    let identity = Identity {
        store_id: options.new_store_id,
        tree_bits: options.new_tree_bits,
        format: options.formats.first,
    };
    assert!(identity.tree_bits <= MAX_TREE_BITS, "tree bits over their bound");
    identity.write(disk)?;
    Ok(identity)
}
