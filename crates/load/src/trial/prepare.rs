//! The data that are written before trials.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Error, Workload};
use crate::cli::{Count, RequestArgs};
use crate::server_profile::ServerProfile;

/// The value of `--prepare`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepare {
    /// Each of the workload's keys once.
    Keys,
    /// A number of requests of a script.
    Script(PathBuf, u64),
}

/// The error of a text that is not a valid `--prepare`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("\"keys\", or a script and how many of its requests: put.lua:100k")]
pub(crate) struct PrepareError;

/// The writes before a trial.
#[derive(Debug, Clone)]
pub(crate) struct Preparation {
    workload: Workload,
    requests: u64,
}

impl FromStr for Prepare {
    type Err = PrepareError;

    fn from_str(text: &str) -> Result<Self, PrepareError> {
        if text == "keys" {
            return Ok(Self::Keys);
        }
        let split = text.rsplit_once(':');
        let count = split.and_then(|(file, count)| Some((file, count.parse::<Count>().ok()?.0)));
        match count {
            Some((file, count @ 1..)) if !file.is_empty() => Ok(Self::Script(file.into(), count)),
            _ => Err(PrepareError),
        }
    }
}

impl Preparation {
    pub(crate) fn new(
        prepare: &Prepare,
        args: &RequestArgs,
        known: &ServerProfile,
    ) -> Result<Self, Error> {
        let mut args = args.clone();
        let script = match prepare {
            Prepare::Keys if args.script.is_some() => {
                return Err(Error::Usage(
                    "--prepare keys: a script's keys are not known: say --prepare FILE.lua:N, a \
                     script that writes them and how many requests of it"
                        .to_owned(),
                ));
            }
            Prepare::Keys => {
                args.mix = Some("put=100".to_owned());
                args.keys = Some("scattered".to_owned());
                None
            }
            Prepare::Script(file, count) => {
                let (mix, keys) = (None, None);
                let script = Some(file.clone());
                args = RequestArgs { script, mix, keys, ..without_keys(args) };
                Some(*count)
            }
        };
        let workload = Workload::new(&args, known)?;
        let requests = script.unwrap_or_else(|| workload.key_count());
        Ok(Self { workload, requests })
    }

    pub(crate) fn carry_out(&self, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        self.workload.prepare(self.requests, stop)
    }
}

/// Removes the flags that contradict a script.
pub(crate) fn without_keys(args: RequestArgs) -> RequestArgs {
    RequestArgs {
        mix: None,
        keys: None,
        key_count: None,
        key_len: None,
        value_len: None,
        verify: false,
        ..args
    }
}

#[cfg(test)]
mod tests {
    use super::Prepare;

    #[test]
    fn keys_or_a_script_are_prepared() {
        assert_eq!("keys".parse(), Ok(Prepare::Keys));
        let script = Prepare::Script("dir/put.lua".into(), 100_000);
        assert_eq!("dir/put.lua:100k".parse(), Ok(script));
        for wrong in ["", "put.lua", "put.lua:0", ":5", "put.lua:many"] {
            assert!(wrong.parse::<Prepare>().is_err(), "{wrong}");
        }
    }
}
