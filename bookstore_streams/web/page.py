"""Pages: what part of a long list was asked for, and several sorted parts made into one.

Every row has a place, a tuple that JSON can hold; places are unique and rows are sorted by
them. A cursor is the place of the last row shown, so a page begins behind it, wherever the
rows are and however many came or went meanwhile.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson
from aiohttp import web

from .answer import refusal

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000

Place = tuple[Any, ...]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for: at most `limit` rows, those behind `after` (None: from the start)."""

    limit: int
    after: Place | None


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Sorted rows, each with its place.

    Attributes:
        rows: sorted by place.
        is_cut: whether rows follow that are not in here.
    """

    rows: list[tuple[Place, R]]
    is_cut: bool


def wanted(query: Mapping[str, str], shape: tuple[type, ...]) -> Wanted:
    """Read `limit` and `cursor` of a request.

    Args:
        query: parameters of the request.
        shape: types of the parts of a place.

    Raises:
        HTTPBadRequest: either is wrong.
    """
    text = query.get("limit", str(LIMIT_DEFAULT))
    # isdecimal() alone lets digits of other scripts in, which int() would read.
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0
    if not 1 <= limit <= LIMIT_MAX:
        raise refusal(web.HTTPBadRequest, f"limit must be a whole number from 1 to {LIMIT_MAX}.")
    cursor = query.get("cursor", "")
    return Wanted(limit, _place(cursor, shape) if cursor else None)


def cursor_after(page: Page[R]) -> str | None:
    """The cursor of the next page; None when this is the last one."""
    if not page.is_cut or not page.rows:
        return None
    return urlsafe_b64encode(orjson.dumps(page.rows[-1][0])).decode().rstrip("=")


def merged(pages: Iterable[Page[R]], limit: int) -> Page[R]:
    """The first rows of all pages together, at most `limit`.

    A row behind the last one of a cut page is left out: an earlier one may be missing there.
    Of two rows at one place, such as those of a partition that has just moved, one is kept.
    """
    parts = list(pages)
    ends = [page.rows[-1][0] for page in parts if page.is_cut and page.rows]
    by_place = {place: row for page in parts for place, row in page.rows}
    rows = sorted(by_place.items(), key=lambda row: row[0])
    total = len(rows)
    if ends:
        end = min(ends)
        rows = [row for row in rows if row[0] <= end]
    is_cut = len(rows) < total or len(rows) > limit or any(page.is_cut for page in parts)
    return Page(rows[:limit], is_cut)


def _place(cursor: str, shape: tuple[type, ...]) -> Place:
    try:
        raw = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        parts = orjson.loads(raw)
    except (binascii.Error, ValueError):
        parts = None
    if (
        not isinstance(parts, list)
        or len(parts) != len(shape)
        or not all(_is(kind, part) for kind, part in zip(shape, parts, strict=True))
    ):
        raise refusal(web.HTTPBadRequest, "cursor is none that this view gave.")
    return tuple(parts)


def _is(kind: type, part: object) -> bool:
    # Sequences and times are stored as unsigned 64-bit numbers, and the next one must fit, too.
    return type(part) is kind and (not isinstance(part, int) or 0 <= part < 1 << 63)
