"""What passes and what lasts, and what an exception's text becomes."""

from __future__ import annotations

import asyncio

import pytest

from bookstore_streams import errors
from bookstore_streams.core.classify import CAUSE_CHARACTERS_MAX, Failure, classify, printable


class OwnError(Exception):
    pass


class OwnPermanentError(errors.PermanentError):
    pass


@pytest.mark.parametrize(
    "error",
    [
        errors.TransientError("x"),
        TimeoutError(),
        ConnectionError(),
        ConnectionRefusedError(),
        ConnectionResetError(),
        BrokenPipeError(),
        errors.ConnectionLostError("x"),
        errors.PublishUnconfirmedError("x"),
        errors.LeaseLostError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_passing_failures_are_a_narrow_list(error: Exception) -> None:
    assert classify(error).is_transient


@pytest.mark.parametrize(
    "error",
    [
        Exception(),
        ValueError(),
        OSError("disk full"),
        errors.PermanentError("x"),
        errors.DecodeError("x"),
        errors.AccessDeniedError("x"),
        errors.TopicMismatchError("x"),
        errors.RecordTooLargeError("x"),
        errors.UnitOfWorkError("x"),
        errors.InvariantError("x"),
        asyncio.CancelledError(),
        SystemExit(1),
        MemoryError(),
        RecursionError(),
        BaseExceptionGroup("x", [TimeoutError(), SystemExit()]),
        ExceptionGroup("x", [TimeoutError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_unknown_lasts(error: BaseException) -> None:
    assert not classify(error).is_transient


def test_a_consumer_adds_its_own_passing_failures_and_cannot_make_a_permanent_one_pass() -> None:
    assert classify(OwnError(), (OwnError,)).is_transient
    assert classify(KeyError(), (OwnError, LookupError)).is_transient
    assert not classify(OwnError(), (LookupError,)).is_transient
    assert not classify(OwnPermanentError("x"), (Exception,)).is_transient


def test_only_our_transient_error_says_how_long_to_wait() -> None:
    assert classify(errors.TransientError("x", 1_500)).retry_after_ms == 1_500
    assert classify(errors.TransientError("x")).retry_after_ms is None
    error = TimeoutError()
    error.retry_after_ms = 5  # type: ignore[attr-defined]
    assert classify(error).retry_after_ms is None


@pytest.mark.parametrize(
    ("error", "kind", "text", "cause"),
    [
        (ValueError("odd"), "ValueError", "odd", "ValueError: odd"),
        (ValueError(), "ValueError", "", "ValueError"),
        (KeyError("k"), "KeyError", "'k'", "KeyError: 'k'"),
        (OwnPermanentError("card"), "OwnPermanentError", "card", "OwnPermanentError: card"),
    ],
)
def test_the_cause_is_type_and_text(error: Exception, kind: str, text: str, cause: str) -> None:
    failure = classify(error)
    assert (failure.error_type, failure.error_message, failure.cause) == (kind, text, cause)
    assert failure == Failure(False, kind, text)


class RaisesError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("again")


class GivesNumberError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class RecursesError(Exception):
    def __str__(self) -> str:
        return str(self)


class ExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "second"),
    [
        (RaisesError(), "RuntimeError"),
        (GivesNumberError(), "TypeError"),
        (RecursesError(), "RecursionError"),
        (ExitsError(), "SystemExit"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_text_that_cannot_be_read_says_so(error: Exception, second: str) -> None:
    assert printable(error) == f"(its text could not be read: {second})"


@pytest.mark.parametrize("text", ["x" * 5_000, "\ud800" * 5_000, "é" * 5_000, "\x00" * 5_000])
def test_a_text_is_cut_and_always_utf_8(text: str) -> None:
    shown = printable(ValueError(text))
    assert len(shown) == CAUSE_CHARACTERS_MAX
    shown.encode()
