"""Tests of Sweeper, laid out as the package is."""

import os

# Read when numpy is loaded. Its threads make small matrices several times slower on busy cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
