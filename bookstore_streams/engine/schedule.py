"""Which keys there are and when each is due; in memory, a hundred and some bytes a key."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K")

# An entry that a sooner or later one replaced stays in the heap until its time comes, or
# until there are more of them than keys and this many.
_REPLACED_MAX = 64


class Schedule(Generic[K]):
    """Keys, each with at most one due time: setting it again replaces it.

    A key stays known after its time came, until it is dropped.

    Args:
        K: hashable, and in an order: keys that are due at the same time come in it.
    """

    __slots__ = ("_due_ms", "_heap")

    def __init__(self) -> None:
        self._due_ms: dict[K, int | None] = {}
        self._heap: list[tuple[int, K]] = []

    def fill(self, keys: Iterable[tuple[K, int | None]]) -> None:
        """Know many keys at once, each with its due time; for a schedule that is empty."""
        for key, due_ms in keys:
            self._due_ms[key] = due_ms
            if due_ms is not None:
                self._heap.append((due_ms, key))
        heapify(self._heap)

    def set(self, key: K, due_ms: int | None) -> None:
        """Know `key`, and let it be due at `due_ms`, epoch ms; None: at no time."""
        if due_ms is None:
            self._due_ms[key] = None
            return
        if self._due_ms.get(key) == due_ms:
            return
        self._due_ms[key] = due_ms
        heappush(self._heap, (due_ms, key))
        if len(self._heap) > 2 * len(self._due_ms) + _REPLACED_MAX:
            self._heap = [(due, each) for each, due in self._due_ms.items() if due is not None]
            heapify(self._heap)

    def drop(self, key: K) -> None:
        """Forget `key`."""
        self._due_ms.pop(key, None)

    def next_ms(self) -> int | None:
        """The earliest due time, epoch ms; None when nothing is scheduled."""
        heap = self._heap
        while heap:
            due_ms, key = heap[0]
            if self._due_ms.get(key) == due_ms:
                return due_ms
            heappop(heap)
        return None

    def pop_due(self, now_ms: int, most: int) -> list[K]:
        """The first `most` keys due by `now_ms`; each is known on, but due at no time."""
        keys: list[K] = []
        while len(keys) < most and (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            _, key = heappop(self._heap)
            self._due_ms[key] = None
            keys.append(key)
        return keys

    def __contains__(self, key: object) -> bool:
        return key in self._due_ms

    def __len__(self) -> int:
        return len(self._due_ms)
