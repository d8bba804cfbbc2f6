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
# Crates and folders that are not part of the product.
NOT_SHIPPED = ("bench/", "testing/", "fuzz/", "crates/sim/", "crates/linear/", "planted/")


def crate_of(path):
    parts = path.split("/")
    if parts[0] in ("src", "tests", "build.rs"):
        return "kvorum"
    return "/".join(parts[:2]) if parts[0] in ("crates", "bench", "testing") else parts[0]


def is_test_file(path):
    parts = path.split("/")
    return path.startswith(NOT_SHIPPED) or "tests" in parts[:-1] or parts[-1] == "tests.rs"


def lines_of_code(text):
    """Returns the numbers of lines of code outside and inside of a file's test modules."""
    code, tests, depth, in_tests, after_cfg_test = 0, 0, 0, False, False
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("//"):
            continue
        after_cfg_test = after_cfg_test or line == "#[cfg(test)]"
        if after_cfg_test and re.match(r"(pub(\(.*\))? )?mod \w+ \{$", line):
            in_tests, depth, after_cfg_test = True, 0, False
        elif after_cfg_test and not line.startswith("#["):
            after_cfg_test = False
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
    totals = {}
    for path in listed.stdout.split():
        if not (ROOT / path).exists():
            continue
        code, tests = lines_of_code((ROOT / path).read_text())
        if is_test_file(path):
            code, tests = 0, code + tests
        total = totals.setdefault(crate_of(path), [0, 0])
        total[0] += code
        total[1] += tests
    return totals


def table(totals):
    rows = ["| crate | code | tests |", "|---|---|---|"]
    for crate, (code, tests) in sorted(totals.items(), key=lambda item: (-item[1][0], -item[1][1])):
        rows.append(f"| {crate} | {code:,} | {tests:,} |")
    code, tests = (sum(size[k] for size in totals.values()) for k in (0, 1))
    rows.append(f"| **all** | **{code:,}** | **{tests:,}** |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(sizes()), end="")
