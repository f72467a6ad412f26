"""Benchmarks of Sweeper's parts; each is run as `python -m benchmarks.NAME`."""

import os

# Threads only slow down matrices as small as the search's, most of all on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
