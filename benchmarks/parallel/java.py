"""The Parallel Consumer's program: fetched and compiled once on a machine, run in a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

VERSION = "0.5.3.2"
SOURCE = Path(__file__).with_name("ParallelWork.java")
OUTPUT_LINES_SHOWN = 15

_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>bookstore-streams</groupId>
  <artifactId>parallel-consumer-for-benchmarks</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.confluent.parallelconsumer</groupId>
      <artifactId>parallel-consumer-core</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>2.0.13</version>
    </dependency>
  </dependencies>
</project>
"""


class JavaError(Exception):
    """The program cannot be had here; the message says what is missing."""


def command(*arguments: str) -> list[str]:
    """Argument vector that runs the program; the first call on a machine takes a minute.

    Raises:
        JavaError: no JDK or no Maven, or one of them failed.
    """
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise JavaError(
                f"the Parallel Consumer needs a JDK and Maven, and there is no `{program}`"
            )
    folder = _built()
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", quiet, "-cp", f"{folder}/classes:{folder}/jars/*", SOURCE.stem, *arguments]


def _built() -> Path:
    """Folder with jars and classes, made when missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bookstore-streams"
    digest = sha256(SOURCE.read_bytes()).hexdigest()[:12]
    built = cache / f"parallel-consumer-{VERSION}-{digest}"
    if built.exists():
        return built
    print(f"fetching the Parallel Consumer {VERSION} (once)", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=made/jars"]
        _run("mvn", "-q", "-B", "-f", f"{folder}/pom.xml", *goal, "-DincludeScope=runtime")
        made = folder / "made"
        _run("javac", "-cp", f"{made}/jars/*", "-d", f"{made}/classes", str(SOURCE))
        # Whole or not at all; whoever made it at the same time and came first is as good.
        with suppress(OSError):
            made.rename(built)
    return built


def _run(*arguments: str) -> None:
    done = subprocess.run(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-OUTPUT_LINES_SHOWN:])
        raise JavaError(f"`{arguments[0]}` failed:\n{tail}")
