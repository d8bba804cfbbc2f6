//! Forms of a range's body, and the choice among them by a request's `Accept` (RFC 9110, 12.5.1).

use hyper::HeaderMap;
use hyper::header::ACCEPT;

use crate::http::frames;

/// The form in which the items of a range are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Form {
    /// Each item is one HTTP chunk: the key, a line feed, the value.
    Chunks,
    /// Each item is one line of JSON.
    Lines,
    /// Length-prefixed items: [`frames`].
    Frames,
}

const LINES: &str = "application/x-ndjson";

impl Form {
    /// Returns the preferred form. A client gets [`Self::Lines`] or [`Self::Frames`] only if its
    /// `Accept` names it. Clients that accept anything get [`Self::Chunks`].
    pub(in crate::http) fn of(headers: &HeaderMap) -> Self {
        // Among equal weights the first form counts, and a named form precedes a form that a
        // wildcard covers.
        let (mut best, mut form, mut chunks) = (0, Self::Chunks, (0, 0));
        for accept in headers.get_all(ACCEPT) {
            let Ok(accept) = accept.to_str() else { continue };
            for (media, quality) in accept.split(',').filter_map(entry) {
                let named = match media.to_ascii_lowercase().as_str() {
                    LINES => Self::Lines,
                    frames::CONTENT_TYPE => Self::Frames,
                    // The most specific range that covers `application/octet-stream` determines its
                    // weight.
                    "application/octet-stream" => {
                        chunks = chunks.max((3, quality));
                        continue;
                    }
                    "application/*" => {
                        chunks = chunks.max((2, quality));
                        continue;
                    }
                    "*/*" => {
                        chunks = chunks.max((1, quality));
                        continue;
                    }
                    _ => continue,
                };
                if quality > best {
                    (best, form) = (quality, named);
                }
            }
        }
        if chunks.1 > best { Self::Chunks } else { form }
    }

    pub(in crate::http) fn content_type(self) -> &'static str {
        match self {
            Self::Chunks => "application/octet-stream",
            Self::Lines => LINES,
            Self::Frames => frames::CONTENT_TYPE,
        }
    }
}

/// Parses a media range and its weight, 0 to 1000; `None` if the weight is malformed.
fn entry(text: &str) -> Option<(&str, u16)> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next()?;
    let mut quality = 1000;
    for part in parts {
        let Some((name, value)) = part.split_once('=') else { continue };
        if name.trim().eq_ignore_ascii_case("q") {
            quality = parse_weight(value.trim())?;
        }
    }
    Some((media, quality))
}

/// Parses a weight from `0` to `1` with up to three decimals into a number from 0 to 1000; `None`
/// if it is malformed.
fn parse_weight(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || decimals.len() > 3 || !matches!(whole, "0" | "1") {
        return None;
    }
    let decimals: u16 = format!("{decimals:0<3}").parse().ok()?;
    let quality = whole.parse::<u16>().ok()? * 1000 + decimals;
    (quality <= 1000).then_some(quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &[&str]) -> Form {
        let mut headers = HeaderMap::new();
        for one in accept {
            headers.append(ACCEPT, one.parse().unwrap());
        }
        Form::of(&headers)
    }

    #[test]
    fn accept_decides_the_form_of_a_range() {
        for (accept, expected) in [
            ("application/x-ndjson", Form::Lines),
            ("Application/X-NDJSON; charset=utf-8", Form::Lines),
            ("application/vnd.kvorum.items", Form::Frames),
            ("text/html, application/x-ndjson", Form::Lines),
            ("application/x-ndjson, */*", Form::Lines),
            ("*/*, application/x-ndjson", Form::Lines),
            ("application/x-ndjson, */*;q=0.8", Form::Lines),
            ("application/x-ndjson;q=0.5, */*", Form::Chunks),
            ("application/x-ndjson;q=0.5, application/octet-stream;q=0.4, */*", Form::Lines),
            ("application/x-ndjson;q=0.5, application/*;q=0.6, */*;q=0.1", Form::Chunks),
            ("application/x-ndjson;q=0.5, application/vnd.kvorum.items;q=0.501", Form::Frames),
            ("application/vnd.kvorum.items, application/x-ndjson", Form::Frames),
            ("application/x-ndjson;q=0", Form::Chunks),
            ("application/x-ndjson;q=0, application/vnd.kvorum.items;q=0.001", Form::Frames),
            ("application/x-ndjson;q=2", Form::Chunks),
            ("application/x-ndjson;q=1.000", Form::Lines),
            ("application/x-ndjson;q=0.1234", Form::Chunks),
            ("application/*", Form::Chunks),
            ("*/*", Form::Chunks),
            ("", Form::Chunks),
            ("text/html", Form::Chunks),
            ("application/json", Form::Chunks),
            (",;,q=1, application/x-ndjson ;Q=0.3", Form::Lines),
        ] {
            assert_eq!(form(&[accept]), expected, "{accept}");
        }
        assert_eq!(form(&[]), Form::Chunks);
        assert_eq!(form(&["text/html", "application/x-ndjson"]), Form::Lines, "two header lines");
    }
}
