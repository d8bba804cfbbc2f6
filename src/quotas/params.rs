//! Parsers of the queries that set or remove a quota.

use std::borrow::Cow;

use protocol::layout::Quota;

use crate::http::params::{bad_parameter, key, parse_digits, raw_values};
use crate::http::problem::Problem;

/// Parameters of a request that sets a quota.
pub(crate) const QUOTA: [&str; 3] = ["prefix", "soft", "hard"];

/// Parameters of a request that removes a quota.
pub(crate) const REMOVE: [&str; 1] = ["prefix"];

/// Parses the prefix of the quota to remove. A query without a prefix names the quota of all keys.
pub(crate) fn quota_to_remove(query: &str) -> Result<Vec<u8>, Problem> {
    let [prefix] = raw_values(query, REMOVE)?;
    prefix_of(prefix)
}

/// Parses a quota to set.
pub(crate) fn quota(query: &str) -> Result<Quota, Problem> {
    let [prefix, soft, hard] = raw_values(query, QUOTA)?;
    let limit = |name: &str, text: Option<&str>| match text.map(parse_digits) {
        None => Ok(0),
        Some(Some(bytes)) if bytes > 0 => Ok(bytes),
        Some(_) => {
            Err(bad_parameter(format!("{name}: it is not a valid number of bytes, 1 or more")))
        }
    };
    let (soft, hard) = (limit("soft", soft)?, limit("hard", hard)?);
    Ok(Quota { prefix: prefix_of(prefix)?, soft, hard })
}

fn prefix_of(prefix: Option<&str>) -> Result<Vec<u8>, Problem> {
    match prefix {
        None | Some("") => Ok(Vec::new()),
        Some(prefix) => key("prefix", prefix).map(Cow::into_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_bytes() {
        let set = quota("prefix=a%2f%ff&soft=1024&hard=4096").unwrap();
        assert_eq!(set, Quota { prefix: b"a/\xff".to_vec(), soft: 1024, hard: 4096 });
        let all = quota("hard=1073741824&prefix=").unwrap();
        assert_eq!(all, Quota { prefix: Vec::new(), soft: 0, hard: 1 << 30 });
        assert_eq!(quota_to_remove("").unwrap(), b"");
        assert_eq!(quota_to_remove("prefix=a").unwrap(), b"a");
        for (query, said) in [
            ("prefix=a&hard=0", "hard: it is not a valid number of bytes"),
            ("prefix=a&soft=-1", "soft: it is not a valid number of bytes"),
            ("prefix=a&soft=+1", "soft: it is not a valid number of bytes"),
            ("prefix=a&soft=1&soft=2", "duplicate"),
            ("size=1", "unknown parameter \"size\""),
        ] {
            let problem = serde_json::to_value(quota(query).unwrap_err()).unwrap();
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(said), "{query}: {detail}");
        }
    }
}
