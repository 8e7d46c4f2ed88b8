"""One history: an imaginary cluster drawn from a seed, lived through, and looked at.

Phase one is whatever the seed says. In phase two nothing goes wrong any more, and everything
must drain. The checkers see each entry of the log as it comes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import orjson

from bookstore_streams.testing.memory import MemoryRecord, partition_of
from tests.simulation.backend import APP, Broker, Disk
from tests.simulation.checker import Judge, Violation
from tests.simulation.clock import Clock
from tests.simulation.group import Group
from tests.simulation.log import Fault, Fenced, Log, Quiet, Sent
from tests.simulation.loop import SimLoop, StuckError
from tests.simulation.plan import POISON, Plan, Shape, draw_shape
from tests.simulation.shop import FAILURES, STEPS, Shop, Step
from tests.simulation.worker import Worker

# A history that is not over by then never will be: steps of all processes, seconds of its own.
STEPS_MAX = 200_000
HISTORY_S_MAX = 600.0
DRAIN_S_MAX = 120.0
# What a message must still be stopped from doing once everything has drained.
QUIET_S = 0.05


class World:
    """Everything of one history."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        """Make it, not yet alive.

        Args:
            seed: of everything that is drawn.
            shape: given where it is not to be drawn.
        """
        self.random = random.Random(seed)
        self.shape = draw_shape(self.random) if shape is None else shape
        chance = random.Random(self.random.random()).random
        self.loop = SimLoop(lambda n: int(chance() * n))  # type: ignore[abstract]
        self.clock = Clock(self.loop)
        self._latency = random.Random(self.random.random()).random
        is_true = "clock" not in self.shape.kinds
        self.judge = Judge(self.shape.specs, self.shape.partitions, are_clocks_true=is_true)
        self.log = Log(self._look)
        self.commit_timeout_s = self.shape.commit_timeout_ms / 1000
        self.failure: BaseException | None = None
        self._names = 0
        self._disks: list[Disk] = []
        self._everyone: list[Worker] = []
        self._is_quiet = False

    def run(self) -> None:
        """Live through it.

        Raises:
            Violation: a checker found something.
        """
        try:
            self.loop.run(self._main(), steps_max=STEPS_MAX, until_s=HISTORY_S_MAX)
        except StuckError as error:
            raise Violation("drain", str(error)) from error
        unheard = self.loop.unheard_exceptions()
        if self.failure is not None:
            raise self.failure
        if unheard:
            raise Violation("unheard", f"{unheard[0]!r}") from unheard[0]
        self.judge.finish()

    async def _main(self) -> None:
        self.broker = Broker(partitions=self.shape.partitions, now_ms=self.clock.now_ms)
        self.shop = Shop(self, self.shape.specs)
        self.group = Group(self)
        self.plan = self._plan()
        self._drained = asyncio.Event()
        for _ in range(self.shape.workers):
            self.start_worker()
        await self._produce()
        self._is_sent = True
        self._look_whether_drained()
        await self._wait_drained(self.shape.phase_ms / 1000)
        self._calm()
        self._look_whether_drained()
        if not await self._wait_drained(DRAIN_S_MAX):
            raise Violation("drain", self.judge.what_is_left())
        await asyncio.sleep(QUIET_S)
        await self._stop()

    _is_sent = False

    def _plan(self) -> Plan:
        """What goes wrong when."""
        return Plan(self)

    async def _wait_drained(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            pass
        if self.failure is not None:
            raise self.failure
        return self._drained.is_set()

    def _look(self, entry: object) -> None:
        """Have the checkers look at an entry; what they find ends the history."""
        if self.failure is not None:
            return
        try:
            self.judge.look(entry)  # type: ignore[arg-type]
        except Violation as violation:
            self.fail(violation)
            return
        if type(entry).__name__ == "Landed":
            self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        if self._is_sent and self.judge.is_drained():
            self._drained.set()

    def fail(self, error: BaseException) -> None:
        """End the history: something is wrong."""
        if self.failure is None:
            self.failure = error
            self._drained.set()

    def note(self, what: str) -> None:
        """Tell the log of a fault."""
        self.log.add(Fault(self.clock.now_ms(), what))

    # -- what goes on ---------------------------------------------------------------------------

    async def _produce(self) -> None:
        draw, shape = self.random, self.shape
        sent: list[tuple[str, str, str]] = []
        keys = [f"k{n}" for n in range(shape.keys)]
        topics = shape.specs[0].topics
        for n in range(shape.messages):
            if self.failure is not None:
                return
            if sent and draw.random() < shape.copies + shape.replays:
                topic, key, message_id = draw.choice(sent)
                is_replay = draw.random() * (shape.copies + shape.replays) < shape.replays
                self.send(topic, key, message_id, "replay" if is_replay else "copy", n)
            elif sent and draw.random() < shape.twins:
                # A producer's mistake: an id that it gave to a message of another key.
                topic, key, message_id = draw.choice(sent)
                self.send(topic, draw.choice(self._beside(key, keys)), message_id, "copy", n)
            else:
                key, message_id = draw.choice(keys), f"m{n}"
                topic = draw.choice(topics)
                kind = draw.choice(POISON) if draw.random() < shape.poison else "message"
                if kind == "message":
                    sent.append((topic, key, message_id))
                    self._draw_scripts(message_id)
                self.send(topic, key, message_id, kind, n)
            gap_ms = draw.choice((0, shape.gap_ms, 3 * shape.gap_ms))
            await asyncio.sleep(gap_ms / 1000)

    def _beside(self, key: str, keys: list[str]) -> list[str]:
        """The keys in the same partition: between partitions nobody looks for copies."""
        number = partition_of(key.encode(), self.shape.partitions)
        return [k for k in keys if partition_of(k.encode(), self.shape.partitions) == number]

    def _draw_scripts(self, message_id: str) -> None:
        draw, shape = self.random, self.shape
        for spec in shape.specs:
            for scripts in (self.shop.scripts, self.shop.hook_scripts):
                if draw.random() < shape.failing * (1 if scripts is self.shop.scripts else 0.3):
                    count = draw.choice((1, 1, 2, 3, 6))
                    steps = [self._draw_step() for _ in range(count)]
                    # What fails often fails the same way again.
                    scripts[spec.name, message_id] = draw.choice((steps, steps[:1] * count))
            if draw.random() < shape.stuck:
                # While it waits the watermark stands, and all behind it is covered by the inbox.
                step = Step("slow", draw.choice((200, 2_000)))
                self.shop.scripts.setdefault((spec.name, message_id), []).insert(0, step)

    def _draw_step(self) -> Step:
        draw = self.random
        what = draw.choice(STEPS)
        if what == "transient":
            return Step(what, draw.choice((0, 0, 40, 700)))
        return Step(what, 0 if what in FAILURES else draw.choice((0, 1, 20, 200, 5_000)))

    def send(self, topic: str, key: str, message_id: str, kind: str, n: int) -> None:
        """Let a producer send one record, as message, copy, replay or something broken."""
        headers: list[tuple[str, bytes | None]] = [("message-id", message_id.encode())]
        document: dict[str, object] = {"type": "Test", "at": self.clock.now_ms()}
        raw_key: bytes | None = key.encode()
        value: bytes | None
        match kind:
            case "replay":
                headers.append(("replay-id", b"r%d" % n))
            case "unknown-type":
                document["type"] = "Other"
            case "broken":
                document["broken"] = True
            case "missing-id":
                headers.clear()
            case "missing-key":
                raw_key = None
        value = orjson.dumps(document)
        if kind == "tombstone":
            value = None
        elif kind == "undecodable":
            value = b"{"
        record: MemoryRecord = self.broker.produce(topic, raw_key, value, headers)
        if kind == "missing-id":
            message_id = f"{topic}-{record.partition}-{record.offset}"
        self.log.add(Sent(self.clock.now_ms(), record, message_id, kind, self.clock.now_ms()))
        self.tell_news()

    def tell_news(self) -> None:
        """There may be something to fetch."""
        for worker in self._everyone:
            if not worker.process.is_dead:
                worker.news.set()

    def latency_s(self) -> float:
        """How long the next answer takes, in seconds."""
        if self._latency() >= self.shape.latency:
            return 0.0
        return self._latency() * self.shape.latency_ms / 1000

    def draw_delay_s(self) -> float:
        """How much later than others somebody hears of something, in seconds."""
        return 0.0 if self._latency() < 0.6 else self._latency() * 0.1

    def later(self, delay_s: float, what: Callable[[], object]) -> None:
        """Do something of the world's own later."""
        self.loop.call_later(delay_s, what, context=self.loop.world.context.copy())

    # -- workers --------------------------------------------------------------------------------

    def living(self) -> list[Worker]:
        """Workers whose process is there."""
        return [worker for worker in self._everyone if not worker.process.is_dead]

    def counted(self) -> set[str]:
        """What the workers' engines counted, whatever the consumer: that it came at all."""
        return {
            name.partition(":")[2] or name
            for worker in self._everyone
            for name, count in worker.engine.counters.items()
            if count
        }

    def start_worker(self) -> None:
        """Start one more, on a disk that nobody has, if there are not too many."""
        used = {id(worker.disk) for worker in self.living()}
        free = [disk for disk in self._disks if id(disk) not in used]
        if not free:
            free = [Disk()]
            self._disks += free
        self._names += 1
        worker = Worker(self, f"w{self._names}", free[0])
        self._everyone.append(worker)

    def kill(self, worker: Worker, disk: str) -> None:
        """End a worker as kill -9 does; its disk is kept, lost or older than it was."""
        self.end(worker)
        if disk == "lost":
            worker.disk.wipe()
        elif disk == "older":
            worker.disk.put_back()

    def end(self, worker: Worker) -> None:
        """A process is no more."""
        if not worker.process.is_dead:
            self.loop.unheard_exceptions()
            self.loop.kill(worker.process)
            worker.disk.unlock()
            self.group.died(worker)

    def freeze(self, worker: Worker, seconds: float) -> None:
        """Stop a worker for a while, as SIGSTOP or a disk that hangs does."""
        worker.process.is_frozen = True
        self.group.lose(worker)
        self.later(seconds, lambda: self.wake(worker))

    def wake(self, worker: Worker) -> None:
        """Let a frozen worker go on."""
        if worker.process.is_frozen:
            worker.process.is_frozen = False
            self.group.hear(worker)

    def cut(self, worker: Worker, seconds: float) -> None:
        """Let a worker reach neither broker nor group for a while."""
        worker.cut_until_s = self.loop.now_s + seconds
        self.group.lose(worker)
        self.later(seconds, lambda: self.group.hear(worker))

    def abort(self, number: int) -> None:
        """Let the broker give up whatever transaction a partition has open."""
        epoch = self.broker.fence(f"{APP}-{number}")
        self.log.add(Fenced(self.clock.now_ms(), "", number, epoch))

    def leave(self, worker: Worker) -> None:
        """Let a worker end politely."""
        if worker.is_member and not worker.process.is_frozen:
            self.loop.spawn(worker.process, self.group.leave(worker))

    def _calm(self) -> None:
        """End phase one: everybody is well, and at least one worker is there."""
        self._is_quiet = True
        self.plan.stop()
        self.shop.down_until_s = 0.0
        self.shape.redelivery = self.shape.loss = self.shape.latency = 0.0
        for worker in self.living():
            worker.errors.clear()
            worker.late_s = None
            worker.clock.shift_ms = 0
            worker.cut_until_s = 0.0
            self.wake(worker)
            self.group.hear(worker)
        self.log.add(Quiet(self.clock.now_ms()))
        if not self.living():
            self.start_worker()

    async def _stop(self) -> None:
        """Let everybody end politely."""
        self.group.is_over = True
        leaving = [
            self.loop.spawn(worker.process, self.group.leave(worker)) for worker in self.living()
        ]
        for task in leaving:
            await asyncio.wait([task], timeout=10)
