"""What tests have JAX compile with: most of the time is the compiler's, and little pays it back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

QUICKLY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false",
}


@contextmanager
def quickly() -> Iterator[None]:
    """Programs that are started meanwhile compile so, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICKLY.items():
            patch.setenv(name, value)
        yield
