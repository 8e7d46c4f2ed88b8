"""What the documents point at is there: headings behind `#`, and files named in the text.

That a linked file exists is looked after in test_scripts.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
# A file with an ending, in backticks, under a folder of the repository.
NAMED = re.compile(
    r"`((?:agents|benchmarks|bookstore_streams|config|docs|scripts|tables|tests)/[\w./-]+\.\w+)"
)


def documents(sources: list[Any]) -> list[Any]:
    return [source for source in sources if source.name.endswith(".md")]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as they are made on the usual hosts."""
    headings = HEADING.findall(FENCE.sub("", text))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_every_anchor_is_a_heading(sources: list[Any], root: Path) -> None:
    astray = []
    for source in documents(sources):
        for target, anchor in ANCHOR.findall(source.text):
            path = root / source.name
            path = path.parent / target if target else path
            if path.suffix == ".md" and anchor not in anchors(path.read_text()):
                astray.append(f"{source.name}: {target}#{anchor}")

    assert astray == []


def test_every_file_that_a_document_names_exists(sources: list[Any], root: Path) -> None:
    absent = [
        f"{source.name}: {name}"
        for source in documents(sources)
        for name in NAMED.findall(source.text)
        if not (root / name).exists()
    ]

    assert absent == []
