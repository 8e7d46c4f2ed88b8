"""Who may import what, where import-linter cannot say it: lists of what is allowed.

The contracts in setup.cfg forbid; these tables allow, so that a new client library cannot
slip in anywhere unnoticed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import Any

# Functions of their arguments alone: nothing here can read a clock, a file or a socket.
PURE_STDLIB = {
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
    "unicodedata",
}

# The longest path that fits decides. What is not named may import no third party at all.
CLIENT_LIBRARIES = {
    "bookstore_streams/core/envelope.py": {"orjson"},
    "bookstore_streams/engine/": {"orjson"},
    "bookstore_streams/kafka/": {"aiokafka", "click", "faust", "mode", "orjson", "rocksdict"},
    "bookstore_streams/providers/": {"aiohttp"},
    "bookstore_streams/web/": {"aiohttp", "faust", "orjson", "yarl"},
    "bookstore_streams/cli/": {"click", "faust", "mode", "orjson", "rich"},
    "bookstore_streams/testing/demo/": {"aiohttp", "aiokafka", "orjson", "rich"},
    "bookstore_streams/testing/": {"aiohttp", "aiokafka", "noida_db", "orjson"},
    "bookstore_streams/application.py": {"aiohttp", "click", "faust", "mode"},
}

# Ways to ask for the time or for chance that are no import.
IMPURE = re.compile(r"\.(now|utcnow|today|fromtimestamp)\(\s*\)|\bdatetime\.now\b|\bos\.urandom\b")


def imported(tree: ast.Module) -> Iterator[str]:
    """Top-level names of what a module imports; a relative import is the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "bookstore_streams" if node.level else (node.module or "").partition(".")[0]


def third_parties(tree: ast.Module) -> set[str]:
    return set(imported(tree)) - sys.stdlib_module_names - {"bookstore_streams"}


def allowed_in(name: str) -> set[str]:
    fitting = [path for path in CLIENT_LIBRARIES if name.startswith(path)]
    return CLIENT_LIBRARIES[max(fitting, key=len)] if fitting else set()


def test_client_libraries_stay_in_their_own_packages(package_sources: list[Any]) -> None:
    astray = {
        source.name: sorted(extra)
        for source in package_sources
        if (extra := third_parties(source.tree()) - allowed_in(source.name))
    }

    assert astray == {}


def test_the_core_imports_pure_parts_of_the_standard_library_only(
    package_sources: list[Any],
) -> None:
    impure = {
        source.name: sorted(extra)
        for source in package_sources
        if source.name.startswith("bookstore_streams/core/")
        and (
            extra := set(imported(source.tree()))
            - PURE_STDLIB
            - {"bookstore_streams"}
            - allowed_in(source.name)
        )
    }

    assert impure == {}


def test_the_core_asks_neither_the_clock_nor_chance(package_sources: list[Any]) -> None:
    asking = [
        f"{source.name}: {found[0]}"
        for source in package_sources
        if source.name.startswith("bookstore_streams/core/")
        for found in IMPURE.finditer(source.text)
    ]

    assert asking == []


def test_nothing_reads_the_environment_or_the_clock_when_it_is_imported(
    package_sources: list[Any],
) -> None:
    """A submodule must be importable anywhere: module-level code only defines."""
    reading = re.compile(r"^[A-Za-z_].*\b(os\.environ\[|os\.environ\.get|getenv\(|time\.time\()")
    found = [
        f"{source.name}: {line}"
        for source in package_sources
        for line in source.text.splitlines()
        if reading.match(line) and not line.startswith("def ")
    ]

    assert found == []
