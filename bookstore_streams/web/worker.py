"""What the views see of the worker they run in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from bookstore_streams.engine.engine import Engine
from bookstore_streams.ports import Clock


class Group(Protocol):
    """The workers that share the partitions."""

    @property
    def own_url(self) -> str:
        """Where the others reach this worker."""
        ...

    @property
    def partition_count(self) -> int:
        """How many partitions there are to share."""
        ...

    def members(self) -> Mapping[str, frozenset[int]]:
        """URL -> numbers of the partitions given to it, this worker included.

        Empty before the group has given partitions out for the first time.
        """
        ...

    def is_rebalancing(self) -> bool:
        """Whether partitions are on their way from one worker to another."""
        ...

    def has_lease(self) -> bool:
        """Whether the group still counts this worker as alive."""
        ...


class Table(Protocol):
    """A table as views read it."""

    @property
    def name(self) -> str:
        """Unique in the app."""
        ...

    @property
    def help(self) -> str:
        """What a row means."""
        ...

    @property
    def row_key(self) -> Callable[[str], bytes]:
        """Text of a key -> its bytes; raises ValueError or TypeError for what is none."""
        ...

    @property
    def key_prefix(self) -> Callable[[str], bytes]:
        """Beginning of a text -> what the bytes of all such keys begin with."""
        ...

    @property
    def key_text(self) -> Callable[[bytes], str]:
        """Bytes of a key -> its text."""
        ...

    @property
    def row_value(self) -> Callable[[bytes], Any]:
        """Bytes of a row -> what JSON can hold."""
        ...


@dataclass(frozen=True, slots=True)
class Worker:
    """The worker behind a view.

    Attributes:
        app_id: of the app.
        version: of this package.
        engine: holds the committed rows of this worker's partitions.
        group: where the other partitions are.
        clock: for ages.
        tables: name -> table, once the app is complete.
        session: for asking other workers.
    """

    app_id: str
    version: str
    engine: Engine
    group: Group
    clock: Clock
    tables: Callable[[], Mapping[str, Table]]
    session: Callable[[], aiohttp.ClientSession]
