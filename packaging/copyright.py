#!/usr/bin/env python3
"""Writes a program's Debian copyright file (DEP-5): its own licences and those of linked crates.

    packaging/copyright.py kvorum [TARGET] > copyright

A crate without a licence, or without the text of its licence, is an error: it can't be shipped."""

import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
# Licences whose texts Debian has in /usr/share/common-licenses.
COMMON = {"Apache-2.0", "MPL-2.0", "CC0-1.0"}
# Preferred licences among alternatives, the most preferred licence first.
PREFERRED = ["MIT", "Apache-2.0", "ISC", "BSD-3-Clause"]
# Words by which the text of each licence is recognized.
MARKS = {
    "0BSD": "Permission to use, copy, modify, and/or distribute this software for any",
    "Apache-2.0 WITH LLVM-exception": "LLVM Exceptions to the Apache 2.0 License",
    "BSD-2-Clause": "Redistributions in binary form must reproduce",
    "BSD-3-Clause": "may be used to endorse or promote products",
    "BSL-1.0": "Boost Software License",
    "CDDL-1.0": "COMMON DEVELOPMENT AND DISTRIBUTION LICENSE",
    "ISC": "Permission to use, copy, modify, and",
    "MIT": "Permission is hereby granted, free of charge",
    "OpenSSL": "OpenSSL Project",
    "Unicode-3.0": "UNICODE LICENSE V3",
    "Unlicense": "This is free and unencumbered software",
    "Zlib": "This software is provided 'as-is'",
}


def cargo(*words):
    command = ["cargo", *words, "--locked"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def linked(package, target):
    """Returns the crates linked into the program, as (name, version)."""
    lines = cargo("tree", "-p", package, "-e", "normal", "--target", target, "--prefix", "none",
                  "--format", "{p}").splitlines()
    found = {tuple(line.split()[:2]) for line in lines if "(proc-macro)" not in line}
    return {(name, version.removeprefix("v")) for name, version in found}


def chosen_licences(expression):
    """Returns the licences under which a crate is used: of alternatives the one with
    the fewest licences, then the preferred one. Old manifests write / for OR. AND binds closer than
    OR."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either():
        sets = [both()]
        while words and words[0] == "OR":
            words.pop(0)
            sets.append(both())
        return min(sets, key=lambda names: (len(names), max(map(rank, names))))

    def both():
        names = one()
        while words and words[0] == "AND":
            words.pop(0)
            names = names | one()
        return names

    def one():
        word = words.pop(0)
        if word == "(":
            names = either()
            words.pop(0)
            return names
        if words and words[0] == "WITH":
            return {f"{word} {words.pop(0)} {words.pop(0)}"}
        return {word}

    def rank(name):
        return PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)

    return sorted(either())


def licence_files(crate):
    folder = pathlib.Path(crate["manifest_path"]).parent
    wanted = re.compile(r"licen[cs]e|copying|copyright|notice|unlicense", re.IGNORECASE)
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and wanted.search(path.name)]
    return [path.read_text(errors="replace") for path in files if path.suffix not in (".rs", ".py")]


def holders(crate, texts):
    found = []
    for text in texts:
        for line in text.splitlines():
            line = line.strip(" *#/\t")
            is_notice = re.match(r"(Copyright|©)[^a-z]*(\(c\)|©|\d{4}|The )", line, re.IGNORECASE)
            if is_notice and "[yyyy]" not in line and line not in found:
                found.append(line)
    authors = ", ".join(crate["authors"])
    return found or [authors or f"the authors of {crate['name']}"]


def indented(text):
    return "\n".join(f" {line.rstrip()}" if line.strip() else " ." for line in text.strip().splitlines())


def short(name):
    """Returns DEP-5's name of a licence, without the blanks that would end the field."""
    return {"MIT": "Expat"}.get(name, name.replace(" WITH ", "-with-"))


def licence_text(name, texts):
    if name in COMMON:
        return f" The text is in /usr/share/common-licenses/{name}."
    mark = MARKS.get(name)
    matching_texts = [text for text in texts if mark and mark in " ".join(text.split())]
    if matching_texts:
        # Longer files contain other licences too, or more notices.
        return indented(min(matching_texts, key=len))
    sys.exit(f"copyright.py: {name}: no crate under it has its text, or MARKS does not know it")


def main():
    package, target = sys.argv[1], (sys.argv[2:] or [TARGET])[0]
    crates = {(c["name"], c["version"]): c
              for c in json.loads(cargo("metadata", "--format-version", "1"))["packages"]}
    stanzas, texts_of = [], collections.defaultdict(list)
    for key in sorted(linked(package, target)):
        crate = crates[key]
        if crate["source"] is None:
            continue
        if not crate["license"]:
            sys.exit(f"copyright.py: {key[0]} {key[1]} names no licence")
        texts = licence_files(crate)
        names = chosen_licences(crate["license"])
        for name in names:
            texts_of[name] += texts
        lines = [f"Files: vendor/{key[0]}-{key[1]}/*", "Copyright:"]
        lines += [f" {holder}" for holder in holders(crate, texts)]
        stanzas.append("\n".join(lines + [f"License: {' and '.join(short(name) for name in names)}"]))
    own = (ROOT / "LICENSE-MIT").read_text()
    texts_of["MIT"].insert(0, own)
    print("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/")
    print("Upstream-Name: kvorum\nSource: the repository of kvorum")
    print("Comment: The program is linked with the crates below; vendor/ stands for their sources.\n")
    print("Files: *\nCopyright: 2026 The kvorum authors\nLicense: Apache-2.0 or Expat\n")
    print("\n\n".join(stanzas))
    texts_of["Apache-2.0"] += []
    for name in sorted(texts_of):
        print(f"\nLicense: {short(name)}\n{licence_text(name, texts_of[name])}")


if __name__ == "__main__":
    main()
