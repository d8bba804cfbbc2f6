//! Conversion from OpenMetrics to the Prometheus text format 0.0.4, for tools that request
//! `text/plain`.

use std::fmt::Write;

/// Converts OpenMetrics text. A counter is declared under the name of its samples, with `_total`.
/// Lines that the older format does not support are left out.
pub(crate) fn to_plain_text(open: &str) -> String {
    let mut plain = String::with_capacity(open.len() + open.len() / 16);
    let mut help = "";
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described;
        } else if let Some((name, kind)) = metric(line) {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some(text) = help.strip_prefix(name) {
                let _ = writeln!(plain, "# HELP {name}{total}{text}");
            }
            let _ = writeln!(plain, "# TYPE {name}{total} {kind}");
        } else if !line.starts_with('#') {
            plain.push_str(line);
            plain.push('\n');
        }
    }
    plain
}

/// Returns the metric that a line declares, and its type; `None` if the line declares no metric.
fn metric(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.rsplit_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_declared_under_the_name_of_their_samples() {
        let open = "# HELP a Some\n# TYPE a counter\na_total{x=\"# HELP\"} 1\n# HELP b More\n\
            # TYPE b gauge\n# UNIT b seconds\nb 2\n# TYPE c histogram\nc_sum 1\n# EOF\n";
        let expected = "# HELP a_total Some\n# TYPE a_total counter\na_total{x=\"# HELP\"} 1\n\
            # HELP b More\n# TYPE b gauge\nb 2\n# TYPE c histogram\nc_sum 1\n";
        assert_eq!(to_plain_text(open), expected);
    }
}
