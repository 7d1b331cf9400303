"""`HALTS_AT="MODULE.FUNCTION N" python -m tests.halted [the flags of app.py]`: the real program.

It stands for good in the place of the N-th call of the function, and says so. It is for tests that
kill it at a chosen moment. Models are copied to the devices in small pieces.
"""

import os
import pkgutil
import sys
import time
from collections import Counter
from typing import Any

import app
from pipeline.runtime import adapters

SAYS = "It halts"
CHUNK_BYTES = 2**12  # about the size of a tensor


def main() -> None:
    """Serve up to the halt, which HALTS_AT names; for good without one."""
    adapters.CHUNK_BYTES = CHUNK_BYTES
    if place := os.environ.get("HALTS_AT"):
        named, last = place.split()
        owner, _, name = named.rpartition(".")
        function, calls = pkgutil.resolve_name(named), Counter[str]()

        def halting(*args: Any, **options: Any) -> Any:
            calls[named] += 1
            while calls[named] >= int(last):
                print(SAYS, flush=True)
                time.sleep(3600)
            return function(*args, **options)

        setattr(pkgutil.resolve_name(owner), name, halting)
    app.main(sys.argv[1:])


if __name__ == "__main__":
    main()
