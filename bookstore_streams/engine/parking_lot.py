"""Which keys of a partition are parked, and the timer that wakes them; rows live in the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable

from bookstore_streams.core.parking import KeyState
from bookstore_streams.ports import Clock

from .schedule import Schedule

# A clock that is set forward is noticed after this long at the latest.
WAIT_S_MAX = 60.0
# After an outage a million keys can be due at once. A key that is handed over costs memory,
# so only so many of a consumer are in one go, and the next once those have gone.
HANDED_OVER_MAX = 500
WAIT_S_FULL = 0.01

_HELD = b'{"state":"%b",' % KeyState.HELD.value.encode()
_DUE = b'"due_ms":'


class ParkingLot:
    """Parked keys by consumer, and when each is due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._consumers: dict[str, Schedule[str]] = defaultdict(Schedule)
        self._is_sooner = asyncio.Event()

    def holds(self, consumer: str, key: str) -> bool:
        """Whether the key is parked."""
        return key in self._consumers[consumer]

    def fill(self, consumer: str, keys: Iterable[tuple[str, int | None]]) -> None:
        """Know every parked key of a consumer, with its due time; before `wake` runs."""
        self._consumers[consumer].fill(keys)

    def keep(self, consumer: str, key: str, due_ms: int | None) -> None:
        """The key is parked, and due at this epoch ms; None while an operator holds it."""
        first_ms = self.next_ms()
        self._consumers[consumer].set(key, due_ms)
        if due_ms is not None and (first_ms is None or due_ms < first_ms):
            self._is_sooner.set()

    def drop(self, consumer: str, key: str) -> None:
        """The key flows again."""
        self._consumers[consumer].drop(key)

    def next_ms(self) -> int | None:
        """When the first key of all is due, epoch ms; None when none waits."""
        times = (schedule.next_ms() for schedule in self._consumers.values())
        return min((due_ms for due_ms in times if due_ms is not None), default=None)

    async def wake(
        self,
        on_due: Callable[[Iterable[tuple[str, str]]], None],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """Hand over (consumer, key) of what comes due, earliest first per consumer; for ever.

        Args:
            on_due: takes them.
            has_room: whether it takes more now; asked again after a moment where not.
        """
        while True:
            self._is_sooner.clear()
            due_ms = self.next_ms()
            wait_s = WAIT_S_MAX
            if due_ms is not None:
                wait_s = min((due_ms - self._clock.now_ms()) / 1000, WAIT_S_MAX)
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_sooner.wait(), wait_s)
            elif not has_room():
                await asyncio.sleep(WAIT_S_FULL)
            else:
                on_due(self._pop_due(self._clock.now_ms()))
                await asyncio.sleep(0)

    def _pop_due(self, now_ms: int) -> list[tuple[str, str]]:
        return [
            (consumer, key)
            for consumer, schedule in self._consumers.items()
            for key in schedule.pop_due(now_ms, HANDED_OVER_MAX)
        ]

    def __len__(self) -> int:
        return sum(map(len, self._consumers.values()))


def due_ms_of(row: bytes) -> int | None:
    """When the parked key of a row is due, epoch ms; None while an operator holds it.

    The same as `resume(ParkedKey.from_row(...))` for a tenth of its time, which counts where
    an opening reads a million rows. Only words of ours and numbers stand before the due time.
    """
    if row.startswith(_HELD):
        return None
    begin = row.index(_DUE) + len(_DUE)
    return int(row[begin : row.index(b",", begin)])
