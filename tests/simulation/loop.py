"""An event loop for several simulated processes: one thread, virtual time, every step counted.

Each handle belongs to the process whose context it was made in. Between any two steps a
process can be killed (nothing of it ever runs again, not even a `finally`), or frozen and
woken (its steps wait, time goes on for the others). Within one process steps run in asyncio's
own order; which process is next is for `choose` to say. Nothing here knows what is simulated.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any

# Monotonic seconds at the begin: as in `testing.virtual_time`, whose clock goes by this loop.
START_S = 1_000_000.0
# Two timers closer than this come together.
RESOLUTION_S = 1e-9


class StuckError(Exception):
    """Nobody can run and no timer is set, or a bound of steps or of time was reached."""


class Process:
    """What one operating-system process would be.

    Attributes:
        name: for people.
        context: that its tasks are made in.
        ready: steps that can run, first come first served.
        is_dead: whether it was killed.
        is_frozen: whether it is stopped for now.
    """

    __slots__ = ("context", "is_dead", "is_frozen", "name", "ready", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Handle] = deque()
        self.is_dead = False
        self.is_frozen = False
        # Kept, so that a killed process' coroutines are not closed by the way.
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(_process.set, self)


_process: ContextVar[Process] = ContextVar("process")


class Handle:
    """A step to run; what `call_soon` and `call_later` give back."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "time_s")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.context = copy_context() if context is None else context
        self.process: Process = self.context[_process]
        self.callback = callback
        self.args = args
        self.is_cancelled = False
        self.time_s = 0.0

    def cancel(self) -> None:
        """Let it not run."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it will not run."""
        return self.is_cancelled

    def when(self) -> float:
        """Seconds of the loop at which it runs; 0 for at once."""
        return self.time_s


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where in memory it is."""

    def __init__(self, serial: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._serial = serial
        super().__init__(coro, **options)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._serial


class SimLoop(asyncio.AbstractEventLoop):
    """Runs the steps of all processes.

    Attributes:
        now_s: what `time()` gives.
        steps: run so far.
        processes: alive or not; the first is the world itself.
        unheard: exceptions that a callback or a task of a living process ended with and
            that nobody looked at.
        alarm: called before the step of number `alarm_at`.
    """

    def __init__(self, choose: Callable[[int], int]) -> None:
        """Make a loop.

        Args:
            choose: given n, which of n processes runs its next step.
        """
        self.now_s = START_S
        self.steps = 0
        self.world = Process("world")
        self.processes = [self.world]
        self.unheard: list[BaseException] = []
        self.alarm_at: int | None = None
        self.alarm: Callable[[], None] = lambda: None
        self._choose = choose
        self._timers: list[tuple[float, int, Handle]] = []
        self._serial = 0

    # -- what is simulated --------------------------------------------------------------------

    def add(self, name: str) -> Process:
        """A new process."""
        process = Process(name)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task in a process."""
        return self.create_task(main, context=process.context.copy())

    def kill(self, process: Process) -> None:
        """End a process as kill -9 does."""
        process.is_dead = True
        process.ready.clear()
        self.processes.remove(process)

    def run(self, main: Coroutine[Any, Any, Any], *, steps_max: int, until_s: float) -> None:
        """Run a coroutine of the world to its end.

        Raises:
            StuckError: it does not end, or not within these bounds.
        """
        events._set_running_loop(self)
        try:
            task = self.spawn(self.world, main)
            end_s = self.now_s + until_s
            while not task.done():
                if self.steps == self.alarm_at:
                    self.alarm()
                    continue
                if not self._step():
                    self._pass_time(end_s)
                elif self.steps > steps_max:
                    raise StuckError(f"It is not over after {steps_max} steps.")
            task.result()
        finally:
            events._set_running_loop(None)

    def unheard_exceptions(self) -> list[BaseException]:
        """What went wrong with nobody to hear it, in processes that were not killed."""
        for process in self.processes:
            for task in process.tasks:
                if task.done() and getattr(task, "_log_traceback", False):
                    error = task.exception()
                    assert error is not None
                    self.unheard.append(error)
        return self.unheard

    def _step(self) -> bool:
        runnable = [p for p in self.processes if p.ready and not p.is_frozen]
        if not runnable:
            return False
        process = runnable[0] if len(runnable) == 1 else runnable[self._choose(len(runnable))]
        handle = process.ready.popleft()
        if handle.is_cancelled:
            return True
        self.steps += 1
        try:
            handle.context.run(handle.callback, *handle.args)
        except Exception as error:
            self.unheard.append(error)
        return True

    def _pass_time(self, end_s: float) -> None:
        timers = self._timers
        while timers and (timers[0][2].is_cancelled or timers[0][2].process.is_dead):
            heappop(timers)
        if not timers:
            raise StuckError("Everybody waits, and no timer is set that could wake one.")
        now_s = self.now_s = max(self.now_s, timers[0][0])
        if now_s > end_s:
            raise StuckError("It is not over after the time that it has.")
        while timers and timers[0][0] <= now_s + RESOLUTION_S:
            handle = heappop(timers)[2]
            if not handle.process.is_dead:
                handle.process.ready.append(handle)

    # -- what asyncio asks ----------------------------------------------------------------------

    def time(self) -> float:
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        process = handle.process
        if not process.is_dead:
            process.ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, context)
        handle.time_s = when
        self._serial += 1
        heappush(self._timers, (when, self._serial, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        self._serial += 1
        task = _Task(self._serial, coro, loop=self, name=name or "-", context=context)
        process = (copy_context() if context is None else context)[_process]
        process.tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.unheard.append(
            error if isinstance(error, BaseException) else RuntimeError(context["message"])
        )
