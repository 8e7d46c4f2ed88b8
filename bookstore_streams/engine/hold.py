"""Keeps an open partition still while the group gives out partitions anew.

Nothing may run then: another worker may be the owner already. What is open stays open, so
that a partition which stays goes on where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from .lanes import RunQueue

# How often to look whether the running handlers have ended.
POLL_S = 0.005


class Hold:
    """Of one partition; it is not held at first.

    Attributes:
        is_taken: whether nothing new starts; running handlers have had their time.
    """

    def __init__(self, queue: RunQueue, has_lease: Callable[[], bool]) -> None:
        """Make it.

        Args:
            queue: whose lanes wait while it is held.
            has_lease: whether this worker may act as the owner, as far as the group knows.
        """
        self._queue = queue
        self._ask_lease = has_lease
        self._is_still = False
        self.is_taken = False

    def has_lease(self) -> bool:
        """Whether a handler may start, and whether one that runs may make its call."""
        return not self._is_still and self._ask_lease()

    async def take(self, busy: Set[object], without_lease: Set[object], wait_s: float) -> bool:
        """Start nothing more and let running steps end; whether all have.

        Args:
            busy: tasks that have a lane in hand, changed by them as they go.
            without_lease: those of them that wait for the lease: they stay where they are.
            wait_s: how long running steps get.
        """
        self.is_taken = True
        self._queue.hold()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while busy - without_lease:  # they tell nobody when they end: it would cost each step
            if loop.time() > deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        # In the same breath: a task that got its lease back now would start its handler.
        self._is_still = True
        return True

    def end(self) -> None:
        """Go on."""
        self.is_taken = self._is_still = False
        self._queue.go_on()
