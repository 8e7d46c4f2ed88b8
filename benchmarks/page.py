"""docs/performance.md and its plots, made from the results."""

from __future__ import annotations


def write_page() -> None:
    """Make the page anew."""
