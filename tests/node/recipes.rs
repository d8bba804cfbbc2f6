//! The recipes of `docs/guide/recipes.md`, run exactly as printed there: twice in a row, with keys
//! that are absent, by several clients at once, and with a crash between two steps.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;

use crate::process::Node;

/// Number of concurrent takers.
const TAKERS: usize = 3;

/// Number of items in the queue of these takers.
const ITEMS: usize = 12;

/// Returns the recipes from the page's code block after the comment with this file's name.
fn recipes() -> [String; 7] {
    let page = include_str!("../../docs/guide/recipes.md");
    let (_, marked) = page.split_once("tests/node/recipes.rs runs them").unwrap();
    let (_, block) = marked.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let recipes: Vec<String> = block.split("\n\n").map(str::to_owned).collect();
    recipes.try_into().expect("seven recipes, with a line between them")
}

/// Returns the queue's items that have no time to live, and so exist until they are deleted.
fn lasting_items(node: &Node) -> Vec<String> {
    let is_left = |key: &String| {
        let got = node.client().get(&format!("/v0/entity?id={key}"));
        got.status == 200 && got.header("kvorum-expires").is_none()
    };
    (1..=2 * ITEMS).map(|number| format!("item-{number}")).filter(is_left).collect()
}

/// Returns the functions of a recipe, without the lines that call them.
fn functions(recipe: &str) -> String {
    let (functions, _) = recipe.rsplit_once("\n}\n").unwrap();
    format!("{functions}\n}}\n")
}

/// Runs a script; returns true if it succeeded, and its stdout.
fn try_run(node: &Node, script: &str) -> (bool, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    shell.env("K", format!("http://{}/v0/entity", node.address));
    let output = shell.output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Runs a script that must succeed; returns its stdout.
fn run(node: &Node, script: &str) -> String {
    let (succeeds, printed) = try_run(node, script);
    assert!(succeeds, "{script}\n{printed}");
    printed
}

/// Starts a node for the recipes; `None` if curl is not installed.
fn node() -> Option<Node> {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl");
        return None;
    }
    Some(Node::start(&[]))
}

fn value(node: &Node, key: &str) -> Option<Vec<u8>> {
    let got = node.client().get(&format!("/v0/entity?id={key}"));
    (got.status == 200).then(|| got.body())
}

#[test]
fn the_recipes_work_as_the_page_says() {
    let Some(node) = node() else { return };
    let [counter, lock, queue, lease, limit, again, configuration] = &recipes();
    for time in ["1", "2"] {
        assert_eq!(run(&node, counter), time);
        assert_eq!(run(&node, lock), "mine\n");
        assert_eq!(run(&node, queue), "some work\n");
        assert_eq!(run(&node, lease), "mine\nrenewed\n");
        assert_eq!(run(&node, limit), "welcome\n");
        assert_eq!(run(&node, again), "100");
        assert_eq!(run(&node, configuration), "changed\nlimit=20");
        for released in ["lock", "lease", &format!("item-{time}")] {
            assert_eq!(value(&node, released), None, "{released}");
        }
    }
    node.client().put("/v0/entity?id=lock", b"somebody else");
    node.client().put("/v0/entity?id=lease&ttl=1h", b"somebody else");
    for taken in [lock, lease] {
        assert_eq!(try_run(&node, taken), (false, String::new()), "it is somebody else's");
    }
    for taken in ["lock", "lease"] {
        assert_eq!(value(&node, taken).unwrap(), b"somebody else", "{taken}");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_is_not_overwritten() {
    let Some(node) = node() else { return };
    let [.., configuration] = &recipes();
    let change = &configuration[configuration.find("ETAG=").unwrap()..];
    let (succeeds, printed) = try_run(&node, change);
    assert!(!succeeds && printed.is_empty(), "{printed}");
    assert_eq!(value(&node, "config"), None);
}

#[test]
fn a_lease_is_renewed_as_often_as_its_holder_wants_and_has_one_holder() {
    let Some(node) = node() else { return };
    let [.., lease, _, _, _] = &recipes();
    let lease = &functions(lease);
    let renewed = format!(
        "{lease}lease 'If-None-Match: *' && for N in 1 2 3; do lease \"If-Match: $ETAG\" || exit; \
         done && echo $FENCE"
    );
    let (held, first) = try_run(&node, &renewed);
    assert!(held && first.trim().len() == 16, "{first:?}");
    let got = node.client().get("/v0/entity?id=lease");
    assert!(got.status == 200 && got.header("kvorum-expires").is_some());
    assert!(!try_run(&node, &renewed).0, "its holder has crashed, and its time has not come");
    // Simulates the expiry of a lease. Another client then acquires the lease, and the renewals by
    // the first client must fail.
    let next = run(
        &node,
        &format!(
            "{lease}ETAG={}; curl -sf -X DELETE \"$K?id=lease\" -H \"If-Match: $ETAG\"; \
             lease 'If-None-Match: *'; OLD=$ETAG; lease \"If-Match: $ETAG\"; \
             lease \"If-Match: $OLD\" && exit 1; echo $FENCE",
            format_args!("'{}'", got.header("etag").unwrap())
        ),
    );
    assert!(first < next, "{first} {next}");
}

#[test]
fn a_queue_that_is_empty_loses_nothing() {
    let Some(node) = node() else { return };
    let [_, _, queue, ..] = &recipes();
    let queue = &functions(queue);
    let take = format!("{queue}take");
    for _ in 0..2 {
        assert_eq!(try_run(&node, &take), (false, String::new()));
    }
    run(&node, &format!("{queue}put one; put two"));
    for item in ["one\n", "two\n"] {
        assert_eq!(run(&node, &take), item);
        assert_eq!(value(&node, "item-1").unwrap(), b"one", "who crashed now has not deleted it");
    }
    assert_eq!(try_run(&node, &take), (false, String::new()));
    run(&node, &format!("{queue}put three"));
    assert_eq!(run(&node, &take), "three\n");
    // An item that looks like a file name of curl is stored literally.
    run(&node, &format!("{queue}put @/etc/passwd"));
    assert_eq!(run(&node, &take), "@/etc/passwd\n");
}

#[test]
fn a_queue_outlives_a_producer_that_stops_between_two_steps() {
    let Some(node) = node() else { return };
    let [_, _, queue, ..] = &recipes();
    let queue = &functions(queue);
    let number = run(&node, "curl -sf -X POST \"$K?id=tail&add=1\"");
    assert_eq!(number, "1");
    run(&node, &format!("{queue}put two"));
    let take_all = format!("{queue}for N in 1 2 3; do take; done; true");
    assert_eq!(run(&node, &take_all), "two\n");
    let late = "curl -sf -X PUT \"$K?id=item-1\" -H 'If-None-Match: *' -d late";
    assert!(!try_run(&node, late).0, "nobody looks there any more");
    run(&node, &format!("{queue}put late"));
    assert_eq!(run(&node, &take_all), "late\n");
    assert_eq!(lasting_items(&node), ["item-2", "item-3"], "nobody deleted what was taken");
    let closed = node.client().get("/v0/entity?id=item-1");
    assert!(closed.status == 200 && closed.header("kvorum-expires").is_some());
}

#[test]
fn takers_at_once_take_each_item_once() {
    let Some(node) = node() else { return };
    let [_, _, queue, ..] = &recipes();
    let queue = &functions(queue);
    let put = format!("{queue}N=0; while [ $N -lt {ITEMS} ]; do put x || exit 1; done");
    run(&node, &put);
    // Each taker continues until the head is at the end, whichever taker took the items. If another
    // taker has already deleted an item, a taker may close the number of that item.
    let take_all = format!(
        "{queue}until [ \"$(curl -sf \"$K?id=head\")\" = {ITEMS} ]; do \
         take > /dev/null && echo $N && curl -sf -X DELETE \"$K?id=item-$N\"; done; true"
    );
    let taken: Vec<String> = thread::scope(|scope| {
        let takers = (0..TAKERS).map(|_| scope.spawn(|| run(&node, &take_all)));
        let takers: Vec<_> = takers.collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).collect()
    });
    let numbers: Vec<usize> =
        taken.iter().flat_map(|t| t.lines()).map(|n| n.parse().unwrap()).collect();
    assert_eq!(numbers.len(), ITEMS, "none is taken twice: {taken:?}");
    assert_eq!(numbers.into_iter().collect::<BTreeSet<_>>(), (1..=ITEMS).collect());
    assert_eq!(lasting_items(&node), [""; 0]);
}
