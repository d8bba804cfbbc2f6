//! Parser of the query that requests a raise of a node's store format.

use crate::http::params::{bad_parameter, parse_digits, raw_values, require};
use crate::http::problem::Problem;

/// Parameters of the request.
pub(crate) const FORMAT: [&str; 1] = ["format"];

/// Parses the store format to which the store is raised, 1 or more.
pub(crate) fn format(query: &str) -> Result<u32, Problem> {
    let [format] = raw_values(query, FORMAT)?;
    let text = require("format", format)?;
    let number = parse_digits(text).filter(|number| *number > 0);
    number.ok_or_else(|| {
        bad_parameter("format: it is not a valid store format: a whole number, 1 or more")
    })
}
