"""Calls of the app's code: guarded, timed, and only while this worker has its lease.

Whatever a handler, a parser or a hook does, it becomes an event for the core; no exception
of theirs leaves this file.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType, coroutine
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
from .lanes import Turn
from .unit_of_work import Context, Surroundings, current

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


class Begun:
    """A call of the app's code that is under way, or has ended otherwise than most.

    Attributes:
        context: its unit of work.
        failure: what it raised, if it has ended.
        call: goes on when it has not; None when it has.
        waits_for: what it gave its task to wait for.
        parsed: the message it was called with; None in a dead-letter hook.
    """

    __slots__ = ("call", "context", "failure", "parsed", "waits_for")

    def __init__(
        self,
        context: Context,
        failure: Failure | None,
        call: Any,
        waits_for: Any,
        parsed: Parsed | None = None,
    ) -> None:
        self.context = context
        self.failure = failure
        self.call = call
        self.waits_for = waits_for
        self.parsed = parsed


class Calls:
    """Calls the consumers' code for one partition.

    Attributes:
        has_lease: whether this worker may act as the owner, and so call a handler.
        without_lease: worker tasks that wait for the lease; nobody need wait for them.
    """

    def __init__(self, surroundings: Surroundings, *, clock: Clock, counters: Counter[str]) -> None:
        self._surroundings = surroundings
        self.has_lease = surroundings.has_lease
        self._clock = clock
        self._counters = counters
        # worker task -> when its call is to be cancelled, monotonic seconds
        self._overdue_at: dict[asyncio.Task[None], float] = {}
        # worker task -> how often its call has been cancelled for that
        self._timed_out: dict[asyncio.Task[None], int] = {}
        self.without_lease: set[asyncio.Task[None]] = set()

    def parse(self, consumer: Consumer, turn: Turn, *, is_repeated: bool = False) -> Parsed | Event:
        """The message as the app reads it, or what to tell the core instead of calling it.

        Args:
            consumer: of the message.
            turn: of the message.
            is_repeated: whether a handler has been given it before, and may have changed it.
        """
        if turn.rejection is not None:
            return Rejected(turn.rejection, inbox_id(turn.message_id))
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

    def begin(
        self, consumer: Consumer, turn: Turn, attempt: Attempt, parsed: Parsed, now_ms: int
    ) -> Context | Begun:
        """Call the handler and let it run until it ends or waits for something.

        Most handlers that touch tables only never wait, and need neither a lane nor a place
        among the calls that are watched.

        Returns:
            What it staged, when it returned; else what `attempt` goes on with.
        """
        context = _context(consumer, turn, attempt, now_ms, self._surroundings)
        begun = self._begin(consumer, consumer.handle, (parsed.event, context), context)
        if begun is None:
            return context
        begun.parsed = parsed
        return begun

    async def attempt(
        self,
        consumer: Consumer,
        turn: Turn,
        attempt: Attempt,
        parsed: Parsed,
        *,
        is_parked: bool,
        begun: Begun | None = None,
    ) -> tuple[Event, Context | None]:
        """Call the handler once; what came of it, and what it staged.

        Args:
            consumer: of the message.
            turn: of the message.
            attempt: which one it is.
            parsed: the message.
            is_parked: whether its key is parked.
            begun: the call, if it is under way already.
        """
        deadline_ms, calls = parsed.deadline_ms, attempt.number - 1
        if calls and is_parked and is_past(deadline_ms, self._clock.now_ms()):
            return DeadlinePassed(inbox_id(turn.message_id), calls), None
        is_repeated = False
        while True:
            if begun is None:
                if is_repeated or not self.has_lease():
                    await self._wait_for_lease()
                called = self.begin(consumer, turn, attempt, parsed, self._clock.now_ms())
                if isinstance(called, Context):
                    return Succeeded(attempt), called
                begun = called
            failure = await self._end(consumer, begun)
            if failure is None:
                return Succeeded(attempt), begun.context
            if failure is not _LEASE_LOST:
                break
            self._counters[f"{consumer.name}:lease_lost"] += 1
            # Not an attempt: nobody was asked. It is repeated when the group has heard of us
            # again, or by the partition's next owner.
            is_repeated, begun = True, None
            again = self.parse(consumer, turn, is_repeated=True)
            if not isinstance(again, Parsed):
                return again, None
            parsed = again
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
            while not self.has_lease():  # noqa: ASYNC110 - another thread tells, by no event
                await asyncio.sleep(LEASE_POLL_S)
        finally:
            self.without_lease.discard(task)

    async def dead_letter_hook(
        self, consumer: Consumer, turn: Turn, event: Any, letter: DeadLetter
    ) -> tuple[Failure | None, Context]:
        """Call the consumer's dead-letter hook; its failure if it had one, and what it staged."""
        assert consumer.on_dead_letter is not None
        if not self.has_lease():
            await self._wait_for_lease()
        context = _context(consumer, turn, None, self._clock.now_ms(), self._surroundings)
        arguments = (event, letter, context)
        begun = self._begin(consumer, consumer.on_dead_letter, arguments, context)
        return None if begun is None else await self._end(consumer, begun), context

    async def watch(self) -> None:
        """Cancel calls that take too long; for ever."""
        while True:
            await asyncio.sleep(WATCH_S)
            now_s = time.monotonic()
            for task, overdue_at in self._overdue_at.items():
                if overdue_at < now_s:  # again, if it swallowed the first one
                    self._timed_out[task] = self._timed_out.get(task, 0) + 1
                    task.cancel()

    def _begin(
        self,
        consumer: Consumer,
        function: Callable[..., Awaitable[None]],
        arguments: tuple[Any, ...],
        context: Context,
    ) -> Begun | None:
        """Call a function of the app and let it run as far as it can; None when it returned."""
        current.set(context)
        try:
            call = function(*arguments)
            if type(call) is not CoroutineType:
                call = _await(call)
            try:
                waits_for = call.send(None)
            except StopIteration:
                context.is_open = False
                return None
        except BaseException as error:
            context.is_open = False
            return Begun(context, self._failure(consumer, error), None, None)
        return Begun(context, None, call, waits_for)

    async def _end(self, consumer: Consumer, begun: Begun) -> Failure | None:
        """Await what has begun; None when it returned."""
        call = begun.call
        if call is None:
            return begun.failure
        task = asyncio.current_task()
        assert task is not None
        current.set(begun.context)
        self._overdue_at[task] = time.monotonic() + consumer.handler_timeout_ms / 1000
        try:
            await _go_on(call, begun.waits_for)
            return None
        except BaseException as error:
            return self._failure(consumer, error)
        finally:
            begun.context.is_open = False
            self._was_timed_out(task)  # a handler may have swallowed it and returned
            self._overdue_at.pop(task, None)

    def _failure(self, consumer: Consumer, error: BaseException) -> Failure:
        """What an exception of the app's code means; raises what is not the message's fault."""
        if isinstance(error, LeaseLostError):
            return _LEASE_LOST
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            assert task is not None
            if self._was_timed_out(task):
                late = f"the handler took longer than {consumer.handler_timeout_ms} ms"
                return classify(TimeoutError(late))
            if task.cancelling():
                raise error
            return classify(error)  # the handler's own, not ours
        if isinstance(error, UnitOfWorkError | RecordTooLargeError):
            return classify(error)
        if isinstance(error, KeyboardInterrupt | StoreError):
            # A damaged disk is not the message's fault either: the partition starts again.
            raise error
        return classify(error, consumer.transient)

    def _was_timed_out(self, task: asyncio.Task[None]) -> bool:
        """Whether the watch cancelled this task; takes the cancellation back."""
        times = self._timed_out.pop(task, 0)
        for _ in range(times):
            task.uncancel()
        return bool(times) and not task.cancelling()


def _context(
    consumer: Consumer,
    turn: Turn,
    attempt: Attempt | None,
    now_ms: int,
    surroundings: Surroundings,
) -> Context:
    return Context(
        consumer,
        turn.key or "",
        turn.message_id,
        turn.record.headers,
        attempt,
        now_ms,
        surroundings,
    )


async def _await(awaitable: Awaitable[None]) -> None:
    await awaitable


@coroutine
def _go_on(call: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Await the rest of a coroutine that has run up to its first wait.

    As `await` itself does it: what the coroutine waits for goes up to the task, what the task
    answers, a cancellation too, goes down.
    """
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            call.close()
            raise
        except BaseException as error:
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            waits_for = call.send(answer) if thrown is None else call.throw(thrown)
        except StopIteration:
            return
