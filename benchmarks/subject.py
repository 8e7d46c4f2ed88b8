"""Our engine as a worker with a behaviour: what benchmarks beside `engine` let it do.

Everything is in as in `engine.ours`; events also tell when and by which process the handler
was called. The behaviours:

    deposit  the work of the engine benchmark
    work     the same after `amount % 6` milliseconds of waiting
    sick     the same, but every tenth account fails for a passing reason, again and again
    late     each message fails until its `due_ms` has come, then does the work
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.contest import Contest, deposit, parser_of
from benchmarks.load import account_number
from bookstore_streams.engine.unit_of_work import Context
from bookstore_streams.errors import TransientError
from bookstore_streams.kafka.app import App
from bookstore_streams.settings import ConsumerSettings, load

VARIANTS = ("deposit", "work", "sick", "late")
SICK_EVERY = 10
WORK_MS_MAX = 5
# A step of the loop that watches for pauses, and how often what it saw is written down.
PAUSE_STEP_S = 0.002
PAUSE_WRITE_S = 0.5

Refuse = Callable[[Any, Context], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a subject is told beside where to work.

    Attributes:
        contest: where to work, and the variant.
        settings: setting's environment name without `BOOKSTORE_` -> value.
        pauses: file to write the event loop's pauses to; None for not watching.
    """

    contest: Contest
    settings: dict[str, str]
    pauses: Path | None = None


def is_sick(account: str) -> bool:
    """Whether the account fails under `sick`."""
    return account_number(account) % SICK_EVERY == 0


def settings_of(contest: Contest, more: dict[str, str]) -> dict[str, str]:
    """The environment of the app."""
    return {
        "BOOKSTORE_APP_ID": contest.group,
        "BOOKSTORE_BROKER_URL": contest.broker,
        "BOOKSTORE_DATA_DIR": str(contest.data_dir),
        "BOOKSTORE_TOPICS_PARTITIONS": str(contest.partitions),
        **{f"BOOKSTORE_{name}": value for name, value in more.items()},
    }


def build(behaviour: Behaviour) -> App:
    """The app; the consumer at work and another one that waits for its own topic."""
    contest = behaviour.contest
    settings = load([], settings_of(contest, behaviour.settings))
    app = App(settings, web_enabled=False, topic_disable_leader=True)
    app.Table("inbox", rows_expire_after_ms=settings.inbox.retention_ms)
    app.Table("parked_keys")
    app.Table("parked_messages")
    rows = app.Table("rows")
    refuse, pid = _refusal(behaviour), os.getpid()
    policy = ConsumerSettings(
        backoff_ms_base=1_000,
        backoff_ms_max=60_000,
        attempts_max=10_000,
        handler_timeout_ms=60_000,
    )

    @app.consume(contest.source, name="work", policy=policy, emits=(contest.output,))
    async def work(message: Any, context: Context) -> None:
        at_ms = time.time() * 1000
        if refuse is not None:
            await refuse(message, context)
        account = message["account"]
        row, told = deposit(rows.get(account), message, context.message_id)
        rows[account] = row
        context.emit(contest.output, {**told, "at_ms": at_ms, "pid": pid})

    @app.consume(f"{contest.source}-other", name="waits", policy=policy)
    async def wait(message: Any, context: Context) -> None:
        """Declared, so that what several consumers cost is in the figures."""

    return app


def _refusal(behaviour: Behaviour) -> Refuse | None:
    """What comes before the work; raises where the message is to fail."""

    async def wait(message: Any, context: Context) -> None:
        await asyncio.sleep(message["amount"] % (WORK_MS_MAX + 1) / 1000)

    async def refuse_sick(message: Any, context: Context) -> None:
        if is_sick(message["account"]):
            raise TransientError("this account is sick")

    async def refuse_early(message: Any, context: Context) -> None:
        wait_ms = message["due_ms"] - context.now_ms
        if wait_ms > 0:
            raise TransientError("too early", retry_after_ms=wait_ms)

    return {"work": wait, "sick": refuse_sick, "late": refuse_early}.get(behaviour.contest.variant)


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


async def watch_pauses(path: Path) -> None:
    """Write down each half second how long the event loop kept others waiting; for ever."""
    # epoch seconds at the end of a span, the longest pause in it in ms
    spans: list[tuple[float, float]] = []
    longest_s, since_s = 0.0, time.monotonic()
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(PAUSE_STEP_S)
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - before_s - PAUSE_STEP_S)
        if now_s - since_s > PAUSE_WRITE_S:
            spans.append((round(time.time(), 2), round(longest_s * 1000, 1)))
            longest_s, since_s = 0.0, now_s
            _write(path, json.dumps(spans))


def from_command_line(argv: Sequence[str] | None = None) -> Behaviour:
    """Read where to work and how; ends the process on wrong usage."""
    parser = parser_of(VARIANTS)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--pauses", type=Path)
    args = vars(parser.parse_args(argv))
    pauses = args.pop("pauses")
    settings = dict(pair.split("=", 1) for pair in args.pop("set"))
    return Behaviour(Contest(**args), settings, pauses)


def main() -> None:
    behaviour = from_command_line()
    app = build(behaviour)
    app.finalize()
    app.conf.web_enabled = False
    if behaviour.pauses is not None:
        app.service(_pause_service(behaviour.pauses))
    app.Worker(loglevel="info").execute_from_commandline()


def _pause_service(path: Path) -> Any:
    from mode import Service

    class Pauses(Service):
        @Service.task
        async def _watch(self) -> None:
            await watch_pauses(path)

    return Pauses


if __name__ == "__main__":
    main()
