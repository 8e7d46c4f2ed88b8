"""`scripts/bench recovery`: restart on the same disk, and rebuild from the changelog.

Rows are written to the changelog of a table, and probes to the source topic: deposits to
accounts whose rows are among them. A start is over when the events of all probes can be
read; each tells a count that only someone who has the account's row can know. Stock Faust
passes over probes that waited for it while it recovered (up to all of 400), so it gets
more, a few each second, and its start is over when the first one is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import orjson

from benchmarks.engine.changelogs import changelog, create_changelogs
from benchmarks.engine.contest import Contest
from benchmarks.engine.contestants import CONTESTANTS, Contestant
from benchmarks.figures import spread
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.judge import Heard
from benchmarks.load import Filler, Load, account_name, partition_of
from benchmarks.progress import aligned
from benchmarks.race import Track
from benchmarks.tables import Row, Writer, make_topics
from benchmarks.worker import Worker

OURS = Contestant("subject", "deposit", "bookstore_streams")
STOCK = CONTESTANTS["stock-at-least-once"]
# Of every row before the probes.
COUNT, TOTAL = 5, 500
# A stock worker on a busy machine was seen to read a thousand rows a second.
START_S_MAX = 120.0
ROWS_PER_S_MIN = 1_000
# `partition 3: open after 412 ms, ...` and lines that tell how far a rebuild is.
OPENED = re.compile(r"open after (\d+) ms")
PROGRESS = re.compile(r"recovering \d+ partitions.*")
LINES_KEPT = 3
PROBE_EVERY_S = 0.1


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """The large table: rebuilt, restarted, killed; the small one: ours and stock in turn."""
    probes = Load(args.messages, args.keys, args.partitions, args.seed, is_in_turn=True)
    async with Track(stand, probes) as track, Writer(stand.servers) as writer:
        run = _Run(args, stand, track, writer)
        large = await run.ours(args.rows, is_restarted=True)
        pairs: dict[str, list[dict[str, Any]]] = {"ours": [], "stock": []}
        for number in range(args.rounds):
            for name in list(pairs) if number % 2 == 0 else list(pairs)[::-1]:
                found = await (run.ours if name == "ours" else run.stock)(args.paired_rows)
                pairs[name].append(found["rebuild"])
                stand.progress.say(f"{name}: {args.paired_rows:,} rows in {_seconds(found)} s")
    ratios = [
        stock["seconds"] / ours["seconds"]
        for ours, stock in zip(pairs["ours"], pairs["stock"], strict=True)
    ]
    every = [*large.values(), *pairs["ours"], *pairs["stock"]]
    is_good = all(each["is_exact"] for each in every)
    values = {"large": large, "pairs": pairs, "ratio": spread(ratios), "exact": is_good}
    return Found(values, is_good)


def _seconds(found: Mapping[str, Any]) -> float:
    return float(found["rebuild"]["seconds"])


class _Run:
    """Starts of workers on changelogs of a given size."""

    def __init__(
        self, args: argparse.Namespace, stand: Stand, track: Track, writer: Writer
    ) -> None:
        self._args = args
        self._stand = stand
        self._track = track
        self._writer = writer

    async def ours(self, rows: int, *, is_restarted: bool = False) -> dict[str, dict[str, Any]]:
        """Rebuild on an empty disk; where wanted restart on it, politely and after a kill."""
        contest = await self._track.contest(OURS)
        await make_topics(contest)
        await self._write(contest, rows, str.encode)
        found = {"rebuild": await self._start(OURS, contest, rows, 1, is_killed=False)}
        if is_restarted:
            found["restart"] = await self._start(OURS, contest, rows, 2, is_killed=True)
            found["restart_after_kill"] = await self._start(OURS, contest, rows, 3, is_killed=False)
        return found

    async def stock(self, rows: int) -> dict[str, dict[str, Any]]:
        """Rebuild on an empty disk, by stock Faust."""
        contest = await self._track.contest(STOCK)
        await create_changelogs(contest, ("rows", "inbox"))
        await self._write(contest, rows, lambda account: orjson.dumps(account))
        return {"rebuild": await self._start(STOCK, contest, rows, 1, is_killed=False)}

    async def _write(self, contest: Contest, rows: int, key_of: Callable[[str], bytes]) -> None:
        args = self._args
        self._stand.progress.say(f"writing {rows:,} rows for {contest.variant}")
        value = orjson.dumps({"count": COUNT, "total": TOTAL})

        def all_rows() -> Iterator[Row]:
            for number in range(args.keys):
                account = account_name(number)
                yield partition_of(account, args.partitions), key_of(account), value
            for number in range(rows - args.keys):
                yield number % args.partitions, key_of(f"row-{number:09d}"), value

        await self._writer.write(changelog(contest, "rows"), all_rows())

    async def _start(
        self, contestant: Contestant, contest: Contest, rows: int, times: int, *, is_killed: bool
    ) -> dict[str, Any]:
        """One start, with probes waiting; `times` counts the starts on this disk."""
        probes = Load(self._args.messages, self._args.keys, contest.partitions, times)
        await _fill(contest, probes, times)
        log = self._stand.folder / f"{contest.group}-0.log"
        seen = len(log.read_text().splitlines()) if log.exists() else 0
        started_s = time.monotonic()
        worker = await self._track.start(contestant, contest)
        try:
            if contestant is STOCK:
                heard = await self._await_any(contest, worker, probes, rows)
            else:
                count = times * self._args.messages
                heard = await self._await_probes(contest, worker, count, rows)
            usage = worker.usage()
            # Else some are seen before they are part of a committed offset.
            await asyncio.sleep(1.0)
            await (worker.kill() if is_killed else worker.stop())
        finally:
            await worker.kill()
        lines = log.read_text(errors="replace").splitlines()[seen:]
        seconds = heard[-1].at_s - started_s
        return {
            "rows": rows,
            "seconds": round(seconds, 2),
            "rows_per_s": round(rows / seconds),
            "open_ms_max": max(map(int, OPENED.findall("\n".join(lines))), default=None),
            "rss_mb_max": round(usage.rss_mb_max, 1),
            "cpu_s": usage.cpu_s,
            "progress": PROGRESS.findall("\n".join(lines))[:LINES_KEPT],
            "probes_answered": len(heard),
            "is_exact": _is_restored(heard)
            if contestant is STOCK
            else _is_exact(heard, times, self._args),
        }

    async def _await_any(
        self, contest: Contest, worker: Worker, probes: Load, rows: int
    ) -> list[Heard]:
        """Probe until one is answered."""
        filler = Filler(contest.servers, probes, id_prefix="again-")
        await filler.start()
        endless = (
            replace(message, message_id=f"{number}-{message.message_id}")
            for number in count()
            for message in probes
        )
        probing = asyncio.create_task(filler.trickle(contest.source, endless, PROBE_EVERY_S))
        try:
            return await self._await_probes(contest, worker, 1, rows)
        finally:
            probing.cancel()
            await asyncio.wait([probing])
            await filler.stop()

    async def _await_probes(
        self, contest: Contest, worker: Worker, wanted: int, rows: int
    ) -> list[Heard]:
        heard: list[Heard] = []
        try:
            async with asyncio.timeout(START_S_MAX + rows / ROWS_PER_S_MIN):
                listening = asyncio.create_task(
                    self._track.judge.listen(contest.output, contest.partitions, wanted, heard)
                )
                try:
                    while not listening.done():
                        await asyncio.wait([listening], timeout=1.0)
                        worker.check()
                    await listening
                finally:
                    listening.cancel()
                    await asyncio.wait([listening])
        except TimeoutError:
            raise worker.error(f"only {len(heard)} of {wanted} probes were answered") from None
        return heard


async def _fill(contest: Contest, probes: Load, times: int) -> None:
    """Write the probes of a start; their ids are unlike those of the starts before."""
    filler = Filler(contest.servers, probes, id_prefix=f"start-{times}-")
    await filler.start()
    try:
        await filler.fill(contest.source)
    finally:
        await filler.stop()


def _is_restored(heard: Sequence[Heard]) -> bool:
    """Whether everybody who answered knew the rows."""
    return all(each.told["count"] > COUNT for each in heard)


def _is_exact(heard: Sequence[Heard], times: int, args: argparse.Namespace) -> bool:
    """Whether every account's events go on from the row it had, one by one."""
    rows: dict[str, tuple[int, int]] = {}
    amounts: dict[str, dict[str, int]] = {}
    for number in range(1, times + 1):
        for message in Load(args.messages, args.keys, args.partitions, number):
            message_id = f"start-{number}-{message.message_id}"
            amounts.setdefault(message.account, {})[message_id] = message.amount
    for each in heard:
        account, told = each.told["account"], each.told
        count, total = rows.get(account, (COUNT, TOTAL))
        amount = amounts.get(account, {}).pop(each.message_id, None)
        if amount is None or (told["count"], told["total"]) != (count + 1, total + amount):
            return False
        rows[account] = (count + 1, total + amount)
    return not any(amounts.values())


def show(values: Mapping[str, Any]) -> str:
    """A start a line."""
    head = ("start", "rows", "seconds", "rows/s", "opening ms", "RSS MiB", "exact")
    rows: list[Sequence[str]] = [head]
    for name, found in [
        *((f"ours, {name.replace('_', ' ')}", each) for name, each in values["large"].items()),
        *((f"{n}, rebuild", each) for n, runs in values["pairs"].items() for each in runs),
    ]:
        rows.append(
            (
                name,
                f"{found['rows']:,}",
                f"{found['seconds']:.2f}",
                f"{found['rows_per_s']:,}",
                f"{found['open_ms_max'] or '-'}",
                f"{found['rss_mb_max']:.0f}",
                "yes" if found["is_exact"] else "NO",
            )
        )
    return aligned(rows) + f"\nrebuild, times as fast as stock: {values['ratio']['median']:.1f}"


BENCHMARK = Benchmark(
    name="recovery",
    summary="Restart on the same disk, and rebuild from the changelog beside stock Faust.",
    numbers={
        "messages": Number(40, 400, 400, "probes of each start"),
        "keys": Number(20, 200, 200, "accounts that are probed"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 1, 2, "ours and stock rebuild once in each"),
        "rows": Number(2_000, 10_000_000, 10_000_000, "rows of the large table"),
        "paired_rows": Number(2_000, 200_000, 1_000_000, "rows of the table that both rebuild"),
    },
    measure=measure,
    minutes=(4.0, 10.0),
    show=show,
)
