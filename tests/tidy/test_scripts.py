"""Scripts can be run and explain themselves, and what the documents tell people to type exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file())
FENCE = re.compile(r"^```(?:sh|bash|shell|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)")


def documents(sources: list[Any]) -> list[Any]:
    return [source for source in sources if source.name.endswith(".md")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_run_and_has_help(script: Path, tmp_path: Path) -> None:
    """From any folder, and without making anything first: help comes before the work."""
    here_first = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    run = subprocess.run(
        [str(script), "--help"],
        cwd=tmp_path,
        env=os.environ | {"PATH": here_first},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert f"scripts/{script.name}" in run.stdout or f"usage: {script.name}" in run.stdout
    assert "xit status" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_bash_script_stops_at_the_first_error(sources: list[Any]) -> None:
    heedless = [
        source.name
        for source in sources
        if source.text.startswith("#!/usr/bin/env bash")
        and "set -euo pipefail" not in source.text
        and "lib/start.sh" not in source.text
    ]

    assert heedless == []


def test_every_script_that_a_document_names_exists(sources: list[Any], root: Path) -> None:
    absent = {
        f"{source.name}: {name}"
        for source in documents(sources)
        for name in re.findall(r"(?<![\w/])(scripts/[a-z][a-z-]*)", source.text)
        if not (root / name).exists()
    }

    assert absent == set()


def test_every_link_between_documents_leads_somewhere(sources: list[Any], root: Path) -> None:
    broken = [
        f"{source.name}: {target}"
        for source in documents(sources)
        for target in LINK.findall(source.text)
        if not (root / source.name).parent.joinpath(target).exists()
    ]

    assert broken == []


def test_every_command_in_the_readme_can_be_typed(root: Path) -> None:
    """The first word of each line in its blocks is a script here or a program that it brings."""
    readme = root / "README.md"
    if not readme.exists():
        pytest.skip("no README.md yet")
    brought = {
        "cd",
        "curl",
        "docker",
        "export",
        "faust",
        "git",
        "pip",
        "python",
        "python3",
        "source",
    }
    unknown = set()
    for block in re.findall(
        r"^```(?:sh|bash|shell|console)\n(.*?)^```", readme.read_text(), re.M | re.S
    ):
        for line in block.replace("\\\n", " ").splitlines():
            words = [
                word for word in line.removeprefix("$ ").split() if not re.match(r"\w+=", word)
            ]
            if not words or words[0].startswith("#"):
                continue
            if words[0].startswith(("scripts/", "./scripts/", ".ci/")):
                if not os.access(root / words[0], os.X_OK):
                    unknown.add(words[0])
            elif Path(words[0]).name not in brought:
                unknown.add(words[0])

    assert unknown == set()
