"""`python -m benchmarks.engine`, which `scripts/bench engine` calls."""

import sys

from benchmarks.engine.harness import main

sys.exit(main(sys.argv[1:]))
