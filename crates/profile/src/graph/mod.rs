//! Flame graphs for people.
//!
//! ```text
//!  Folded ─┬─▶ page, fragment   interactive: HTML, CSS and JavaScript in one, nothing from outside
//!          └─▶ svg              the plain picture that other tools show (inferno)
//! ```
//!
//! A report that shows several graphs writes [`assets`] once and a [`fragment`] for each place.

use std::io;

use inferno::flamegraph::{self, Options};

use crate::folded::Folded;

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

/// What weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Nanos,
    /// Bytes.
    Bytes,
    /// Events.
    Count,
}

impl Unit {
    /// As JSON and file names have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanos => "ns",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }
}

/// One graph.
#[derive(Debug, Clone)]
pub struct Tab<'a> {
    /// What its tab says.
    pub name: String,
    /// What its weights are.
    pub unit: Unit,
    /// A line about it: how it was taken, what it leaves out.
    pub note: String,
    /// The stacks.
    pub folded: &'a Folded,
    /// The same stacks, weighted by how many events they are of; none = not known.
    pub counts: Option<&'a Folded>,
    /// Stacks of another profile: then the graph shows what is different in `folded`.
    pub base: Option<&'a Folded>,
}

/// Style and script of all graphs, to be written once into a page that has [`fragment`]s.
pub fn assets() -> String {
    format!("<style>\n{STYLE}</style>\n<script>\n{SCRIPT}</script>\n")
}

/// A place in a page with these graphs, a tab for each.
pub fn fragment(tabs: &[Tab<'_>]) -> String {
    let tabs = tabs.iter().map(|tab| {
        let mut object = serde_json::json!({
            "name": tab.name,
            "unit": tab.unit.name(),
            "note": tab.note,
            "folded": tab.folded.to_string(),
        });
        if let Some(counts) = tab.counts {
            object["counts"] = counts.to_string().into();
        }
        if let Some(base) = tab.base {
            object["base"] = base.to_string().into();
        }
        object
    });
    let data = serde_json::json!({ "tabs": tabs.collect::<Vec<_>>() }).to_string();
    // Nothing in a name can end the script element.
    let data = data.replace('<', "\\u003c");
    format!("<div class=\"flame\"><script type=\"application/json\">{data}</script></div>\n")
}

/// A page of its own; `lines` are said above the graphs.
pub fn page(title: &str, lines: &[String], tabs: &[Tab<'_>]) -> String {
    let title = escaped(title);
    let lines: String = lines.iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n{}\
         <style>body {{ margin: 12px 16px; font: 14px/1.4 system-ui, sans-serif; }}\n\
         h1 {{ font-size: 18px; }}\n\
         @media (prefers-color-scheme: dark) {{ body {{ background: #16191d; color: #e6e8eb; }} }}\
         </style>\n</head>\n<body>\n<h1>{title}</h1>\n{lines}{}</body>\n</html>\n",
        assets(),
        fragment(tabs)
    )
}

/// The plain picture. With `base` it is the difference, by inferno's colours.
pub fn svg(title: &str, unit: Unit, folded: &Folded, base: Option<&Folded>) -> io::Result<Vec<u8>> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    unit.name().clone_into(&mut options.count_name);
    options.deterministic = true;
    let lines = match base {
        None => folded.to_string(),
        Some(base) => both(folded, base),
    };
    let mut picture = Vec::new();
    if lines.is_empty() {
        return Ok(empty_svg(title).into_bytes());
    }
    flamegraph::from_lines(&mut options, lines.lines(), &mut picture)?;
    Ok(picture)
}

/// Lines with two weights, `base` scaled to the total of `folded`.
fn both(folded: &Folded, base: &Folded) -> String {
    let scale = folded.total() as f64 / base.total().max(1) as f64;
    let mut stacks: std::collections::BTreeMap<&str, (u64, u64)> =
        folded.stacks().map(|(stack, weight)| (stack, (0, weight))).collect();
    for (stack, weight) in base.stacks() {
        stacks.entry(stack).or_default().0 = (weight as f64 * scale) as u64;
    }
    stacks.iter().map(|(stack, (old, new))| format!("{stack} {old} {new}\n")).collect()
}

/// What inferno can't draw: that nothing was recorded.
fn empty_svg(title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\" height=\"60\" \
         font-family=\"sans-serif\"><text x=\"600\" y=\"24\" text-anchor=\"middle\">{}</text>\
         <text x=\"600\" y=\"46\" text-anchor=\"middle\">nothing was recorded</text></svg>\n",
        escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tab(folded: &Folded) -> Tab<'_> {
        let (name, note) = ("cpu".to_owned(), String::new());
        Tab { name, unit: Unit::Nanos, note, folded, counts: None, base: None }
    }

    #[test]
    fn nothing_in_a_frame_can_leave_the_page_s_data() {
        let folded = Folded::parse("loop-0;</script><script>alert(1)</script> 5").unwrap();
        let html = fragment(&[tab(&folded)]);
        assert_eq!(html.matches("</script>").count(), 1, "{html}");
        assert!(page("<b>", &["<i>".to_owned()], &[]).contains("<h1>&lt;b&gt;</h1>\n<p>&lt;i&gt;"));
    }

    #[test]
    fn a_page_asks_for_nothing_from_outside() {
        let folded = Folded::parse("loop-0;a 5").unwrap();
        let html = page("t", &[], &[tab(&folded)]);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn pictures() {
        let folded = Folded::parse("loop-0;a 5\nloop-0;b 5\n").unwrap();
        let picture = |base| {
            let svg = svg("t", Unit::Nanos, &folded, base).unwrap();
            String::from_utf8(svg).unwrap()
        };
        assert!(picture(None).contains("<title>a (5 ns, 50.00%)"), "{}", picture(None));
        let base = Folded::parse("loop-0;a 10\n").unwrap();
        assert!(picture(Some(&base)).contains("-50.00%"), "{}", picture(Some(&base)));
        let none = svg("t", Unit::Nanos, &Folded::default(), None).unwrap();
        assert!(String::from_utf8(none).unwrap().contains("nothing was recorded"));
    }
}
