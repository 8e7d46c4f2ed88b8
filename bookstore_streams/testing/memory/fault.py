"""What goes wrong at which step, as a test asks for it; nothing goes wrong by itself."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from bookstore_streams.errors import ConnectionLostError


class Hold:
    """A step that waits until it is let go.

    Attributes:
        reached: set once somebody waits there.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._go_on = asyncio.Event()

    def let_go(self) -> None:
        """Let the step go on."""
        self._go_on.set()

    async def wait(self) -> None:
        """Wait at the step; what the backend calls."""
        self.reached.set()
        await self._go_on.wait()


class Faults:
    """What goes wrong at which step of one worker; nothing unless a test asks for it.

    Steps, in the order of a partition's life: `open`, `recover`, then for each commit `begin`,
    `send`, `commit`, `committed` (the broker has it, the answer is on its way) and `apply`;
    at any time `get <table>` and `scan <table>`; at the end `close`.
    """

    def __init__(self) -> None:
        self._errors: dict[str, list[BaseException]] = defaultdict(list)
        self._holds: dict[str, list[Hold]] = defaultdict(list)
        self.is_dead = False

    def fail(self, step: str, error: BaseException, times: int = 1) -> None:
        """Let the next `times` passes of a step raise `error`."""
        self._errors[step] += [error] * times

    def hold(self, step: str) -> Hold:
        """Let the next pass of a step that can wait (all but apply, get, scan) wait."""
        hold = Hold()
        self._holds[step].append(hold)
        return hold

    def check(self, step: str) -> None:
        """Pass a step that cannot wait."""
        if self.is_dead:
            if step == "close":
                return  # the system closes what a dead process had open
            raise ConnectionLostError(f"This worker was killed before {step!r}.", "memory")
        if self._errors[step]:
            raise self._errors[step].pop(0)

    async def reach(self, step: str) -> None:
        """Pass a step that can wait."""
        await asyncio.sleep(0)  # as a real broker's answer: others run meanwhile
        if self._holds[step]:
            await self._holds[step].pop(0).wait()
        self.check(step)
