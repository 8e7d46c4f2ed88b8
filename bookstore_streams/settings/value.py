"""One value: what a file's or the environment's text means, and how it may be shown.

Owns types, bounds and masking of a single setting; refuses what its declaration forbids.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from bookstore_streams.settings.declaration import Entry, Value

MASK = "***"
# Longer values are cut in problems: a whole file pasted by mistake must not hide the others.
SHOWN_CHARACTERS_MAX = 100

# Surrogates stand for environment bytes that are no UTF-8; nothing could print them.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def convert(raw: object, entry: Entry, *, is_env: bool) -> Value:
    """What a value means, as the type that the setting was declared with.

    Args:
        raw: as TOML gave it, or text from the environment.
        entry: the setting.
        is_env: whether it came from the environment, where numbers are text.

    Raises:
        ValueError: it breaks the declaration; the text goes on after `name = value`.
    """
    if entry.spec.secret and not is_env:
        raise ValueError(f"is a secret and must not stand in a file: set {entry.env} instead")
    if entry.optional and isinstance(raw, str) and raw.lower() in ("", "none"):
        return None
    if entry.kind in (int, float):
        return _number(_parsed(str(raw), entry.kind) if is_env else raw, entry)
    return _text(raw, entry)


def masked(value: Value, entry: Entry) -> str | int | float | None:
    """A checked value as it may be shown to people and machines."""
    if isinstance(value, Path):
        return str(value)
    if value is None or not entry.spec.secret:
        return value
    return entry.spec.shown(str(value)) if entry.spec.shown is not None else MASK


def quoted(raw: object, entry: Entry) -> str:
    """A value that may be wrong in any way, as a problem may show it."""
    if entry.spec.secret:
        return MASK
    # No setting that is shown may hold a password, but somebody may try.
    text = re.sub(r"//.*@", f"//{MASK}@", repr(raw))
    is_short = len(text) <= SHOWN_CHARACTERS_MAX
    return text if is_short else f"{text[: SHOWN_CHARACTERS_MAX - 3]}..."


def _parsed(text: str, kind: Callable[[str], object]) -> object:
    """The number that a text from the environment holds; the text itself when it holds none."""
    try:
        return kind(text)
    except ValueError:
        return text


def _number(raw: object, entry: Entry) -> int | float:
    # To Python a truth value is a whole number, to people it is not.
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError(f"must be a number: {entry.range}")
    if entry.kind is int and not isinstance(raw, int):
        raise ValueError(f"must be a whole number: {entry.range}")
    within = entry.spec.within
    # Also refuses NaN, which is between no bounds.
    if within is not None and not within.low <= raw <= within.high:
        raise ValueError(f"must be {entry.range} ({within.unit})")
    return raw if entry.kind is int else float(raw)


def _text(raw: object, entry: Entry) -> str | Path:
    if not isinstance(raw, str):
        raise ValueError(f"must be text: {entry.range}")
    if entry.choices:
        for choice in entry.choices:
            if raw.lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {entry.range}")
    if not raw or _CONTROL_CHARACTER.search(raw):
        raise ValueError("must not be empty, nor hold line ends or other control characters")
    if entry.spec.fits is not None and not entry.spec.fits(raw):
        raise ValueError(f"must look like this: {entry.spec.form}")
    return Path(raw) if entry.kind is Path else raw
