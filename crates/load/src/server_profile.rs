//! Properties of a server product, such as kvorum. The caller passes them: the load crate itself
//! works with any HTTP server.

/// Paths and names of a server product's keys, metrics and profiles. An empty field disables its
/// feature.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServerProfile {
    /// Name and version of the tool, for `run.json`.
    pub tool: &'static str,
    /// Default path and query of requests that are generated from keys. `{key}` represents the key.
    pub key_path: &'static str,
    /// Path of the metrics in the Prometheus text format, such as `/metrics`.
    pub metrics_path: &'static str,
    /// Metrics that are all zero while the server does no background work.
    pub idle: &'static [&'static str],
    /// Counters that grow while the server delays or refuses writes because flushes and compactions
    /// have fallen behind.
    pub write_stall_counters: &'static [&'static str],
    /// Metrics with a column in `timeline.csv`.
    pub timeline: &'static [&'static str],
    /// Path of a profile recording; `{events}` and `{seconds}` are filled in. The server answers
    /// with JSON: `{"events": {"cpu": {"folded": "a;b 1\n…"}, …}}`.
    pub profile_path: &'static str,
    /// Command that compares two recordings; its arguments are their files.
    pub profile_diff: &'static str,
    /// Environment variable with the token for recordings, and for metrics unless requests carry
    /// another token.
    pub token_variable: &'static str,
    /// Environment variable with the certificate file to use without `--ca-file`.
    pub ca_variable: &'static str,
    /// Path of the server's settings, a JSON object. Fields of nested objects count too.
    pub about_path: &'static str,
}

impl ServerProfile {
    /// Returns the value of the `Authorization` header, from the token variable, or `None` if that
    /// variable is unset or empty.
    pub(crate) fn authorization(&self) -> Option<String> {
        let token = std::env::var(self.token_variable).ok();
        token.filter(|token| !token.is_empty()).map(|token| format!("Bearer {token}"))
    }
}
