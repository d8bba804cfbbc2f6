//! Suggestions for common mistakes in command lines of wrk2.

use super::cli_error::Error;

/// wrk2's long flags, which people often write with one dash.
const LONG_FLAGS: [&str; 11] = [
    "connections",
    "duration",
    "threads",
    "script",
    "header",
    "latency",
    "u_latency",
    "batch_latency",
    "timeout",
    "rate",
    "version",
];

/// The letters of short flags.
const SHORT_FLAGS: &str = "cdtsHLUBTRvh";

/// Flags that take a number or a time.
const NUMERIC_FLAGS: [&str; 11] =
    ["c", "connections", "d", "duration", "t", "threads", "T", "timeout", "R", "rate", "warmup"];

/// Returns a one-line suggestion for the first mistaken word of a refused command line, or `None`
/// if no word shows a known mistake.
pub fn suggest_correction(words: &[String]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).take_while(|w| *w != "--").collect();
    let before = std::iter::once("").chain(words.iter().copied());
    before
        .zip(&words)
        .find_map(|(flag, word)| negative_value_hint(flag, word).or_else(|| suggestion_for(word)))
}

/// Returns the error for a word that begins with a typographic dash, or `None` for any other word.
/// Editors substitute typographic dashes for one or two minus signs.
pub(super) fn typographic_dash_error(word: &str) -> Option<Error> {
    let rest = word.strip_prefix(['\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}'])?;
    let name = rest.split('=').next().unwrap_or_default();
    let long = name.len() > 2 && name.bytes().all(|b| b.is_ascii_lowercase() || b"-_".contains(&b));
    let dashes = if long { "--" } else { "-" };
    Some(Error::Dash { word: word.to_owned(), meant: format!("{dashes}{rest}") })
}

/// Returns a suggestion if `word` is a negative value of the numeric flag `flag`. Such a value
/// looks like a flag.
fn negative_value_hint(flag: &str, word: &str) -> Option<String> {
    let takes = |name: &str| NUMERIC_FLAGS.contains(&name);
    let number = word.strip_prefix('-')?;
    let named = flag.strip_prefix("--").or(flag.strip_prefix('-')).is_some_and(takes);
    (named && number.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        .then(|| format!("{flag} {word}: it must be positive: say {flag} {number}"))
}

fn suggestion_for(word: &str) -> Option<String> {
    if let Some(error) = typographic_dash_error(word) {
        return Some(error.to_string());
    }
    let flag = word.strip_prefix('-')?;
    let letter = flag.chars().next()?;
    if letter.is_ascii_digit() {
        return Some(format!(
            "{word} is not a flag: say -R{flag} if it is the rate in requests a second (-c{flag} \
             connections, -t{flag} threads, -d{flag} seconds)"
        ));
    }
    if let Some(long) = flag.strip_prefix('-') {
        let lower = long.to_ascii_lowercase().replace('-', "_");
        let name = lower.split('=').next().unwrap_or_default();
        return (lower != long && LONG_FLAGS.contains(&name))
            .then(|| format!("{word} is not a flag: say --{lower}"));
    }
    let name = flag.split('=').next().unwrap_or_default();
    if LONG_FLAGS.contains(&name) {
        return Some(format!("{word} is not a flag: say --{flag}, with two dashes"));
    }
    if SHORT_FLAGS.contains(letter) {
        return None;
    }
    let other: char = if letter.is_lowercase() {
        letter.to_ascii_uppercase()
    } else {
        letter.to_ascii_lowercase()
    };
    SHORT_FLAGS.contains(other).then(|| {
        format!("-{letter} is not a flag: say -{other}{rest}", rest = &flag[letter.len_utf8()..])
    })
}

#[cfg(test)]
mod tests {
    use super::suggest_correction;

    #[test]
    fn mistyped_flags_get_a_suggestion() {
        for (word, says) in [
            ("-40000", "say -R40000 if it is the rate"),
            ("-10k", "say -R10k"),
            ("-latency", "say --latency, with two dashes"),
            ("-rate=100", "say --rate=100, with two dashes"),
            ("--u-latency", "say --u_latency"),
            ("--Rate=5", "say --rate=5"),
            ("-r", "say -R"),
            ("-r1000", "say -R1000"),
            ("-C64", "say -c64"),
            ("\u{2013}t4", "say -t4"),
            ("\u{2014}latency", "say --latency"),
            ("\u{2014}closed", "say --closed"),
            ("\u{2013}rate=5", "say --rate=5"),
            ("\u{2013}R10", "say -R10"),
        ] {
            let line = suggest_correction(&["load".to_owned(), word.to_owned()]).expect(word);
            assert!(line.contains(says), "{word}: {line}");
        }
    }

    #[test]
    fn a_negative_value_is_not_taken_for_a_flag() {
        for (flag, word, says) in [
            ("-R", "-10", "-R -10: it must be positive: say -R 10"),
            ("-d", "-5s", "-d -5s: it must be positive: say -d 5s"),
            ("--rate", "-.5", "--rate -.5: it must be positive"),
        ] {
            let line = suggest_correction(&["load", flag, word].map(str::to_owned)).expect(word);
            assert!(line.starts_with(says), "{line}");
        }
    }

    #[test]
    fn correct_words_get_no_suggestion() {
        for word in ["-t4", "-R40000", "--latency", "http://h/-1", "-", "--", "-q", "--closed"] {
            assert_eq!(suggest_correction(&[word.to_owned()]), None, "{word}");
        }
        let after = ["--".to_owned(), "-40000".to_owned()];
        assert_eq!(suggest_correction(&after), None);
    }
}
