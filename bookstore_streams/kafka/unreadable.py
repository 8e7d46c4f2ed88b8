"""Partitions with a record that the client library cannot read: they wait, the others go on."""

from __future__ import annotations

import logging
import time
from typing import Any

log = logging.getLogger(__name__)

# Between two tries of the same record. It will hardly change, but the library may have been
# wrong about a damaged answer; and the operator is told again.
REST_S = 30.0

# The record that could not be read was one of those that one fetch may give.
SINGLES_MAX = 1_000


class Unreadable:
    """Where each of them stands, and until when it is left alone.

    A record whose header name is no UTF-8 is one (the protocol demands UTF-8, and aiokafka
    raises where it is not), a batch with a wrong checksum another.
    """

    def __init__(self) -> None:
        self._positions: dict[Any, int] = {}
        self._passed: dict[Any, int] = {}
        self._rest_until_s: dict[Any, float] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._positions

    def is_resting(self, tp: Any) -> bool:
        """Whether the partition is not to be tried yet."""
        return time.monotonic() < self._rest_until_s.get(tp, 0.0)

    def failed(self, tp: Any, position: int, error: Exception) -> None:
        """Reading from `position` failed; a second failure there is that record's own."""
        if self._positions.get(tp) != position:
            self._positions[tp] = position
            self._passed[tp] = 0
            return
        self._rest_until_s[tp] = time.monotonic() + REST_S
        log.error(
            "The record %s [[%s]] @%s cannot be read (%s: %s). Its partition waits there, the "
            "others go on. To pass over it, stop the workers and set the group's offset of that "
            "partition to %s.",
            tp.topic,
            tp.partition,
            position,
            type(error).__name__,
            error,
            position + 1,
        )

    def went_on(self, tp: Any) -> None:
        """A record was read; after enough of them the partition is like any other again."""
        if tp in self._positions:
            self._passed[tp] += 1
            if self._passed[tp] > SINGLES_MAX:
                del self._positions[tp]
