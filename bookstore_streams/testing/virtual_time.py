"""Time that passes only when nobody has anything to do: an event loop and a clock for tests.

Waits cost nothing and last exactly as long as they say, so a test can assert that a retry
came after 2,000 ms and not merely some time later. Owns the time of code that asks the
event loop or a `VirtualClock`; refuses threads, sockets and child processes, whose work
takes real time that this loop does not wait for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Epoch ms at which virtual time begins: 2026-01-01T00:00:00Z.
START_MS = 1_767_225_600_000
# Monotonic seconds at that moment: of a machine that has run for some days.
START_S = 1_000_000.0


class StuckError(RuntimeError):
    """Every task waits for something that nobody is going to do."""


class _Selector(selectors.SelectSelector):
    """Asks the system without waiting, then lets the loop jump to its next timer."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise StuckError("Every task waits, and no timer is set that could wake one.")
        self.loop.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer as soon as nothing else can run.

    Attributes:
        now_s: what `time()` gives.
    """

    def __init__(self) -> None:
        self.now_s = START_S
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual monotonic seconds."""
        return self.now_s


class VirtualClock:
    """A `ports.Clock` that goes with the running loop, virtual or not.

    Attributes:
        shift_ms: added to every reading; change it where a machine's clock is set.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        self.shift_ms = 0
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Epoch ms."""
        # Rounded: a timer set for 2.3 s fires at 2.2999999999999998.
        passed_ms = round((asyncio.get_running_loop().time() - START_S) * 1_000)
        return self._start_ms + passed_ms + self.shift_ms


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time.

    Raises:
        StuckError: it waits for something that nobody is going to do.
        BaseExceptionGroup: a task or callback that nobody awaits failed meanwhile.
    """
    unheard: list[BaseException] = []

    def listen(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        unheard.append(context.get("exception") or RuntimeError(context["message"]))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(listen)
        result = runner.run(main)
    if unheard:
        raise BaseExceptionGroup("Failed with nobody to hear it", unheard)
    return result
