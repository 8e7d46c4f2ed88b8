"""Lanes: one queue per key of a consumer; keys run side by side, one key one message at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from bookstore_streams.core.effects import Attempt
from bookstore_streams.core.envelope import Rejected
from bookstore_streams.core.parking import ParkedKey
from bookstore_streams.core.watermark import Slot
from bookstore_streams.ports import Record

from .consumer import Consumer


class Turn:
    """One message of one consumer, waiting for or having its turn.

    Attributes:
        record: as it was read, from the source or from the parking lot.
        slot: to settle; None for a message from the parking lot, whose offset is settled.
        key, message_id: as text; the position stands in where the record has no usable id.
        inbox_key: of its inbox row.
        document: the decoded value; None when `rejection` is set.
        rejection: why it cannot be given to the handler, if so.
        is_replay: whether an operator's replay sent it.
        attempt: the attempt ordered next, when an earlier one of this round has failed.
        round_started_ms: epoch ms of the first attempt of this round.
    """

    # Made once a message: a plain class with slots costs a third of a frozen dataclass.
    __slots__ = (
        "attempt",
        "document",
        "inbox_key",
        "is_replay",
        "key",
        "message_id",
        "record",
        "rejection",
        "round_started_ms",
        "slot",
    )

    def __init__(
        self,
        record: Record,
        key: str | None,
        message_id: str,
        inbox_key: bytes,
        document: Any,
        rejection: Rejected | None,
        is_replay: bool,
    ) -> None:
        self.record = record
        self.slot: Slot | None = None
        self.key = key
        self.message_id = message_id
        self.inbox_key = inbox_key
        self.document = document
        self.rejection = rejection
        self.is_replay = is_replay
        self.attempt: Attempt | None = None
        self.round_started_ms = 0


class Lane:
    """The queue of one key of one consumer, in memory while anything of it is to be done.

    Attributes:
        consumer, key: whose; a record without a usable key has a lane of its own, key None.
        turns: messages from the source, in arrival order, not settled yet.
        parked: the parked key's state; None while it flows.
        head: the parked head that is being tried, between its immediate attempts.
        is_due: whether the parked head is to be tried.
        is_busy: whether it stands among the runnable lanes, runs, or waits for a retry that
            comes by itself; then nobody else may make it run.
    """

    __slots__ = ("consumer", "head", "is_busy", "is_due", "key", "parked", "turns")

    def __init__(self, consumer: Consumer, key: str | None, parked: ParkedKey | None) -> None:
        self.consumer = consumer
        self.key = key
        self.turns: deque[Turn] = deque()
        self.parked = parked
        self.head: Turn | None = None
        self.is_due = False
        self.is_busy = False


class RunQueue:
    """Runnable lanes, first come first served, and the tasks that wait for one."""

    __slots__ = ("_idle", "_is_held", "_lanes", "_loop")

    def __init__(self) -> None:
        self._lanes: deque[Lane] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_held = False
        self._loop = asyncio.get_running_loop()

    def hold(self) -> None:
        """Give out no lane until `go_on`."""
        self._is_held = True

    def go_on(self) -> None:
        """Give out lanes again."""
        self._is_held = False
        self.wake()

    def add(self, lane: Lane) -> None:
        """Put a lane at the back, unless it is busy already."""
        if not lane.is_busy:
            lane.is_busy = True
            self._lanes.append(lane)

    def wake(self) -> None:
        """Wake one waiting task; it wakes the next when there is more to do."""
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def take(self) -> Lane:
        """The next runnable lane; waits for one."""
        while self._is_held or not self._lanes:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter
        lane = self._lanes.popleft()
        if self._lanes:
            self.wake()  # another task runs while this one may have to wait
        return lane


def position_of(record: Record) -> str:
    """What stands in for an id where a record has none."""
    return f"{record.topic}-{record.partition}-{record.offset}"
