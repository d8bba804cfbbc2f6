//! A flag of the server and the values for which a sweep searches, as in `loops=1,2,4`.

use std::str::FromStr;

use crate::server::ServerCommand;
use crate::trial::Error;

/// Maximum number of combinations of all sweeps. Each search takes minutes.
const MAX_POINTS: usize = 100;

/// A flag and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    flag: String,
    values: Vec<String>,
}

/// One server configuration of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SweepPoint {
    /// The flags' values, such as `loops=2 queue=64`. Empty without a sweep.
    pub(crate) label: String,
    pub(crate) command: Option<ServerCommand>,
}

/// The error of a text that is not a flag with values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("FLAG=VALUE,VALUE,… with a flag of the server, as in loops=1,2,4")]
pub(crate) struct SweepError;

impl FromStr for Sweep {
    type Err = SweepError;

    fn from_str(text: &str) -> Result<Self, SweepError> {
        let (flag, values) = text.split_once('=').ok_or(SweepError)?;
        let flag = flag.trim_start_matches('-').to_owned();
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if flag.is_empty() || values.iter().any(String::is_empty) {
            return Err(SweepError);
        }
        Ok(Self { flag, values })
    }
}

/// Returns all combinations of the values, or an error for more than [`MAX_POINTS`]. The last flag
/// changes fastest.
pub(crate) fn points(
    command: Option<ServerCommand>,
    sweeps: &[Sweep],
) -> Result<Vec<SweepPoint>, Error> {
    let searches: usize = sweeps.iter().map(|sweep| sweep.values.len()).product();
    if searches > MAX_POINTS {
        return Err(Error::Sweep { searches, most: MAX_POINTS });
    }
    let mut points = vec![SweepPoint { label: String::new(), command }];
    for Sweep { flag, values } in sweeps {
        let with = |point: &SweepPoint, value: &String| {
            let command = point.command.as_ref().map(|command| command.with_flag(flag, value));
            let label = format!("{} {flag}={value}", point.label).trim_start().to_owned();
            SweepPoint { label, command }
        };
        points = points
            .iter()
            .flat_map(|point| values.iter().map(move |value| with(point, value)))
            .collect();
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::{Sweep, points};
    use crate::server::ServerCommand;

    #[test]
    fn all_combinations_are_searched() {
        let command = ServerCommand::parse("serve --loops 8").unwrap();
        let sweeps: Vec<Sweep> =
            ["loops=1,2", "--queue=64,1024"].iter().map(|text| text.parse().unwrap()).collect();
        let points = points(Some(command), &sweeps).unwrap();
        let lines: Vec<_> = points
            .iter()
            .map(|point| (point.label.as_str(), point.command.as_ref().unwrap().words().join(" ")))
            .collect();
        let expected = [
            ("loops=1 queue=64", "serve --loops 1 --queue 64"),
            ("loops=1 queue=1024", "serve --loops 1 --queue 1024"),
            ("loops=2 queue=64", "serve --loops 2 --queue 64"),
            ("loops=2 queue=1024", "serve --loops 2 --queue 1024"),
        ];
        assert_eq!(lines, expected.map(|(label, line)| (label, line.to_owned())));
    }

    #[test]
    fn no_sweep_yields_one_point() {
        let points = points(None, &[]).unwrap();
        assert_eq!((points.len(), points[0].label.as_str()), (1, ""));
    }

    #[test]
    fn invalid_sweeps_are_refused() {
        for wrong in ["loops", "loops=", "=1", "loops=1,,2"] {
            assert!(wrong.parse::<Sweep>().is_err(), "{wrong}");
        }
        let many: Sweep = format!("a={}", vec!["1"; 101].join(",")).parse().unwrap();
        assert!(points(None, &[many]).unwrap_err().to_string().contains("101"));
    }
}
