"""What the rules of the repository look at: its files, as git knows them."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Source(NamedTuple):
    """A text file of the repository; `name` is its path from the root."""

    name: str
    text: str

    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every text file that is committed, or would be by `git add --all`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(listed.stderr)
    found = []
    for name in sorted(set(listed.stdout.split("\0")) - {""}):
        try:
            found.append(Source(name, (ROOT / name).read_text()))
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
            continue  # removed and not yet committed, or no text
    return found


@pytest.fixture(scope="session")
def python_sources(sources: list[Source]) -> list[Source]:
    """Every Python file, the scripts without an ending included."""
    return [
        source
        for source in sources
        if source.name.endswith(".py") or source.text.startswith("#!/usr/bin/env python3")
    ]


@pytest.fixture(scope="session")
def package_sources(python_sources: list[Source]) -> list[Source]:
    """Every module of the package itself."""
    return [source for source in python_sources if source.name.startswith("bookstore_streams/")]
