//! Properties of kvorum for the load crate, which itself works with any HTTP server.

use load::ServerProfile;

/// Paths, metrics and commands of kvorum.
pub(crate) const KVORUM: ServerProfile = ServerProfile {
    tool: concat!("kvorum-bench ", env!("KVORUM_VERSION")),
    key_path: "/v0/entity?id={key}",
    metrics_path: "/metrics",
    idle: &["kvorum_immutable_memtables", "kvorum_compaction_debt_bytes"],
    write_stall_counters: &["kvorum_slowed_writes", "kvorum_refused_writes"],
    timeline: &[
        "kvorum_cpu_seconds",
        "kvorum_resident_bytes",
        "kvorum_memtable_bytes",
        "kvorum_immutable_memtables",
        "kvorum_flushes",
        "kvorum_flush_bytes",
        "kvorum_compactions",
        "kvorum_compaction_write_bytes",
        "kvorum_compaction_debt_bytes",
        "kvorum_slowed_writes",
        "kvorum_refused_writes",
        "kvorum_write_slowdown_seconds",
        "kvorum_wal_syncs",
        "kvorum_cache_hits",
        "kvorum_cache_misses",
        "kvorum_bloom_skips",
    ],
    profile_path: "/admin/profile?event={events}&seconds={seconds}&format=json",
    profile_diff: "kvorum profile diff",
    token_variable: "KVORUM_ADMIN_TOKEN",
    ca_variable: "KVORUM_CA_FILE",
    about_path: "/v0/status",
};
