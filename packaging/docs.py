#!/usr/bin/env python3
"""Writes the pages that the packages have: docs/ without pictures and reports, and deploy/.

    packaging/docs.py DIRECTORY

The directory is written anew. Instead of a link to a file that the packages lack, the page has the
file's path in the sources; a link to a file that does not exist is an error."""

import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# `[text](target)` and `![text](target)`, the target without a space.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
SUFFIXES = {".md", ".yaml"}


def packaged():
    """Returns the files of the packages, as paths from the root of the sources."""
    pages = [path for path in (ROOT / "docs").rglob("*") if path.suffix in SUFFIXES]
    examples = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    pages.append(ROOT / "SECURITY.md")
    return sorted(path.relative_to(ROOT) for path in pages + examples)


def with_links_inside(page, files):
    """Returns a page's text, in which every link leads to one of the files or to the web."""
    folders = {parent for file in files for parent in file.parents}

    def replaced(link):
        is_picture, text, target = link.groups()
        path = target.split("#")[0]
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        meant = pathlib.Path(os.path.normpath(page.parent / path))
        if not (ROOT / meant).exists():
            sys.exit(f"packaging/docs.py: {page}: the link to {target} leads to no file")
        if meant in files or meant in folders:
            return link[0]
        if is_picture:
            return f"(picture: {text})"
        return text if text.endswith(meant.name) else f"{text} ({meant} in the sources)"

    # Twice, because a picture can be the text of a link.
    text = LINK.sub(replaced, (ROOT / page).read_text())
    return LINK.sub(replaced, text)


def main():
    to = pathlib.Path(sys.argv[1])
    shutil.rmtree(to, ignore_errors=True)
    files = packaged()
    for file in files:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            (to / file).write_text(with_links_inside(file, set(files)))
        else:
            shutil.copyfile(ROOT / file, to / file)


if __name__ == "__main__":
    main()
