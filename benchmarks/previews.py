"""`python -m benchmarks.previews`: how much slower a request with previews is.

The real program runs with the miniature in a separate process. Requests with previews and without
take turns. Writes `benchmarks/results/<date>-previews.json`.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.processes import Instance
from benchmarks.visitors import many_connections, visit
from pipeline import BUNDLED

BODY = {"prompt": "a large red star on a blue background", "seed": 7}


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.previews", description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(["app.py", "--model", str(BUNDLED)], Path(folder) / "log")
        instance.start()
        try:
            instance.wait_until_ready()
            record.write("previews", asyncio.run(_measure(instance.url, pairs)))
        finally:
            instance.stop()


async def _measure(url: str, pairs: int) -> dict[str, Any]:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    async with many_connections() as client:
        await visit(client, url, BODY)  # warm up
        for _ in range(pairs):
            for previews, found in seconds.items():
                made = await visit(client, url, BODY | {"previews": previews})
                assert made.done_s is not None, made.outcome
                found.append(made.done_s)
    without, watched = (statistics.median(found) for found in seconds.values())
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    return {
        "pairs": pairs,
        "seconds_without": round(without, 4),
        "seconds_with": round(watched, 4),
        "times": round(watched / without, 4),
        "median_of_each_pairs": round(statistics.median(ratios), 4),
    }


if __name__ == "__main__":
    main()
