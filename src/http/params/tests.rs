//! Tests of the accepted and refused queries.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::http::entities::form::Form;
use crate::quotas::params::{quota, quota_to_remove};
use crate::tokens::params::{revoke, token};

fn entities(query: &str, replication: Replication) -> Result<RangeParams, Problem> {
    super::entities(query, Form::Chunks, replication)
}

/// A pattern of query strings of the data API: any text, or parameters with valid and nearly valid
/// values, in any order.
const QUERIES: &str = "[ -~]{0,60}|\
    ((id|ack|from|add|receipt|ttl|start|end|prefix|limit|after|values|local|x)\
    (=[%+0-9a-fxsmhd]{0,8})?[&=]?){0,6}";

/// A pattern of query strings of the admin API: any text, or parameters with valid and nearly valid
/// values, in any order.
const OPERATOR_QUERIES: &str = "\\PC{0,60}|\
    ((id|name|methods|for|prefix|expires|requests|bytes|limit|keys|event|seconds|format|idle|\
    full|plan|add|remove|remove_dead|weight|replicas|council|local)\
    =?([+%,=:/0-9a-fnmhd]{0,8}|read,write|n1=[0-9]{1,4}|n1@z=http://h:1)?&?){0,6}";

const ONE: Replication = Replication { nodes: 1, replicas: 3 };
const FIVE: Replication = Replication { nodes: 5, replicas: 3 };

const MONTH: &str = "30d";

fn most() -> Ttl {
    MONTH.parse().unwrap()
}

fn write(query: &str, on: Replication) -> Result<WriteParams<'_>, Problem> {
    put(query, on, most())
}

fn conditional(query: &str, on: Replication) -> Result<ConditionalParams<'_>, Problem> {
    conditional_put(query, on, most())
}

fn addition(query: &str, on: Replication) -> Result<Addition<'_>, Problem> {
    super::addition(query, on, most())
}

fn detail(problem: Problem) -> String {
    serde_json::to_value(problem).unwrap()["detail"].as_str().unwrap().to_owned()
}

fn decode_key(query: &str) -> Vec<u8> {
    read(query, ONE).unwrap().key.into_owned()
}

#[test]
fn a_key_may_have_any_bytes_but_not_be_empty() {
    assert_eq!(decode_key("id=a"), b"a");
    assert_eq!(decode_key("id=%00"), b"\0");
    assert_eq!(decode_key("id=%2e%2E/%ff"), b"../\xff");
    assert_eq!(decode_key("id=a%2Bb%2b%20"), b"a+b+ ");
    assert_eq!(decode_key("id=a=b"), b"a=b");
    assert_eq!(decode_key("id=%25%32%35"), b"%25");
    assert_eq!(decode_key("id=%C3%28"), b"\xc3(");
    assert_eq!(decode_key(&format!("id={}", "%61".repeat(1024))), vec![b'a'; 1024]);
}

#[test]
fn a_key_without_escapes_is_not_copied() {
    assert!(matches!(read("id=plain", ONE).unwrap().key, Cow::Borrowed(_)));
}

#[test]
fn quorum_parameters_are_parsed() {
    let quorum = |query| read(query, FIVE).unwrap().quorum;
    assert_eq!(quorum("id=a"), Quorum { ack: 2, from: 3 });
    assert_eq!(quorum("ack=1&id=a&from=5"), Quorum { ack: 1, from: 5 });
    assert_eq!(quorum("ack=0002&id=a"), Quorum { ack: 2, from: 3 });
    let copies = |query| write(query, FIVE).unwrap().copies;
    assert_eq!((copies("id=a&ack=1"), copies("id=a&from=3")), (0, 3));
}

#[test]
fn malformed_queries_of_an_entity_are_refused() {
    let long = format!("id={}", "a".repeat(1025));
    for query in [
        "",
        "id",
        "id=",
        "ack=1",
        "id=a&id=a",
        "id=a&id=b",
        "id=a&ack=1&ack=3",
        "id=a&b=1",
        "id=a&",
        "&id=a",
        "id=a&&ack=1",
        "ID=a",
        "id=%",
        "id=%4",
        "id=%4g",
        "id=%+1",
        "id=a%",
        "id=a&ack=",
        "id=a&ack=x",
        "id=a&ack=-1",
        "id=a&ack=%31",
        "id=a&ack=+1",
        "id=a&ack=0",
        "id=a&ack=4",
        "id=a&from=6",
        "id=a&from=256",
        "id=a&from=0",
        "id=a&ack=2&from=1",
        "id=a&from=99999999999999999999",
        "id=a&local=true",
        "id=a&start=b",
        &long,
    ] {
        assert!(read(query, FIVE).is_err(), "{query:?} was taken to read");
        assert!(write(query, FIVE).is_err(), "{query:?} was taken to write");
        assert!(delete(query, FIVE).is_err(), "{query:?} was taken to delete");
    }
}

#[test]
fn receipts_are_for_writes() {
    let many = Replication { nodes: 20, replicas: 9 };
    let wants = |query| write(query, FIVE).unwrap().receipt;
    assert_eq!([wants("id=a"), wants("id=a&receipt=false")], [false, false]);
    assert!(wants("receipt=true&id=a&ack=1&from=5"));
    assert!(conditional("id=a&receipt=true", FIVE).unwrap().receipt);
    assert!(addition("id=a&add=1&receipt=true", FIVE).unwrap().params.receipt);
    assert!(write("id=a&from=8&receipt=true", many).unwrap().receipt);
    for query in ["receipt=", "receipt", "receipt=1", "receipt=True", "receipt=true&receipt=true"] {
        let query = format!("id=a&{query}");
        let refused = detail(write(&query, FIVE).unwrap_err());
        assert!(refused.contains("receipt"), "{query}: {refused}");
        assert!(conditional(&query, FIVE).is_err() && addition(&query, FIVE).is_err());
    }
    assert!(write("id=a&receipt=true", many).is_err(), "from=9 by default");
    for refused in [
        read("id=a&receipt=true", FIVE).err(),
        entities("start=a&receipt=true", FIVE).err(),
        placement("id=a&receipt=true", FIVE).err(),
        profile("receipt=true").err(),
    ] {
        let refused = detail(refused.unwrap());
        assert!(refused.contains("unknown parameter \"receipt\""), "{refused}");
    }
}

#[test]
fn values_may_be_given_a_time_to_live() {
    let lives = |ttl: &str| {
        let (put, add) = (format!("id=a&ttl={ttl}"), format!("id=a&add=1&ttl={ttl}"));
        let all = [
            write(&put, FIVE).map(|params| params.ttl),
            conditional(&put, FIVE).map(|params| params.ttl),
            addition(&add, FIVE).map(|addition| addition.params.ttl),
        ];
        let all = all.map(|ttl| ttl.map_err(detail));
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        let [one, ..] = all;
        one.map(|ttl| ttl.unwrap().to_string())
    };
    assert_eq!([lives("1s"), lives("30d")], [Ok("1s".to_owned()), Ok(MONTH.to_owned())]);
    assert_eq!(write("id=a", FIVE).unwrap().ttl, None);
    for (ttl, wrong) in [
        ("", "ttl=\"\" is not a time to live: write a whole number and s, m, h or d, as in 90s"),
        ("-1", "ttl=\"-1\" is not a time to live"),
        ("0", "ttl=\"0\" is not a time to live"),
        ("1.5h", "ttl=\"1.5h\" is not a time to live"),
        ("999y", "ttl=\"999y\" is not a time to live"),
        ("%39s", "ttl=\"%39s\" is not a time to live"),
        ("0s", "ttl=\"0s\" is out of range 1s..3650d"),
        ("3651d", "ttl=\"3651d\" is out of range 1s..3650d"),
        ("99999999999999999999s", "ttl=\"99999999999999999999s\" is out of range 1s..3650d"),
        ("31d", "ttl=31d is more than this node's --max-ttl: 30d or less"),
        ("2592001s", "ttl=2592001s is more than this node's --max-ttl: 30d or less"),
        ("1s&ttl=1s", "duplicate parameter \"ttl\""),
    ] {
        let said = lives(ttl).unwrap_err();
        assert!(said.starts_with(wrong), "{ttl}: {said}");
    }
    for refused in [
        read("id=a&ttl=1s", FIVE).err(),
        delete("id=a&ttl=1s", FIVE).err(),
        conditional_delete("id=a&ttl=1s", FIVE).err(),
        entities("start=a&ttl=1s", FIVE).err(),
        placement("id=a&ttl=1s", FIVE).err(),
    ] {
        let refused = detail(refused.unwrap());
        assert!(refused.starts_with("unknown parameter \"ttl\""), "{refused}");
        assert!(refused.ends_with("only PUT and POST take a ttl"), "{refused}");
    }
}

#[test]
fn a_plan_id_with_a_sign_is_refused() {
    assert!(apply("plan=+ff").is_err() && apply("plan=ff").is_ok());
}

/// Some programs encode a space as '+', others a plus, so the meaning is ambiguous.
#[test]
fn a_raw_plus_is_refused_wherever_it_is() {
    for query in [
        "id=a+b",
        "id=+",
        "id=a%20+",
        "id=a&ack=+1",
        "id=a&from=+3",
        "id=a+&ack=2",
        "id=a&receipt=+true",
        "id=a&ttl=+1s",
        "i+d=a",
        "id=a&add=+1",
    ] {
        let all = [
            read(query, FIVE).err(),
            write(query, FIVE).err(),
            delete(query, FIVE).err(),
            conditional(query, FIVE).err(),
            conditional_delete(query, FIVE).err(),
            addition(query, FIVE).err(),
        ];
        assert!(all.iter().all(Option::is_some), "{query} was taken");
        let named = |problem: Option<Problem>| detail(problem.unwrap()).contains("%2B for a plus");
        assert!(all.into_iter().any(named), "{query}");
    }
    for query in ["start=a+b", "start=a&end=b+", "start=a&local=+true", "start=a&prefix=+"] {
        assert!(super::entities(query, Form::Lines, FIVE).is_err(), "{query} was taken");
        let refused = detail(super::entities(query, Form::Lines, FIVE).unwrap_err());
        assert!(refused.contains("write %2B for a plus, %20 for a space"), "{refused}");
    }
    assert!(placement("id=a+b", FIVE).is_err() && placement("id=a%2Bb", FIVE).is_ok());
    assert!(quota("prefix=a+b&hard=1").is_err() && quota("prefix=a%2bb&hard=1").is_ok());
    assert!(token("name=a+b").is_err());
}

#[test]
fn range_queries_are_parsed_or_refused() {
    let all = entities("start=a", FIVE).unwrap();
    assert_eq!(all.rest(), (&b"a"[..], None));
    assert_eq!((all.local, all.values, all.limit), (false, true, None));
    let part = entities("end=%ff&start=%00&local=false&ack=1&from=2", FIVE).unwrap();
    assert_eq!(part.rest(), (&[0][..], Some(&[0xff][..])));
    assert_eq!((part.quorum, part.local), (Quorum { ack: 1, from: 2 }, false));
    for query in [
        "",
        "start=",
        "end=b",
        "start=a&end=",
        "start=a&end",
        "start=a&local=",
        "start=a&local=true&ack=1",
        "start=a&local=true&from=1",
        "start=a&id=b",
        "start=a&local=1",
        "start=a&start=b",
        "start=a&end=%",
        "start=a&ack=9",
    ] {
        assert!(entities(query, FIVE).is_err(), "{query:?} was taken");
    }
}

proptest! {
    /// Each parser accepts or refuses any query without a panic.
    #[test]
    fn any_query_is_parsed_or_refused_without_a_panic(query in QUERIES) {
        let replication = FIVE;
        let _ = read(&query, replication);
        let _ = write(&query, replication);
        let _ = delete(&query, replication);
        let _ = conditional(&query, replication);
        let _ = conditional_delete(&query, replication);
        let _ = addition(&query, replication);
        let _ = entities(&query, replication);
        if let Ok(range) = super::entities(&query, Form::Lines, replication) {
            let link = range.link(&range.cursor(b"k"));
            prop_assert!(link.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", link);
        }
        let _ = placement(&query, replication);
        let _ = profile(&query);
    }

    /// Each parser for operators accepts or refuses any query without a panic.
    #[test]
    fn any_operator_query_is_parsed_or_refused_without_a_panic(query in OPERATOR_QUERIES) {
        let _ = (revoke(&query).err(), token(&query).err());
        let _ = (quota(&query).err(), quota_to_remove(&query).err());
        let _ = (repair(&query), refuse_parameters(&query), events(&query), profile(&query));
        let nobody = |name: &str| NotAsking::Nobody { name: name.to_owned(), asking: Vec::new() };
        let _ = change(&query, |node| Err(nobody(node)));
        if let Ok(plan) = apply(&query) {
            let digits = query.strip_prefix("plan=").unwrap().trim_start_matches('0');
            let written = format!("{plan:x}");
            prop_assert_eq!(written.trim_start_matches('0'), digits.to_lowercase());
        }
    }

    /// All routes that accept a query find the same key, the only `id` in the query.
    #[test]
    fn the_key_of_a_query_is_the_same_for_all_routes(query in QUERIES) {
        let keys = [
            read(&query, FIVE).map(|params| params.key).ok(),
            write(&query, FIVE).map(|params| params.key).ok(),
            delete(&query, FIVE).map(|params| params.key).ok(),
            conditional(&query, FIVE).map(|params| params.key).ok(),
            conditional_delete(&query, FIVE).map(|params| params.key).ok(),
            addition(&query, FIVE).map(|addition| addition.params.key).ok(),
            placement(&query, FIVE).map(|params| params.key).ok(),
        ];
        let mut ids = query.split('&').filter_map(|pair| pair.strip_prefix("id="));
        let (only, second) = (ids.next(), ids.next());
        for key in keys.into_iter().flatten() {
            prop_assert_eq!(second, None);
            let id = percent::decode(only.unwrap().as_bytes()).ok();
            prop_assert_eq!(Some(key), id);
        }
    }

    #[test]
    fn any_key_survives_being_encoded(key in vec(any::<u8>(), 1..40), bare in any::<u8>()) {
        let encode = |byte: &u8| match byte {
            byte if byte.is_ascii_alphanumeric() && *byte != bare => {
                char::from(*byte).to_string()
            }
            byte => format!("%{byte:02x}"),
        };
        let query = format!("id={}", key.iter().map(encode).collect::<String>());
        prop_assert_eq!(decode_key(&query), key);
    }
}
