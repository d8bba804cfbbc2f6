//! Flame graphs in HTML and SVG.
//!
//! ```text
//!  Folded ─┬─▶ page, Fragments  interactive: HTML, CSS and JavaScript in one self-contained page
//!          └─▶ svg              a static image as other tools show it (inferno)
//! ```
//!
//! A report with several graphs writes [`assets`] once and one [`Fragments`] element per graph.

use std::io::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::GzEncoder;
use inferno::flamegraph::{self, Options};

use crate::folded::Folded;

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

/// Unit of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Weights are nanoseconds.
    Nanos,
    /// Weights are bytes.
    Bytes,
    /// Weights are numbers of events.
    Count,
}

impl Unit {
    /// Returns the unit's name in JSON and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanos => "ns",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }
}

/// One graph of a page.
#[derive(Debug, Clone)]
pub struct Tab<'a> {
    /// Label of the tab.
    pub name: String,
    /// Unit of the weights.
    pub unit: Unit,
    /// Note about the graph: its source and omissions.
    pub note: String,
    /// The displayed stacks.
    pub folded: &'a Folded,
    /// The same stacks weighted by number of events, or `None` if this number is unknown.
    pub counts: Option<&'a Folded>,
    /// Stacks of another profile. If given, the graph shows the difference between `folded` and
    /// these stacks.
    pub base: Option<&'a Folded>,
}

/// Returns the style and script of all graphs, to be written once into a page with [`Fragments`].
pub fn assets() -> String {
    format!("<style>\n{STYLE}</style>\n<script>\n{SCRIPT}</script>\n")
}

/// The graphs of a page. Stacks that several graphs show are written once.
#[derive(Debug, Default)]
pub struct Fragments<'a> {
    written: Vec<&'a Folded>,
}

impl<'a> Fragments<'a> {
    /// Returns an element with these graphs, one tab for each.
    pub fn fragment(&mut self, tabs: &[Tab<'a>]) -> String {
        let mut stacks = serde_json::Map::new();
        let mut number = |folded: &'a Folded| {
            let known = self.written.iter().position(|known| std::ptr::eq(*known, folded));
            let number = known.unwrap_or(self.written.len());
            if known.is_none() {
                self.written.push(folded);
                stacks.insert(number.to_string(), pack_stacks(folded).into());
            }
            number
        };
        let tab = |tab: &Tab<'a>| {
            serde_json::json!({
                "name": tab.name,
                "unit": tab.unit.name(),
                "note": tab.note,
                "folded": number(tab.folded),
                "counts": tab.counts.map(&mut number),
                "base": tab.base.map(&mut number),
            })
        };
        let tabs: Vec<serde_json::Value> = tabs.iter().map(tab).collect();
        let data = serde_json::json!({ "stacks": stacks, "tabs": tabs }).to_string();
        // The escape prevents names from ending the script element.
        let data = data.replace('<', "\\u003c");
        format!("<div class=\"flame\"><script type=\"application/json\">{data}</script></div>\n")
    }
}

/// Returns the lines of the stacks, compressed and in base64, because they are megabytes and very
/// repetitive.
fn pack_stacks(folded: &Folded) -> String {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    let bytes = write!(gzip, "{folded}").and_then(|()| gzip.finish());
    BASE64_STANDARD.encode(bytes.expect("a Vec takes all bytes"))
}

/// Returns a complete page, with `lines` above the graphs.
pub fn page(title: &str, lines: &[String], tabs: &[Tab<'_>]) -> String {
    let title = escape_html(title);
    let lines: String =
        lines.iter().map(|line| format!("<p>{}</p>\n", escape_html(line))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n{}\
         <style>body {{ margin: 12px 16px; font: 14px/1.4 system-ui, sans-serif; }}\n\
         h1 {{ font-size: 18px; }}\n\
         @media (prefers-color-scheme: dark) {{ body {{ background: #16191d; color: #e6e8eb; }} }}\
         </style>\n</head>\n<body>\n<h1>{title}</h1>\n{lines}{}</body>\n</html>\n",
        assets(),
        Fragments::default().fragment(tabs)
    )
}

/// Returns a static image. With `base`, the image shows the difference, in inferno's colors.
pub fn svg(
    title: &str,
    note: &str,
    unit: Unit,
    folded: &Folded,
    base: Option<&Folded>,
) -> io::Result<Vec<u8>> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    unit.name().clone_into(&mut options.count_name);
    options.subtitle = (!note.is_empty()).then(|| note.to_owned());
    options.deterministic = true;
    let lines = match base {
        None => folded.to_string(),
        Some(base) => difference_lines(folded, base),
    };
    let mut picture = Vec::new();
    if lines.is_empty() {
        return Ok(empty_svg(title).into_bytes());
    }
    flamegraph::from_lines(&mut options, lines.lines(), &mut picture)?;
    Ok(picture)
}

/// Returns the stacks of the two profiles as lines with two weights. The weights of `base` are
/// scaled to the total of `folded`.
fn difference_lines(folded: &Folded, base: &Folded) -> String {
    let scale = folded.total() as f64 / base.total().max(1) as f64;
    let mut stacks: std::collections::BTreeMap<&str, (u64, u64)> =
        folded.stacks().map(|(stack, weight)| (stack, (0, weight))).collect();
    for (stack, weight) in base.stacks() {
        stacks.entry(stack).or_default().0 = (weight as f64 * scale) as u64;
    }
    stacks.iter().map(|(stack, (old, new))| format!("{stack} {old} {new}\n")).collect()
}

/// Returns the image for an empty profile, which inferno can't draw.
fn empty_svg(title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\" height=\"60\" \
         font-family=\"sans-serif\"><text x=\"600\" y=\"24\" text-anchor=\"middle\">{}</text>\
         <text x=\"600\" y=\"46\" text-anchor=\"middle\">nothing was recorded</text></svg>\n",
        escape_html(title)
    )
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tab(folded: &Folded) -> Tab<'_> {
        let (name, note) = ("cpu".to_owned(), String::new());
        Tab { name, unit: Unit::Nanos, note, folded, counts: None, base: None }
    }

    #[test]
    fn frame_names_cannot_break_out_of_the_pages_data() {
        let folded = Folded::parse("loop-0;a 5").unwrap();
        let name = "</script><script>alert(1)</script>".to_owned();
        let html = Fragments::default().fragment(&[Tab { name, ..tab(&folded) }]);
        assert_eq!(html.matches("</script>").count(), 1, "{html}");
        assert!(page("<b>", &["<i>".to_owned()], &[]).contains("<h1>&lt;b&gt;</h1>\n<p>&lt;i&gt;"));
    }

    #[test]
    fn stacks_that_several_graphs_show_are_written_once() {
        let [first, second] = ["a 5", "a 6"].map(|line| Folded::parse(line).unwrap());
        let data = |html: &str| -> serde_json::Value {
            let json = html.split_once("json\">").unwrap().1.split_once("</script>").unwrap().0;
            serde_json::from_str(json).unwrap()
        };
        let mut fragments = Fragments::default();
        let difference = Tab { base: Some(&first), ..tab(&second) };
        let shown = data(&fragments.fragment(&[tab(&first), difference]));
        assert_eq!(shown["stacks"].as_object().unwrap().len(), 2);
        assert_eq!(
            (&shown["tabs"][1]["folded"], &shown["tabs"][1]["base"]),
            (&json!(1), &json!(0))
        );
        let again = data(&fragments.fragment(&[tab(&second)]));
        assert_eq!((&again["stacks"], &again["tabs"][0]["folded"]), (&json!({}), &json!(1)));
        let packed = BASE64_STANDARD.decode(shown["stacks"]["1"].as_str().unwrap()).unwrap();
        let lines = io::read_to_string(flate2::read::GzDecoder::new(&packed[..])).unwrap();
        assert_eq!(lines, "a 6\n");
    }

    #[test]
    fn a_page_loads_nothing_from_the_network() {
        let folded = Folded::parse("loop-0;a 5").unwrap();
        let html = page("t", &[], &[tab(&folded)]);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn images_show_shares_notes_and_differences() {
        let folded = Folded::parse("loop-0;a 5\nloop-0;b 5\n").unwrap();
        let picture = |base| {
            let svg = svg("t", "noted", Unit::Nanos, &folded, base).unwrap();
            String::from_utf8(svg).unwrap()
        };
        assert!(picture(None).contains("<title>a (5 ns, 50.00%)"), "{}", picture(None));
        assert!(picture(None).contains(">noted<"), "{}", picture(None));
        let base = Folded::parse("loop-0;a 10\n").unwrap();
        assert!(picture(Some(&base)).contains("-50.00%"), "{}", picture(Some(&base)));
        let none = svg("t", "", Unit::Nanos, &Folded::default(), None).unwrap();
        assert!(String::from_utf8(none).unwrap().contains("nothing was recorded"));
    }
}
