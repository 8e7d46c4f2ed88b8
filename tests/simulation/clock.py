"""Makes the engine's monotonic time the loop's: nothing of a history goes by real time."""

from __future__ import annotations

import asyncio
import sys
import time
from types import SimpleNamespace

from bookstore_streams.testing.virtual_time import START_MS
from tests.simulation.loop import START_S, SimLoop


class Clock:
    """A `ports.Clock` that goes by a loop.

    Attributes:
        shift_ms: by how much it is wrong.
    """

    __slots__ = ("_loop", "shift_ms")

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.shift_ms = 0

    def now_ms(self) -> int:
        """Epoch ms; rounded, since a timer set for 2.3 s fires at 2.2999999999999998."""
        return START_MS + round((self._loop.now_s - START_S) * 1_000) + self.shift_ms


_virtual = SimpleNamespace(
    monotonic=lambda: asyncio.get_running_loop().time(),
    perf_counter=lambda: asyncio.get_running_loop().time(),
)


def install() -> None:
    """Replace `time` in every module of the engine, for the rest of this process."""
    for name, module in list(sys.modules.items()):
        if name.startswith("bookstore_streams.engine") and getattr(module, "time", None) is time:
            module.time = _virtual  # type: ignore[attr-defined]
