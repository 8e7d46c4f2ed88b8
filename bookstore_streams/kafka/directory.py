"""The data directory of one worker: its own, of this app, of this partition count."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from bookstore_streams.errors import StaleRecordError, StoreError

#: Of what lies in the directory; a newer one is refused, not guessed at.
FORMAT = 1

_FILE = "identity.json"
_REMEDY = "delete the directory, it is rebuilt from the changelogs."


class DataDirectory:
    """`<data.dir>/<app id>`, one sub-directory a partition.

    Attributes:
        path: of it.
    """

    def __init__(self, parent: Path, app_id: str, partitions: int) -> None:
        self.path = parent.absolute() / app_id
        self._identity = {"format": FORMAT, "app": app_id, "partitions": partitions}
        self._lock: IO[str] | None = None

    def claim(self) -> None:
        """Make the directory where it is missing, and keep every other worker out of it.

        Raises:
            StoreError: it cannot be written, or another worker has it.
            StaleRecordError: it belongs to another app, partition count or format.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "LOCK").open("a+")
        except OSError as error:
            raise StoreError(
                f"The data directory {self.path} cannot be written ({error.strerror}). Set "
                "BOOKSTORE_DATA_DIR to a directory of this worker's own."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise StoreError(
                f"Another worker uses the data directory {self.path}. Give each worker one of "
                "its own with BOOKSTORE_DATA_DIR."
            ) from error
        self._lock = lock  # held until the process ends, however it ends
        self._check_identity()

    def bind(self, cluster: str | None) -> None:
        """Keep the state of one Kafka cluster apart from that of any other.

        Args:
            cluster: its id; None where the broker tells none, then nothing is checked.

        Raises:
            StoreError: the directory cannot be read or written.
            StaleRecordError: what is in it was written from another cluster.
        """
        if cluster is None:
            return
        found = self._read()
        known = found.get("cluster")
        if known is None:
            self._write({**found, "cluster": cluster})
        elif known != cluster:
            raise StaleRecordError(
                f"The data directory {self.path} holds the state of another Kafka cluster: {known} "
                f"instead of {cluster}. Set BOOKSTORE_BROKER_URL to that one, use another "
                "directory, or delete this one: it is rebuilt from the changelogs there."
            )

    def _check_identity(self) -> None:
        found = self._read()
        if not found:
            if any(self.path.glob("partition-*")):
                raise StaleRecordError(
                    f"The data directory {self.path} holds partitions, but its {_FILE} is missing, "
                    "so nothing tells whose they are. Use another directory, or delete it: it is "
                    "rebuilt from the changelogs."
                )
            self._write(self._identity)
            return
        version = found.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise StaleRecordError(
                f"The data directory {self.path} was written by a newer version of this app "
                f"(format {version}, this one knows {FORMAT}). Start that version, use another "
                "directory, or delete it: it is rebuilt from the changelogs."
            )
        differences = ", ".join(
            f"{name} {found.get(name)} instead of {own}"
            for name, own in self._identity.items()
            if found.get(name) != own
        )
        if differences:
            raise StaleRecordError(
                f"The data directory {self.path} holds another state: {differences}. Use another "
                "directory, or delete it: it is rebuilt from the changelogs."
            )

    def _read(self) -> dict[str, Any]:
        """What the directory says of itself; nothing when it is new."""
        path = self.path / _FILE
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); {_REMEDY}") from error
        if not isinstance(found, dict) or not found:
            raise StoreError(f"{path} is not what this app writes; {_REMEDY}")
        return found

    def _write(self, identity: dict[str, Any]) -> None:
        path = self.path / _FILE
        draft = path.with_suffix(".new")
        try:
            with draft.open("w") as file:
                file.write(json.dumps(identity))
                file.flush()
                os.fsync(file.fileno())  # else a power cut can leave an empty file
            draft.replace(path)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written ({error.strerror}). Make room, or set "
                "BOOKSTORE_DATA_DIR to another directory."
            ) from error
