//! The README's recipes, run as they stand there.

use std::process::Command;

use crate::process::Node;

/// The shell block that a comment in the README marks.
fn recipes() -> String {
    let readme = include_str!("../../README.md");
    let (_, marked) = readme.split_once("tests/node/recipes.rs runs them").unwrap();
    let (_, block) = marked.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Runs a recipe; what it prints.
fn run(node: &Node, recipe: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["-c", recipe]).env("HOSTNAME", "here");
    bash.env("K", format!("http://{}/v0/entity", node.address));
    let output = bash.output().unwrap();
    assert!(output.status.success(), "{recipe}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_recipes_work_as_the_readme_says() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl");
        return;
    }
    let node = Node::start(&[]);
    let recipes = recipes();
    let recipes: Vec<&str> = recipes.split("\n\n").collect();
    let [counter, lock, queue, lease, limit, again] = recipes[..] else {
        panic!("six recipes, with a line between them: {recipes:?}");
    };
    assert_eq!((run(&node, counter), run(&node, counter)), ("1".to_owned(), "2".to_owned()));
    assert_eq!((run(&node, lock), run(&node, lock)), ("mine\n".to_owned(), "mine\n".to_owned()));
    assert_eq!(node.client().get("/v0/entity?id=lock").status, 404, "it was released");
    node.client().put("/v0/entity?id=lock", b"somebody else");
    let taken = format!("{lock}\ntrue");
    assert_eq!(run(&node, &taken), "", "it is somebody else's");
    assert_eq!((run(&node, queue), run(&node, queue)), ("some work".into(), "some work".into()));
    assert_eq!(node.client().get("/v0/entity?id=head").body(), b"2");
    assert_eq!(run(&node, lease), "mine\n");
    let held = node.client().get("/v0/entity?id=lease");
    assert!(held.status == 200 && held.header("kvorum-expires").is_some());
    let taken = format!("{lease}\ntrue");
    assert_eq!(run(&node, &taken), "", "it was renewed, and is not free");
    assert_eq!(run(&node, limit), "welcome\n");
    assert_eq!((run(&node, again), run(&node, again)), ("100".into(), "100".into()));
}
