"""What an exception of a handler means: the one place where retriable is told from lasting."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from bookstore_streams.errors import PermanentError, TransientError, TransportError

#: Of a cause, at most this many characters travel in headers, rows and views.
CAUSE_CHARACTERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed.

    Attributes:
        is_transient: whether a later attempt can succeed without anybody's help.
        error_type: class name of the exception.
        error_message: its text, printable, at most `CAUSE_CHARACTERS_MAX` characters.
        retry_after_ms: the least wait the failing side asked for, None for none.
    """

    is_transient: bool
    error_type: str
    error_message: str
    retry_after_ms: int | None = None

    @property
    def cause(self) -> str:
        """One line for people: type and text."""
        return f"{self.error_type}: {self.error_message}" if self.error_message else self.error_type


def classify(error: BaseException, transient: tuple[type[BaseException], ...] = ()) -> Failure:
    """Tell a passing failure from a lasting one.

    Transient is a deliberately narrow list: our `TransientError`, timeouts, connection
    errors, a transport error that says it is retriable, and what the consumer adds.
    Everything unknown lasts: a dead letter is cheaper to replay than a message that
    circles for minutes.

    Args:
        error: what the handler raised.
        transient: further exception types of this consumer that pass.
    """
    match error:
        case PermanentError():
            is_transient = False
        case TransientError() | TimeoutError() | ConnectionError():
            is_transient = True
        case TransportError():
            is_transient = error.retriable
        case _:
            is_transient = isinstance(error, transient)
    return Failure(
        is_transient,
        type(error).__name__,
        printable(error),
        _wait_ms(error.retry_after_ms) if isinstance(error, TransientError) else None,
    )


def _wait_ms(given: object) -> int | None:
    """A wait as an app gave it, in whole ms; None where it is no sensible one."""
    if isinstance(given, float) and isfinite(given):
        given = int(given)
    return given if type(given) is int and given >= 0 else None


def printable(error: BaseException) -> str:
    """The text of an exception, whatever its `__str__` does; never raises, always UTF-8."""
    try:
        text = str(error)
    except BaseException as second:
        text = f"(its text could not be read: {type(second).__name__})"
    # A lone surrogate would stop the header or row it is written to.
    return (
        text[:CAUSE_CHARACTERS_MAX]
        .encode("utf-8", "backslashreplace")
        .decode()[:CAUSE_CHARACTERS_MAX]
    )
