//! What both benchmarks report with: repeats and their spread, ratios taken repeat by repeat, a
//! Markdown table, the raw figures as CSV, and the machine it all happened on.

mod machine;
mod report;
mod spread;

pub use machine::describe;
pub use report::{Report, Table};
pub use spread::{Spread, ratio};
