"""The limit of open files: raised as far as the machine allows, and told where that is little."""

from __future__ import annotations

import resource

import pytest

from bookstore_streams.kafka import files

NONE = resource.RLIM_INFINITY


class Limits:
    """Limits of a process that exists only here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.soft, self.hard, self.is_fixed = soft, hard, False
        monkeypatch.setattr(resource, "getrlimit", lambda _: (self.soft, self.hard))
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, kind: int, limits: tuple[int, int]) -> None:
        if self.is_fixed:
            raise ValueError("not allowed")
        assert kind == resource.RLIMIT_NOFILE
        self.soft, self.hard = limits


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1_024, 524_288, files.FILES_MAX),
        (1_024, NONE, files.FILES_MAX),
        (1_024, 8_192, 8_192),
        (100_000, 524_288, 100_000),
        (NONE, NONE, NONE),
    ],
)
def test_it_is_raised_within_reason_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    expected: int,
) -> None:
    limits = Limits(monkeypatch, soft, hard)
    files.raise_limit()
    assert (limits.soft, limits.hard) == (expected, hard)
    assert caplog.text == ""


def test_few_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    Limits(monkeypatch, 256, 1_024)
    files.raise_limit()
    assert "may open only 1024 files" in caplog.text


def test_a_refusal_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(monkeypatch, 1_024, 524_288)
    limits.is_fixed = True
    files.raise_limit()
    assert limits.soft == 1_024
    assert "may open only 1024 files" in caplog.text
