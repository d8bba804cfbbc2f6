//! Damage to a stopped node's directory: removal of records without a trace, and flipped bits in
//! the blocks of its tables.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm::{Disk, Engine, Options, RealDisk, RemovalFilter, Space};

use crate::Failure;
use crate::random::Random;

/// Approximate length of a block in bytes.
const BLOCK: u64 = 4096;

/// Number of bytes examined after a random position. The last user keys of a table may share a
/// block with the node's own records, without which the node does not start. So a flip needs
/// further values in later blocks.
const BLOCKS: u64 = 4 * BLOCK;

/// Attempts for each flip to find a suitable position.
const TRIES: u64 = 16;

/// Removes the records whose keys do not satisfy `stays` from a stopped node's store. Returns their
/// number. All removed records must be newer than the remaining records, because the engine can
/// remove only the newest records.
pub fn remove_newest(data: &Path, stays: impl Fn(&[u8]) -> bool) -> Result<u64, Failure> {
    let failed = |error: lsm::Error| Failure::Environment(format!("{}: {error}", data.display()));
    let disk = RealDisk::open(data).map_err(|error| Failure::Environment(error.to_string()))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let engine = Engine::open(disk, Options::default()).map_err(failed)?;
    let (mut newest, mut oldest) = (0, u64::MAX);
    let all = RemovalFilter { time: 0, spaces: &[Space::Data], proven: 0 };
    let walked = engine.records_above(all, |_, key, when| {
        if stays(key) {
            newest = newest.max(when);
        } else {
            oldest = oldest.min(when);
        }
    });
    walked.map_err(failed)?;
    if oldest <= newest {
        return Err(Failure::Environment("what is to go was not written last".to_owned()));
    }
    let gone = RemovalFilter { time: newest, spaces: &[Space::Data], proven: 0 };
    let removed = engine.remove_above(gone).map_err(failed)?;
    engine.close().map_err(failed)?;
    Ok(removed)
}

/// Flips bits in about `percent` percent of the blocks of a stopped node's tables, and at least
/// `least` bits. The positions are random, inside values, which `is_value` recognizes by their
/// first bytes. Returns the number of flips.
pub fn flip(
    data: &Path,
    (percent, least): (u64, u64),
    is_value: impl Fn(&[u8]) -> bool,
    random: &mut Random,
) -> Result<u64, Failure> {
    let tables = tables(data)?;
    let lengths: Vec<u64> =
        tables.iter().map(|path| Ok(fs::metadata(path)?.len())).collect::<Result<_, Failure>>()?;
    let all: u64 = lengths.iter().sum();
    let (most, mut flips) = ((all / BLOCK * percent / 100).max(least), 0);
    for _ in 0..TRIES * most {
        let mut at = random.below(all);
        for (path, length) in tables.iter().zip(&lengths) {
            if at >= *length {
                at -= length;
                continue;
            }
            let mut blocks = vec![0; BLOCKS.min(length - at) as usize];
            File::open(path)?.read_exact_at(&mut blocks, at)?;
            let mut values = (0..blocks.len()).filter(|begin| is_value(&blocks[*begin..]));
            if let Some(begin) = values.next()
                && values.any(|other| (other - begin) as u64 > 2 * BLOCK)
            {
                flip_at(path, at + begin as u64, random)?;
                flips += 1;
            }
            break;
        }
        if flips == most {
            return Ok(flips);
        }
    }
    Err(Failure::Environment(format!("{} holds hardly any values as they are", data.display())))
}

/// Flips a bit in each occurrence of `bytes` in a stopped node's tables. Returns the number of
/// flips.
pub fn flip_where(data: &Path, bytes: &[u8], random: &mut Random) -> Result<u64, Failure> {
    let mut flips = 0;
    for path in tables(data)? {
        let content = fs::read(&path)?;
        let mut from = 0;
        while let Some(at) = content[from..].windows(bytes.len()).position(|part| part == bytes) {
            flip_at(&path, (from + at) as u64 + random.below(bytes.len() as u64), random)?;
            flips += 1;
            from += at + bytes.len();
        }
    }
    Ok(flips)
}

fn flip_at(path: &Path, at: u64, random: &mut Random) -> Result<(), Failure> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << random.below(8);
    Ok(file.write_all_at(&byte, at)?)
}

fn tables(data: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(data)?.collect::<Result<Vec<_>, _>>()?;
    let paths = entries.into_iter().map(|entry| entry.path());
    let mut tables: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "sst")).collect();
    tables.sort();
    if tables.is_empty() {
        return Err(Failure::Environment(format!("{} holds no tables", data.display())));
    }
    Ok(tables)
}
