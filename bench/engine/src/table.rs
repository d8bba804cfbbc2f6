//! The comparison as a table, with the ratios to RocksDB first.

use bench_table::{Report, Spread, Table, ratio};

use crate::config::{Engine, Phase};
use crate::phases::{Figures, REOPEN, SPACE_AMPLIFICATION, SPACE_COMPACTED, WRITE_AMPLIFICATION};

/// Prints two tables: the rates, where more is better, and the other figures, where less is better.
pub(crate) fn say(report: &mut Report, engines: &[Engine], results: &[Figures]) {
    let rates: Vec<&str> = Phase::ALL.iter().flat_map(|phase| phase.rows()).copied().collect();
    report.say(&table("operations/s; more is better", &rates, engines, results).to_string());
    let costs = [WRITE_AMPLIFICATION, SPACE_AMPLIFICATION, SPACE_COMPACTED, REOPEN];
    report.say(&table("less is better", &costs, engines, results).to_string());
}

fn table(title: &str, rows: &[&str], engines: &[Engine], results: &[Figures]) -> Table {
    let of = |engine: Engine, row: &str| {
        results
            .iter()
            .find(|figures| figures.engine == engine && figures.row == row)
            .map(|figures| figures.repeats.as_slice())
    };
    let mut columns = vec![title.to_owned()];
    let others: Vec<Engine> =
        engines.iter().copied().filter(|engine| *engine != Engine::Rocksdb).collect();
    columns.extend(others.iter().map(|engine| format!("{} / RocksDB", engine.name())));
    columns.extend(engines.iter().map(|engine| engine.name().to_owned()));
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(&names);
    for row in rows {
        let mut cells = vec![Some((*row).to_owned())];
        for engine in &others {
            let pair = of(*engine, row).zip(of(Engine::Rocksdb, row));
            let spread = pair.and_then(|(ours, theirs)| ratio(ours, theirs));
            cells.push(spread.map(|spread| spread.to_string()));
        }
        for engine in engines {
            cells.push(of(*engine, row).and_then(Spread::of).map(|spread| spread.to_string()));
        }
        table.row(cells);
    }
    table
}
