"""JAX as tests use it, set up when the first test that needs it imports it."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest

from tests.compiling import QUICKLY


def set_up(jax: Any) -> None:
    """Set JAX up, and create its devices.

    Eight simulated devices stand in for an accelerator host. They are set through the configuration
    and not XLA_FLAGS, so that programs started by a test see the machine as it is.
    """
    jax.config.update("jax_num_cpu_devices", 8)
    # An unintended mix of float32 and bfloat16 is an error rather than a silent loss of precision.
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    # Programs started by a test compile with the usual optimisations, and so do those pipelines of
    # tests/reference that `compiling.optimised` makes.
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", QUICKLY["XLA_FLAGS"])  # read when devices are created
        jax.devices()


class JaxSetup(MetaPathFinder):
    """A hook that sets JAX up after its import, or, if JAX is `skipped`, skips its importer."""

    skipped = False

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "jax":
            return None
        if self.skipped:
            pytest.skip("it needs JAX", allow_module_level=True)
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        loader: Any = spec.loader if spec else None
        execute = loader.exec_module

        def execute_and_set_up(module: ModuleType) -> None:
            execute(module)
            set_up(module)

        loader.exec_module = execute_and_set_up
        return spec
