//! What the caller knows of the servers it is used with. The kit itself knows none.

/// How a kind of server is asked for its keys, its figures and its profiles. Every field can be
/// empty: then that question is not asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// Name and version of the tool, for `run.json`.
    pub tool: &'static str,
    /// Path and query where a URL has none and keys are made up; `{key}` stands for the key.
    pub key_path: &'static str,
    /// Where the figures are, in the Prometheus text format: `/metrics`.
    pub metrics_path: &'static str,
    /// Metrics that are all zero when the server does nothing in the background.
    pub idle: &'static [&'static str],
    /// Counters that grow when the server holds writes back, or refuses them, until flushes and
    /// compactions have caught up.
    pub held_back: &'static [&'static str],
    /// Metrics worth a column in `timeline.csv`.
    pub timeline: &'static [&'static str],
    /// Where a recording is asked for; `{events}` and `{seconds}` are filled in. It answers with
    /// JSON: `{"events": {"cpu": {"folded": "a;b 1\n…"}, …}}`.
    pub profile_path: &'static str,
    /// Command that compares two recordings, whose files are its arguments.
    pub profile_diff: &'static str,
    /// Environment variable with the token that recordings are asked for with, and figures unless
    /// requests carry another one.
    pub token_variable: &'static str,
    /// Environment variable that names the file of `--ca-file` where that flag is not given.
    pub ca_variable: &'static str,
    /// Where settings are told, as a JSON object; those of objects in it count as its own.
    pub about_path: &'static str,
}

impl Known {
    /// What the variable with the token is for, as a header's value.
    pub(crate) fn authorization(&self) -> Option<String> {
        let token = std::env::var(self.token_variable).ok();
        token.filter(|token| !token.is_empty()).map(|token| format!("Bearer {token}"))
    }
}
