"""Signs off the worker that ran on this data directory before and was killed.

The group would count it as alive until its session ends. A worker that starts again sooner joins
beside it, and the whole group waits: nobody works until the dead one is counted out. But who
has the lock of the directory knows that its last owner has ended, whatever the group believes,
and what it was called there. Only where one kernel keeps that lock: a directory that came from
another machine, or through a restart of this one, proves nothing in time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import for_code
from aiokafka.protocol.group import LeaveGroupRequest

from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options
from .lookup import stopped

log = logging.getLogger(__name__)

FILE = "member.json"
# Changes whenever the machine starts; the same in all its containers.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The group counts it out by itself, only later: not worth a long wait.
SIGN_OFF_S_MAX = 5.0
_UNKNOWN_MEMBER = 25


def remember(directory: Path, member_id: str) -> None:
    """Note what the group calls this worker.

    Args:
        directory: locked by this worker.
        member_id: of the group.
    """
    path = directory / FILE
    draft = path.with_suffix(".new")
    try:
        draft.write_text(json.dumps({"member": member_id, "boot": _boot()}))
        draft.replace(path)
    except OSError as error:
        log.warning("%s cannot be written (%s): a kill costs a session.", path, error.strerror)


async def sign_off(directory: Path, group: str, broker: BrokerSettings) -> None:
    """Let the last worker of this directory leave the group, if it did not do so itself.

    Whatever fails is only logged: the group counts the worker out when its session ends.

    Args:
        directory: locked by this worker, so that the last one has ended.
        group: of the app.
        broker: where.
    """
    path = directory / FILE
    try:
        noted = json.loads(path.read_text())
        path.unlink()
        member_id, boot = str(noted["member"]), noted["boot"]
    except (OSError, ValueError, TypeError, KeyError):
        return
    if boot is None or boot != _boot():
        return
    client = AIOKafkaClient(**client_options(broker))
    try:
        async with asyncio.timeout(SIGN_OFF_S_MAX):
            await client.bootstrap()
            coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
            await client.ready(coordinator)
            answer = await client.send(coordinator, LeaveGroupRequest(group, member_id))
        if not answer.error_code:
            log.warning("The last worker on %s was killed: it has left the group now.", directory)
        elif answer.error_code != _UNKNOWN_MEMBER:
            raise for_code(answer.error_code)(member_id)
    except Exception as error:
        log.warning("The last worker on %s could not be signed off: %r", directory, error)
    finally:
        await stopped(client.close())


def _boot() -> str | None:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None
