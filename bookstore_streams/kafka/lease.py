"""How long this worker may still act as the owner of its partitions."""

from __future__ import annotations

import time


class Lease:
    """Ends one session timeout after the group last heard of this worker.

    The broker counts from when a heartbeat arrived, we from when it was sent, so ours never
    ends later than the broker's. Written by the consumer thread, read by the loop: one float.
    """

    __slots__ = ("_ends_at_s", "_session_s")

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_s = session_timeout_ms / 1000
        self._ends_at_s = 0.0

    def renew(self, sent_at_s: float) -> None:
        """A heartbeat sent at this monotonic time was answered well."""
        self._ends_at_s = sent_at_s + self._session_s

    def end(self) -> None:
        """The group does not know this worker any more."""
        self._ends_at_s = 0.0

    def holds(self) -> bool:
        """Whether it has not ended. The monotonic clock runs on while the process is stopped."""
        return time.monotonic() < self._ends_at_s
