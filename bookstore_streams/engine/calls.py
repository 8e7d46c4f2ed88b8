"""Calls of the app's code: guarded, timed, and only while this worker has its lease.

Whatever a handler, a parser or a hook does, it becomes an event for the core; no exception
of theirs leaves this file.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

from bookstore_streams.core.classify import Failure, classify
from bookstore_streams.core.deadline import deadline_at_ms, is_past
from bookstore_streams.core.decide import (
    DeadlinePassed,
    Event,
    Failed,
    Rejected,
    Succeeded,
)
from bookstore_streams.core.effects import Attempt, DeadLetter
from bookstore_streams.core.envelope import Reason, decode, inbox_id
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.errors import (
    LeaseLostError,
    PermanentError,
    RecordTooLargeError,
    StoreError,
    UnitOfWorkError,
)
from bookstore_streams.ports import Clock

from .consumer import Consumer
from .lanes import Lane, Turn
from .limits import Limits
from .unit_of_work import Context, current

# How often a task looks whether a lost lease is back, and whether a handler takes too long.
LEASE_POLL_S = 0.05
WATCH_S = 0.25

_LEASE_LOST = Failure(True, "LeaseLostError", "the group has not heard of this worker")


class Parsed(NamedTuple):
    """A message as the app reads it.

    Attributes:
        event: what `Consumer.parse` made of it.
        deadline_ms: epoch ms after which it is not attempted again, None for never.
    """

    event: Any
    deadline_ms: int | None


class Calls:
    """Calls the consumers' code for one partition.

    Attributes:
        without_lease: worker tasks that wait for the lease; nobody need wait for them.
    """

    def __init__(
        self,
        read: Callable[[str, bytes], bytes | None],
        *,
        limits: Limits,
        clock: Clock,
        has_lease: Callable[[], bool],
        tables: Collection[str],
        counters: Counter[str],
    ) -> None:
        self._tables = tables
        self._counters = counters
        self._read = read
        self._limits = limits
        self._clock = clock
        self._has_lease = has_lease
        # worker task -> when its call is to be cancelled, monotonic seconds
        self._overdue_at: dict[asyncio.Task[None], float] = {}
        # worker task -> how often its call has been cancelled for that
        self._timed_out: dict[asyncio.Task[None], int] = {}
        self.without_lease: set[asyncio.Task[None]] = set()

    def parse(self, lane: Lane, turn: Turn, *, is_repeated: bool = False) -> Parsed | Event:
        """The message as the app reads it, or what to tell the core instead of calling it.

        Args:
            lane: of the message.
            turn: of the message.
            is_repeated: whether a handler has been given it before, and may have changed it.
        """
        if turn.rejection is not None:
            return Rejected(turn.rejection, inbox_id(turn.message_id))
        consumer = lane.consumer
        try:
            if is_repeated:
                turn.document = decode(turn.record.value or b"")
            event = consumer.parse(turn.document)
            since_ms = None if consumer.deadline_from is None else consumer.deadline_from(event)
            if since_ms is not None and type(since_ms) is not int:
                raise PermanentError(
                    f"deadline_from of {consumer.name} gave {type(since_ms).__name__}, no epoch ms"
                )
        except Exception as error:
            failure = classify(error)
            rejected = RejectedRecord(
                Reason.PERMANENT,
                failure.error_type,
                failure.error_message,
                turn.key,
                turn.message_id,
            )
            return Rejected(rejected, inbox_id(turn.message_id))
        return Parsed(event, deadline_at_ms(consumer.policy, since_ms))

    async def attempt(
        self, lane: Lane, turn: Turn, attempt: Attempt, parsed: Parsed
    ) -> tuple[Event, Context | None]:
        """Call the handler once; what came of it, and what it staged."""
        event, deadline_ms = parsed
        calls = attempt.number - 1
        if calls and lane.parked is not None and is_past(deadline_ms, self._clock.now_ms()):
            return DeadlinePassed(inbox_id(turn.message_id), calls), None
        consumer, is_repeated = lane.consumer, False
        while True:
            if is_repeated or not self._has_lease():
                await self._wait_for_lease()
            context = self._context(consumer, turn, attempt)
            failure = await self._guarded(consumer, consumer.handle, (event, context), context)
            if failure is None:
                return Succeeded(attempt), context
            if failure is not _LEASE_LOST:
                break
            self._counters[f"{consumer.name}:lease_lost"] += 1
            # Not an attempt: nobody was asked. It is repeated when the group has heard of us
            # again, or by the partition's next owner.
            is_repeated = True
            again = self.parse(lane, turn, is_repeated=True)
            if not isinstance(again, Parsed):
                return again, None
            event = again.event
        now_ms = self._clock.now_ms()
        elapsed_ms = now_ms - turn.round_started_ms
        return Failed(attempt, failure, inbox_id(turn.message_id), elapsed_ms, deadline_ms), None

    async def _wait_for_lease(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.without_lease.add(task)
        try:
            # At least once: whoever says that it is lost while it holds must not spin.
            await asyncio.sleep(LEASE_POLL_S)
            while not self._has_lease():  # noqa: ASYNC110 - another thread tells, by no event
                await asyncio.sleep(LEASE_POLL_S)
        finally:
            self.without_lease.discard(task)

    async def dead_letter_hook(
        self, consumer: Consumer, turn: Turn, event: Any, letter: DeadLetter
    ) -> tuple[Failure | None, Context]:
        """Call the consumer's dead-letter hook; its failure if it had one, and what it staged."""
        assert consumer.on_dead_letter is not None
        context = self._context(consumer, turn, None)
        arguments = (event, letter, context)
        return await self._guarded(consumer, consumer.on_dead_letter, arguments, context), context

    async def watch(self) -> None:
        """Cancel calls that take too long; for ever."""
        while True:
            await asyncio.sleep(WATCH_S)
            now_s = time.monotonic()
            for task, overdue_at in self._overdue_at.items():
                if overdue_at < now_s:  # again, if it swallowed the first one
                    self._timed_out[task] = self._timed_out.get(task, 0) + 1
                    task.cancel()

    def _context(self, consumer: Consumer, turn: Turn, attempt: Attempt | None) -> Context:
        return Context(
            consumer,
            turn.key or "",
            turn.message_id,
            turn.record.headers,
            attempt,
            self._clock.now_ms(),
            self._read,
            self._has_lease,
            self._limits.message_bytes_max,
            self._tables,
        )

    async def _guarded(
        self,
        consumer: Consumer,
        function: Callable[..., Awaitable[None]],
        arguments: tuple[Any, ...],
        context: Context,
    ) -> Failure | None:
        """Await a function of the app; None when it returned."""
        task = asyncio.current_task()
        assert task is not None
        current.set(context)
        self._overdue_at[task] = time.monotonic() + consumer.handler_timeout_ms / 1000
        try:
            await function(*arguments)
            return None
        except LeaseLostError:
            return _LEASE_LOST
        except asyncio.CancelledError as error:
            if self._was_timed_out(task):
                late = f"the handler took longer than {consumer.handler_timeout_ms} ms"
                return classify(TimeoutError(late))
            if task.cancelling():
                raise
            return classify(error)  # the handler's own, not ours
        except KeyboardInterrupt:
            raise
        except (UnitOfWorkError, RecordTooLargeError) as error:
            return classify(error)
        except StoreError:
            raise  # a damaged disk is not the message's fault: the partition starts again
        except BaseException as error:
            return classify(error, consumer.transient)
        finally:
            context.is_open = False
            self._was_timed_out(task)  # a handler may have swallowed it and returned
            self._overdue_at.pop(task, None)

    def _was_timed_out(self, task: asyncio.Task[None]) -> bool:
        """Whether the watch cancelled this task; takes the cancellation back."""
        times = self._timed_out.pop(task, 0)
        for _ in range(times):
            task.uncancel()
        return bool(times) and not task.cancelling()
