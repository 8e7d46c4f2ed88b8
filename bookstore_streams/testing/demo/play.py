"""The play: sends the story's messages, shows what comes of them, and has it judged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaProducer

from bookstore_streams.core.envelope import MESSAGE_ID

from .check import Finding, findings
from .pointers import exported, while_it_runs
from .stage import Stage
from .story import ORDERS, Order, introduction, orders
from .timeline import Timeline
from .view import View
from .watch import Watch, close, now_ms

_TICK_S: Final = 0.05
# The story is over when all of it has come true. Where it does not, these end the waiting:
# nothing happens and nothing waits, or, on a machine that is far too slow, this long after the
# last message.
_QUIET_MS_MAX: Final = 10_000
_OVERTIME_MS_MAX: Final = 60_000
_COMMIT_S_MAX: Final = 10.0


async def play(stage: Stage, view: View, *, keep: bool) -> bool:
    """Play the story; True when everything became of it that must.

    Without `keep` the worker has left in the end. With it, this returns when it is cancelled.

    Raises:
        StageError: a process ended in the middle.
    """
    suffix = "" if stage.is_own_broker else f"-{uuid.uuid4().hex[:4]}"
    story = orders(stage.settings.topics.partitions, suffix)
    stage.provider.script_all(
        [
            {
                "order_id": order.id,
                "operation": "charge",
                "steps": order.steps,
                "forever": order.forever,
            }
            for order in story
            if order.steps
        ]
    )
    timeline = Timeline(
        now_ms(),
        stage.settings.consumers["billing"].attempts_max,
        order_columns=max(len(order.id) for order in story),
    )
    watch = Watch(stage, timeline)
    producer = AIOKafkaProducer(bootstrap_servers=stage.servers, acks="all")
    async with watch.looking():
        await producer.start()
        try:
            view.explain(introduction(story, stage.settings.topics.partitions))
            view.say()
            timeline.start_ms = now_ms()
            view.begin(timeline)
            sending = asyncio.create_task(_send(story, producer, timeline))
            is_alone = stage.is_own_broker
            await _until_over(story, sending, watch, timeline, view, is_alone=is_alone)
            found = await _ending(story, stage, watch, keep=keep)
            view.show(timeline.until(None), watch.seen.parked, now_ms())
            view.end()
            return await _told(found, stage, watch, timeline, view, keep=keep)
        finally:
            view.end()
            await close(producer)


async def _send(story: Sequence[Order], producer: AIOKafkaProducer, timeline: Timeline) -> None:
    """Send each message at its time."""
    sent = sorted(
        ((message, order) for order in story for message in order.messages),
        key=lambda each: each[0].after_ms,
    )
    for message, order in sent:
        await asyncio.sleep((timeline.start_ms + message.after_ms - now_ms()) / 1_000)
        if message is order.messages[0]:
            timeline.order_begins(order, now_ms())
        await producer.send_and_wait(
            ORDERS,
            key=order.id.encode(),
            value=order.value(message, now_ms()),
            headers=[(MESSAGE_ID, message.id.encode())],
        )


async def _until_over(
    story: Sequence[Order],
    sending: asyncio.Task[None],
    watch: Watch,
    timeline: Timeline,
    view: View,
    *,
    is_alone: bool,
) -> None:
    """Show what happens until all of it has, or nothing more will."""
    last_ms = max(message.after_ms for order in story for message in order.messages)
    end_ms = timeline.start_ms + last_ms + _OVERTIME_MS_MAX
    try:
        while True:
            now = _show(watch, timeline, view)
            if sending.done():
                sending.result()
                if all(
                    finding.is_kept for finding in findings(story, watch.seen, is_alone=is_alone)
                ):
                    return
                is_quiet = now - watch.changed_ms > _QUIET_MS_MAX and not watch.seen.parked
                if is_quiet or now > end_ms:
                    return
            await asyncio.sleep(_TICK_S)
    finally:
        sending.cancel()


def _show(watch: Watch, timeline: Timeline, view: View) -> int:
    watch.check()
    now = now_ms()
    view.show(timeline.until(now), watch.seen.parked, now)
    return now


async def _ending(
    story: Sequence[Order], stage: Stage, watch: Watch, *, keep: bool
) -> list[Finding]:
    """Let the worker finish, and leave where it shall; then look at everything once more."""
    began = time.monotonic()
    while lag := await watch.lag():
        watch.check()
        if time.monotonic() - began > _COMMIT_S_MAX:
            break
        await asyncio.sleep(_TICK_S)
    not_committed = (f"{lag} messages are not, after {_COMMIT_S_MAX:.0f} s",) if lag else ()
    last = [
        Finding("every message of bookstore.orders is committed: nothing is lost", not_committed)
    ]
    if not keep:
        watch.leave_worker()
        began = time.monotonic()
        status = await asyncio.to_thread(stage.worker.stop)
        took_s = time.monotonic() - began
        wrong = (f"exit status {status} after {took_s:.1f} s",)
        limit_s = stage.settings.shutdown.ms / 1_000
        is_fine = status == 0 and took_s <= limit_s
        last.append(
            Finding(
                f"the worker left within {limit_s:.0f} s when it was asked to",
                () if is_fine else wrong,
            )
        )
    await watch.to_end()
    await watch.ask_provider()
    return [*findings(story, watch.seen, is_alone=stage.is_own_broker), *last]


async def _told(
    found: Sequence[Finding],
    stage: Stage,
    watch: Watch,
    timeline: Timeline,
    view: View,
    *,
    keep: bool,
) -> bool:
    """Show the judgement; with `keep` also where everything is, and then what goes on."""
    view.say()
    view.say("Compared with what must come of it:")
    for finding in found:
        view.finding(finding)
    differing = sum(not finding.is_kept for finding in found)
    view.say()
    view.say(
        f"{differing} of {len(found)} promises were not kept."
        if differing
        else f"All {len(found)} promises were kept."
    )
    view.tell("verdict", passed=not differing, kept=len(found) - differing, broken=differing)
    if keep:
        view.say()
        for line in while_it_runs(stage):
            view.say(line)
        view.say()
        view.tell(
            "running", env=exported(stage), web_url=stage.web_url, payment_url=stage.provider.url
        )
        await _go_on(watch, timeline, view)
    return not differing


async def _go_on(watch: Watch, timeline: Timeline, view: View) -> None:
    """Show what happens until this is cancelled, which is how it ends."""
    view.begin(timeline)
    try:
        while True:
            _show(watch, timeline, view)
            await asyncio.sleep(_TICK_S)
    except asyncio.CancelledError:
        return
