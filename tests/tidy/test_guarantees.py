"""The guarantees name tests, and each of those exists."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_test_that_the_guarantees_name_exists(root: Path) -> None:
    text = (root / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 30
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (root / file).exists()
        or not re.search(rf"^(async )?def {name}\(", (root / file).read_text(), re.MULTILINE)
    ]
    assert missing == []
