"""Pages: limits and cursors are read strictly, and sorted parts become one list."""

from __future__ import annotations

import random
from typing import Any

import pytest
from aiohttp import web

from bookstore_streams.web.page import LIMIT_DEFAULT, Page, Wanted, cursor_after, merged, wanted


def page(*places: tuple[Any, ...], is_cut: bool = False) -> Page[str]:
    return Page([(place, f"row {place}") for place in places], is_cut)


def test_without_parameters_a_page_begins_at_the_start() -> None:
    assert wanted({}, (int,)) == Wanted(LIMIT_DEFAULT, None)


def test_an_empty_cursor_is_none() -> None:
    assert wanted({"cursor": "", "limit": "7"}, (int,)) == Wanted(7, None)


@pytest.mark.parametrize("limit", ["1", "1000", "0001"])
def test_limits_within_bounds_are_taken(limit: str) -> None:
    assert wanted({"limit": limit}, ()).limit == int(limit)


@pytest.mark.parametrize(
    "limit", ["0", "1001", "-1", "", "x", "1.0", "1e2", " 1", "٣", "9" * 5_000, "0x10", "1_0"]
)
def test_other_limits_are_refused(limit: str) -> None:
    with pytest.raises(web.HTTPBadRequest):
        wanted({"limit": limit}, ())


@pytest.mark.parametrize("place", [(0, "", ""), (2**63 - 1, "billing", "a/ä\n"), (5, "x", "…")])
def test_a_cursor_reads_back_as_its_place(place: tuple[Any, ...]) -> None:
    cursor = cursor_after(page(place, is_cut=True))

    assert cursor is not None
    assert wanted({"cursor": cursor}, (int, str, str)).after == place


def cursor_of(*place: Any) -> str:
    return cursor_after(page(place, is_cut=True)) or ""


@pytest.mark.parametrize(
    "cursor",
    [
        "zzz",
        "ä",
        "\udcff",
        "e30",  # {}
        "bnVsbA",  # null
        cursor_of(1),
        cursor_of("1", "a"),
        cursor_of(1, 2),
        cursor_of(True, "a"),
        cursor_of(-1, "a"),
        cursor_of(2**63, "a"),
        cursor_of(1, "a", "b"),
    ],
)
def test_a_cursor_of_another_shape_is_refused(cursor: str) -> None:
    with pytest.raises(web.HTTPBadRequest):
        wanted({"cursor": cursor}, (int, str))


def test_the_last_page_has_no_cursor() -> None:
    assert cursor_after(page((1,), is_cut=False)) is None


def test_rows_behind_the_end_of_a_cut_page_wait_for_the_next_one() -> None:
    """The first worker stopped at 3 and may have a 4: the 5 of the second would overtake it."""
    both = merged([page((1,), (3,), is_cut=True), page((2,), (5,))], limit=10)

    assert [place for place, _ in both.rows] == [(1,), (2,), (3,)]
    assert both.is_cut


def test_a_row_that_two_workers_show_is_shown_once() -> None:
    both = merged([page((1,), (2,)), page((2,), (3,))], limit=10)

    assert [place for place, _ in both.rows] == [(1,), (2,), (3,)]
    assert not both.is_cut


@pytest.mark.parametrize("seed", range(50))
def test_walking_through_pages_of_many_parts_shows_every_row_once_in_order(seed: int) -> None:
    """Parts cut at random, by size and not by limit, as pages of large rows are."""
    chance = random.Random(seed)
    places = [(chance.randrange(50), chance.choice("abc")) for _ in range(120)]
    everything = sorted(set(places))
    parts: list[list[tuple[int, str]]] = [[], [], []]
    for place in everything:
        chance.choice(parts).append(place)
    limit = chance.randrange(1, 40)

    seen: list[tuple[Any, ...]] = []
    after: tuple[Any, ...] = (-1, "")
    while True:
        pages = []
        for part in parts:
            left = [place for place in part if place > after]
            size = chance.randrange(1, limit + 1)
            pages.append(page(*left[:size], is_cut=len(left) > size))
        now = merged(pages, limit)
        assert len(now.rows) <= limit
        seen += [place for place, _ in now.rows]
        if not now.is_cut:
            break
        after = now.rows[-1][0]

    assert seen == everything
