//! Checks `docs/reference/openapi.yaml` against the code: the document and the code have the same
//! routes, parameters and problems.

use std::collections::BTreeSet;

use yaml_rust2::{Yaml, YamlLoader};

use super::expires::EXPIRES;
use super::fence::FENCE;
use super::params;
use super::problem::Type;
use super::receipt::RECEIPT;
use super::routes::ROUTES;

/// The dashboard's page. The dashboard's other files are not part of the interface.
const PAGE: (&str, &str) = ("/ui", "GET, HEAD");

/// Routes that parse their query, with the known parameters. Other routes ignore
/// or refuse their query.
const PARAMETERS: [(&str, &str, &[&str]); 18] = [
    ("get", "/v0/entity", &params::READ),
    ("head", "/v0/entity", &params::READ),
    ("put", "/v0/entity", &params::PUT),
    ("delete", "/v0/entity", &params::DELETE),
    ("post", "/v0/entity", &params::ADD),
    ("get", "/v0/entities", &params::RANGE),
    ("get", "/admin/profile", &params::PROFILE),
    ("post", "/admin/repair", &params::REPAIR),
    ("post", "/admin/layout/plan", &params::PLAN),
    ("post", "/admin/layout/apply", &params::APPLY),
    ("post", "/admin/store-format", &crate::finalize::params::FORMAT),
    ("post", "/admin/tokens", &crate::tokens::params::TOKEN),
    ("post", "/admin/tokens/revoke", &crate::tokens::params::REVOKE),
    ("post", "/admin/quotas", &crate::quotas::params::QUOTA),
    ("post", "/admin/quotas/remove", &crate::quotas::params::REMOVE),
    ("get", "/ui/key", &params::PLACEMENT),
    ("head", "/ui/key", &params::PLACEMENT),
    ("get", "/ui/events", &params::EVENTS),
];

fn document() -> Yaml {
    let text = include_str!("../../docs/reference/openapi.yaml");
    YamlLoader::load_from_str(text).unwrap().remove(0)
}

fn text(yaml: &Yaml) -> &str {
    yaml.as_str().unwrap_or_else(|| panic!("{yaml:?} is no text"))
}

/// Returns the entries of a map, in the document's order.
fn entries(yaml: &Yaml) -> impl Iterator<Item = (&str, &Yaml)> {
    let entries = yaml.as_hash().unwrap_or_else(|| panic!("{yaml:?} is no map"));
    entries.iter().map(|(key, value)| (text(key), value))
}

/// Returns the target of a `$ref`, or `yaml` itself if it is not a reference.
fn resolve_reference<'a>(document: &'a Yaml, yaml: &'a Yaml) -> &'a Yaml {
    let Some(path) = yaml["$ref"].as_str() else { return yaml };
    let path = path.strip_prefix("#/").unwrap_or_else(|| panic!("{path} is not in the document"));
    let found = path.split('/').fold(document, |yaml, name| &yaml[name]);
    assert!(!found.is_badvalue(), "{path} is not there");
    found
}

/// Returns each operation as (method, path, description).
fn operations(document: &Yaml) -> Vec<(&str, &str, &Yaml)> {
    let paths = entries(&document["paths"]);
    paths.flat_map(|(path, of)| entries(of).map(move |(method, of)| (method, path, of))).collect()
}

fn query_parameters<'a>(document: &'a Yaml, operation: &'a Yaml) -> Vec<&'a str> {
    let parameters = operation["parameters"].as_vec().map_or(&[][..], Vec::as_slice);
    let parameters = parameters.iter().map(|parameter| resolve_reference(document, parameter));
    let queries = parameters.filter(|parameter| text(&parameter["in"]) == "query");
    queries.map(|parameter| text(&parameter["name"])).collect()
}

/// Collects the paths of all entries without a value in `found`.
fn empty_ones(yaml: &Yaml, at: &str, found: &mut Vec<String>) {
    match yaml {
        Yaml::Null => found.push(at.to_owned()),
        Yaml::Hash(_) => entries_of_any(yaml)
            .for_each(|(name, below)| empty_ones(below, &format!("{at}/{name}"), found)),
        Yaml::Array(items) => items.iter().for_each(|item| empty_ones(item, at, found)),
        _ => {}
    }
}

/// Returns the entries of a map whose keys may be numbers.
fn entries_of_any(yaml: &Yaml) -> impl Iterator<Item = (String, &Yaml)> {
    yaml.as_hash().into_iter().flatten().map(|(key, value)| {
        let name = key.as_str().map_or_else(|| format!("{key:?}"), str::to_owned);
        (name, value)
    })
}

#[test]
fn every_entry_of_the_document_has_a_value() {
    let mut found = Vec::new();
    empty_ones(&document(), "", &mut found);
    assert_eq!(found, [""; 0]);
}

#[test]
fn documented_routes_and_methods_equal_the_route_table() {
    let document = document();
    let documented = operations(&document).into_iter();
    let documented: BTreeSet<(String, &str)> =
        documented.map(|(method, path, _)| (method.to_uppercase(), path)).collect();
    let table = ROUTES.iter().map(|route| (route.path, route.allowed)).chain([PAGE]);
    let table: BTreeSet<(String, &str)> = table
        .flat_map(|(path, allowed)| allowed.split(", ").map(move |one| (one.to_owned(), path)))
        .collect();
    assert_eq!(documented, table);
}

#[test]
fn documented_query_parameters_equal_the_parsed_parameters() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        let documented: BTreeSet<&str> =
            query_parameters(&document, operation).into_iter().collect();
        let known = PARAMETERS.iter().find(|(one, at, _)| (*one, *at) == (method, path));
        let known: BTreeSet<&str> =
            known.map_or(&[][..], |known| known.2).iter().copied().collect();
        assert_eq!(documented, known, "{method} {path}");
    }
}

#[test]
fn documented_problems_equal_the_declared_types() {
    let document = document();
    let mut documented = BTreeSet::new();
    for (status, response) in entries(&document["components"]["responses"]) {
        let schemas = &response["content"]["application/problem+json"]["schema"]["allOf"];
        let types = schemas.as_vec().into_iter().flatten();
        for kind in types.filter_map(|schema| schema["properties"]["type"]["enum"].as_vec()) {
            documented.extend(kind.iter().map(|kind| (status.to_owned(), text(kind))));
        }
    }
    let all = Type::ALL.iter().map(|kind| (kind.status().as_str().to_owned(), kind.name()));
    assert_eq!(documented, all.collect());
}

#[test]
fn the_page_of_errors_has_each_problem() {
    let page = include_str!("../../docs/reference/errors.md");
    let (_, types) = page.split_once("## Types").unwrap();
    let (types, _) = types.split_once("\n## ").unwrap();
    let row = |line: &str| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (status, kind) = (cells.next()?, cells.next()?);
        let kind = kind.strip_prefix('`')?.strip_suffix('`')?;
        status.parse().ok().map(|status: u16| (status, kind.to_owned()))
    };
    let listed: BTreeSet<(u16, String)> = types.lines().filter_map(row).collect();
    let all = Type::ALL.iter().map(|kind| (kind.status().as_u16(), kind.name().to_owned()));
    assert_eq!(listed, all.collect());
}

#[test]
fn a_documented_problem_is_listed_under_its_own_status() {
    let document = document();
    for (method, path, operation) in operations(&document) {
        for (status, response) in entries(&operation["responses"]) {
            if let Some(shared) = response["$ref"].as_str() {
                let own = format!("#/components/responses/{status}");
                assert_eq!(shared, own, "{method} {path}");
            }
            let response = resolve_reference(&document, response);
            let example = &response["content"]["application/problem+json"]["example"];
            if !example.is_badvalue() {
                assert_eq!(example["status"].as_i64(), status.parse().ok(), "{status}");
            }
            for (_, header) in response["headers"].as_hash().into_iter().flatten() {
                resolve_reference(&document, header);
            }
        }
    }
}

#[test]
fn receipts_are_documented_where_receipt_is_a_parameter() {
    let document = document();
    let header = entries(&document["components"]["headers"]);
    assert!(header.map(|(name, _)| name.to_lowercase()).any(|name| name == RECEIPT.as_str()));
    for (method, path, operation) in operations(&document) {
        let asked = query_parameters(&document, operation).contains(&"receipt");
        let given = entries(&operation["responses"])
            .any(|(_, response)| !response["headers"]["Kvorum-Receipt"].is_badvalue());
        assert_eq!(given, asked, "{method} {path}");
    }
}

#[test]
fn fences_are_documented_for_put_and_post_of_a_value() {
    let document = document();
    let header = entries(&document["components"]["headers"]);
    assert!(header.map(|(name, _)| name.to_lowercase()).any(|name| name == FENCE.as_str()));
    for (method, path, operation) in operations(&document) {
        let writes = path == "/v0/entity" && ["put", "post"].contains(&method);
        let given = entries(&operation["responses"])
            .any(|(_, response)| !response["headers"]["Kvorum-Fence"].is_badvalue());
        assert_eq!(given, writes, "{method} {path}");
    }
}

#[test]
fn expiries_are_documented_for_reads_and_where_ttl_is_a_parameter() {
    let document = document();
    let header = entries(&document["components"]["headers"]);
    assert!(header.map(|(name, _)| name.to_lowercase()).any(|name| name == EXPIRES.as_str()));
    for (method, path, operation) in operations(&document) {
        let reads = path == "/v0/entity" && ["get", "head"].contains(&method);
        let asked = reads || query_parameters(&document, operation).contains(&"ttl");
        let given = entries(&operation["responses"])
            .any(|(_, response)| !response["headers"]["Kvorum-Expires"].is_badvalue());
        assert_eq!(given, asked, "{method} {path}");
    }
}
