"""What all benchmarks share: flags, a broker to run on, and the one JSON line that is left.

A benchmark says what it measures and with which numbers; everything around it is here, so
that a flag means the same everywhere and every result says under which circumstances it was
taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.circumstances import circumstances
from benchmarks.judge import JudgeError
from benchmarks.progress import Progress
from benchmarks.worker import WorkerError
from bookstore_streams.errors import BookstoreError
from bookstore_streams.testing.brokers import KAFKA_VERSION, KafkaBroker

_SERIAL = count(1)


class Size(StrEnum):
    """How much is done: to see that it works, to know in minutes, to publish."""

    TINY = "tiny"
    QUICK = "quick"
    FULL = "full"


class Number(NamedTuple):
    """A number that a benchmark takes, and what it is at each size where nobody gives one."""

    tiny: float
    quick: float
    full: float
    help: str


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a benchmark runs.

    Attributes:
        broker: `kafka://host:port`.
        folder: an empty directory for data and logs; gone afterwards.
        progress: told what a person wants to see meanwhile.
    """

    broker: str
    folder: Path
    progress: Progress

    @property
    def servers(self) -> str:
        """The broker's address as aiokafka wants it, `host:port`."""
        return self.broker.removeprefix("kafka://")

    def unique_name(self) -> str:
        """What names of topics and groups begin with; the broker may be someone else's."""
        return f"bench-{os.getpid()}-{int(time.time())}-{next(_SERIAL)}"


class Found(NamedTuple):
    """What came of a run.

    Attributes:
        values: the benchmark's own part of the result.
        is_good: whether everything ran and was exact; no judgement of speed.
    """

    values: dict[str, Any]
    is_good: bool


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark as the command line knows it.

    Attributes:
        name: `scripts/bench NAME`.
        summary: one sentence for --help.
        numbers: option -> its values; `messages`, `keys`, `partitions` and `rounds` are in
            every benchmark.
        measure: does it.
        minutes: what a quick and a full run take, about, on two cores.
        add_options: further options, if any.
        check: ends the process on options that cannot be; may complete them.
        show: the result's values -> a table for a person, on stderr.
    """

    name: str
    summary: str
    numbers: Mapping[str, Number]
    measure: Callable[[argparse.Namespace, Stand], Awaitable[Found]]
    minutes: tuple[float, float]
    add_options: Callable[[argparse.ArgumentParser], None] | None = None
    check: Callable[[argparse.ArgumentParser, argparse.Namespace], None] | None = None
    show: Callable[[Mapping[str, Any]], str] | None = None

    def arguments(self, argv: Sequence[str]) -> argparse.Namespace:
        """Read the command line; ends the process on wrong usage."""
        parser = argparse.ArgumentParser(
            prog=f"scripts/bench {self.name}",
            description=f"{self.summary} One JSON line on stdout, progress and a table on stderr.",
        )
        add_size(parser)
        for name, number in self.numbers.items():
            shown = ", ".join(f"{value:,g}" for value in number[:3])
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=_kind(number),
                help=f"{number.help}; default {shown} (tiny, quick, full)",
            )
        parser.add_argument("--seed", type=int, default=1, help="of every choice; default 1")
        parser.add_argument("--out", type=Path, help="also write the JSON line to this file")
        parser.add_argument("--broker", help="kafka://host:port instead of a Kafka of its own")
        if self.add_options is not None:
            self.add_options(parser)
        args = parser.parse_args(argv)
        for name, number in self.numbers.items():
            if getattr(args, name) is None:
                setattr(args, name, _kind(number)(getattr(number, args.size)))
        if args.out is not None and not args.out.absolute().parent.is_dir():
            parser.error(f"--out: there is no folder {args.out.absolute().parent}")
        if self.check is not None:
            self.check(parser, args)
        return args


def add_size(parser: argparse.ArgumentParser) -> None:
    """`--size`, and `--quick` for short."""
    parser.add_argument(
        "--size", choices=list(Size), default=Size.FULL, help="how much is done; default full"
    )
    parser.add_argument(
        "--quick", dest="size", action="store_const", const=Size.QUICK, help="--size quick"
    )


def _kind(number: Number) -> Callable[[Any], float]:
    kind = float if any(isinstance(value, float) for value in number[:3]) else int

    def read(text: Any) -> float:
        value = kind(text)
        if value < 0:
            raise argparse.ArgumentTypeError("must not be negative")
        return value

    return read


@contextmanager
def broker_of(url: str | None, folder: Path) -> Iterator[tuple[str, str | None]]:
    """URL and version of the broker to use: the given one (version unknown), or one of our own."""
    if url is not None:
        yield url, None
        return
    broker = KafkaBroker(folder / "kafka")
    print(f"starting Kafka {KAFKA_VERSION}", file=sys.stderr)
    try:  # not `with`: it would leave a broker behind that is interrupted while it starts
        broker.start()
        yield broker.url, KAFKA_VERSION
    finally:
        broker.stop()


def prepare_process() -> None:
    """Let SIGTERM end us as Ctrl-C does, and keep the client's chatter away."""
    # A fresh topic has no leader for a moment; aiokafka warns of each retry.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run(benchmark: Benchmark, args: argparse.Namespace, command: Sequence[str]) -> int:
    """Run one benchmark with a broker, print and keep its result.

    Returns:
        Exit status: 0 when everything ran and was exact, else 1; 130 when interrupted.
    """
    prepare_process()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
            broker_of(args.broker, Path(folder)) as (url, version),
        ):
            line, is_good = measured(benchmark, args, url, version, command)
    except (BookstoreError, WorkerError, JudgeError) as error:
        print(f"scripts/bench {benchmark.name}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    print(line)
    if args.out is not None:
        args.out.write_text(line + "\n")
    return 0 if is_good else 1


def measured(
    benchmark: Benchmark,
    args: argparse.Namespace,
    url: str,
    version: str | None,
    command: Sequence[str],
) -> tuple[str, bool]:
    """The result as one JSON line, and whether everything ran and was exact."""
    around = circumstances()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"bench-{benchmark.name}-") as folder:
        found = asyncio.run(_measure(benchmark, args, Stand(url, Path(folder), Progress())))
    if benchmark.show is not None:
        print(benchmark.show(found.values), file=sys.stderr)
    result = {
        "benchmark": benchmark.name,
        "command": " ".join(["scripts/bench", *command]),
        **around,
        "kafka": version,
        "size": str(args.size),
        "seed": args.seed,
        **{name: getattr(args, name) for name in benchmark.numbers},
        "took_s": round(time.monotonic() - started_s, 1),
        **found.values,
    }
    return json.dumps(result), found.is_good


async def _measure(benchmark: Benchmark, args: argparse.Namespace, stand: Stand) -> Found:
    # SIGTERM ends us as Ctrl-C does: the workers killed, the topics deleted, the broker stopped.
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await benchmark.measure(args, stand)
