"""The highest offset with nothing unsettled below it, per topic partition."""

from __future__ import annotations

from collections import deque


class Slot:
    """One record on its way: the offset after it, and how many consumers still hold it."""

    __slots__ = ("next_offset", "unsettled")

    def __init__(self, next_offset: int, unsettled: int) -> None:
        self.next_offset = next_offset
        self.unsettled = unsettled

    def settle(self) -> None:
        """One consumer is done with the record: applied, parked, dead-lettered or dropped."""
        self.unsettled -= 1


class Watermark:
    """Slots in offset order; a later success never passes an earlier record still open."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()

    def take(self, offset: int, consumers: int) -> Slot:
        """Open a slot for a record that `consumers` consumers will settle.

        Offsets must come in rising order; they may have gaps.
        """
        slot = Slot(offset + 1, consumers)
        self._slots.append(slot)
        return slot

    def advance(self) -> int | None:
        """Drop what is settled from the front; the offset to commit, None when nothing moved."""
        slots, mark = self._slots, None
        while slots and not slots[0].unsettled:
            mark = slots.popleft().next_offset
        return mark

    def __len__(self) -> int:
        """Records taken and not yet passed by the watermark."""
        return len(self._slots)
