"""The scale of adapters whose files have no tensors with alpha: PEFT's and diffusers'."""

import json
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError

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

    def _number(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise CheckpointError(
                f"{self.where}: alpha is {reprlib.repr(value)}; expected a finite number"
            )
        return float(value)


def read_alphas(file: Path, metadata: Mapping[str, str]) -> Alphas:
    """Read the configuration in the notes of a file, or in the file beside it.

    Raises:
        CheckpointError: if a configuration cannot be read.
    """
    note = metadata.get(DIFFUSERS_NOTE)
    if note is not None:
        where = f"{file}: the note {DIFFUSERS_NOTE}"
        _check_length(len(note), where)
        configs: dict[str, dict[str, Any]] = {}
        for key, value in _parse(note, where).items():
            network, _, name = key.partition(".")
            configs.setdefault(network, {})[name] = value
        _check_patterns(configs.values(), where)
        return Alphas(where, configs)
    config_file = file.with_name(PEFT_CONFIG)
    if file.name == PEFT_FILE and config_file.is_file():
        config = _parse(_text(config_file), str(config_file))
        _check_patterns([config], str(config_file))
        return Alphas(str(config_file), {"": config})
    return Alphas(str(file), {})


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    _check_length(len(content), str(file))
    return content.decode("utf-8", "replace")


def _check_length(length: int, where: str) -> None:
    if length > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{where}: has more than {MAX_CONFIG_BYTES} bytes")


def _check_patterns(configs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raise CheckpointError if a configuration has too many patterns: each module tries them."""
    for config in configs:
        patterns = config.get("alpha_pattern")
        if isinstance(patterns, dict) and len(patterns) > MAX_PATTERNS:
            raise CheckpointError(
                f"{where}: alpha_pattern has {len(patterns)} keys; the most is {MAX_PATTERNS}"
            )


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{where}: expected a JSON object")
    return values


def _fits(pattern: str, module: str) -> bool:
    """Return whether a key of `alpha_pattern` means a module.

    PEFT takes keys for regular expressions of the name's end. Here they are names: a stranger's
    expression could take forever. diffusers writes names, with "^" before whole ones.
    """
    name = pattern.removeprefix("^")
    return f".{module}".endswith(f".{name}") or name.endswith(f".{module}")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False
