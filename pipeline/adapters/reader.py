"""Reading an adapter's file: every tensor must be part of a change of the model."""

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.adapters.adapter import Adapter, Change, Inventory
from pipeline.adapters.alphas import read_alphas
from pipeline.adapters.faults import Faults
from pipeline.adapters.names import Module, module_names
from pipeline.adapters.parts import SUFFIXES, UNSUPPORTED, Part, split
from pipeline.adapters.planning import PlannedChange, plan_changes
from pipeline.checkpoints.other_formats import refuse_other_formats
from pipeline.checkpoints.tensors import Tensor, TensorFiles, open_file
from pipeline.errors import CheckpointError
from pipeline.file_versions import Version

SUPPORTED = "supported are LoRA, LoCon, DoRA, LoHa, LoKr and full differences"
_CHUNK = 2**20  # bytes that are hashed at a time


def read_adapter(file: Path, name: str, inventory: Inventory) -> Adapter:
    """Read an adapter for a model; nothing is returned if any of it cannot be used.

    Alpha 0 counts as no alpha, which is the rank: so sd-scripts and LyCORIS read it. diffusers
    multiplies by 0.

    Args:
        file: a safetensors file in any of the formats that `names.py` and `parts.py` list.
        name: the name that requests use.
        inventory: the tensors of the model's networks.

    Raises:
        CheckpointError: if the file cannot be read, is damaged or changes meanwhile, or if a tensor
            has no place in the model. The message names the file, the first such tensor and their
            number.
    """
    version = _version(file)
    with _open(file) as tensors:
        if not tensors:
            raise CheckpointError(f"{file}: the file has no tensors")
        faults = Faults(tensors, inventory)
        plan = list(_plan(tensors, inventory, faults))
        faults.check()
        changes: dict[str, dict[str, Change]] = {}
        for change in plan:
            changes.setdefault(change.network, {})[change.target] = change.read(faults)
        faults.check()
    digest, weights_digest = _digests(file)
    if _version(file) != version:
        raise CheckpointError(
            f"{file}: the file changed while it was read; load it again when it is complete"
        )
    return Adapter(name, file, digest, weights_digest, tensors.metadata, changes)


def _open(file: Path) -> TensorFiles:
    try:
        return open_file(file)
    except CheckpointError:
        refuse_other_formats(file)
        raise


def _plan(tensors: TensorFiles, inventory: Inventory, faults: Faults) -> Iterator[PlannedChange]:
    """Yield the changes that a file describes; only shapes are read."""
    alphas = read_alphas(tensors.where, tensors.metadata)
    for module, parts in _grouped(tensors, inventory, faults).items():
        yield from plan_changes(module, parts, inventory[module[0]], alphas, faults)


def _grouped(
    tensors: TensorFiles, inventory: Inventory, faults: Faults
) -> dict[Module, dict[Part, Tensor]]:
    """Return the parts of each module's change."""
    names = module_names(inventory)
    parts: dict[Module, dict[Part, Tensor]] = {}
    for key, tensor in tensors.items():
        name, suffix = split(key)
        module = names.get(name)
        if suffix in UNSUPPORTED:
            faults.add(
                tensor, f"is part of {UNSUPPORTED[suffix]}, which is not supported ({SUPPORTED})"
            )
        elif not suffix:
            faults.add(tensor, f"is no known part of an adapter ({SUPPORTED})")
        elif module is None:
            faults.add(tensor, "belongs to no module of this model")
        else:
            first = parts.setdefault(module, {}).setdefault(SUFFIXES[suffix], tensor)
            if first is not tensor:
                faults.add(tensor, f"is the same part of the same module as {first.name!r}")
    return parts


def _digests(file: Path) -> tuple[str, str]:
    """Return the SHA-256 of a file, and that of its bytes behind the header."""
    file_hash, weights_hash = hashlib.sha256(), hashlib.sha256()
    try:
        with file.open("rb") as stream:
            length = stream.read(8)
            header = stream.read(int.from_bytes(length, "little"))
            file_hash.update(length + header)
            while chunk := stream.read(_CHUNK):
                file_hash.update(chunk)
                weights_hash.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    return file_hash.hexdigest(), weights_hash.hexdigest()


def _version(file: Path) -> Version:
    try:
        status = file.stat()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{file}: is not a file; expected a .safetensors file")
    return Version.of(status)
