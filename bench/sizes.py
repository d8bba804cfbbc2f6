#!/usr/bin/env python3
"""Counts the lines of Rust code by crate, separately for the product and for its tests.

A line of code is a line that is neither blank nor a comment. Tests are the files in `tests`
folders, `tests.rs`, modules behind `#[cfg(test)]`, and the crates that no user runs.

    python3 bench/sizes.py    prints the table of docs/results/sizes.md
"""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Crates and folders that no user runs.
LABORATORY = ("bench/", "testing/", "fuzz/", "crates/sim/", "crates/linear/", "planted/")


def crate_of(path):
    parts = path.split("/")
    if parts[0] in ("src", "tests", "build.rs"):
        return "kvorum"
    return "/".join(parts[:2]) if parts[0] in ("crates", "bench", "testing") else parts[0]


def is_test_file(path):
    parts = path.split("/")
    return path.startswith(LABORATORY) or "tests" in parts[:-1] or parts[-1] == "tests.rs"


def lines_of_code(text):
    """Returns the lines of code of a file, outside of its test module and in it."""
    code, tests, depth, in_tests, armed = 0, 0, 0, False, False
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("//"):
            continue
        armed = armed or line == "#[cfg(test)]"
        if armed and re.match(r"(pub(\(.*\))? )?mod \w+ \{$", line):
            in_tests, depth, armed = True, 0, False
        elif armed and not line.startswith("#["):
            armed = False
        if in_tests:
            tests += 1
            depth += line.count("{") - line.count("}")
            in_tests = depth > 0
        else:
            code += 1
    return code, tests


def sizes():
    listed = subprocess.run(
        ["git", "ls-files", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = {}
    for path in listed.stdout.split():
        if not (ROOT / path).exists():
            continue
        code, tests = lines_of_code((ROOT / path).read_text())
        if is_test_file(path):
            code, tests = 0, code + tests
        total = found.setdefault(crate_of(path), [0, 0])
        total[0] += code
        total[1] += tests
    return found


def table(found):
    rows = ["| crate | code | tests |", "|---|---|---|"]
    for crate, (code, tests) in sorted(found.items(), key=lambda item: (-item[1][0], -item[1][1])):
        rows.append(f"| {crate} | {code:,} | {tests:,} |")
    code, tests = (sum(size[k] for size in found.values()) for k in (0, 1))
    rows.append(f"| **all** | **{code:,}** | **{tests:,}** |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(sizes()), end="")
