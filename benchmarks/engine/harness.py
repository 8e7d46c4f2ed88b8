"""`scripts/bench engine`: all contestants in one run, in turn, on one real Kafka."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.engine.contestants import CONTESTANTS, REFERENCE, WARM_UP
from benchmarks.engine.judge import JudgeError
from benchmarks.engine.load import Load
from benchmarks.engine.race import Round, Track
from benchmarks.engine.report import Progress, table
from benchmarks.engine.result import circumstances, summary
from benchmarks.engine.worker import WorkerError
from bookstore_streams.errors import BookstoreError
from bookstore_streams.testing.brokers import KAFKA_VERSION, KafkaBroker

# A run of fewer messages shows that everything works, not how fast: one round, no latencies,
# and time for everybody to finish.
MESSAGES_OF_A_SMALL_RUN = 20_000


async def run(args: argparse.Namespace, broker: str, folder: Path) -> dict[str, dict[str, Any]]:
    """All rounds of all contestants; contestant -> its part of the result."""
    # SIGTERM ends us as Ctrl-C does: the worker killed, the topics deleted, the broker stopped.
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    load = Load(args.messages, args.keys, args.partitions, args.seed)
    present = [name for name in args.only if CONTESTANTS[name].is_present]
    rounds: dict[str, list[Round]] = defaultdict(list)
    latencies_ms: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, str] = {}
    progress = Progress()
    async with Track(broker, load, args.seconds, folder, progress) as track:
        # A broker that has just started is slow; nobody shall be first on it.
        await track.race(CONTESTANTS[WARM_UP], "warm-up")
        for number in range(args.rounds):
            # Each round starts with another one, so that no place in the order is anyone's own.
            first = number % len(args.only)
            for name in [*args.only[first:], *args.only[:first]]:
                if name not in present or name in failed:
                    continue
                label = f"round {number + 1}/{args.rounds} {name}"
                try:
                    rounds[name].append(await track.race(CONTESTANTS[name], label))
                except (WorkerError, JudgeError) as error:
                    failed[name] = str(error)
                    progress.say(f"{label}: failed: {error}")
                else:
                    progress.say(_sentence(label, rounds[name][-1]))
        for name in present if args.latency_messages else ():
            if CONTESTANTS[name].emits and name not in failed:
                progress.say(f"latency {name}, {args.latency_messages} messages")
                try:
                    latencies_ms[name] = await track.latencies_ms(
                        CONTESTANTS[name], args.latency_messages
                    )
                except WorkerError as error:
                    failed[name] = str(error)
                    progress.say(f"latency {name}: failed: {error}")
    result = {}
    for name in args.only:
        if name not in present:
            found: dict[str, Any] = {"absent": f"there is no {CONTESTANTS[name].path}"}
        elif name in failed:
            found = {"failed": failed[name]}
        else:
            # Ratios pair rounds by place, which a failed reference does not allow.
            reference = [] if REFERENCE in failed else rounds[REFERENCE]
            found = summary(rounds[name], reference, latencies_ms[name])
        result[name] = {"work": CONTESTANTS[name].work, **found}
    return result


def _sentence(label: str, found: Round) -> str:
    speed = f"{found.messages_per_s:,.0f} messages/s" if found.messages_per_s else "too few to tell"
    return f"{label}: {speed}" + (
        f", NOT EXACT: {found.verdict}" if found.is_exact is False else ""
    )


@contextmanager
def broker_of(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str | None]]:
    """URL and version of the broker to use: the given one (version unknown), or one of our own."""
    if args.broker is not None:
        yield args.broker, None
        return
    broker = KafkaBroker(folder / "kafka")
    print(f"starting Kafka {KAFKA_VERSION}", file=sys.stderr)
    try:  # not `with`: it would leave a broker behind that is interrupted while it starts
        broker.start()
        yield broker.url, KAFKA_VERSION
    finally:
        broker.stop()


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ends the process on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench engine",
        description="Messages a second of our engine, of stock Faust and of a plain aiokafka loop, "
        "side by side on a real Kafka. One JSON line on stdout, a table on stderr.",
    )
    parser.add_argument("--messages", type=_positive, default=150_000, help="default 150000")
    parser.add_argument("--keys", type=_positive, default=1_000, help="accounts, default 1000")
    parser.add_argument("--partitions", type=_positive, default=4, help="default 4")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument(
        "--rounds",
        type=_positive,
        help=f"default 3, or 1 with fewer than {MESSAGES_OF_A_SMALL_RUN} messages",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="a contestant that has not finished so long after its first effect is stopped and "
        "judged by what it did; default 8, or 60 in a small run",
    )
    parser.add_argument(
        "--latency-messages",
        type=int,
        help="messages of the latency run, 0 for none; default 600, or 0 in a small run",
    )
    parser.add_argument("--out", type=Path, help="also write the JSON line to this file")
    parser.add_argument("--broker", help="kafka://host:port instead of a Kafka of its own")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(CONTESTANTS),
        help=f"contestants, separated by commas, of: {', '.join(CONTESTANTS)}",
    )
    args = parser.parse_args(argv)
    if unknown := set(args.only).difference(CONTESTANTS):
        parser.error(f"--only: no such contestant: {', '.join(sorted(unknown))}")
    if args.out is not None and not args.out.absolute().parent.is_dir():
        parser.error(f"--out: there is no folder {args.out.absolute().parent}")
    is_small = args.messages < MESSAGES_OF_A_SMALL_RUN
    if args.rounds is None:
        args.rounds = 1 if is_small else 3
    if args.seconds is None:
        args.seconds = 60.0 if is_small else 8.0
    if args.latency_messages is None:
        args.latency_messages = 0 if is_small else 600
    return args


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 when every contestant present ran and was exact, else 1; 2 wrong usage."""
    args = arguments(argv)
    # A fresh topic has no leader for a moment; aiokafka warns of each retry.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    around = circumstances()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
            broker_of(args, Path(folder)) as (url, version),
        ):
            contestants = asyncio.run(run(args, url, Path(folder)))
    except BookstoreError as error:
        print(f"scripts/bench engine: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    options = ("messages", "keys", "partitions", "seed", "rounds", "seconds")
    found = {
        "benchmark": "engine",
        **around,
        "kafka": version,
        **{name: getattr(args, name) for name in options},
        "contestants": contestants,
    }
    line = json.dumps(found)
    print(table(contestants), file=sys.stderr)
    print(line)
    if args.out is not None:
        args.out.write_text(line + "\n")
    is_good = all(
        "failed" not in each and each.get("exact") is not False for each in contestants.values()
    )
    return 0 if is_good else 1
