"""Kafka brokers for tests and demos: started, stopped, killed and paused as real processes.

Owns two brokers that need no container engine: a single-node Apache Kafka and the small
embedded one. Refuses to listen anywhere but
on 127.0.0.1 and to touch a process that it did not start: a process is known by its pid
together with its start time, which the broker's data folder keeps.

A broker outlives the program that started it until it is stopped, so each runs in a session
of its own and Ctrl-C on a test run does not take the broker from under it.

Source: the set-up of both was tried with Java 17, Maven 3.8, Apache Kafka 4.4.0 and
noida-db 0.2.3; request layouts are those of the Kafka protocol guide.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from bookstore_streams.errors import BookstoreError

HOST = "127.0.0.1"
KAFKA_VERSION = "4.4.0"
JAVA_VERSION_MIN = 17

_LOG_TAIL_LINES = 25
_POLL_S = 0.05
# A broker that is up answers in milliseconds; a paused one accepts and never answers.
_ANSWER_S_MAX = 2.0
# Kafka hands over its leaderships first: 1 to 3 s on two cores, more while they are busy.
_STOP_S_MAX = 30.0
_PORT_MIN = 10_240
_PORT_TRIES_MAX = 100

_INSTALL_HINT = (
    "install them with `apt-get install default-jre-headless maven` (Debian, Ubuntu) or "
    "`brew install openjdk maven` (macOS), or use the embedded broker"
)

# slf4j-simple: without a binding Kafka logs nothing, not even why it does not start.
_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>bookstore-streams</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

# Topics are made by whoever owns them, with the partitions they need: a broker that invents
# them hides that mistake. The rest lets one node do what three do elsewhere, and start fast.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners={listeners},CONTROLLER://{host}:{controller_port}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map={protocols},CONTROLLER:PLAINTEXT
log.dirs={log_dirs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
group.initial.rebalance.delay.ms=0
"""


class BrokerUnavailableError(BookstoreError):
    """A broker cannot be started here; the message says what is missing or what it logged."""


class Broker:
    """One broker process on 127.0.0.1 that keeps its port and its data over restarts.

    As a context manager it starts on entry and stops on exit. Not safe for use from several
    threads at once.

    Attributes:
        data_dir: everything the broker keeps, its log file included; made when missing.
        port: the port that clients use; chosen at the first start when None was given.
    """

    kind: ClassVar[str]
    start_s_max: ClassVar[float]

    def __init__(self, data_dir: Path, port: int | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        known = self._read_state()
        self.port = port
        if known is not None and (port is None or self.pid is not None):
            self.port = int(known["port"])

    @property
    def url(self) -> str:
        """Where clients find it, as ``kafka://127.0.0.1:PORT``."""
        if self.port is None:
            raise BrokerUnavailableError(f"the {self.kind} broker was never started")
        return f"kafka://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running broker, whoever started it on this folder; else None."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        known = self._read_state()
        if known and _birth(int(known["pid"])) == known["birth"]:
            return int(known["pid"])
        return None

    @property
    def log_path(self) -> Path:
        """File with everything that the broker printed, over all its starts."""
        return self.data_dir / f"{self.kind}.log"

    def start(self) -> None:
        """Return once the broker answers requests; does nothing where it runs already.

        Raises:
            BrokerUnavailableError: something is missing on this machine, the port is taken,
                or the broker ended or stayed silent; then with the end of its log.
        """
        if self.pid is not None:
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if self.port is None:
            self.port = free_port()
        elif _is_taken(self.port):
            raise BrokerUnavailableError(f"port {self.port} on {HOST} is taken: choose another")
        command = self._command(self.port)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.data_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pid = self._process.pid
        self._state_path.write_text(
            json.dumps({"pid": pid, "birth": _birth(pid), "port": self.port})
        )
        self._wait_until_it_answers(self._process, self.port)

    def stop(self) -> None:
        """Let it shut down in order; a broker that takes over 30 s is killed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut would; its data stays as it is."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it in order and start it again on the same data and port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused broker go on (SIGCONT); harmless where it is not paused."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def log_tail(self) -> str:
        """The last lines that the broker printed, empty where it never ran."""
        if not self.log_path.exists():
            return ""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _command(self, port: int) -> list[str]:
        """Prepare the data folder and return the command line to run in it."""
        raise NotImplementedError

    @property
    def _state_path(self) -> Path:
        return self.data_dir / f"{self.kind}.json"

    def _read_state(self) -> dict[str, str | int] | None:
        try:
            state: dict[str, str | int] = json.loads(self._state_path.read_text())
        except FileNotFoundError:
            return None
        return state

    def _signal(self, signum: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            raise BrokerUnavailableError(f"no {self.kind} broker runs on {self.data_dir}")
        os.kill(pid, signum)

    def _end(self, signum: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            birth = _birth(pid)
            deadline = time.monotonic() + _STOP_S_MAX
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
                os.kill(pid, signal.SIGCONT)  # a paused process takes SIGTERM only once it goes on
                while _birth(pid) == birth:
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(_POLL_S)
        if self._process is not None:
            self._process.wait()
            self._process = None
        self._state_path.unlink(missing_ok=True)

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + self.start_s_max
        while not answers(port):
            if process.poll() is not None:
                why = f"ended with status {process.returncode}"
            elif time.monotonic() > deadline:
                why = f"did not answer within {self.start_s_max:.0f} s"
            else:
                time.sleep(_POLL_S)
                continue
            self.kill()
            raise BrokerUnavailableError(
                f"the {self.kind} broker {why}; the end of {self.log_path}:\n{self.log_tail()}"
            )


class KafkaBroker(Broker):
    """Apache Kafka 4.4.0, one KRaft node; the broker on which guarantees are shown.

    Needs Java 17 or newer, and Maven for the first start only: it fetches Kafka's jars
    (45 MB) into the user's cache folder.
    """

    kind = "kafka"
    # 4 to 7 s on two idle cores, 13 s after a kill; CI runs it beside other work.
    start_s_max = 180.0

    def __init__(
        self, data_dir: Path, port: int | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make the broker; it is not started yet.

        Args:
            data_dir: everything it keeps.
            port: that clients use; None to have one chosen.
            properties: of `server.properties`, on top of what one node for tests needs.
        """
        super().__init__(data_dir, port)
        self._properties = dict(properties or {})
        self._doors: dict[int, int] = {}

    def add_door(self, advertised_port: int) -> int:
        """One more port to listen on, whose clients are told to come to `advertised_port`.

        So a proxy that listens there stays between the broker and whoever came through it.
        Takes effect at the next start.
        """
        port = free_port()
        self._doors[port] = advertised_port
        return port

    def _command(self, port: int) -> list[str]:
        java = _find_java()
        jars = f"{_fetch_kafka_jars()}/*"
        properties = self.data_dir / "server.properties"
        doors = [("PLAINTEXT", port, port)]
        doors += [(f"DOOR{listens}", listens, shown) for listens, shown in self._doors.items()]
        properties.write_text(
            _PROPERTIES.format(
                host=HOST,
                listeners=",".join(f"{name}://{HOST}:{listens}" for name, listens, _ in doors),
                advertised=",".join(f"{name}://{HOST}:{shown}" for name, _, shown in doors),
                protocols=",".join(f"{name}:PLAINTEXT" for name, _, _ in doors),
                controller_port=free_port(),
                log_dirs=self.data_dir / "kafka",
            )
            + "".join(f"{name}={value}\n" for name, value in self._properties.items())
        )
        if not (self.data_dir / "kafka" / "meta.properties").exists():
            format_storage = ["kafka.tools.StorageTool", "format", f"--cluster-id={_cluster_id()}"]
            _run([java, "-cp", jars, *format_storage, "-c", str(properties)], "format its storage")
        log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [java, "-Xmx512m", log_level, "-cp", jars, "kafka.Kafka", str(properties)]


class EmbeddedBroker(Broker):
    """The noida-db binary: speaks Kafka's protocol, starts at once, needs nothing but pip.

    For demos and quick tests, not for production: what it acknowledged in the last second
    before a SIGKILL of its own is lost, and a topic that anybody asks about is made with one
    partition. Tests that kill the broker, or are about missing topics, belong on Kafka.
    """

    kind = "embedded"
    start_s_max = 20.0

    def _command(self, port: int) -> list[str]:
        spec = importlib.util.find_spec("noida_db")
        if spec is None or spec.origin is None:
            raise BrokerUnavailableError(
                "the embedded broker is not installed: pip install 'bookstore-streams[embedded]'"
            )
        # Not the console script: that one is a Python parent, and killing it kills no broker.
        binary = Path(spec.origin).with_name("noida-db")
        binary.chmod(0o755)
        where = ["--host", HOST, "--kafka-port", str(port), "--data-dir", str(self.data_dir / "db")]
        return [str(binary), "start", "--only", "kafka", *where]


BROKERS: dict[str, type[Broker]] = {cls.kind: cls for cls in (EmbeddedBroker, KafkaBroker)}


def answers(port: int) -> bool:
    """Whether a broker on this loopback port answers ApiVersions and names itself in Metadata."""
    api_versions, metadata = 18, 3
    no_topics = struct.pack(">i?", 0, False)
    try:
        _request(port, api_versions, 0, b"")
        reply = _request(port, metadata, 4, no_topics)
    except (OSError, EOFError):
        return False
    _correlation_id, _throttle_ms, brokers = struct.unpack_from(">iii", reply)
    return bool(brokers > 0)


def _request(port: int, api: int, version: int, body: bytes) -> bytes:
    client_id = b"bookstore-brokers"
    head = struct.pack(">hhih", api, version, 1, len(client_id)) + client_id
    with socket.create_connection((HOST, port), _ANSWER_S_MAX) as connection:
        connection.sendall(struct.pack(">i", len(head + body)) + head + body)
        with connection.makefile("rb") as stream:
            head = stream.read(4)
            size = struct.unpack(">i", head)[0] if len(head) == 4 else 0
            reply = stream.read(size)
    if not reply or len(reply) < size:
        raise EOFError
    return reply


def _birth(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None once it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        # No /proc on macOS; ps knows the start time to the second.
        shown = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True
        )
        state, _, birth = shown.stdout.strip().partition(" ")
        return None if state.startswith("Z") else birth.strip() or None
    except ProcessLookupError:
        return None
    state, birth = after_name[0], after_name[19]
    return None if state == "Z" else birth


def free_port() -> int:
    """A port that nobody listens on and that no outgoing connection is given.

    A server that is restarted finds a port of the system's own choice taken now and then: by
    a client that was given it meanwhile, or by one that tried to reach the server and was
    connected to itself.
    """
    source = random.SystemRandom()
    for _ in range(_PORT_TRIES_MAX):
        port = source.randrange(_PORT_MIN, _ephemeral_port_min())
        if not _is_taken(port):
            return port
    raise BrokerUnavailableError(f"no free port found on {HOST} in {_PORT_TRIES_MAX} tries")


def _ephemeral_port_min() -> int:
    """The first port that the system gives to outgoing connections."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return 32_768
    return first if first > 2 * _PORT_MIN else 65_536


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers from the last run does not make it taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise BrokerUnavailableError(
            f"Kafka needs Java and Maven, and there is no `java`: {_INSTALL_HINT}"
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True)
    found = re.search(r'version "(\d+)', shown.stderr)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        first_line = (shown.stderr.splitlines() or ["it prints no version"])[0]
        raise BrokerUnavailableError(
            f"Kafka {KAFKA_VERSION} needs Java {JAVA_VERSION_MIN} or newer, and {java} is not: "
            f"{first_line}; {_INSTALL_HINT}"
        )
    return java


def _fetch_kafka_jars() -> Path:
    """Return the folder of Kafka's jars; the first call on a machine fetches them with Maven."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bookstore-streams"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.exists():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailableError(
            f"Kafka needs Maven once, and there is no `mvn`: {_INSTALL_HINT}"
        )
    print(f"fetching Apache Kafka {KAFKA_VERSION} (45 MB, once)", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        (Path(folder) / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        _run([maven, "-q", "-B", "-f", f"{folder}/pom.xml", *goal], "fetch Kafka's jars")
        # Whole or not at all; whoever fetched at the same time and came first is as good.
        with suppress(FileExistsError):
            (Path(folder) / "jars").rename(jars)
    return jars


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_LOG_TAIL_LINES:])
        raise BrokerUnavailableError(f"`{command[0]}` could not {what}:\n{tail}")
