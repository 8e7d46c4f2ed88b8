"""Which dead worker is signed off: the last one of this directory and machine, and no other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookstore_streams.kafka import predecessor
from bookstore_streams.settings import load

BROKER = load([], {}).broker


class Group:
    """A coordinator that answers every leave with the same code.

    Attributes:
        left: (group, member id) of each request to leave.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, boot: Path) -> None:
        self.left: list[tuple[str, str]] = []
        self.code: int | Exception = 0
        self.boot = boot
        monkeypatch.setattr(predecessor, "AIOKafkaClient", lambda **_: self)
        monkeypatch.setattr(predecessor, "BOOT_ID", boot)
        boot.write_text("this-boot\n")

    async def bootstrap(self) -> None:
        """Connect."""
        if isinstance(self.code, Exception):
            raise self.code

    async def coordinator_lookup(self, kind: Any, group: str) -> int:
        """Say which node it is."""
        return 1

    async def ready(self, node: int) -> bool:
        """Connect to it."""
        return True

    async def send(self, node: int, request: Any) -> Any:
        """Take a request."""
        self.left.append((request._group, request._member_id))
        return SimpleNamespace(error_code=self.code)

    async def close(self) -> None:
        """Disconnect."""


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Group:
    return Group(monkeypatch, tmp_path / "boot_id")


def sign_off(directory: Path) -> None:
    asyncio.run(predecessor.sign_off(directory, "app", BROKER))


def test_the_last_worker_of_the_directory_leaves_the_group_once(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predecessor.remember(tmp_path, "member-1")
    predecessor.remember(tmp_path, "member-2")
    sign_off(tmp_path)
    assert group.left == [("app", "member-2")]
    assert "it has left the group now" in caplog.text
    sign_off(tmp_path)
    assert len(group.left) == 1


def test_one_that_left_by_itself_is_no_event(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predecessor.remember(tmp_path, "member-1")
    group.code = 25
    sign_off(tmp_path)
    assert caplog.text == ""


def test_a_directory_from_another_machine_or_boot_proves_nothing(
    group: Group, tmp_path: Path
) -> None:
    predecessor.remember(tmp_path, "member-1")
    group.boot.write_text("another-boot\n")
    sign_off(tmp_path)
    assert group.left == []


def test_where_the_boot_is_not_known_nobody_is_signed_off(group: Group, tmp_path: Path) -> None:
    group.boot.unlink()
    predecessor.remember(tmp_path, "member-1")
    sign_off(tmp_path)
    assert group.left == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"member": "m"}', "\x00", json.dumps(7)])
def test_a_note_that_makes_no_sense_is_passed_over(
    group: Group, tmp_path: Path, content: str
) -> None:
    (tmp_path / predecessor.FILE).write_text(content)
    sign_off(tmp_path)
    assert group.left == []


@pytest.mark.parametrize("code", [15, ConnectionRefusedError("no broker")])
def test_whatever_fails_is_logged_and_the_worker_starts(
    group: Group, tmp_path: Path, code: Any, caplog: pytest.LogCaptureFixture
) -> None:
    predecessor.remember(tmp_path, "member-1")
    group.code = code
    sign_off(tmp_path)
    assert "could not be signed off" in caplog.text


def test_a_note_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predecessor.remember(tmp_path / "missing", "member-1")
    assert "a kill costs a session" in caplog.text
