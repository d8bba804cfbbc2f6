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
# A link or picture: `[text](target)` or `![text](target)`. The target has no space.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
SUFFIXES = {".md", ".yaml"}


def packaged_files():
    """Returns the files of the packages, as paths from the root of the sources."""
    pages = [path for path in (ROOT / "docs").rglob("*") if path.suffix in SUFFIXES]
    examples = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    pages.append(ROOT / "SECURITY.md")
    return sorted(path.relative_to(ROOT) for path in pages + examples)


def with_links_inside(page, files):
    """Returns a page's text, in which every link leads to one of the files or to the web."""
    folders = {parent for file in files for parent in file.parents}

    def replacement(link):
        is_picture, text, target = link.groups()
        path = target.split("#")[0]
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        target_path = pathlib.Path(os.path.normpath(page.parent / path))
        if not (ROOT / target_path).exists():
            sys.exit(f"packaging/docs.py: {page}: the link to {target} leads to no file")
        if target_path in files or target_path in folders:
            return link[0]
        if is_picture:
            return f"(picture: {text})"
        return text if text.endswith(target_path.name) else f"{text} ({target_path} in the sources)"

    # Replaces links twice, because a picture can be the text of a link.
    text = LINK.sub(replacement, (ROOT / page).read_text())
    return LINK.sub(replacement, text)


def main():
    to = pathlib.Path(sys.argv[1])
    shutil.rmtree(to, ignore_errors=True)
    files = packaged_files()
    for file in files:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            (to / file).write_text(with_links_inside(file, set(files)))
        else:
            shutil.copyfile(ROOT / file, to / file)


if __name__ == "__main__":
    main()
