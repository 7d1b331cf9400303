"""Loading of a pipeline's tokenizers and networks from a checkpoint."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from pipeline.checkpoints import weights
from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.weights import PendingWeights
from pipeline.errors import CheckpointError
from pipeline.families.family import Config, Network
from pipeline.models.layers import merge_kernels
from pipeline.models.quantized import quantize
from pipeline.runtime.executables import ExecutableCache, get_or_create
from pipeline.text.tokenizer import Tokenizers, identity

log = logging.getLogger(__name__)


def load_tokenizers(checkpoint: Checkpoint, cache: ExecutableCache | None = None) -> Tokenizers:
    """Load a checkpoint's tokenizers, from the cache if they are in it.

    Raises:
        CheckpointError: if a tokenizer cannot be loaded or does not fit its text encoder.
    """
    folder, config = checkpoint.folder, checkpoint.config
    load = partial(Tokenizers.load, folder, config.tokenizers)
    key = config.tokenizers, identity(folder, config.tokenizers)
    tokenizers = get_or_create(cache, "tokenizers", key, load)
    encoders = config.text_encoders.items()
    for tokenizer, (name, encoder) in zip(tokenizers.each, encoders, strict=True):
        if tokenizer.vocabulary_size > encoder.vocab_size:
            raise CheckpointError(
                f"{folder}/{name}/config.json: vocab_size = {encoder.vocab_size} is less than the"
                f" {tokenizer.vocabulary_size} of its tokenizer"
            )
    return tokenizers


def trace_networks(
    config: Config,
    dtype: np.dtype[Any],
    cache: ExecutableCache | None = None,
    quantization: str | None = None,
) -> dict[str, Any]:
    """Return the networks with shapes in place of parameters, by name.

    They are taken from the cache if they are in it. `quantization` is one of
    `pipeline.models.quantized.QUANTIZATIONS`, or None.
    """

    def trace() -> dict[str, Any]:
        return {
            name: nnx.eval_shape(
                partial(make, config.family.network(name).dtypes.get(dtype.name, dtype))
            )
            for name, make in module_factories(config, quantization).items()
        }

    quantized = () if quantization is None else (quantization,)
    return get_or_create(cache, "shapes", (config.networks, dtype.name, *quantized), trace)


def find_networks(
    checkpoint: Checkpoint,
    dtype: np.dtype[Any],
    cache: ExecutableCache | None = None,
    quantization: str | None = None,
) -> dict[str, PendingWeights[Any]]:
    """Find the networks' parameters in a checkpoint, by the networks' names.

    Only the weight files that were chosen for the checkpoint are read.

    Raises:
        CheckpointError: if the tensors in the files do not fit the networks.
    """
    networks = trace_networks(checkpoint.config, dtype, cache, quantization)
    return match_networks(checkpoint, networks)


def match_networks(
    checkpoint: Checkpoint, networks: Mapping[str, Any]
) -> dict[str, PendingWeights[Any]]:
    """Do what `find_networks` does, for the networks that `trace_networks` returned."""
    return {
        name: weights.match_weights(network, partial(checkpoint.tensors, name))
        for name, network in networks.items()
    }


def load_networks(
    pending_weights: Mapping[str, PendingWeights[Any]], place: weights.DevicePut
) -> dict[str, Any]:
    """Load the parameters that `find_networks` found, and return the networks by name.

    `place` copies a parameter from a host array to the devices.
    """
    # Benchmarks with random weights run where this package is not.
    from tqdm import tqdm

    def load(name: str, pending: PendingWeights[Any]) -> Any:
        bar = tqdm(
            desc=f"Loading {name}", unit="B", unit_scale=True, unit_divisor=1024, disable=None
        )
        with timed(f"loaded {name}"), bar:
            return pending.load(place, bar.update)

    return {name: load(name, pending) for name, pending in pending_weights.items()}


def module_factories(
    config: Config, quantization: str | None = None
) -> dict[str, Callable[[DTypeLike], nnx.Module]]:
    """Return for each network, by name, a function that makes it in a dtype.

    The functions are for tracing by `nnx.eval_shape`: the networks have shapes, no parameters.
    """

    def make(network: Network, network_config: object, dtype: DTypeLike) -> nnx.Module:
        module = merge_kernels(network.make(network_config, dtype=dtype, rngs=weights.shape_rngs()))
        if quantization is None or network.int8_layers is None:
            return module
        return quantize(module, network.int8_layers(network_config))

    return {
        name: partial(make, config.family.network(name), network_config)
        for name, network_config in config.networks.items()
    }


@contextmanager
def timed(done: str) -> Iterator[None]:
    """Log how long a stage of startup took; `done` says what it was."""
    start = time.perf_counter()
    yield
    log.info("%s in %.1f s", done, time.perf_counter() - start)
