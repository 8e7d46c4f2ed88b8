"""Contestant: this project's engine, with everything in that a shop's worker has.

Inbox, parking lot and their checks, counters and dead letters are on, and more than one
consumer is declared, as in the shop; only the one at work reads the source topic.
"""

from __future__ import annotations

from typing import Any

from benchmarks.engine.contest import Contest, deposit, from_command_line
from bookstore_streams.engine.unit_of_work import Context
from bookstore_streams.kafka.app import App
from bookstore_streams.settings import ConsumerSettings, load

VARIANTS = ("ours",)


def build(contest: Contest) -> App:
    """The app with the one consumer at work and another one that waits for its own topic."""
    settings = load(
        [],
        {
            "BOOKSTORE_APP_ID": contest.group,
            "BOOKSTORE_BROKER_URL": contest.broker,
            "BOOKSTORE_DATA_DIR": str(contest.data_dir),
            "BOOKSTORE_TOPICS_PARTITIONS": str(contest.partitions),
        },
    )
    app = App(settings, web_enabled=False, topic_disable_leader=True)
    app.Table("inbox", rows_expire_after_ms=settings.inbox.retention_ms)
    app.Table("parked_keys")
    app.Table("parked_messages")
    rows = app.Table("rows")

    @app.consume(contest.source, name="work", policy=ConsumerSettings(), emits=(contest.output,))
    async def work(message: Any, context: Context) -> None:
        account = message["account"]
        row, told = deposit(rows.get(account), message, context.message_id)
        rows[account] = row
        context.emit(contest.output, told)

    @app.consume(f"{contest.source}-other", name="waits", policy=ConsumerSettings())
    async def wait(message: Any, context: Context) -> None:
        """Declared, so that what several consumers cost is in the figure."""

    return app


def main() -> None:
    app = build(from_command_line(VARIANTS))
    app.finalize()
    app.conf.web_enabled = False
    app.Worker(loglevel="warn").execute_from_commandline()


if __name__ == "__main__":
    main()
