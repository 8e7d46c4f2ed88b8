"""A worker whose disk, or whose changelogs, are not what they were: on a real broker."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bookstore_streams.kafka.lineage import lineage
from bookstore_streams.settings import load
from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import PAYMENTS, Shop, Tail, WorkerProcess, placed, until

PARTITIONS = 8


async def rows(worker: WorkerProcess) -> dict[str, Any]:
    """The table of payments, as the worker shows it."""
    status, page = await asyncio.to_thread(worker.get, "/tables/payments/?limit=1000")
    assert (status, page["incomplete"]) == (200, [])
    return {row["key"]: row["value"] for row in page["rows"]}


async def make_anew(shop: Shop, topic: str, records: int) -> None:
    """Delete a changelog and make it again, with so many other rows in each partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=shop.servers)
    await admin.start()
    config = {"cleanup.policy": "compact", "max.message.bytes": "4194304"}
    config["delete.retention.ms"] = "86400000"
    try:
        await admin.delete_topics([topic])

        async def is_gone() -> bool:
            return topic not in await admin.list_topics()

        await until(is_gone, 30, lambda: f"{topic} is still there")
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=config)])
    finally:
        await admin.close()
    for number in range(PARTITIONS):
        for n in range(records):
            row = {"status": "charged", "n": n}
            await shop.send(f"other-{number}-{n}", row, topic=topic, partition=number)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("records", [0, 40], ids=["shorter", "longer"])
def test_a_changelog_that_was_made_anew_is_what_counts(
    kafka: Broker, tmp_path: Path, records: int
) -> None:
    """Goal: a kept directory is not read beside a changelog that it was not made from.

    The longer one is the nasty one: no offset tells. The other tables come back from their
    own changelogs, so what was handled stays handled; the old rows are put aside.
    """
    asyncio.run(_made_anew(kafka, tmp_path, records))


async def _made_anew(broker: Broker, folder: Path, records: int) -> None:
    async with Shop(broker, folder) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        orders = [shop.key_in(number, "order") for number in range(PARTITIONS)]
        for order in orders:
            await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, PARTITIONS, 30, *orders)
        before = await rows(worker)
        assert before.keys() >= set(orders)
        assert await worker.stop() == 0
        await make_anew(shop, f"{shop.app_id}-payments-changelog", records)

        worker.start()
        await worker.is_ready()
        expected = {f"other-{p}-{n}" for p in range(PARTITIONS) for n in range(records)}
        assert (await rows(worker)).keys() == expected
        lines = [line for line in worker.text().splitlines() if "deleted and made anew" in line]
        assert len(lines) == PARTITIONS
        assert all("rebuilt from the changelogs" in line for line in lines)
        asides = list((worker.data_dir / shop.app_id).glob("partition-*.replaced-*"))
        assert len(asides) == PARTITIONS

        calls = len(shop.provider.control.calls())
        for order in orders:
            await shop.send(order, placed(order), f"{order}/1")
        fresh = [shop.key_in(number, "fresh") for number in range(PARTITIONS)]
        for order in fresh:
            await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, PARTITIONS, 30, *fresh)
        await until(shop.has_no_lag, 30, worker.tail)
        assert len(shop.provider.control.calls()) == calls + len(fresh)
        assert await worker.stop() == 0
        worker.start()
        await worker.is_ready()
        assert len(list((worker.data_dir / shop.app_id).glob("*.replaced-*"))) == PARTITIONS
        assert (await rows(worker)).keys() == expected | set(fresh)
        assert await worker.stop() == 0


def flip_all(path: Path) -> None:
    for file in path.glob("*.sst"):
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 3] ^= 0xFF
        file.write_bytes(raw)


def cut_manifest(path: Path) -> None:
    for file in path.glob("MANIFEST-*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("damage", [flip_all, cut_manifest])
def test_a_damaged_store_is_rebuilt_and_what_was_done_stays_done(
    embedded: Broker, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    asyncio.run(_damaged(embedded, tmp_path, damage))


async def _damaged(broker: Broker, folder: Path, damage: Callable[[Path], None]) -> None:
    async with Shop(broker, folder) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        orders = [shop.key_in(number, "order") for number in range(PARTITIONS)]
        for order in orders:
            await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, PARTITIONS, 30, *orders)
        await until(shop.has_no_lag, 30, worker.tail)
        before = await rows(worker)
        for _ in range(2):  # a killed worker leaves rows in the log, the next makes files of them
            worker.send(signal.SIGKILL)
            worker.kill()
            worker.start()
            await worker.is_ready()
        worker.kill()
        stores = sorted((worker.data_dir / shop.app_id).glob("partition-*"))
        assert len(stores) == PARTITIONS
        for store in stores:
            damage(store)

        worker.start()
        await worker.is_ready()
        assert await rows(worker) == before
        calls = len(shop.provider.control.calls())
        for order in orders:
            await shop.send(order, placed(order), f"{order}/1")
        fresh = shop.key_in(0, "fresh")
        await shop.send(fresh, placed(fresh), f"{fresh}/1")
        await tail.until(PAYMENTS, 1, 60, fresh)
        await until(shop.has_no_lag, 60, worker.tail)
        assert len(shop.provider.control.calls()) == calls + 1
        said = [line for line in worker.text().splitlines() if "look after the disk" in line]
        assert {store.name for store in stores if any(f"{store} " in line for line in said)} == {
            store.name for store in stores
        }
        assert await worker.stop() == 0


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({"format": 99}, "was written by a newer version of this app (format 99"),
        ({"cluster": "another-one"}, "state of another Kafka cluster: another-one instead of"),
        ({"app": "another"}, "another state: app another instead of"),
        ({"partitions": 4}, "another state: partitions 4 instead of 8"),
        (None, "its identity.json is missing"),
        (b"", "identity.json cannot be read"),
        (b"[]", "identity.json is not what this app writes"),
    ],
    ids=["newer", "cluster", "app", "partitions", "missing", "empty", "other"],
)
def test_a_directory_that_is_not_this_workers_is_refused_and_left_as_it_is(
    embedded: Broker, tmp_path: Path, identity: Mapping[str, Any] | bytes | None, said: str
) -> None:
    asyncio.run(_refused(embedded, tmp_path, identity, said))


async def _refused(
    broker: Broker, folder: Path, identity: Mapping[str, Any] | bytes | None, said: str
) -> None:
    async with Shop(broker, folder) as shop:
        worker = shop.worker()
        state = worker.data_dir / shop.app_id
        (state / "partition-0").mkdir(parents=True)
        (state / "partition-0" / "kept").write_text("rows")
        file = state / "identity.json"
        if isinstance(identity, bytes):
            file.write_bytes(identity)
        elif identity is not None:
            own = {"format": 1, "app": shop.app_id, "partitions": PARTITIONS}
            file.write_text(json.dumps({**own, **identity}))
        before = file.read_bytes() if file.exists() else None
        worker.start()
        assert await worker.ended(60) == 1
        (line,) = [each for each in worker.text().splitlines() if said in each]
        assert line.startswith("Error: ")
        assert "delete" in line
        assert "Traceback" not in worker.text()
        assert (state / "partition-0" / "kept").read_text() == "rows"
        assert (file.read_bytes() if file.exists() else None) == before
        shutil.rmtree(state)


@pytest.mark.kafka
def test_kafka_gives_a_topic_that_was_made_anew_another_id(
    kafka: Broker, unique_name: Callable[[str], str]
) -> None:
    asyncio.run(_ids(kafka, unique_name("topic")))


async def _ids(broker: Broker, topic: str) -> None:
    settings = load([], {"BOOKSTORE_BROKER_URL": broker.url}).broker
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.url.removeprefix("kafka://"))
    await admin.start()
    seen = []
    try:
        for _ in range(2):
            await admin.create_topics([NewTopic(topic, 2, 1)])

            async def is_there() -> bool:
                return topic in (await lineage([topic], settings)).topics

            await until(is_there, 30, lambda: f"{topic} is not there")
            seen += [await lineage([topic, "no-such-topic"], settings) for _ in range(2)]
            await admin.delete_topics([topic])

            async def is_gone() -> bool:
                return topic not in (await lineage([topic], settings)).topics

            await until(is_gone, 30, lambda: f"{topic} is still there")
    finally:
        await admin.close()
    assert {each.cluster for each in seen} == {seen[0].cluster}
    assert seen[0].cluster
    ids = [each.topics for each in seen]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert all(each.keys() == {topic} for each in ids)


def test_the_embedded_broker_gives_no_ids(
    embedded: Broker, unique_name: Callable[[str], str]
) -> None:
    """So a changelog made anew there is noticed only where it is shorter."""
    settings = load([], {"BOOKSTORE_BROKER_URL": embedded.url}).broker
    found = asyncio.run(lineage([unique_name("topic")], settings))
    assert found.topics == {}
