"""The data directory of one worker: its own, of this app, of this partition count."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import IO, Any

from bookstore_streams.errors import StaleRecordError, StoreError

#: Of what lies in the directory; a newer one is refused, not guessed at.
FORMAT = 1


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

    def _check_identity(self) -> None:
        path = self.path / "identity.json"
        try:
            found: Any = json.loads(path.read_text())
        except FileNotFoundError:
            found = None
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); delete {self.path}.") from error
        if found is None:
            draft = path.with_suffix(".new")
            try:
                draft.write_text(json.dumps(self._identity))
                draft.replace(path)
            except OSError as error:
                raise StoreError(f"{path} cannot be written ({error.strerror}).") from error
        elif found != self._identity:
            differences = ", ".join(
                f"{name} {found.get(name) if isinstance(found, dict) else found!r} instead of {own}"
                for name, own in self._identity.items()
                if not isinstance(found, dict) or found.get(name) != own
            )
            raise StaleRecordError(
                f"The data directory {self.path} holds another state: {differences}. Use another "
                "directory, or delete it: it is rebuilt from the changelogs."
            )
