//! Invisible characters, and characters that reverse the text around them: control characters,
//! zero-width and bidirectional characters. Printed unescaped, such a character in a name or key
//! can make a line of output differ from its bytes, or end the line early.

use std::borrow::Cow;
use std::fmt::Write;

/// The invisible characters, as the first and last of each range: the Unicode category Cf (format),
/// other characters that are not drawn, and the control characters that JSON leaves as they are.
const INVISIBLE: [(char, char); 21] = [
    ('\u{7f}', '\u{9f}'),
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// True if a character is invisible or reverses the text around it.
pub fn is_invisible(one: char) -> bool {
    let last = INVISIBLE.partition_point(|(first, _)| *first <= one);
    last.checked_sub(1).is_some_and(|place| one <= INVISIBLE[place].1)
}

/// Returns the text with invisible characters escaped as in JSON (`\u202e`). If the text is JSON,
/// the returned text parses to the same value.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| byte < 0x7f);
    if is_plain || !text.chars().any(is_invisible) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for one in text.chars() {
        match is_invisible(one) {
            false => shown.push(one),
            true => one.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(shown, "\\u{unit:04x}");
            }),
        }
    }
    Cow::Owned(shown)
}

/// Returns a key, or a part of a key, as one line of text, which `kvorum scan --escaped` decodes to
/// the same bytes. A backslash, a control character, an invisible character ([`is_invisible`]) and
/// a byte that is not UTF-8 become `\\`, `
/// `, `\t` or `\xNN`; other text is unchanged.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                unseen if unseen.is_control() || is_invisible(unseen) => {
                    for byte in unseen.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                other => text.push(other),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        for same in ["", "a key", "Zoë, 日本, 👍, e\u{301}", "\\ \" \n"] {
            assert!(matches!(visible(same), Cow::Borrowed(text) if text == same), "{same:?}");
        }
        assert_eq!(visible("a\u{202e}b\u{200b}"), "a\\u202eb\\u200b");
        // A terminal reads U+009B as an escape and a bracket, and U+0085 as the end of a line.
        assert_eq!(visible("\u{9b}2J\u{85}\u{2028}\u{7f}"), "\\u009b2J\\u0085\\u2028\\u007f");
        assert_eq!(visible("\u{feff}x\u{e0041}"), "\\ufeffx\\udb40\\udc41");
        assert!(INVISIBLE.windows(2).all(|pair| pair[0].1 < pair[1].0), "they are sorted");
        assert!(INVISIBLE.iter().all(|(first, last)| is_invisible(*first) && is_invisible(*last)));
        assert!(!is_invisible('\u{2027}') && !is_invisible('\u{2070}') && !is_invisible('a'));
    }
}
