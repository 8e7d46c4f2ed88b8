"""Changelog topics of the contestants that do not see to them well enough themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.engine.contest import Contest

# A new topic is known everywhere within milliseconds; a busy machine makes it seconds.
READY_S_MAX = 30.0


def changelog(contest: Contest, table: str) -> str:
    """Name of the table's changelog topic."""
    return f"{contest.group}-{table}-changelog"


async def create_changelogs(contest: Contest, tables: Sequence[str]) -> None:
    """Create them, compacted, and return once every partition has a leader."""
    names = [changelog(contest, table) for table in tables]
    config = {"cleanup.policy": "compact"}
    admin = AIOKafkaAdminClient(bootstrap_servers=contest.servers)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(name, contest.partitions, 1, topic_configs=config) for name in names]
        )
        async with asyncio.timeout(READY_S_MAX):
            found = await admin.describe_topics(names)
            while not _are_ready(found, contest.partitions):
                await asyncio.sleep(0.05)
                found = await admin.describe_topics(names)
    finally:
        await admin.close()


def _are_ready(found: Sequence[dict], partitions: int) -> bool:  # type: ignore[type-arg]
    return all(
        topic["error_code"] == 0
        and len(topic["partitions"]) == partitions
        and all(partition["error_code"] == 0 for partition in topic["partitions"])
        for topic in found
    )
