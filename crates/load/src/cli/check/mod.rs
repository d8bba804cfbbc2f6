//! Checks a command line. The result is a plan with its scripts, or a one-line error that explains
//! the correction.

use std::path::{Path, PathBuf};

use super::args::{ArrivalArg, LoadArgs, RequestArgs, TargetModeArg, TlsArgs};
use super::cli_error::Error;
use super::correction::typographic_dash_error;
use super::units::Count;
use crate::plan::{self, KEY, Pace, Plan, Requests, Target};
use crate::script::Source;
use crate::server_profile::ServerProfile;
use crate::tls::{Files, Trust};
use crate::url::Url;
use crate::{KeyOrder, Keys};

/// Default number of threads, as in wrk2.
const THREADS: u64 = 2;

/// A checked command line.
#[derive(Debug, Clone)]
pub struct CheckedArgs {
    /// The plan to run.
    pub plan: Plan,
    /// Script sources: one for each target with its own threads, or one in all if the targets share
    /// the load. Empty if requests are generated from keys.
    pub sources: Vec<Source>,
    /// The URLs to send requests to.
    pub urls: Vec<Url>,
    /// Paths of the CA certificates for `https://` targets, and of the client's certificate and
    /// key.
    pub files: Files,
    /// Readable description of the requests.
    pub requests: String,
}

impl LoadArgs {
    /// Returns true if latencies are printed in detail. As in wrk2, `-U` implies `-L`.
    pub(super) fn is_detailed(&self) -> bool {
        self.latency || self.u_latency
    }

    /// Checks the whole command line.
    pub fn check(&self, known: &ServerProfile) -> Result<CheckedArgs, Error> {
        let pace = match (self.rate, self.closed) {
            (Some(rate), _) => Pace::Open(rate.0),
            (None, true) => Pace::Closed,
            (None, false) => return Err(Error::NoRate),
        };
        if let (Some(csv), Some(log)) = (&self.csv, &self.hdr_log)
            && place(csv) == place(log)
        {
            return Err(Error::SameFile(csv.clone()));
        }
        let mut checked = self.request.check(known)?;
        checked.plan.pace = pace;
        checked.plan.duration = self.duration.0;
        checked.plan.warmup = self.warmup.0;
        checked.plan.batch_latency = self.batch_latency;
        checked.plan.arrival = match self.arrival {
            ArrivalArg::Even => plan::Arrival::Even,
            ArrivalArg::Poisson => plan::Arrival::Poisson,
        };
        // `Plan::check` covers the rest, once addresses are resolved.
        checked.plan.check_numbers()?;
        checked.plan.keys.check()?;
        Ok(checked)
    }
}

impl RequestArgs {
    /// Checks the flags for requests and targets. The caller sets pace and duration.
    pub fn check(&self, known: &ServerProfile) -> Result<CheckedArgs, Error> {
        let (urls, args) = self.urls_and_args()?;
        let mut plan = Plan::new(Target {
            name: String::new(),
            addresses: vec![],
            tls: None,
            authorization: None,
            path: "/".into(),
        });
        plan.connections = number("-c", self.connections)?;
        let threads = self.threads.unwrap_or(Count(THREADS.min(self.connections.0)));
        plan.threads = number("-t", threads)?;
        if plan.connections < plan.threads {
            let (connections, threads) = (plan.connections, plan.threads);
            return Err(Error::FewConnections { connections, threads });
        }
        plan.timeout = self.timeout.0;
        if plan.timeout.is_zero() {
            return Err(Error::NoTimeout);
        }
        plan.seed = self.seed;
        plan.target_mode = match self.target_mode {
            TargetModeArg::Each => plan::TargetMode::Each,
            TargetModeArg::Spread => plan::TargetMode::Spread,
        };
        let headers = self.headers()?;
        plan.headers = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let keyed = self.has_key_flags() || urls.iter().any(|url| url.path.contains(KEY));
        let keyed = keyed && self.script.is_none();
        plan.targets =
            urls.iter().map(|url| target(url, keyed, known)).collect::<Result<_, _>>()?;
        let authorization_header =
            headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let shown =
            authorization_header.map(|(_, value)| value.clone()).or_else(|| known.authorization());
        plan.targets.iter_mut().for_each(|target| target.authorization.clone_from(&shown));
        let files = self.tls.files(known);
        let mut checked =
            CheckedArgs { plan, sources: Vec::new(), urls, files, requests: String::new() };
        if keyed {
            checked.requests = self.keys(&mut checked.plan)?;
        } else {
            self.fill_script_sources(&mut checked, headers, args);
        }
        Ok(checked)
    }

    /// Splits the words at the first word that is not a URL. Returns the URLs, and the script's
    /// arguments: the remaining words, and all words after `--`.
    fn urls_and_args(&self) -> Result<(Vec<Url>, Vec<String>), Error> {
        if let Some(error) = self.urls.iter().find_map(|word| typographic_dash_error(word)) {
            return Err(error);
        }
        let is_url = |word: &String| word.contains("://");
        let end = self.urls.iter().position(|word| !is_url(word)).unwrap_or(self.urls.len());
        let (urls, args) = self.urls.split_at(end.max(1));
        let urls = urls.iter().map(|word| Url::parse(word)).collect::<Result<_, _>>()?;
        if let (Some(word), None) = (args.first(), &self.script) {
            return Err(Error::Word(word.clone()));
        }
        Ok((urls, args.iter().chain(&self.args).cloned().collect()))
    }

    fn headers(&self) -> Result<Vec<(String, String)>, Error> {
        let split = self.headers.iter().map(|header| {
            let (name, value) = header.split_once(':').unwrap_or((header, ""));
            let wrong = name.is_empty() || name == header || name.contains(char::is_whitespace);
            if wrong {
                return Err(Error::Header(header.clone()));
            }
            Ok((name.to_owned(), value.trim().to_owned()))
        });
        let mut headers: Vec<_> = split.collect::<Result<_, _>>()?;
        if let Some(path) = &self.token_file {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|source| Error::TokenFile { path: path.clone(), source })?;
            let token = text.trim_end();
            if token.is_empty() || token.contains(|one: char| one.is_control() || one == ' ') {
                return Err(Error::Token(path.clone()));
            }
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        Ok(headers)
    }

    /// Returns true if any flag requires requests that are generated from keys.
    fn has_key_flags(&self) -> bool {
        self.mix.is_some()
            || self.keys.is_some()
            || self.key_count.is_some()
            || self.key_len.is_some()
            || self.value_len.is_some()
            || self.verify
    }

    /// Fills in keys, values and mix. Returns their description.
    fn keys(&self, plan: &mut Plan) -> Result<String, Error> {
        let mix = self.mix.as_deref().unwrap_or("get=100");
        (plan.put_percent, plan.delete_percent) = parse_mix(mix)?;
        let default = Keys::default();
        let word = self.keys.as_deref().unwrap_or("uniform");
        plan.keys = Keys {
            order: parse_order(word)?,
            count: self.key_count.map_or(default.count, |count| count.0),
            len: self.key_len.map_or(Ok(default.len), |len| number("--key-len", len))?,
        };
        if let Some(len) = self.value_len {
            plan.value_len = number("--value-len", len)?;
        }
        plan.verify = self.verify;
        let Keys { count, len, .. } = plan.keys;
        let value = plan.value_len;
        let verify = if self.verify { ", verified" } else { "" };
        Ok(format!("{mix}, {word} of {count} keys of {len} bytes, values of {value}{verify}"))
    }

    /// Fills in the script sources of requests that are not generated from keys.
    fn fill_script_sources(
        &self,
        checked: &mut CheckedArgs,
        headers: Vec<(String, String)>,
        args: Vec<String>,
    ) {
        checked.plan.requests = Requests::Script;
        checked.requests = match &self.script {
            Some(file) => file.display().to_string(),
            None => {
                let mut paths: Vec<&str> = checked.urls.iter().map(|url| &*url.path).collect();
                paths.dedup();
                format!("GET {}", paths.join(" "))
            }
        };
        let (urls, spread) = match checked.plan.target_mode {
            plan::TargetMode::Each => (&checked.urls[..], &[][..]),
            plan::TargetMode::Spread => (&checked.urls[..1], &checked.urls[..]),
        };
        checked.sources = urls
            .iter()
            .map(|url| Source {
                file: self.script.clone(),
                url: url.clone(),
                spread: spread.to_vec(),
                headers: headers.clone(),
                args: [vec![url.text.clone()], args.clone()].concat(),
                addresses: Vec::new(),
            })
            .collect();
    }
}

impl CheckedArgs {
    /// Resolves the addresses of all hosts, and reads the files that TLS needs.
    pub fn resolve(&mut self) -> Result<(), Error> {
        let secure = self.urls.iter().any(|url| url.secure);
        let trust = secure.then(|| Trust::load(self.files.clone())).transpose()?;
        for (target, url) in self.plan.targets.iter_mut().zip(&self.urls) {
            let trust = trust.as_ref().filter(|_| url.secure);
            target.tls = trust.map(|trust| trust.host(&url.host)).transpose()?;
            target.addresses = url.resolve()?;
        }
        for (source, target) in self.sources.iter_mut().zip(&self.plan.targets) {
            source.addresses.clone_from(&target.addresses);
        }
        Ok(())
    }
}

impl TlsArgs {
    fn files(&self, known: &ServerProfile) -> Files {
        let named = || {
            let value = std::env::var_os(known.ca_variable).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        Files {
            ca: self.ca_file.clone().or_else(named),
            client: self.client_cert.clone().zip(self.client_key.clone()),
        }
    }
}

/// Returns the canonical path of a file. The file need not exist.
fn place(path: &Path) -> PathBuf {
    let there = path.canonicalize().or_else(|_| std::path::absolute(path));
    there.unwrap_or_else(|_| path.to_owned())
}

fn number(flag: &'static str, count: Count) -> Result<usize, Error> {
    match usize::try_from(count.0) {
        Ok(number @ 1..) => Ok(number),
        _ => Err(Error::Number { flag, count: count.0 }),
    }
}

fn target(url: &Url, keyed: bool, known: &ServerProfile) -> Result<Target, Error> {
    let path = match (keyed, url.path.contains(KEY), url.has_path) {
        (false, ..) | (true, true, _) => url.path.clone(),
        (true, false, false) if !known.key_path.is_empty() => known.key_path.to_owned(),
        (true, false, _) => return Err(Error::KeyPlace { url: url.clone() }),
    };
    let name = url.authority();
    Ok(Target { name, addresses: Vec::new(), tls: None, authorization: None, path })
}

/// Parses a mix into the percentages of `PUT` and `DELETE`.
fn parse_mix(text: &str) -> Result<(u8, u8), Error> {
    let wrong = || Error::Mix(text.to_owned());
    let mut shares = [None; 3];
    for part in text.split(',') {
        let (name, percent) = part.split_once('=').ok_or_else(wrong)?;
        let place = ["get", "put", "delete"].iter().position(|is| name.eq_ignore_ascii_case(is));
        let share = &mut shares[place.ok_or_else(wrong)?];
        let percent = percent.trim_end_matches('%').parse::<u8>().map_err(|_| wrong())?;
        if share.replace(percent).is_some() {
            return Err(wrong());
        }
    }
    let [get, put, delete] = shares.map(Option::unwrap_or_default);
    let all = u16::from(get) + u16::from(put) + u16::from(delete);
    if all == 100 { Ok((put, delete)) } else { Err(wrong()) }
}

fn parse_order(text: &str) -> Result<KeyOrder, Error> {
    Ok(match text {
        "seq" => KeyOrder::Sequential,
        "scattered" => KeyOrder::Scattered,
        "uniform" => KeyOrder::Uniform,
        "zipf" => KeyOrder::Zipf,
        _ => {
            let window = text.strip_prefix("latest:").and_then(|n| n.parse::<Count>().ok());
            let window = window.map(|window| window.0).filter(|window| *window > 0);
            KeyOrder::Latest(window.ok_or_else(|| Error::Order(text.to_owned()))?)
        }
    })
}

#[cfg(test)]
mod tests;
