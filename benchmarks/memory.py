"""`scripts/bench memory`: resident memory with a million messages parked, and what clean-up costs.

The rows are written to the changelogs; the worker recovers them and then handles live
messages at a steady pace. Once the inbox keeps everything, once its rows expire after
seconds: pauses of the event loop and latencies of the two are to be compared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.engine.changelogs import changelog
from benchmarks.engine.contest import MESSAGE_ID, Contest
from benchmarks.engine.contestants import Contestant
from benchmarks.figures import percentiles
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.load import Load
from benchmarks.progress import aligned
from benchmarks.race import SETTLE_S, Conditions, Track
from benchmarks.tables import Row, Writer, make_topics
from benchmarks.worker import Worker
from bookstore_streams.core.inbox import Outcome, inbox_key, inbox_row
from bookstore_streams.core.parking import ParkedKey, message_key, parked_key
from bookstore_streams.core.record import pack

DAY_MS = 86_400_000
OPEN_S_MAX = 300.0
CONSUMER = "work"


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Both runs, on the same rows."""
    load = Load(args.messages, args.keys, args.partitions, args.seed)
    runs = {}
    async with Track(stand, load) as track, Writer(stand.servers) as writer:
        for name, retention_ms in (("kept", 7 * DAY_MS), ("expiring", int(args.retention * 1000))):
            stand.progress.say(f"{name}: writing {args.parked:,} parked messages and inbox rows")
            runs[name] = await _run(args, stand, track, writer, retention_ms)
            stand.progress.say(f"{name}: {runs[name]['rss_mb_max']} MiB")
    is_good = all(each["exact"] for each in runs.values())
    return Found({"runs": runs, "exact": is_good}, is_good)


async def _run(
    args: argparse.Namespace, stand: Stand, track: Track, writer: Writer, retention_ms: int
) -> dict[str, Any]:
    pauses = stand.folder / f"pauses-{retention_ms}.json"
    contestant = Contestant(
        "subject",
        "deposit",
        "",
        arguments=(
            *("--pauses", str(pauses)),
            *("--set", f"INBOX_RETENTION_MS={retention_ms}"),
            *("--set", "BILLING_BACKOFF_MS_MAX=1000"),
            *("--set", "BILLING_BACKOFF_MS_BASE=1000"),
        ),
    )
    seen: dict[str, Any] = {}
    started_s = time.time()

    async def prepare(contest: Contest) -> None:
        nonlocal started_s
        await make_topics(contest)
        for table, rows in _tables(args, contest).items():
            await writer.write(changelog(contest, table), rows)
        started_s = time.time()

    async def look(contest: Contest, workers: Sequence[Worker]) -> None:
        seen["rss_mb_max"] = round(workers[0].usage().rss_mb_max, 1)
        seen["rss_mb_at_end"] = _resident_mb(workers[0].pid)
        seen["looked_at_s"] = time.time()
        seen["disk_mb"] = round(_disk_bytes(contest.data_dir) / 2**20, 1)

    conditions = Conditions(first_effect_s_max=OPEN_S_MAX, prepare=prepare, before_stop=look)
    messages = min(args.messages, int(args.rate * args.seconds))
    race = await track.latencies(contestant, messages, args.rate, conditions)
    # Everything before was opening; a worker that lagged behind has a longer live time.
    first_live_s = seen.pop("looked_at_s") - messages / args.rate
    opening, running = _longest(pauses, first_live_s)
    return {
        "inbox_retention_ms": retention_ms,
        "parked_messages": args.parked,
        "parked_keys": args.parked_keys,
        "inbox_rows": args.parked,
        **seen,
        "seconds_to_first_event": round(first_live_s - SETTLE_S - started_s, 1),
        "pause_ms_max_opening": opening,
        "pause_ms_max": running,
        "latency_ms": percentiles(list(race.ms.values())),
        "exact": race.verdict.is_exact,
    }


def _tables(args: argparse.Namespace, contest: Contest) -> dict[str, Iterable[Row]]:
    """The rows of `parked` messages on `parked_keys` keys, due tomorrow."""
    now_ms = int(time.time() * 1000)
    keys, partitions = args.parked_keys, args.partitions
    each = args.parked // keys

    def row_of_key(tail: int) -> bytes:
        cause = "TransientError: the payment provider does not answer"
        key = ParkedKey(0, tail, 1, 1, now_ms + DAY_MS, cause, now_ms)
        return orjson.dumps(key.to_row())

    def numbers() -> Iterator[tuple[int, str, int, int]]:
        """Partition, key, sequence in the key, number of the message."""
        for number in range(each * keys):
            key = number % keys
            yield key % partitions, f"parked-{key:07d}", number // keys, number

    def parked_messages() -> Iterator[Row]:
        for partition, key, sequence, number in numbers():
            value = b'{"type":"Deposited","account":"%b","amount":7}' % key.encode()
            headers = [(MESSAGE_ID, b"p-%09d" % number)]
            raw = pack(contest.source, partition, number, now_ms, key.encode(), value, headers)
            yield partition, message_key(CONSUMER, key, sequence), raw

    def inbox() -> Iterator[Row]:
        for partition, key, _, number in numbers():
            row = inbox_row(Outcome.PARKED, now_ms, key, contest.source, partition, number)
            yield partition, inbox_key(CONSUMER, f"p-{number:09d}"), orjson.dumps(row)

    whole = row_of_key(each)
    return {
        "parked_messages": parked_messages(),
        "parked_keys": (
            (key % partitions, parked_key(CONSUMER, f"parked-{key:07d}"), whole)
            for key in range(keys)
        ),
        "inbox": inbox(),
    }


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return round(int(line.split()[1]) / 1024, 1)


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _longest(pauses: Path, since_s: float) -> tuple[float | None, float | None]:
    """The longest pause before that moment, and after it, in ms."""
    spans = json.loads(pauses.read_text()) if pauses.exists() else []
    before = [ms for at_s, ms in spans if at_s <= since_s]
    after = [ms for at_s, ms in spans if at_s > since_s]
    return max(before, default=None), max(after, default=None)


def show(values: Mapping[str, Any]) -> str:
    """A run a line."""
    head = ("inbox", "RSS MiB", "at end", "disk MiB", "pause ms", "while opening", "p99 ms")
    rows: list[Sequence[str]] = [head]
    for name, each in values["runs"].items():
        figures = ("rss_mb_max", "rss_mb_at_end", "disk_mb", "pause_ms_max", "pause_ms_max_opening")
        rows.append((name, *(str(each[what]) for what in figures), str(each["latency_ms"]["p99"])))
    return aligned(rows)


BENCHMARK = Benchmark(
    name="memory",
    summary="Resident memory with very many messages parked, and pauses while the inbox is "
    "cleaned up.",
    numbers={
        "messages": Number(200, 60_000, 120_000, "live messages, at most"),
        "keys": Number(50, 1_000, 1_000, "accounts of the live messages"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 1, 1, "not used: what is looked for is the largest"),
        "parked": Number(500, 1_000_000, 1_000_000, "parked messages, each with an inbox row"),
        "parked_keys": Number(50, 100_000, 100_000, "keys that they are parked on"),
        "rate": Number(100, 1_000, 1_000, "live messages a second"),
        "seconds": Number(2.0, 25.0, 120.0, "of live messages, at most"),
        "retention": Number(3.0, 10.0, 30.0, "seconds that the expiring inbox keeps a row"),
    },
    measure=measure,
    minutes=(2.0, 6.0),
    show=show,
)
