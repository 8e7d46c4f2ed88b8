"""Contestants: Faust as it comes, at each of its two processing guarantees, and doing nothing.

Everything that is not said here stands at Faust's default. What it promises through a crash
is not what the other contestants promise (its tables and its offsets are never one step);
here only the speed is compared.
"""

from __future__ import annotations

import asyncio
from typing import Any

import faust

from benchmarks.engine.changelogs import create_changelogs
from benchmarks.engine.contest import MESSAGE_ID, Contest, deposit, from_command_line

VARIANTS = ("exactly-once", "at-least-once", "noop")


def build(contest: Contest) -> faust.App:
    """The app with the one agent of `contest.variant`."""
    exactly_once = contest.variant == "exactly-once"
    app = faust.App(
        contest.group,
        broker=contest.broker,
        store="rocksdb://",
        datadir=str(contest.data_dir),
        processing_guarantee="exactly_once" if exactly_once else "at_least_once",
        topic_partitions=contest.partitions,
        topic_disable_leader=True,
        web_enabled=False,
    )
    source = app.topic(contest.source, partitions=contest.partitions, key_type=bytes)
    if contest.variant == "noop":
        add_noop_agent(app, source)
    else:
        add_working_agent(app, source, contest)
    return app


def add_noop_agent(app: faust.App, source: Any) -> None:
    @app.agent(source)
    async def ignore(stream: Any) -> None:
        async for _ in stream:
            pass


def add_working_agent(app: faust.App, source: Any, contest: Contest) -> None:
    output = app.topic(contest.output, partitions=contest.partitions, key_type=bytes)
    rows = app.Table("rows", partitions=contest.partitions, options={"driver": "rocksdict"})
    inbox = app.Table("inbox", partitions=contest.partitions, options={"driver": "rocksdict"})

    @app.agent(source)
    async def work(stream: Any) -> None:
        async for event in stream.events():
            message_id = event.headers[MESSAGE_ID].decode()
            if message_id in inbox:
                continue
            message = event.value
            account = message["account"]
            row, told = deposit(rows.get(account), message, message_id)
            rows[account] = row
            inbox[message_id] = event.message.offset
            await output.send(key=event.key, value=told)


def main() -> None:
    contest = from_command_line(VARIANTS)
    app = build(contest)
    app.finalize()
    # Faust creates them, too, but an event that comes before they are known crashes its agent
    # (PartitionsMismatch, "0 partitions"), and it stands still: 2 of 20 starts on a busy machine.
    asyncio.run(create_changelogs(contest, list(app.tables)))
    faust.Worker(app, loglevel="warn").execute_from_commandline()


if __name__ == "__main__":
    main()
