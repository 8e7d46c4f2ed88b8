"""The stage: broker, payment provider and worker, as the separate processes they are.

Owns their start, the wait until each is ready, and their end, whatever happens in between.
Refuses to touch a process or a topic that it did not make.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from bookstore_streams.settings import Settings, read
from bookstore_streams.testing.brokers import BROKERS, HOST, Broker, free_port
from bookstore_streams.testing.provider import ProviderControl

from .story import ORDERS

# All of them are bounds for a machine that does ten other things; on an idle one the provider
# takes a second and the worker four.
_PROVIDER_S_MAX: Final = 60.0
_WORKER_S_MAX: Final = 120.0
_BROKER_ANSWER_S_MAX: Final = 30.0
# The worker's own limit is 10 s (`shutdown.ms`).
_STOP_S_MAX: Final = 15.0
_POLL_S: Final = 0.05
_LOG_TAIL_LINES: Final = 20

# A proxy from the environment would not find a server on this machine.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StageError(RuntimeError):
    """A process of the demo did not start, or ended; the message says which and why."""


class Child:
    """A process of ours: started, asked to leave and, where it does not, killed; by pid only.

    It gets a session of its own, so that Ctrl-C reaches the demo alone, which then ends its
    children in order.

    Attributes:
        name: for messages.
        log: file of all that it prints.
    """

    def __init__(self, name: str, log: Path, command: list[str], env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Return while it runs.

        Raises:
            StageError: it has ended; with the end of its log.
        """
        status = self._process.poll()
        if status is not None:
            raise self.failed(f"ended with status {status}")

    def failed(self, why: str) -> StageError:
        """The error that tells why this process is of no use, with the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        told = "\n".join(f"  {line}" for line in lines) or "  (it printed nothing)"
        return StageError(f"The {self.name} {why}. The end of its log, {self.log}:\n{told}")

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if it is still there 15 s later; its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs, and how to reach it.

    Attributes:
        folder: of all data and logs.
        env: the settings of the worker that are not those of the profile.
        settings: of the worker, complete.
        web_url: of the worker.
        spare_port: for another one's web server.
        provider: the payment provider's remote control.
        worker: its process.
        check: returns while everything that the demo started runs; else raises a StageError.
        is_own_broker: whether the demo started the broker, and nobody else is on it.
    """

    folder: Path
    env: Mapping[str, str]
    settings: Settings
    web_url: str
    spare_port: int
    provider: ProviderControl
    worker: Child
    check: Callable[[], None]
    is_own_broker: bool

    @property
    def servers(self) -> str:
        """Kafka's bootstrap servers as its clients want them."""
        return ",".join(self.settings.broker.servers)


@dataclass(frozen=True, slots=True)
class Telling:
    """How the stage says what it does.

    Attributes:
        step: told once about each thing that is up: (name, text).
        waiting: told again and again what is waited for.
    """

    step: Callable[[str, str], None]
    waiting: Callable[[str], None]


@contextmanager
def stage(root: Path, folder: Path, broker: str, telling: Telling) -> Iterator[Stage]:
    """Start everything, and end all of it with the block, also when the block or a start fails.

    Args:
        root: with `config`, `agents` and `tables`.
        folder: an empty one for data and logs.
        broker: `embedded` or `kafka` to start one, or the URL of one that runs.
        telling: to whom it may concern.

    Raises:
        StageError: something did not start.
        BrokerUnavailableError: the broker did not.
    """
    with ExitStack() as stack:
        is_own_broker = broker in BROKERS
        checks: list[Callable[[], None]] = []
        env = {
            "BOOKSTORE_PROFILE": "demo",
            "BOOKSTORE_APP_ROOT": str(root),
            "BOOKSTORE_DATA_DIR": str(folder / "worker"),
            "BOOKSTORE_WEB_PORT": str(free_port()),
        }
        if is_own_broker:
            own_broker = _start_broker(stack, broker, folder, telling)
            checks.append(partial(_check_broker, own_broker))
            env["BOOKSTORE_BROKER_URL"] = own_broker.url
        else:
            env |= _join_broker(stack, {**env, "BOOKSTORE_BROKER_URL": broker}, telling)
        provider, env["BOOKSTORE_PAYMENT_URL"] = _start_provider(stack, root, folder, telling)
        settings = read(env)
        web_url = f"http://{HOST}:{settings.web.port}"
        worker = _start_worker(stack, root, folder, env, web_url, telling)
        checks += (provider.check, worker.check)

        def check() -> None:
            for each in checks:
                each()

        yield Stage(
            folder,
            env,
            settings,
            web_url,
            free_port(),
            ProviderControl(env["BOOKSTORE_PAYMENT_URL"]),
            worker,
            check,
            is_own_broker,
        )


def _heed_no_signal() -> None:
    """Runs before each stop: a second Ctrl-C must leave nobody behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _start_broker(stack: ExitStack, kind: str, folder: Path, telling: Telling) -> Broker:
    broker = BROKERS[kind](folder / "broker")
    stack.callback(broker.stop)
    stack.callback(_heed_no_signal)
    telling.waiting(f"starting the {kind} broker")
    began = time.monotonic()
    broker.start()
    telling.step("broker", f"{broker.url}, {kind} (pid {broker.pid}){_after(began)}")
    return broker


def _check_broker(broker: Broker) -> None:
    if broker.pid is None:
        told = "\n".join(f"  {line}" for line in broker.log_tail().splitlines())
        raise StageError(f"The broker ended. The end of its log, {broker.log_path}:\n{told}")


def _start_provider(
    stack: ExitStack, root: Path, folder: Path, telling: Telling
) -> tuple[Child, str]:
    began = time.monotonic()
    command = [sys.executable, "-m", "bookstore_streams.testing.provider", "--port", "0"]
    command += ["--ledger", str(folder / "ledger.jsonl")]
    child = Child("payment provider", folder / "provider.log", command, _environment(root, {}))
    stack.callback(child.stop)
    stack.callback(_heed_no_signal)
    telling.waiting("starting the payment provider")
    said = ""
    while not said.endswith("\n"):
        child.check()
        if time.monotonic() - began > _PROVIDER_S_MAX:
            raise child.failed(f"did not listen within {_PROVIDER_S_MAX:.0f} s")
        time.sleep(_POLL_S)
        said = child.log.read_text(errors="replace")
    url = said.split()[-1]
    telling.step("provider", f"{url} (pid {child.pid}){_after(began)}")
    return child, url


def _start_worker(
    stack: ExitStack,
    root: Path,
    folder: Path,
    env: Mapping[str, str],
    web_url: str,
    telling: Telling,
) -> Child:
    began = time.monotonic()
    command = [sys.executable, "-m", "faust", "-A", "bookstore_streams", "worker"]
    child = Child("worker", folder / "worker.log", command, _environment(root, env))
    stack.callback(child.stop)
    stack.callback(_heed_no_signal)
    telling.waiting("starting faust -A bookstore_streams worker")
    while True:
        reason = _why_not_ready(web_url)
        if reason is None:
            break
        child.check()
        if time.monotonic() - began > _WORKER_S_MAX:
            raise child.failed(f"was not ready within {_WORKER_S_MAX:.0f} s ({reason})")
        telling.waiting(f"starting faust -A bookstore_streams worker: {reason}")
        time.sleep(_POLL_S)
    telling.step("worker", f"{web_url} (pid {child.pid}){_after(began)}")
    return child


def _why_not_ready(web_url: str) -> str | None:
    """What the worker says it waits for; None once it is ready."""
    try:
        with _OPENER.open(f"{web_url}/health/ready", timeout=5):
            return None
    except urllib.error.HTTPError as error:
        with error:
            try:
                document: dict[str, Any] = json.load(error)
            except ValueError:
                return f"HTTP {error.code}"
        return str(document.get("reason"))
    except OSError:
        return "it imports and connects"


def _environment(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Ours without any setting, this very package first, and then the settings given."""
    ours = {name: v for name, v in os.environ.items() if not name.startswith("BOOKSTORE_")}
    here = str(Path(__file__).resolve().parents[3])
    found = [here, os.environ.get("PYTHONPATH", "")]
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    return {**ours, "PYTHONUNBUFFERED": "1", **env}


def _after(began: float) -> str:
    return f", ready after {time.monotonic() - began:.1f} s"


# --- A broker that others use, too ------------------------------------------------------


def _join_broker(stack: ExitStack, env: Mapping[str, str], telling: Telling) -> dict[str, str]:
    """Settings of an app of our own, which reads only what comes from now on."""
    url = env["BOOKSTORE_BROKER_URL"]
    telling.waiting(f"looking at {url}")
    servers = ",".join(read(env).broker.servers)
    app_id = f"bookstore-demo-{uuid.uuid4().hex[:8]}"
    stack.callback(_leave, servers, app_id)
    try:
        partitions = asyncio.run(asyncio.wait_for(_pass_by(servers, app_id), _BROKER_ANSWER_S_MAX))
    except (KafkaError, OSError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise StageError(f"No Kafka broker answers at {url} ({why}).") from error
    telling.step("broker", f"{url}, as it runs; the demo is app {app_id} there")
    own = {"BOOKSTORE_BROKER_URL": url, "BOOKSTORE_APP_ID": app_id}
    return own | ({"BOOKSTORE_TOPICS_PARTITIONS": str(partitions)} if partitions else {})


async def _pass_by(servers: str, group: str) -> int:
    """Commit for the group that it has read all orders there are; the number of partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        if ORDERS not in await admin.list_topics():
            return 0
        (topic,) = await admin.describe_topics([ORDERS])
        tps = [TopicPartition(ORDERS, each["partition"]) for each in topic["partitions"]]
    finally:
        await admin.close()
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        await consumer.commit({tp: OffsetAndMetadata(ends[tp], "") for tp in tps})
    finally:
        await consumer.stop()
    return len(tps)


def _leave(servers: str, app_id: str) -> None:
    """Delete the changelogs of our app; a broker that is gone by now keeps them."""
    with suppress(KafkaError, OSError, TimeoutError):
        asyncio.run(asyncio.wait_for(_delete_changelogs(servers, app_id), _BROKER_ANSWER_S_MAX))


async def _delete_changelogs(servers: str, app_id: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        mine = [name for name in await admin.list_topics() if name.startswith(f"{app_id}-")]
        if mine:
            await admin.delete_topics(mine)
    finally:
        await admin.close()
