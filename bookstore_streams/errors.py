"""Every exception this project defines, and nothing else.

    BookstoreError
      ConfigError (also ValueError)
      DiscoveryError
      DecodeError
      TransientError
      PermanentError
      TransportError
        ConnectionLostError
        PublishUnconfirmedError
        LeaseLostError
        AccessDeniedError
        TopicMismatchError
      StoreError
        StaleRecordError
        RecordTooLargeError
        UnitOfWorkError
    InvariantError

`InvariantError` sits outside the tree: it tells of a programmer's mistake, nobody
catches it, and the worker stops. A client library's exception is translated where that
library is used, with ``raise ... from``.
"""

from __future__ import annotations

from typing import ClassVar


class BookstoreError(Exception):
    """Root of every error that an operator or a caller can act on."""


class ConfigError(BookstoreError, ValueError):
    """One or more settings are wrong; the message lists every one of them.

    Attributes:
        problems: one sentence per wrong setting, in reading order, at least one.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class DiscoveryError(BookstoreError):
    """`agents` or `tables` could not be found, or one of their modules does not import."""


class DecodeError(BookstoreError):
    """Bytes that are no JSON; the record goes straight to the dead letters."""


class TransientError(BookstoreError):
    """A handler raises it for a failure that is expected to pass: the message is retried.

    Attributes:
        retry_after_ms: the least wait before the next attempt that the other side asked
            for, in milliseconds from now; None when it asked for none.
    """

    def __init__(self, message: str, retry_after_ms: int | None = None) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(message)


class PermanentError(BookstoreError):
    """A handler raises it for a failure that no retry can mend: the message is dead-lettered."""


class TransportError(BookstoreError):
    """A broker refused, or could not be reached.

    Attributes:
        retriable: whether the same call can succeed later without anybody's help.
    """

    retriable: ClassVar[bool] = False

    def __init__(self, message: str, transport: str = "kafka") -> None:
        self.transport = transport
        super().__init__(message)


class ConnectionLostError(TransportError):
    """The broker cannot be reached, or the connection to it ended."""

    retriable = True


class PublishUnconfirmedError(TransportError):
    """The broker did not confirm what was sent; it may or may not have kept it."""

    retriable = True


class LeaseLostError(TransportError):
    """This worker may no longer be the owner of its partitions, so it makes no outside call."""

    retriable = True


class AccessDeniedError(TransportError):
    """The broker knows us and says no."""


class TopicMismatchError(TransportError):
    """A topic exists with another shape than the app needs; the message names both."""


class StoreError(BookstoreError):
    """The local RocksDB cannot be opened, read or written."""


class StaleRecordError(StoreError):
    """Local state belongs to another app, partition count or format, or is too old to trust."""


class RecordTooLargeError(StoreError):
    """A row or event is larger than the broker would take; refused before it is staged."""


class UnitOfWorkError(StoreError):
    """A table was changed, or an event emitted, outside a running handler's unit of work."""


class InvariantError(Exception):
    """A promise of the code to itself does not hold; the worker must stop."""
