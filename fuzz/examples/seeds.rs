//! Writes seed inputs into `fuzz/corpus`: valid inputs, from which the fuzzer reaches states that
//! it would hardly reach from random bytes.
//!
//! ```text
//! cargo run --manifest-path fuzz/Cargo.toml --example seeds
//! ```

#[allow(dead_code, reason = "only what makes a store is called")]
#[path = "../fuzz_targets/store.rs"]
mod store;

use std::fs;
use std::path::Path;

use lsm::MemDisk;

/// The items of the protocol, one per line: name, head and body.
const ITEMS: &str = include_str!("../../crates/protocol/src/wire/fixture.txt");

const ENVELOPE_HEAD: [u8; 48] = [0; 48];

const ANSWERS: [&str; 8] = [
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 204 No Content\r\nETag: \"x\"\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
    "HTTP/1.1 200 OK\nTransfer-Encoding: gzip, Chunked\n\n2\nab\n0\n\n",
    "HTTP/1.0 503 Busy\r\nconnection: close\r\nretry-after: 1\r\n\r\nno",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
];

fn main() -> std::io::Result<()> {
    wire()?;
    wal()?;
    table()?;
    reply()
}

fn put(target: &str, name: &str, parts: &[&[u8]]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), parts.concat())
}

fn wire() -> std::io::Result<()> {
    for (number, line) in ITEMS.lines().enumerate() {
        let (_, hex) = line.rsplit_once(": ").expect("a name comes before the bytes");
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let item: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
        if line.starts_with("envelope: ") {
            continue;
        }
        put("wire_decode", &format!("envelope-{number}"), &[&[1], &ENVELOPE_HEAD, &item])?;
        put("wire_decode", &format!("message-{number}"), &[&[2], &item])?;
        // A last piece that contains the whole message.
        let length = item.len() as u32;
        let head = [&[0x40, 8, 0, 0][..], &length.to_le_bytes(), &[0; 12]].concat();
        put("wire_decode", &format!("piece-{number}"), &[&[1], &ENVELOPE_HEAD, &head, &item])?;
    }
    Ok(())
}

fn wal() -> std::io::Result<()> {
    for groups in [0, 1, 4, 30] {
        let disk = MemDisk::new();
        let engine = store::open(&disk, false).expect("an empty disk becomes a store");
        store::write(&engine, 1..groups + 1);
        let [first, second] = [1, 2].map(|number| {
            let bytes = disk.file(&format!("{number:010}.wal")).unwrap_or_default();
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes[..written.next_multiple_of(8).min(bytes.len())].to_vec()
        });
        for mode in [0, 1, 3] {
            put("wal", &format!("one-{groups}-{mode}"), &[&[mode], &first])?;
        }
        let length = (first.len() as u16).to_le_bytes();
        put("wal", &format!("two-{groups}"), &[&[7], &length, &first, &second])?;
    }
    Ok(())
}

fn table() -> std::io::Result<()> {
    for which in 0..4 {
        for mode in 0..4 {
            put("table", &format!("as-it-is-{which}-{mode}"), &[&[mode, which]])?;
            let patch = [which.wrapping_mul(37), 0, 2, 1, 2];
            put("table", &format!("patch-{which}-{mode}"), &[&[mode, which], &patch])?;
        }
    }
    for (which, table) in [(0, 1), (1, 2)] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/lsm/tests/fixtures");
        let file = fixtures.join(format!("store-v1/000000000{table}.sst"));
        put("table", &format!("whole-{table}"), &[&[7, which], &fs::read(file)?])?;
    }
    Ok(())
}

fn reply() -> std::io::Result<()> {
    for (number, answer) in ANSWERS.iter().enumerate() {
        let next = ANSWERS[(number + 1) % ANSWERS.len()].as_bytes();
        for mode in 0..4 {
            let name = format!("{number}-{mode}");
            put("reply", &name, &[&[mode, 3, 9, 20, 0], answer.as_bytes(), next])?;
        }
    }
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(17 << 10));
    put("reply", "long", &[&[4, 255, 255, 0], long.as_bytes()])
}
