"""What every file of the repository keeps to, whatever it does."""

from __future__ import annotations

import ast
import re
from hashlib import sha256
from pathlib import PurePath
from typing import Any

LINES_MAX = 500
# A file of tests is a list, read one at a time.
TEST_LINES_MAX = 700
# Modules that were longer when the rule came: a number here may only be lowered, and goes once
# the module fits.
LINES_MAX_FOR_NOW = {
    "tests/integration/test_provider.py": 1160,
}

VAGUE_NAMES = {"util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"}

# Written so that this file does not break its own rules.
UNNUMBERED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b(?!\(#\d+\))(?=[:\s])")
MACHINE_PATH = re.compile(r"(?<![\w./:-])/(work|root|home|tmp|Users)/")
WORD = re.compile(r"[a-z0-9][a-z0-9.-]*[a-z0-9]")
# Hosts of package registries (each client knows its own, and mirrors differ), and names of
# tools that have nothing to do with the project. As digests, since naming them is the offence.
BANNED_DIGESTS = {
    "00a7dc5a0cc38858",
    "095fbbaf0076d564",
    "0dc11026ac75c015",
    "1ba4e37997a2e986",
    "317d2d52829b7812",
    "3d01f3609be82d98",
    "43c04ed1dabe979b",
    "789e46d79514e280",
    "8cf10d1b0e07c1d8",
    "9495278a74715c7e",
    "9da5f32d96412512",
    "a4aa2ac280bb8d1a",
    "c70eca6b0f88f44d",
    "c857d09db23e6822",
    "c899567ee9068517",
    "e680c440a2e92079",
    "eb7e11c7f9ecbcf4",
    "fbb8037df8cc9050",
}


def test_every_python_file_says_what_it_owns(python_sources: list[Any]) -> None:
    silent = [
        source.name
        for source in python_sources
        if source.text.strip() and not ast.get_docstring(source.tree())
    ]

    assert silent == []


def test_no_module_has_a_name_that_says_nothing(python_sources: list[Any]) -> None:
    vague = [
        source.name
        for source in python_sources
        if VAGUE_NAMES & {PurePath(part).stem for part in PurePath(source.name).parts}
    ]

    assert vague == []


def lines_max(name: str) -> int:
    return TEST_LINES_MAX if name.startswith("tests/") else LINES_MAX


def test_no_module_outgrows_its_reader(python_sources: list[Any]) -> None:
    lengths = {source.name: len(source.text.splitlines()) for source in python_sources}
    too_long = {
        name: lines
        for name, lines in lengths.items()
        if lines > LINES_MAX_FOR_NOW.get(name, lines_max(name))
    }

    assert too_long == {}
    fitting = {name for name in LINES_MAX_FOR_NOW if lengths.get(name, 0) <= lines_max(name)}
    assert fitting == set(), "take it off the list"


def test_nothing_is_left_to_do_without_an_issue(sources: list[Any]) -> None:
    """The marker is followed by its number in brackets, or does not stand."""
    left = [
        f"{source.name}:{number}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNNUMBERED.search(line)
    ]

    assert left == []


def test_no_file_names_a_place_that_only_one_machine_has(sources: list[Any]) -> None:
    named = [
        f"{source.name}:{number}: {line.strip()}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]

    assert named == []


def test_no_file_names_a_registry_or_a_foreign_tool(sources: list[Any]) -> None:
    named = [
        f"{source.name}: {word}"
        for source in sources
        for word in set(WORD.findall(source.text.lower()))
        if sha256(word.encode()).hexdigest()[:16] in BANNED_DIGESTS
    ]

    assert named == []


def test_text_ends_with_one_newline_and_has_no_trailing_spaces(sources: list[Any]) -> None:
    untidy = [
        source.name
        for source in sources
        if source.text
        and (not source.text.endswith("\n") or re.search(r"[ \t]+$", source.text, re.MULTILINE))
    ]

    assert untidy == []
