"""The scale of adapters whose files have no tensors with alpha: PEFT's and diffusers'."""

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError
from pipeline.strict_json import StrictJson

# The note in the header of files that diffusers writes: PEFT's configuration of each network, with
# keys such as "unet.lora_alpha".
DIFFUSERS_NOTE = "lora_adapter_metadata"
# PEFT's own files have their configuration beside them.
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"
MAX_CONFIG_BYTES = 2**20
MAX_PATTERNS = 2000  # in a configuration: one for each module of a network is enough


@dataclass(frozen=True)
class Alphas:
    """Configurations of PEFT by network; "" is that of all networks."""

    where: str
    configs: Mapping[str, Mapping[str, Any]]

    def alpha(self, network: str, module: str) -> float | None:
        """Return a module's alpha; None if nothing says it.

        Raises:
            CheckpointError: if it is not a finite number.
        """
        for config in self._configs(network):
            patterns = config.get("alpha_pattern")
            pairs = patterns.items() if isinstance(patterns, dict) else ()
            values = [value for pattern, value in pairs if _fits(pattern, module)]
            values += [
                config[key] for key in ("lora_alpha", "alpha") if config.get(key) is not None
            ]
            if values:
                return self._number(values[0])
        return None

    def divisor(self, network: str, rank: int) -> float:
        """Return the number by which alpha is divided: the rank, or its root for rsLoRA."""
        rooted = any(config.get("use_rslora") is True for config in self._configs(network))
        return math.sqrt(rank) if rooted else rank

    def _configs(self, network: str) -> Iterator[Mapping[str, Any]]:
        return (self.configs[key] for key in (network, "") if key in self.configs)

    def _number(self, value: Any) -> float:
        if type(value) not in (int, float) or not abs(value) < 1e30:
            raise CheckpointError(
                f"{self.where}: alpha is {reprlib.repr(value)}; expected a finite number"
            )
        return float(value)


def read_alphas(file: Path, metadata: Mapping[str, str]) -> Alphas:
    """Read the configuration in the notes of a file, or in the file beside it.

    Raises:
        CheckpointError: if a configuration cannot be read.
    """
    note, beside = metadata.get(DIFFUSERS_NOTE), file.with_name(PEFT_CONFIG)
    if note is not None:
        config = StrictJson(f"{file}: the note {DIFFUSERS_NOTE}", note, MAX_CONFIG_BYTES)
    elif file.name == PEFT_FILE and beside.is_file():
        config = StrictJson(beside, most=MAX_CONFIG_BYTES)
    else:
        return Alphas(str(file), {})
    configs: dict[str, dict[str, Any]] = {}
    for key, value in config.values.items():
        network, _, name = key.rpartition(".")
        configs.setdefault(network, {})[name] = value
        # Each module tries all patterns.
        if name == "alpha_pattern" and isinstance(value, dict) and len(value) > MAX_PATTERNS:
            raise CheckpointError(
                f"{config.where}: alpha_pattern has {len(value)} keys; the most is {MAX_PATTERNS}"
            )
    return Alphas(config.where, configs)


def _fits(pattern: str, module: str) -> bool:
    """Return whether a key of `alpha_pattern` means a module.

    PEFT takes keys for regular expressions of the name's end. Here they are names: a stranger's
    expression could take forever. diffusers writes names, with "^" before whole ones.
    """
    name = pattern.removeprefix("^")
    return f".{module}".endswith(f".{name}") or name.endswith(f".{module}")
