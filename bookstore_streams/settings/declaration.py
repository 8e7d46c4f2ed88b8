"""How a setting is declared as a dataclass field, and read back as an `Entry`.

Owns the shape of a declaration; knows no setting, and no source of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

Value = str | int | float | Path | None

ENV_PREFIX = "BOOKSTORE_"
CONSUMER = "consumers."


class Range(NamedTuple):
    """Bounds of a number, both allowed, and its unit."""

    low: float
    high: float
    unit: str


@dataclass(frozen=True, slots=True)
class Spec:
    """What a setting means to people, and what a value must keep to.

    Attributes:
        meaning: one sentence: what it is.
        effect: one sentence: what raising it (for text: setting it) does.
        within: bounds and unit; on every number, on no text.
        form: what text must look like, for people; goes with `fits`.
        fits: whether a text has that form.
        secret: taken from the environment only, and never shown.
        shown: how a secret is shown; None shows three stars.
    """

    meaning: str
    effect: str
    within: Range | None = None
    form: str | None = None
    fits: Callable[[str], object] | None = None
    secret: bool = False
    shown: Callable[[str], str] | None = None


def setting(default: Value, meaning: str, effect: str, **spec: Any) -> Any:
    """Declare a field of an area; `spec` are the further arguments of `Spec`."""
    described = Spec(meaning, effect, **spec)
    return field(default=default, repr=not described.secret, metadata={"spec": described})


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting as declared.

    Attributes:
        section: the TOML section, such as `broker` or `consumers.billing`.
        key: the name inside the section.
        kind: str, int, float or Path.
        choices: the texts allowed, in any case; empty where `spec` bounds it instead.
        optional: whether it can be off (None).
        default: the code's default.
    """

    section: str
    key: str
    kind: type
    choices: tuple[str, ...]
    optional: bool
    default: Value
    spec: Spec

    @property
    def name(self) -> str:
        """The full name, such as `broker.url` or `consumers.billing.jitter`."""
        return f"{self.section}.{self.key}"

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        words = f"{self.section.removeprefix(CONSUMER)}_{self.key}"
        return ENV_PREFIX + words.replace("-", "_").upper()

    @property
    def range(self) -> str:
        """What is allowed, in words."""
        if self.choices:
            allowed = ", ".join(self.choices)
        elif self.spec.within is not None:
            allowed = f"{self.spec.within.low} to {self.spec.within.high}"
        else:
            allowed = self.spec.form or ("a path" if self.kind is Path else "any text")
        return f"{allowed}, or none" if self.optional else allowed


def entries(section: str, area: Any) -> Iterator[Entry]:
    """The settings of an area in the order declared; its values are the defaults.

    Args:
        section: name of the section that the area is.
        area: instance of a dataclass whose fields are all made by `setting`.
    """
    hints = get_type_hints(type(area))
    for declared in fields(area):
        hint = hints[declared.name]
        alternatives = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
        main = alternatives[0]
        is_choice = get_origin(main) is Literal
        yield Entry(
            section=section,
            key=declared.name,
            kind=str if is_choice else main,
            choices=get_args(main) if is_choice else (),
            optional=NoneType in alternatives,
            default=getattr(area, declared.name),
            spec=declared.metadata["spec"],
        )
