"""The offset that may be committed."""

from __future__ import annotations

from bookstore_streams.core.watermark import Watermark


def test_nothing_moves_before_the_first_record_is_settled() -> None:
    watermark = Watermark()
    first, second = watermark.take(0, 1), watermark.take(1, 1)
    second.settle()
    assert watermark.advance() is None
    first.settle()
    assert watermark.advance() == 2
    assert watermark.advance() is None


def test_a_later_success_never_passes_an_earlier_record_that_is_open() -> None:
    watermark = Watermark()
    slots = [watermark.take(n, 1) for n in range(5)]
    for n in (0, 1, 3, 4):
        slots[n].settle()
    assert watermark.advance() == 2
    assert len(watermark) == 3
    slots[2].settle()
    assert watermark.advance() == 5
    assert len(watermark) == 0


def test_a_record_is_passed_when_every_consumer_is_done_with_it() -> None:
    watermark = Watermark()
    slot = watermark.take(7, 3)
    for _ in range(2):
        slot.settle()
        assert watermark.advance() is None
    slot.settle()
    assert watermark.advance() == 8


def test_a_record_that_nobody_reads_is_passed_at_once() -> None:
    watermark = Watermark()
    watermark.take(3, 0)
    assert watermark.advance() == 4


def test_gaps_between_offsets_are_passed() -> None:
    watermark = Watermark()
    for offset in (10, 12, 40):
        watermark.take(offset, 1).settle()
    assert watermark.advance() == 41
