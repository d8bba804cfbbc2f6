//! Parsers of the queries that create or revoke a token.

use std::borrow::Cow;

use protocol::layout::{Kinds, Methods};

use crate::http::params::{RawValue, bad_parameter, key, parse_digits, raw_values, require};
use crate::http::problem::Problem;
use crate::settings::units::Ttl;
use crate::tokens::status::{KINDS, METHODS, NewToken, granted_names};

/// Parameters of a request that creates a token.
pub(crate) const TOKEN: [&str; 7] =
    ["name", "methods", "for", "prefix", "expires", "requests", "bytes"];

/// Parameters of a request that revokes a token.
pub(crate) const REVOKE: [&str; 1] = ["id"];

/// Parses the id or the name of the token to revoke.
pub(crate) fn revoke(query: &str) -> Result<String, Problem> {
    let [id] = raw_values(query, REVOKE)?;
    text("id", require("id", id)?)
}

/// Parses the properties of a token to create.
pub(crate) fn token(query: &str) -> Result<NewToken, Problem> {
    let [name, methods, kinds, prefix, expires, requests, bytes] = raw_values(query, TOKEN)?;
    let name = text("name", require("name", name)?)?;
    let known = "read, write, GET, PUT, DELETE, POST";
    let methods = list("methods", known, methods.unwrap_or("read,write"), |word| match word {
        "read" => Some(Methods::GET),
        "write" => Some(Methods::PUT.or(Methods::DELETE).or(Methods::POST)),
        _ => METHODS.iter().find(|(_, text)| *text == word).map(|(method, _)| *method),
    })?;
    let known = KINDS.map(|(_, text)| text).join(", ");
    let kinds = list("for", &known, kinds.unwrap_or("data"), |word| {
        KINDS.iter().find(|(_, text)| *text == word).map(|(kind, _)| *kind)
    })?;
    if prefix == Some("") {
        // A script with an unset variable passes an empty prefix, and would get a token for all
        // keys.
        return Err(bad_parameter("prefix: it is empty: leave it out for all keys".to_owned()));
    }
    let prefix = prefix.map_or(Ok(Cow::default()), |prefix| key("prefix", prefix))?;
    let expires: Option<Ttl> = expires
        .map(|text| text.parse().map_err(|wrong| bad_parameter(format!("expires={wrong}"))))
        .transpose()?;
    let rate = |name: &str, value: RawValue<'_>| match value.map(parse_digits) {
        None => Ok(0),
        Some(Some(rate)) if rate > 0 => Ok(rate),
        Some(_) => Err(bad_parameter(format!(
            "{name}: it is not a valid rate: a whole number a second, 1 or more"
        ))),
    };
    let methods = methods.into_iter().fold(Methods::default(), Methods::or);
    let kinds = kinds.into_iter().fold(Kinds::default(), Kinds::or);
    refuse_useless(kinds, methods)?;
    Ok(NewToken {
        name,
        methods,
        kinds,
        prefix: prefix.into_owned(),
        lives_ms: expires.map_or(0, Ttl::millis),
        requests: rate("requests", requests)?,
        bytes: rate("bytes", bytes)?,
    })
}

/// Refuses a token if its methods permit no request of one of its kinds.
fn refuse_useless(kinds: Kinds, methods: Methods) -> Result<(), Problem> {
    let of_kinds = [
        (Kinds::METRICS, Methods::GET, "GET (read)"),
        (Kinds::ADMIN, Methods::GET.or(Methods::POST), "GET (read) and POST (write)"),
    ];
    for (kind, used, words) in of_kinds {
        if kinds.has(kind) && !METHODS.iter().any(|(one, _)| used.has(*one) && methods.has(*one)) {
            let kind = granted_names(&KINDS, |one| one == kind).join(", ");
            let given = granted_names(&METHODS, |one| methods.has(one)).join(", ");
            return Err(bad_parameter(format!(
                "methods: requests for {kind} are {words}, so a token with {given} only is good \
                 for none of them. No token was created"
            )));
        }
    }
    Ok(())
}

/// Parses a list of words separated by commas. `of` converts a word, and `known` lists the
/// permitted words for the error.
fn list<T>(
    name: &str,
    known: &str,
    value: &str,
    of: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, Problem> {
    let value = text(name, value)?;
    let one = |word: &str| {
        let shown: String = word.chars().take(100).collect();
        of(word)
            .ok_or_else(|| bad_parameter(format!("{name}: {shown:?} is unknown: write {known}")))
    };
    value.split(',').map(one).collect()
}

/// Parses a percent-encoded value that must be UTF-8.
fn text(name: &str, value: &str) -> Result<String, Problem> {
    String::from_utf8(key(name, value)?.into_owned())
        .map_err(|_| bad_parameter(format!("parameter {name:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(query: &str) -> String {
        let problem = serde_json::to_value(token(query).unwrap_err()).unwrap();
        problem["detail"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_token_permits_data_only_unless_stated() {
        let all = token("name=ci").unwrap();
        assert_eq!((all.methods, all.kinds), (Methods::ALL, Kinds::DATA));
        assert_eq!((all.prefix, all.lives_ms, all.requests, all.bytes), (vec![], 0, 0, 0));
        let some = "name=a%c3%a9&methods=read,PUT&for=metrics,admin&prefix=%ff%2c&expires=30d\
            &requests=7&bytes=8589934592";
        let some = token(some).unwrap();
        assert_eq!(some.name, "a\u{e9}");
        assert_eq!(some.methods, Methods::GET.or(Methods::PUT));
        assert_eq!(some.kinds, Kinds::METRICS.or(Kinds::ADMIN));
        assert_eq!((some.prefix, some.lives_ms), (b"\xff,".to_vec(), 30 * 86_400_000));
        assert_eq!((some.requests, some.bytes), (7, 8 << 30));
    }

    #[test]
    fn invalid_parameters_of_a_token_are_refused_by_name() {
        for (query, said) in [
            ("", "\"name\" is missing"),
            ("name=", "\"name\" is empty"),
            ("name=%ff", "\"name\" is not UTF-8"),
            ("name=a&methods=", "methods: \"\" is unknown"),
            ("name=a&methods=get", "methods: \"get\" is unknown: write read, write, GET, PUT,"),
            ("name=a&methods=HEAD", "methods: \"HEAD\" is unknown"),
            ("name=a&prefix=", "prefix: it is empty: leave it out for all keys"),
            ("name=a&for=data,", "for: \"\" is unknown"),
            ("name=a&for=metrics&methods=write", "requests for metrics are GET (read), so"),
            ("name=a&for=data,metrics&methods=PUT", "with PUT only is good for none"),
            ("name=a&for=admin&methods=PUT,DELETE", "requests for admin are GET (read) and POST"),
            ("name=a&expires=never", "expires=\"never\" is not"),
            ("name=a&requests=0", "requests: it is not a valid rate"),
            ("name=a&requests=%2B5", "requests: it is not a valid rate"),
            ("name=a&bytes=+5", "bytes: it is not a valid rate"),
            ("name=a&bytes=-1", "bytes: it is not a valid rate"),
            ("name=a&scope=x", "unknown parameter \"scope\""),
            ("name=a&token=secret", "must not be in a URL"),
        ] {
            let detail = detail(query);
            assert!(detail.contains(said) && !detail.contains("secret"), "{query}: {detail}");
        }
    }
}
