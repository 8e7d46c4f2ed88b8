"""Which parked keys are due; in memory, rebuilt from the parked keys at every opening."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Schedule(Generic[K]):
    """Keys by due time. One key has at most one due time: setting it again replaces it."""

    __slots__ = ("_due_ms", "_heap", "_serial")

    def __init__(self) -> None:
        # A replaced or dropped entry stays in the heap and is passed over when its time comes.
        self._heap: list[tuple[int, int, K]] = []
        self._due_ms: dict[K, tuple[int, int]] = {}
        self._serial = 0

    def set(self, key: K, due_ms: int) -> None:
        """Let `key` be due at `due_ms`, epoch ms."""
        known = self._due_ms.get(key)
        if known is not None and known[0] == due_ms:
            return
        self._serial += 1
        self._due_ms[key] = (due_ms, self._serial)
        heappush(self._heap, (due_ms, self._serial, key))

    def drop(self, key: K) -> None:
        """Forget `key`."""
        self._due_ms.pop(key, None)

    def next_ms(self) -> int | None:
        """The earliest due time, epoch ms; None when nothing is scheduled."""
        heap = self._heap
        while heap:
            due_ms, serial, key = heap[0]
            if self._due_ms.get(key) == (due_ms, serial):
                return due_ms
            heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> list[K]:
        """Take every key due by `now_ms`, earliest first."""
        keys = []
        while (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            _, _, key = heappop(self._heap)
            del self._due_ms[key]
            keys.append(key)
        return keys

    def __len__(self) -> int:
        return len(self._due_ms)
