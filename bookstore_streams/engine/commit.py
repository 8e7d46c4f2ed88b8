"""The commits of one partition: what finished since the last one, in one transaction.

A commit that did not come to its end leaves open what is committed. So it is the last one
of its partition object, whatever ended it: a new object asks the broker and goes on from
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping

from bookstore_streams.core.watermark import Watermark
from bookstore_streams.ports import Batch, Journal, Probe

from .limits import Limits
from .staging import Staging

# Messages that may finish while a commit is under way, in commits.
FINISHED_FACTOR = 2
# A commit of so many steps is followed by a rest of twice its own duration, one of twice as many
# by three times, and so on up to the interval: a few messages leave at once, and under load the
# loop has more to do than to commit.
STEPS_PER_REST = 64


class Committer:
    """Begins a commit when there is nothing else to do, and at the latest after an interval.

    After each commit it rests, at least as long as that commit took, so that commits never
    take more than half of the time.

    Attributes:
        is_broken: whether a commit has not come to its end; nothing is committed any more.
    """

    def __init__(
        self,
        journal: Journal,
        staging: Staging,
        watermarks: Mapping[str, Watermark],
        *,
        limits: Limits,
        counters: Counter[str],
        probe: Probe,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.is_broken = False
        self._journal = journal
        self._staging = staging
        self._watermarks = watermarks
        self._limits = limits
        self._finished_max = FINISHED_FACTOR * limits.commit_messages_max
        self._counters = counters
        self._probe = probe
        self._on_failure = on_failure
        self._finished = 0
        self._is_closing = False
        self._has_work = asyncio.Event()
        # Much is finished: commit at once. Something is, and nothing else is to be done: commit
        # after the rest.
        self._is_full = asyncio.Event()
        self._is_due = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._lock = asyncio.Lock()
        self._rest_until_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to wait for work."""
        self._task = asyncio.create_task(self._run())

    def finish(self) -> None:
        """One step more is staged, or one record more is settled."""
        self._finished += 1
        if self._finished == 1:
            self._has_work.set()
        if self._finished >= self._limits.commit_messages_max:
            self._is_full.set()
            self._is_due.set()
            if self._finished >= self._finished_max:
                self._has_room.clear()

    def nothing_to_do(self) -> None:
        """A worker task has found nothing to do: what is finished need not wait for more."""
        if self._finished:
            self._is_due.set()

    @property
    def is_behind(self) -> bool:
        """Whether so much is finished that it should be committed before more is."""
        return self._finished >= self._finished_max

    async def catch_up(self) -> None:
        """Wait until the next commit has begun: it needs the loop more than handlers do."""
        await self._has_room.wait()

    async def close(self, wait_s: float) -> None:
        """Begin no further commit by itself, and let one under way end.

        Args:
            wait_s: how long it gets; one that takes longer is cut off, and the rest is broken.
        """
        self._is_closing = True
        for event in (self._has_work, self._is_full, self._is_due, self._has_room):
            event.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=wait_s)
            self._task.cancel()

    async def commit(self) -> None:
        """One transaction for everything finished, then one write of the local store.

        Raises:
            BookstoreError: it is not known whether it was committed; `is_broken` is set.
        """
        async with self._lock:
            if self.is_broken:
                return
            self._has_work.clear()
            self._is_full.clear()
            self._is_due.clear()
            steps, self._finished = self._finished, 0
            self._has_room.set()
            began_s = time.monotonic()
            marks = {
                topic: mark
                for topic, watermark in self._watermarks.items()
                if (mark := watermark.advance()) is not None
            }
            batch = self._staging.take(marks)
            if not batch.is_empty():
                try:
                    await self._land(batch)
                except BaseException:
                    self.is_broken = True
                    raise
            self._staging.landed()
            ended_s = time.monotonic()
            self._rest_until_s = ended_s + (ended_s - began_s) * (1 + steps / STEPS_PER_REST)

    async def _land(self, batch: Batch) -> None:
        self._probe("before-transaction")
        positions = await self._journal.commit(batch, self._probe)
        self._probe("after-commit")
        self._journal.store.apply(batch.writes, positions)
        self._probe("after-store")
        self._counters["commits"] += 1

    async def _run(self) -> None:
        interval_s = self._limits.commit_interval_ms / 1000
        while True:
            await self._has_work.wait()
            latest_s = time.monotonic() + interval_s
            await _wait(self._is_full, min(self._rest_until_s, latest_s))
            await _wait(self._is_due, latest_s)
            if self._is_closing or self.is_broken:
                return  # the last commit, if any, is made by whoever closes
            try:
                await self.commit()
            except Exception as error:
                self._on_failure(error)
                return


async def _wait(event: asyncio.Event, until_s: float) -> None:
    """Wait for an event, but not beyond this monotonic time."""
    if not event.is_set() and (left_s := until_s - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), left_s)
