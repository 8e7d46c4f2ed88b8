"""Lanes: one queue per key of a consumer; keys run side by side, one key one message at a time.

A message whose key nobody holds needs no lane: it has its turn where it stands. A lane is
made when a key has to wait: for its handler, for a retry, or in the parking lot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from bookstore_streams.core.effects import Attempt
from bookstore_streams.core.envelope import Rejected
from bookstore_streams.core.parking import ParkedKey
from bookstore_streams.core.watermark import Slot
from bookstore_streams.ports import Record

from .consumer import Consumer

if TYPE_CHECKING:
    from .calls import Begun

#: A record that has not had its turn yet, for one of the consumers that read it.
Arrival = tuple[Consumer, Record, Slot]


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
        attempt: the attempt ordered next, when it is not the first of its round.
        begun: the call of that attempt, when it is under way already.
        round_started_ms: epoch ms of the first attempt of this round.
    """

    # Made once a message: a plain class with slots costs a third of a frozen dataclass.
    __slots__ = (
        "attempt",
        "begun",
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
        slot: Slot | None,
        key: str | None,
        message_id: str,
        inbox_key: bytes,
        document: Any,
        rejection: Rejected | None,
        is_replay: bool,
    ) -> None:
        self.record = record
        self.slot = slot
        self.key = key
        self.message_id = message_id
        self.inbox_key = inbox_key
        self.document = document
        self.rejection = rejection
        self.is_replay = is_replay
        self.attempt: Attempt | None = None
        self.begun: Begun | None = None
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
    """What is to be done: records in arrival order, runnable lanes; and the tasks that wait."""

    __slots__ = ("_idle", "_is_held", "_lanes", "_loop", "_prefers_lanes", "arrivals")

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self._lanes: deque[Lane] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_held = False
        self._prefers_lanes = False
        self._loop = asyncio.get_running_loop()

    def hold(self) -> None:
        """Give out nothing until `go_on`."""
        self._is_held = True

    def go_on(self) -> None:
        """Give out what there is again."""
        self._is_held = False
        self.wake()

    def add(self, lane: Lane) -> None:
        """Put a lane at the back, unless it is busy already."""
        if not lane.is_busy:
            lane.is_busy = True
            self._lanes.append(lane)

    def wake(self) -> None:
        """Wake one waiting task if there is something to do; whoever has to wait wakes the next."""
        if not self.arrivals and not self._lanes:
            return
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def next(self) -> Lane | Arrival | None:
        """What to do next: a lane and a record by turns, so that neither keeps the other waiting.

        None while there is nothing to do, or it is held.
        """
        lanes, arrivals = self._lanes, self.arrivals
        if self._is_held:
            return None
        if lanes and (self._prefers_lanes or not arrivals):
            self._prefers_lanes = False
            return lanes.popleft()
        if arrivals:
            self._prefers_lanes = True
            return arrivals.popleft()
        return None

    async def wait(self) -> None:
        """Wait until somebody wakes this task."""
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        await waiter


def position_of(record: Record) -> str:
    """What stands in for an id where a record has none."""
    return f"{record.topic}-{record.partition}-{record.offset}"
