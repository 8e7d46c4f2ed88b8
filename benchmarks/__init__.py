"""Benchmarks, each beside what there is to compare with; `scripts/bench` runs them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.frame import Benchmark

#: Name -> module, in the order of `scripts/bench all`; imported only when wanted.
MODULES = {
    "engine": "benchmarks.engine.harness",
    "latency": "benchmarks.latency",
    "parallel": "benchmarks.parallel.harness",
    "isolation": "benchmarks.isolation",
    "lateness": "benchmarks.lateness",
    "memory": "benchmarks.memory",
    "recovery": "benchmarks.recovery",
    "failover": "benchmarks.failover",
    "growth": "benchmarks.growth",
}


def benchmark(name: str) -> Benchmark:
    """The benchmark of that name."""
    found: Benchmark = import_module(MODULES[name]).BENCHMARK
    return found
