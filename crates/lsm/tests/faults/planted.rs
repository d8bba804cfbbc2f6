//! Checks that each patch of `planted/` applies to the current code. `planted/run.sh`, which takes
//! minutes, shows that each planted bug is caught.

use std::fs;
use std::path::Path;

/// The lines that a hunk expects in the file, as one string.
fn expected_lines(hunk: &str) -> String {
    let lines = hunk.lines().skip(1).filter_map(|line| match line.split_at_checked(1) {
        Some((" " | "-", text)) => Some(text),
        Some(_) => None,
        None => Some(""),
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_planted_patch_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut patches = 0;
    for entry in fs::read_dir(root.join("planted")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        patches += 1;
        let patch = fs::read_to_string(&path).unwrap();
        for file in patch.split("\n--- a/").skip(1) {
            let (name, hunks) = file.split_once('\n').unwrap();
            let code = fs::read_to_string(root.join(name)).unwrap();
            for hunk in hunks.split("\n@@ ").skip(1) {
                let expected = expected_lines(hunk);
                let fits = code.matches(&expected).count();
                assert_eq!(fits, 1, "{} does not fit {name}:\n{expected}", path.display());
            }
        }
    }
    assert!(patches >= 12, "{patches} planted bugs");
}
