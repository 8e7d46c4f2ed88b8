"""Plots as SVG, by hand: bars and lines, readable on a light page and on a dark one.

No library: a plot is a few dozen lines of XML that the same numbers always give again, so
that a test can compare them. Colours follow the reader's own scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH = 720
BAR_HEIGHT, BAR_GAP, GROUP_GAP = 18, 4, 12
LABEL_WIDTH, VALUE_WIDTH = 230, 130
CHART_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 260, 76, 20, 44, 46
SERIES = ("ours", "theirs", "third")

# What is not in a media query is of middling brightness: readable on both grounds, for viewers
# that do not tell which one they have.
_STYLE = """\
<style>
text { font: 13px system-ui, sans-serif; fill: #737b85 }
.title { font-weight: 600; font-size: 15px }
.small { font-size: 12px }
.axis { stroke: #8c959f; stroke-width: 1 }
.grid { stroke: #8c959f; stroke-width: 1; stroke-opacity: 0.35 }
.ours { fill: #2f81f7; stroke: #2f81f7 }
.theirs { fill: #b08800; stroke: #b08800 }
.third { fill: #8f63e8; stroke: #8f63e8 }
.line { fill: none; stroke-width: 2 }
.range { stroke: #737b85; stroke-width: 1.5 }
@media (prefers-color-scheme: light) {
  text { fill: #1f2328 }
  .small { fill: #59636e }
  .range { stroke: #1f2328 }
}
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .range { stroke: #e6edf3 }
}
</style>"""


class Bar(NamedTuple):
    """One bar.

    Attributes:
        label: left of it; empty where it belongs to the group of the one before.
        value: its length.
        shown: right of it.
        series: one of `SERIES`, its colour.
        low, high: of the range over it; None for none.
    """

    label: str
    value: float
    shown: str
    series: str = "ours"
    low: float | None = None
    high: float | None = None


class Line(NamedTuple):
    """One line.

    Attributes:
        label: of the legend.
        points: (x, y), x ascending.
        series: one of `SERIES`, its colour.
    """

    label: str
    points: Sequence[tuple[float, float]]
    series: str = "ours"


def bars(title: str, found: Sequence[Bar]) -> str:
    """Horizontal bars from nought, top to bottom."""
    most = max(max(bar.value, bar.high or 0) for bar in found) or 1
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / most
    parts, y = [_text(8, 24, title, "title")], 40
    for number, bar in enumerate(found):
        if number:
            y += GROUP_GAP if bar.label else BAR_GAP
        middle = y + BAR_HEIGHT / 2
        if bar.label:
            parts.append(_text(LABEL_WIDTH - 8, middle + 4, bar.label, "", "end"))
        width = max(bar.value * scale, 1)
        parts.append(
            f'<rect class="{bar.series}" x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" '
            f'height="{BAR_HEIGHT}" rx="2"/>'
        )
        end = bar.value
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            low, high = LABEL_WIDTH + bar.low * scale, LABEL_WIDTH + bar.high * scale
            parts.append(
                f'<path class="range" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8'
                f'M{high:.1f} {middle - 4}v8"/>'
            )
            end = max(end, bar.high)
        parts.append(_text(LABEL_WIDTH + end * scale + 8, middle + 4, bar.shown, "small"))
        y += BAR_HEIGHT
    return _svg(y + 14, title, parts)


def lines(title: str, x_label: str, y_label: str, found: Sequence[Line]) -> str:
    """Lines over a logarithmic x axis; y begins at nought."""
    xs = sorted({x for line in found for x, _ in line.points})
    y_most = _round_up(max(y for line in found for _, y in line.points))
    low, high = (math.log10(max(x, 1)) for x in (xs[0], xs[-1]))
    span = (high - low) or 1.0
    height = CHART_HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(max(x, 1)) - low) / span
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + height * (1 - y / y_most)

    parts = [_text(8, 24, title, "title"), _text(8, CHART_HEIGHT - 8, y_label, "small")]
    parts.append(_text(WIDTH - RIGHT, CHART_HEIGHT - 8, x_label, "small", "end"))
    for step in range(5):
        value = y_most * step / 4
        _, y = at(xs[0], value)
        kind = "axis" if step == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y + 4, short(value), "small", "end"))
    for x in xs:
        across, _ = at(x, 0)
        parts.append(_text(across, TOP + height + 18, short(x), "small", "middle"))
    for number, line in enumerate(found):
        places = [at(x, y) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path class="{line.series} line" d="M{path}"/>')
        parts += [
            f'<circle class="{line.series}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places
        ]
        if len(found) > 1:
            parts.append(_legend(number, line))
    return _svg(CHART_HEIGHT, title, parts)


def short(value: float) -> str:
    """A number in few characters: 1,500 is 1.5k."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}" if value % size == 0 else f"{value / size:.1f}{unit}"
    return f"{value:g}"


def _legend(number: int, line: Line) -> str:
    x = WIDTH - RIGHT - 150 * (number + 1)
    return f'<circle class="{line.series}" cx="{x}" cy="20" r="4"/>' + _text(
        x + 10, 24, line.label, "small"
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, _STYLE, *parts, "</svg>", ""])
