"""Measurements, and their results: one file in results/ for each run."""

import time

# When this process began: Python imports this file before any that takes long.
STARTED = time.perf_counter()
