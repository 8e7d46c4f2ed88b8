"""`python -m benchmarks.engine`, the same as `python -m benchmarks engine`."""

import sys

from benchmarks.__main__ import main

sys.exit(main(["engine", *sys.argv[1:]]))
