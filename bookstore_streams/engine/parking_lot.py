"""Which keys of a partition are parked, and the timer that wakes them; rows live in the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable

from bookstore_streams.ports import Clock

from .schedule import Schedule

# A clock that is set forward is noticed after this long at the latest.
WAIT_S_MAX = 60.0


class ParkingLot:
    """Parked keys by consumer, and when each is due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, set[str]] = defaultdict(set)
        self._schedule: Schedule[tuple[str, str]] = Schedule()
        self._is_sooner = asyncio.Event()

    def holds(self, consumer: str, key: str) -> bool:
        """Whether the key is parked."""
        return key in self._keys[consumer]

    def keep(self, consumer: str, key: str, due_ms: int | None) -> None:
        """The key is parked, and due at this epoch ms; None while an operator holds it."""
        self._keys[consumer].add(key)
        if due_ms is None:
            self._schedule.drop((consumer, key))
            return
        first_ms = self._schedule.next_ms()
        self._schedule.set((consumer, key), due_ms)
        if first_ms is None or due_ms < first_ms:
            self._is_sooner.set()

    def drop(self, consumer: str, key: str) -> None:
        """The key flows again."""
        self._keys[consumer].discard(key)
        self._schedule.drop((consumer, key))

    async def wake(self, on_due: Callable[[Iterable[tuple[str, str]]], None]) -> None:
        """Hand over (consumer, key) of what comes due, earliest first; for ever."""
        while True:
            self._is_sooner.clear()
            due_ms = self._schedule.next_ms()
            wait_s = WAIT_S_MAX
            if due_ms is not None:
                wait_s = min((due_ms - self._clock.now_ms()) / 1000, WAIT_S_MAX)
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_sooner.wait(), wait_s)
                continue
            on_due(self._schedule.pop_due(self._clock.now_ms()))
            await asyncio.sleep(0)
