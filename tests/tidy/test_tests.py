"""The tests keep to their own rules: no hoping, no shadowing, no shared names by accident."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# sleep(0) only lets other tasks run; it waits for nothing.
WAITING = re.compile(r"\bsleep\((?!0\))")
# In virtual time a sleep advances the clock and costs nothing.
MAY_SLEEP = ("tests/chaos/", "tests/engine/", "tests/simulation/", "tests/tidy/")


def test_nothing_sleeps_in_real_time_outside_of_the_chaos_tests(python_sources: list[Any]) -> None:
    sleeping = [
        f"{source.name}:{number}"
        for source in python_sources
        if source.name.startswith("tests/") and not source.name.startswith(MAY_SLEEP)
        for number, line in enumerate(source.text.splitlines(), 1)
        if WAITING.search(line)
    ]

    assert sleeping == []


def test_no_folder_of_tests_hides_a_real_package(root: Path) -> None:
    folders = {path.name for path in (root / "tests").rglob("*") if path.is_dir()}

    assert folders & {"agents", "tables", "config", "bookstore_streams"} == set()
    assert list((root / "tests").rglob("__init__.py")) == []


def test_every_test_file_stands_in_a_suite_that_scripts_test_knows(
    python_sources: list[Any], root: Path
) -> None:
    suites = {
        source.name.split("/")[1]
        for source in python_sources
        if re.match(r"tests/.*/test_\w+\.py", source.name)
    }
    script = (root / "scripts" / "test").read_text()

    assert {suite for suite in suites if not re.search(rf"\b{suite}\b", script)} == set()
    assert list((root / "tests").glob("test_*.py")) == []


def test_every_skip_says_why(python_sources: list[Any]) -> None:
    bare = [
        source.name
        for source in python_sources
        if source.name.startswith("tests/")
        and re.search(r"pytest\.(skip|mark\.skip|mark\.xfail)(\(\)|\n)", source.text)
    ]

    assert bare == []
