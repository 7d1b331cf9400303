"""JAX settings that compile quickly: tests spend most of their time in the compiler."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

QUICKLY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    # Programs are compiled beside each other; splitting each for more threads costs a third more.
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
}


@contextmanager
def quickly() -> Iterator[None]:
    """Set the environment so that programs started inside this context compile quickly, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICKLY.items():
            patch.setenv(name, value)
        yield


@contextmanager
def optimised(wanted: bool = True) -> Iterator[None]:
    """Compile pipelines inside this context with all of XLA's optimisations, as users do."""
    import jax

    from pipeline.runtime.programs import Program

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Program,
            "compile",
            lambda self: self.jitted.lower(*self.args).compile(
                {**(self.options or {}), "xla_cpu_use_fusion_emitters": wanted}
            ),
        )
        jax.config.update("jax_disable_most_optimizations", not wanted)
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", True)
