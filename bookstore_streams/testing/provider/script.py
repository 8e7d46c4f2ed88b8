"""What call n of an order gets: the scripts of the payment provider, without any HTTP.

Steps, down times and random failures are values, and each answers the same question the
same way every time. `Scripts` holds those in force and counts the calls that used them. It
refuses to know sockets, money and the clock: time comes in as an argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

import orjson

Operation = Literal["charge", "refund"]
Scope = Literal["charge", "refund", "any"]
Answer = Literal["ok", "status", "timeout", "reset", "garbage", "truncated", "refuse"]

# What a scripted call may do, by the word that stands for it: how it answers, and whether it
# books. The two last are the nasty ones: the money moved and the caller was not told.
_WORDS: Final[dict[str, tuple[Answer, bool]]] = {
    "ok": ("ok", True),
    "timeout": ("timeout", False),
    "reset": ("reset", False),
    "garbage": ("garbage", False),
    "truncated": ("truncated", False),
    "charge_then_reset": ("reset", True),
    "charge_then_timeout": ("timeout", True),
}


@dataclass(frozen=True, slots=True)
class Step:
    """What one call gets.

    Attributes:
        answer: what the caller sees; `timeout` is no answer at all, `garbage` no HTTP,
            `truncated` a body that ends early, `refuse` a closed port.
        books: whether the money moves (once per idempotency key).
        status: the HTTP status where `answer` is `status`, from 300 to 599.
        retry_after: the `Retry-After` header as it is sent.
        body: the body of a `status` answer; None gives a short one of ours.
        delay_ms: wait before any of it, the booking included.
    """

    answer: Answer = "ok"
    books: bool = True
    status: int = 0
    retry_after: str | None = None
    body: bytes | None = None
    delay_ms: int = 0


OK: Final = Step()


@dataclass(frozen=True, slots=True)
class Steps:
    """A list of steps, one per call; afterwards all is well, or the last step goes on for ever."""

    steps: tuple[Step, ...] = ()
    forever: bool = False

    def at(self, call: int) -> Step:
        """The step of call number `call`, counted from 0."""
        if call < len(self.steps):
            return self.steps[call]
        return self.steps[-1] if self.forever and self.steps else OK


@dataclass(frozen=True, slots=True)
class RandomFailures:
    """Failures drawn from a seed: the same for each (seed, order, operation), on any machine.

    Attributes:
        seed: any integer.
        fail_share: the share of orders that fail before they succeed, 0 to 1.
        modes: the failures to draw from, one per failing call.
        attempts_max: most calls of one order and operation that fail, at least 1.
    """

    seed: int
    fail_share: float
    modes: tuple[Step, ...]
    attempts_max: int

    def failures(self, order_id: str, operation: Operation) -> int:
        """How many calls fail before the first success."""
        draw = self._draw(order_id, operation, "")
        if draw % 1_000_000 >= self.fail_share * 1_000_000:
            return 0
        return 1 + (draw >> 32) % self.attempts_max

    def at(self, order_id: str, operation: Operation, call: int) -> Step:
        """The step of call number `call`, counted from 0."""
        if call >= self.attempts_max or call >= self.failures(order_id, operation):
            return OK
        return self.modes[self._draw(order_id, operation, str(call)) % len(self.modes)]

    def _draw(self, order_id: str, operation: Operation, purpose: str) -> int:
        text = orjson.dumps((self.seed, order_id, operation, purpose))
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class DownTime:
    """A while in which every call gets the same step; without an end it lasts until lifted."""

    from_ms: int
    until_ms: int | None
    step: Step

    def covers(self, now_ms: int) -> bool:
        """Whether the provider is down at that time."""
        return self.from_ms <= now_ms and (self.until_ms is None or now_ms < self.until_ms)


@dataclass(slots=True)
class Scripts:
    """The scripts in force, and how many calls each of them has answered.

    Precedence: down time, script of the order and operation, script of the order, random
    failures, default. A call during a down time uses up no step of its order.
    """

    default: Steps = Steps()
    delay_ms: int = 0
    random: RandomFailures | None = None
    down_times: list[DownTime] = field(default_factory=list)
    _orders: dict[tuple[str, Scope], Steps] = field(default_factory=dict)
    _calls: dict[tuple[str, Scope], int] = field(default_factory=dict)

    def set_order(self, order_id: str, scope: Scope, steps: Steps) -> None:
        """Puts steps in force for an order, from its next call on; an older script is gone."""
        self._orders[order_id, scope] = steps
        self._calls.pop((order_id, scope), None)

    def set_default(self, steps: Steps, delay_ms: int) -> None:
        """What orders without a script get; the delay holds for every step without its own."""
        self.default, self.delay_ms = steps, delay_ms
        self._forget_unscripted()

    def set_random(self, failures: RandomFailures | None) -> None:
        """Draws the failures of orders without a script; None ends it."""
        self.random = failures
        self._forget_unscripted()

    def down(self, now_ms: int) -> Step | None:
        """What every call gets at that time; None while the provider is up."""
        return next((down.step for down in self.down_times if down.covers(now_ms)), None)

    def take(self, order_id: str, operation: Operation) -> Step:
        """What this call of the order gets; the next one asks again."""
        scope: Scope = operation if (order_id, operation) in self._orders else "any"
        steps = self._orders.get((order_id, scope))
        counted: tuple[str, Scope] = (order_id, operation if steps is None else scope)
        call = self._calls.get(counted, 0)
        if steps is not None:
            step = steps.at(call)
        elif self.random is not None:
            step = self.random.at(order_id, operation, call)
        else:
            step = self.default.at(call)
        if steps is not None or self.random is not None or self.default.steps:
            self._calls[counted] = call + 1
        return replace(step, delay_ms=self.delay_ms) if self.delay_ms > step.delay_ms else step

    def _forget_unscripted(self) -> None:
        self._calls = {key: calls for key, calls in self._calls.items() if key in self._orders}


def parse_steps(source: Mapping[str, Any], also: Iterable[str] = ()) -> Steps:
    """Reads `{"steps": [...], "forever": bool}`.

    Raises:
        ValueError: what is wrong with it, in words for the person who wrote it.
    """
    _only(source, ("steps", "forever", *also), "a script")
    steps, forever = source.get("steps", []), source.get("forever", False)
    if not isinstance(steps, list | tuple):
        raise ValueError(f"`steps` must be a list, not {steps!r}")
    if not isinstance(forever, bool):
        raise ValueError(f"`forever` must be true or false, not {forever!r}")
    if forever and not steps:
        raise ValueError("`forever` repeats the last step, and there is none")
    return Steps(tuple(parse_step(step) for step in steps), forever)


def parse_order(source: Mapping[str, Any]) -> tuple[str, Scope, Steps]:
    """Reads `{"order_id", "operation", "steps", "forever"}`; `operation` defaults to `any`.

    Raises:
        ValueError: as `parse_steps`.
    """
    order_id, scope = source.get("order_id"), source.get("operation", "any")
    if not isinstance(order_id, str) or not order_id:
        raise ValueError(f"`order_id` must be a text, not {order_id!r}")
    if scope not in get_args(Scope):
        raise ValueError(f"`operation` must be charge, refund or any, not {scope!r}")
    return order_id, scope, parse_steps(source, also=("order_id", "operation"))


def parse_step(source: object) -> Step:
    """Reads one step, such as `{"status": 503, "retry_after": 2}` or `{"reset": true}`.

    Raises:
        ValueError: as `parse_steps`.
    """
    if not isinstance(source, Mapping):
        raise ValueError(f"a step must be an object, not {source!r}")
    _only(source, ("status", "retry_after", "body", "delay_ms", *_WORDS), "a step")
    words = [word for word in ("status", *_WORDS) if word in source]
    if len(words) > 1:
        raise ValueError(f"a step does one thing, not {' and '.join(words)}")
    delay_ms = _whole(source, "delay_ms", 0)
    if words == ["status"]:
        return _parse_status(source, delay_ms)
    if "retry_after" in source or "body" in source:
        raise ValueError("`retry_after` and `body` belong to a `status`")
    if words and source[words[0]] is not True:
        raise ValueError(f"`{words[0]}` must be true, not {source[words[0]]!r}")
    answer, books = _WORDS[words[0]] if words else _WORDS["ok"]
    return Step(answer, books, delay_ms=delay_ms)


def parse_down(source: Mapping[str, Any], now_ms: int) -> DownTime:
    """Reads `{"from_ms", "for_ms", ...a step}`, both counted from now; the step defaults to 503.

    `{"status": "refuse"}` closes the port. It needs `for_ms`: nobody could lift it.

    Raises:
        ValueError: as `parse_steps`.
    """
    from_ms = _whole(source, "from_ms", 0)
    for_ms = _whole(source, "for_ms", 0) if "for_ms" in source else None
    rest = {name: value for name, value in source.items() if name not in ("from_ms", "for_ms")}
    if rest.get("status") == "refuse":
        _only(rest, ("status",), "a refusal")
        if for_ms is None:
            raise ValueError("`refuse` needs `for_ms`: a closed port cannot be told otherwise")
        step = Step("refuse", books=False)
    else:
        step = parse_step(rest or {"status": 503})
    return DownTime(now_ms + from_ms, None if for_ms is None else now_ms + from_ms + for_ms, step)


def parse_random(source: Mapping[str, Any]) -> RandomFailures:
    """Reads `{"seed", "fail_share", "modes", "attempts_max"}`; only `seed` has no default.

    A mode is a step, or its short form: `"503"`, `"reset"`, `"charge_then_reset"`...

    Raises:
        ValueError: as `parse_steps`.
    """
    _only(source, ("seed", "fail_share", "modes", "attempts_max"), "random failures")
    seed, share = source.get("seed"), source.get("fail_share", 0.2)
    modes = source.get("modes", ["503", "429", "reset"])
    attempts_max = _whole(source, "attempts_max", 3)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"`seed` must be a whole number, not {seed!r}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"`fail_share` must be between 0 and 1, not {share!r}")
    if attempts_max < 1:
        raise ValueError("`attempts_max` must be at least 1")
    if not isinstance(modes, Sequence) or isinstance(modes, str) or not modes:
        raise ValueError(f"`modes` must be a list with at least one mode, not {modes!r}")
    return RandomFailures(seed, share, tuple(_parse_mode(mode) for mode in modes), attempts_max)


def _parse_mode(mode: object) -> Step:
    if not isinstance(mode, str):
        return parse_step(mode)
    return parse_step({"status": int(mode)} if mode.isdecimal() else {mode: True})


def _parse_status(source: Mapping[str, Any], delay_ms: int) -> Step:
    status, retry_after = source["status"], source.get("retry_after")
    if not isinstance(status, int) or isinstance(status, bool) or not 300 <= status <= 599:
        raise ValueError(f"`status` must be from 300 to 599, not {status!r}")
    if retry_after is not None and not isinstance(retry_after, str | int | float):
        raise ValueError(f"`retry_after` must be seconds or a text, not {retry_after!r}")
    return Step(
        answer="status",
        books=False,
        status=status,
        retry_after=None if retry_after is None else str(retry_after),
        body=_as_bytes(source.get("body")),
        delay_ms=delay_ms,
    )


def _as_bytes(body: object) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else orjson.dumps(body)


def _whole(source: Mapping[str, Any], name: str, default: int) -> int:
    value = source.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"`{name}` must be a whole number from 0, not {value!r}")
    return value


def _only(source: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    unknown = sorted(set(source) - set(known))
    if unknown:
        raise ValueError(f"{what} has no `{unknown[0]}`; it knows {', '.join(known)}")
