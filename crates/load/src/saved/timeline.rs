//! `timeline.csv` read back: columns of figures, a row a second.

use crate::record::TIMELINE;

/// What a run did, second by second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Timeline {
    columns: Vec<Column>,
}

/// One column.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Column {
    /// As the first row has it.
    pub(crate) name: String,
    /// A figure a row; NaN where there is none.
    pub(crate) values: Vec<f64>,
}

impl Timeline {
    /// Reads the file; what is no number is no figure.
    pub(crate) fn parse(csv: &str) -> Self {
        let mut lines = csv.lines().filter(|line| !line.trim().is_empty());
        let names = lines.next().unwrap_or_default().split(',');
        let mut columns: Vec<_> =
            names.map(|name| Column { name: name.trim().to_owned(), values: Vec::new() }).collect();
        for line in lines {
            let mut cells = line.split(',');
            for column in &mut columns {
                let cell = cells.next().unwrap_or_default().trim();
                column.values.push(cell.parse().unwrap_or(f64::NAN));
            }
        }
        Self { columns }
    }

    /// The figures of a column.
    pub(crate) fn column(&self, name: &str) -> Option<&[f64]> {
        let column = self.columns.iter().find(|column| column.name == name);
        column.map(|column| column.values.as_slice())
    }

    /// When each row ends, in seconds.
    pub(crate) fn seconds(&self) -> &[f64] {
        self.column(TIMELINE[0]).unwrap_or_default()
    }

    /// What servers told, each as (URL, metric, column).
    pub(crate) fn servers(&self) -> impl Iterator<Item = (&str, &str, &Column)> {
        self.columns.iter().filter(|column| !TIMELINE.contains(&column.name.as_str())).filter_map(
            |column| {
                let (url, metric) = column.name.split_once(' ')?;
                Some((url, metric, column))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_by_name() {
        let csv = "second,answered,p99,http://h:1 kv_flushes\n1,100,1.5,0\n2,90,,3\n3,80\n";
        let timeline = Timeline::parse(csv);
        assert_eq!(timeline.seconds(), [1.0, 2.0, 3.0]);
        assert_eq!(timeline.column("answered"), Some(&[100.0, 90.0, 80.0][..]));
        let p99 = timeline.column("p99").unwrap();
        assert!(p99[0] == 1.5 && p99[1].is_nan() && p99[2].is_nan());
        let servers: Vec<_> = timeline.servers().map(|(url, name, _)| (url, name)).collect();
        assert_eq!(servers, [("http://h:1", "kv_flushes")]);
        assert_eq!(timeline.column("none"), None);
        assert_eq!(Timeline::parse("").seconds(), [0.0; 0]);
    }
}
