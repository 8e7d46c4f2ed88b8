"""Partitions with a record that nobody can read: they wait, the others go on."""

from __future__ import annotations

import logging
import time
from typing import Any

log = logging.getLogger(__name__)

# Between two tries of the same record. It will hardly change, but the answer may have been
# damaged on its way; and the operator is told again.
REST_S = 30.0
# Between two lines about records of a partition that could be read after all.
AGAIN_S = 60.0


class Unreadable:
    """Until when each of them is left alone.

    A batch with a wrong checksum is one. A record whose header name is no UTF-8 makes aiokafka
    fail, too, but `lenient` reads it.
    """

    def __init__(self) -> None:
        self._positions: dict[Any, int] = {}
        self._rest_until_s: dict[Any, float] = {}
        self._told_s: dict[Any, float] = {}

    def is_resting(self, tp: Any) -> bool:
        """Whether the partition is not to be tried yet."""
        return time.monotonic() < self._rest_until_s.get(tp, 0.0)

    def failed(self, tp: Any, position: int, error: Exception) -> None:
        """Reading from `position` failed; a second failure there is that record's own."""
        if self._positions.get(tp) != position:
            self._positions[tp] = position
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

    def went_on(self, tp: Any, position: int, error: Exception) -> None:
        """What stands at `position` and after it was read all the same."""
        now_s = time.monotonic()
        if now_s - self._told_s.get(tp, -AGAIN_S) >= AGAIN_S:
            self._told_s[tp] = now_s
            log.warning(
                "Records of %s [[%s]] from @%s on have headers whose names are no UTF-8 (%s); "
                "they are read with the odd bytes escaped.",
                tp.topic,
                tp.partition,
                position,
                type(error).__name__,
            )
