//! The `pprof` format: `profile.proto`, compressed with gzip, for `go tool pprof` and other tools.
//! Written fields, each with its field number (* = repeated):
//!
//! ```text
//!  Profile: 1 sample_type* (ValueType)  2 sample*  4 location*  5 function*  6 string_table*
//!           9 time_nanos  10 duration_nanos  13 comment* (string numbers)
//!  ValueType: 1 type  2 unit (string numbers)     Sample: 1 location_id* (leaf first)  2 value*
//!  Location: 1 id  4 line (Line: 1 function_id)   Function: 1 id  2 name
//! ```

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::folded::Folded;
use crate::graph::Unit;

/// Maximum number of uncompressed bytes of a profile to read, far more than a recording has.
const MAX_BYTES: u64 = 256 << 20;

/// The encoded profile so far, with the numbers of its strings and functions; string 0 is empty.
struct Writer<'a> {
    strings: HashMap<&'a str, u64>,
    functions: HashMap<&'a str, u64>,
    out: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn string(&mut self, text: &'a str) -> u64 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = self.strings.len() as u64;
        self.strings.insert(text, number);
        bytes(&mut self.out, 6, text.as_bytes());
        number
    }

    /// Returns the number of a frame's location, which is also the number of its function.
    fn location(&mut self, name: &'a str) -> u64 {
        if let Some(number) = self.functions.get(name) {
            return *number;
        }
        let number = self.functions.len() as u64 + 1;
        self.functions.insert(name, number);
        let text = self.string(name);
        let (mut function, mut line, mut location) = (Vec::new(), Vec::new(), Vec::new());
        number_field(&mut function, 1, number);
        number_field(&mut function, 2, text);
        number_field(&mut line, 1, number);
        number_field(&mut location, 1, number);
        bytes(&mut location, 4, &line);
        bytes(&mut self.out, 5, &function);
        bytes(&mut self.out, 4, &location);
        number
    }

    fn value_type(&mut self, name: &'a str, unit: &'a str) {
        let (name, unit) = (self.string(name), self.string(unit));
        let mut value = Vec::new();
        number_field(&mut value, 1, name);
        number_field(&mut value, 2, unit);
        bytes(&mut self.out, 1, &value);
    }
}

/// Encodes stacks, each with its number of events and its weight. `name` is the name of the weight.
pub fn encode(
    name: &str,
    unit: Unit,
    folded: &Folded,
    counts: &Folded,
    (started, duration): (SystemTime, Duration),
    notes: &[String],
) -> io::Result<Vec<u8>> {
    let mut writer = Writer { strings: HashMap::new(), functions: HashMap::new(), out: Vec::new() };
    writer.string("");
    writer.value_type("events", "count");
    let words = match unit {
        Unit::Nanos => "nanoseconds",
        Unit::Bytes => "bytes",
        Unit::Count => "count",
    };
    writer.value_type(name, words);
    let counts: HashMap<&str, u64> = counts.stacks().collect();
    for (stack, weight) in folded.stacks() {
        let (mut places, mut values, mut sample) = (Vec::new(), Vec::new(), Vec::new());
        for frame in stack.rsplit(';') {
            varint(&mut places, writer.location(frame));
        }
        varint(&mut values, counts.get(stack).copied().unwrap_or(0));
        varint(&mut values, weight);
        bytes(&mut sample, 1, &places);
        bytes(&mut sample, 2, &values);
        bytes(&mut writer.out, 2, &sample);
    }
    for note in notes {
        let comment = writer.string(note);
        number_field(&mut writer.out, 13, comment);
    }
    let began = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    number_field(&mut writer.out, 9, began.as_nanos() as u64);
    number_field(&mut writer.out, 10, duration.as_nanos() as u64);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&writer.out)?;
    packed.finish()
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number_field(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// Reason why bytes are not a profile.
#[derive(Debug, thiserror::Error)]
pub enum NotPprof {
    /// The bytes cannot be uncompressed.
    #[error("not compressed: {0}")]
    NotGzip(#[source] io::Error),
    /// The uncompressed profile is too long.
    #[error("more than {MAX_BYTES} bytes when uncompressed")]
    TooLong,
    /// The uncompressed bytes are not in the format.
    #[error("it is truncated, or not a profile")]
    Malformed,
}

/// Decodes the stacks of a profile from [`encode`] or another tool, weighted by the last value
/// type.
pub fn decode(packed: &[u8]) -> Result<Folded, NotPprof> {
    let mut plain = Vec::new();
    let mut unpacked = MultiGzDecoder::new(packed).take(MAX_BYTES + 1);
    unpacked.read_to_end(&mut plain).map_err(NotPprof::NotGzip)?;
    if plain.len() as u64 > MAX_BYTES {
        return Err(NotPprof::TooLong);
    }
    decode_plain(&plain).ok_or(NotPprof::Malformed)
}

fn decode_plain(plain: &[u8]) -> Option<Folded> {
    let (mut strings, mut functions, mut locations) = (Vec::new(), HashMap::new(), HashMap::new());
    let mut samples = Vec::new();
    for field in Fields(plain) {
        match field? {
            (6, Field::Bytes(text)) => strings.push(String::from_utf8_lossy(text)),
            (5, Field::Bytes(function)) => {
                functions.insert(first(function, 1)?, first(function, 2)? as usize);
            }
            (4, Field::Bytes(location)) => {
                locations.insert(first(location, 1)?, lines(location)?);
            }
            (2, Field::Bytes(sample)) => samples.push(sample),
            _ => {}
        }
    }
    let mut folded = Folded::default();
    for sample in samples {
        let mut frames = Vec::new();
        for place in numbers(sample, 1)? {
            for function in locations.get(&place)? {
                frames.push(strings.get(*functions.get(function)?)?.as_ref());
            }
        }
        folded.add(frames.into_iter().rev(), *numbers(sample, 2)?.last()?);
    }
    Some(folded)
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Iterator over the fields of a message. A malformed field yields `None` and ends the iteration.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() { None } else { Some(self.field()) }
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let parsed = self.parse();
        if parsed.is_none() {
            self.0 = &[];
        }
        parsed
    }

    fn parse(&mut self) -> Option<(u64, Field<'a>)> {
        let key = read_varint(&mut self.0)?;
        let field = match key & 7 {
            0 => Field::Number(read_varint(&mut self.0)?),
            2 => {
                let len = usize::try_from(read_varint(&mut self.0)?).ok()?;
                let (content, rest) = self.0.split_at_checked(len)?;
                self.0 = rest;
                Field::Bytes(content)
            }
            1 => Field::Bytes(self.0.split_off(..8)?),
            5 => Field::Bytes(self.0.split_off(..4)?),
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Returns all numbers of a field, packed or not, or `None` if the message is malformed.
fn numbers(message: &[u8], wanted: u64) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    for field in Fields(message) {
        match field? {
            (number, Field::Number(value)) if number == wanted => found.push(value),
            (number, Field::Bytes(mut packed)) if number == wanted => {
                while !packed.is_empty() {
                    found.push(read_varint(&mut packed)?);
                }
            }
            _ => {}
        }
    }
    Some(found)
}

/// Returns the first number of a field; 0 if the field is absent, as the format specifies.
fn first(message: &[u8], wanted: u64) -> Option<u64> {
    Some(numbers(message, wanted)?.first().copied().unwrap_or(0))
}

/// Returns the functions at a location, innermost first.
fn lines(location: &[u8]) -> Option<Vec<u64>> {
    let mut functions = Vec::new();
    for field in Fields(location) {
        if let (4, Field::Bytes(line)) = field? {
            functions.push(first(line, 1)?);
        }
    }
    Some(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pprof_files_round_trip_and_broken_ones_are_refused() {
        let folded = Folded::parse("loop-0;a;b 300\nloop-0;a 1\nread-1;b;b;a 200000\n").unwrap();
        let now = SystemTime::now();
        let packed =
            encode("cpu", Unit::Nanos, &folded, &folded, (now, Duration::from_secs(1)), &[]);
        let packed = packed.unwrap();
        assert_eq!(decode(&packed).unwrap(), folded);
        for len in 0..packed.len() {
            assert!(decode(&packed[..len]).is_err(), "{len} bytes of it");
        }
        let mut plain = Vec::new();
        MultiGzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
        for place in 0..plain.len() {
            let mut other = plain.clone();
            other[place] ^= 0xff;
            // Any result except a panic is correct.
            let _ = decode_plain(&other);
            let _ = decode_plain(&plain[..place]);
        }
    }
}
