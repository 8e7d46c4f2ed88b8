"""Few numbers for many."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Least, middle and largest; None of nothing."""
    if not values:
        return None
    found = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, 2) for name, value in found.items()}


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p99 and the largest; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    found = {f"p{part}": ordered[(len(ordered) - 1) * part // 100] for part in (50, 99)}
    return {name: round(value, 1) for name, value in {**found, "max": ordered[-1]}.items()}
