"""scripts/demo as a newcomer meets it: it keeps its promises, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from bookstore_streams.testing.brokers import Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
KINDS = {"told", "sent", "failed", "booked", "refused", "waits", "dead-letter", "published"}

Line = dict[str, Any]


@contextmanager
def demo(folder: Path, *arguments: str, root: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Run it with a temporary folder of its own; killed where a test fails in the middle."""
    ours = {name: v for name, v in os.environ.items() if not name.startswith("BOOKSTORE_")}
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "bookstore_streams.testing.demo", "--json", *arguments],
        cwd=ROOT,
        env=ours | {"TMPDIR": str(folder), "BOOKSTORE_APP_ROOT": str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                # In order, so that its own children end as well.
                process.send_signal(signal.SIGTERM)


def lines_until(process: subprocess.Popen[str], kind: str) -> list[Line]:
    """What it prints up to the first line of that kind."""
    assert process.stdout is not None
    found: list[Line] = []
    for text in process.stdout:
        found.append(json.loads(text))
        if found[-1]["kind"] == kind:
            return found
    assert process.stderr is not None
    raise AssertionError(f"it ended without {kind}: {found[-5:]}\n{process.stderr.read()}")


def finish(process: subprocess.Popen[str], expected: int) -> tuple[list[Line], str]:
    """The rest of what it prints, and its errors, once it has ended."""
    out, errors = process.communicate()
    assert process.returncode == expected, errors
    return [json.loads(text) for text in out.splitlines()], errors


def assert_promises_kept(lines: list[Line], count: int) -> None:
    checks = [line for line in lines if line["kind"] == "check"]
    assert [line for line in checks if not line["passed"]] == []
    assert len(checks) == count
    (verdict,) = [line for line in lines if line["kind"] == "verdict"]
    assert verdict["passed"]


def assert_timeline_told(lines: list[Line]) -> None:
    moments = [line for line in lines if line["kind"] in KINDS]
    assert {moment["kind"] for moment in moments} == KINDS
    hopeless = [m for m in moments if m["order"].startswith("always-fails")]
    failed = [m["at_s"] for m in hopeless if m["kind"] == "failed"]
    assert [round(at_s - failed[0]) for at_s in failed] == [0, 1, 3, 7]
    (letter,) = [m for m in hopeless if m["kind"] == "dead-letter"]
    assert "attempts-exhausted" in letter["text"]
    meanwhile = [m for m in moments if m["order"].startswith("healthy") and m["kind"] == "booked"]
    assert [m for m in meanwhile if failed[0] < m["at_s"] < failed[-1]]
    waits = [m for m in moments if m["kind"] == "waits" and "cancelled" in m["order"]]
    assert any("waits until" in m["text"] for m in waits)
    assert any("1 message waits behind it" in m["text"] for m in waits)


def assert_nothing_left(lines: list[Line], folder: Path) -> None:
    steps = [line["text"] for line in lines if line["kind"] == "step"]
    pids = [int(pid) for text in steps for pid in re.findall(r"pid (\d+)", text)]
    assert len(pids) >= 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(folder.iterdir()) == []


def test_it_keeps_its_promises_and_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    with demo(folder, "--keep") as process:
        lines = lines_until(process, "running")
        assert_promises_kept(lines, 11)
        assert_timeline_told(lines)

        running = lines[-1]
        with urllib.request.urlopen(f"{running['web_url']}/parking/", timeout=10) as answer:
            assert json.load(answer)["rows"] == []
        # In the environment that it tells people to paste.
        order = ["--order-id=mine", "--customer=me", "--currency=EUR", "--line=book-1:1:9.99"]
        subprocess.run(
            [sys.executable, "-m", "faust", "-A", "bookstore_streams", "orders", "place", *order],
            cwd=ROOT,
            env=os.environ | running["env"],
            check=True,
            capture_output=True,
        )
        assert lines_until(process, "booked")[-1]["order"] == "mine"

        process.send_signal(signal.SIGINT)
        finish(process, 0)
    assert_nothing_left(lines, folder)


@pytest.mark.kafka
def test_on_a_kafka_of_others_it_takes_away_what_it_made(
    start_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    broker = start_broker("kafka")
    folder = tmp_path / "tmp"
    with demo(folder, "--broker", broker.url) as process:
        lines, _ = finish(process, 0)
    assert_promises_kept(lines, 11)
    assert_timeline_told(lines)
    assert_nothing_left(lines, folder)
    assert asyncio.run(_topics(broker)) == {
        "bookstore.orders",
        "bookstore.payments",
        "bookstore.orders.billing.dlt",
    }


async def _topics(broker: Broker) -> set[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.url.removeprefix("kafka://"))
    await admin.start()
    try:
        return {name for name in await admin.list_topics() if not name.startswith("__")}
    finally:
        await admin.close()


@pytest.mark.parametrize("kind", ["step", "start", "waits"])
def test_interrupted_at_any_time_it_leaves_nothing(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "tmp"
    with demo(folder) as process:
        lines = lines_until(process, kind)
        if kind == "step":  # the folder; the next are the broker and the provider
            lines += lines_until(process, "step") + lines_until(process, "step")
        process.send_signal(signal.SIGTERM)
        rest, errors = finish(process, 130)
    assert "Interrupted" in errors
    assert_nothing_left(lines + rest, folder)


def test_a_worker_that_does_not_start_is_explained_by_its_log(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "tmp"
    for part in ("agents", "tables", "config"):
        shutil.copytree(ROOT / part, root / part)
    with (root / "agents" / "billing.py").open("a") as source:
        source.write("\nimport a_module_that_nobody_has\n")

    with demo(folder, root=root) as process:
        lines, errors = finish(process, 1)

    assert "The worker ended with status 1" in errors
    assert "agents.billing does not import" in errors
    (left,) = folder.iterdir()
    assert f"Logs and data are left in {left}" in errors
    assert (left / "worker.log").exists()
    shutil.rmtree(left)
    assert_nothing_left(lines, folder)
