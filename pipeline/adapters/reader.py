"""Reading an adapter's file: every tensor must be part of a change of the model.

The shapes of all parts are checked first, then the values are read.
"""

import hashlib
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.adapters.adapter import (
    Adapter,
    Change,
    Decomposed,
    Difference,
    Factored,
    Inventory,
    Shape,
)
from pipeline.adapters.alphas import Alphas, read_alphas
from pipeline.adapters.kinds import (
    BIASES,
    MODIFIERS,
    NORMS,
    SUFFIXES,
    UNSUPPORTED,
    WEIGHTS,
    Arrays,
    Kind,
    Part,
    split,
)
from pipeline.adapters.names import Module, ModuleNames
from pipeline.checkpoints.contents import LORA, contents, use_of
from pipeline.checkpoints.single_file import MARKS, SUFFIX
from pipeline.checkpoints.source import file_on_hub, local_path
from pipeline.checkpoints.tensors import Tensor, TensorFiles, open_file
from pipeline.errors import CheckpointError
from pipeline.file_versions import Version, version_of

# Embeddings that belong to a LoRA, as OneTrainer and AUTOMATIC1111 name their tensors.
BUNDLE = re.compile(r"bundle_emb\.<?([^.<>]+)>?\.(?:string_to_param\.)?([^.]+)")
UNUSED = re.compile(rf"^({'|'.join(MARKS)})$")  # marks of the model that it was trained on
SUPPORTED = "supported are LoRA, LoCon, DoRA, LoHa, LoKr and full differences"
MAX_RANK = 4096  # more than the layers of any Stable Diffusion can use
INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
_CHUNK = 2**20  # bytes that are hashed at a time
# Width of the prompt's embeddings in cross-attention.
WIDTHS = {768: "Stable Diffusion 1", 1024: "Stable Diffusion 2", 2048: "Stable Diffusion XL"}
# The parts whose second axis is as wide as a module's input.
_INPUTS = ("lora_down.weight", "hada_w1_b", "diff")
Parts = Mapping[Part, Tensor]
# Tensors that cannot be used: their names, and reasons that continue a sentence.
Faults = dict[str, str]


class PlannedChange(NamedTuple):
    """A change whose parts have the right shapes and are not read yet.

    Attributes:
        network: the network of the changed tensor.
        target: the changed tensor's name in diffusers' layout.
        parts: the tensors to read.
        make: makes the change from their values.
    """

    network: str
    target: str
    parts: Parts
    make: Callable[[Arrays], Change]


def read_adapter(file: Path, name: str, inventory: Inventory) -> Adapter:
    """Read an adapter for a model, all of it or nothing.

    Alpha 0 counts as a missing alpha, which means the rank, as in sd-scripts and LyCORIS. diffusers
    multiplies by 0 instead.

    Args:
        file: a safetensors file in any of the formats that `names.py` and `kinds.py` list.
        name: the name that requests use.
        inventory: the tensors of the model's networks.

    Raises:
        CheckpointError: if the file cannot be read, is damaged or changes meanwhile, or if a tensor
            has no place in the model. The message names the file, the first such tensor and their
            number.
    """
    with open_file(file, UNUSED) as tensors:
        if not tensors:
            raise CheckpointError(f"{file}: the file has no tensors")
        alphas = read_alphas(file, tensors.metadata)
        modules, faults = _grouped(tensors, inventory)
        plan = [
            change
            for module, parts in modules.items()
            for change in _plan(module, parts, inventory[module[0]], alphas, faults)
        ]
        _refuse(faults, tensors, inventory)
        changes: dict[str, dict[str, Change]] = {}
        for network, target, parts, make in plan:
            arrays = {part: tensor.read() for part, tensor in parts.items()}
            for part, array in arrays.items():
                if not np.isfinite(array.astype(np.float32, copy=False)).all():
                    faults[parts[part].name] = "has values that are not finite numbers"
            changes.setdefault(network, {})[target] = make(arrays)
        _refuse(faults, tensors, inventory)
        bundles: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
        for match in filter(None, map(BUNDLE.fullmatch, tensors)):
            bundles[match[1]][match[2]] = tensors[match[0]].read()
        [version] = set(tensors.versions.values())
    return Adapter(name, file, *_digests(file, version), tensors.metadata, changes, bundles)


def _refuse(faults: Faults, tensors: TensorFiles, inventory: Inventory) -> None:
    """Raise a CheckpointError if there are faults; it names the first tensor in the file."""
    if not faults:
        return
    first = next(name for name in tensors if name in faults)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    raise CheckpointError(
        f"{tensors.where}: tensor {first!r} {faults[first]}. {len(faults)} of {len(shapes)} tensors"
        f" cannot be used.{likely(shapes, inventory)}"
    )


def _grouped(
    tensors: TensorFiles, inventory: Inventory
) -> tuple[dict[Module, dict[Part, Tensor]], Faults]:
    """Return the parts of each module's change, and the tensors that are none."""
    names, faults = ModuleNames(inventory), Faults()
    parts: dict[Module, dict[Part, Tensor]] = {}
    for key, tensor in tensors.items():
        if BUNDLE.fullmatch(key):
            continue
        name, suffix = split(key)
        module = names.find(name)
        if suffix in UNSUPPORTED:
            kind = UNSUPPORTED[suffix]
            faults[key] = f"is part of {kind}, which is not supported ({SUPPORTED})"
        elif not suffix:
            faults[key] = f"is no known part of an adapter ({SUPPORTED})"
        elif module is None:
            faults[key] = "belongs to no module of this model"
        else:
            first = parts.setdefault(module, {}).setdefault(SUFFIXES[suffix], tensor)
            if first is not tensor:
                faults[key] = f"is the same part of the same module as {first.name!r}"
    return parts, faults


def _plan(
    module: Module, parts: Parts, targets: Mapping[str, Shape], alphas: Alphas, faults: Faults
) -> Iterator[PlannedChange]:
    """Yield the changes of a module's weight and bias, if nothing is wrong with their parts.

    Args:
        module: the module's network and name.
        parts: the tensors that the file has for it.
        targets: the shapes of the network's tensors.
        alphas: the scales in the file's notes.
        faults: gets the tensors that cannot be used.
    """
    network, name = module
    weight = {part: tensor for part, tensor in parts.items() if part not in BIASES}
    bias = {part: tensor for part, tensor in parts.items() if part in BIASES}
    kind = WEIGHTS.get(frozenset(weight) - MODIFIERS)
    scale = partial(_scale, None, 1.0, None)
    if kind is None or not kind.modifiers >= weight.keys() & MODIFIERS:
        faults |= _incomplete(weight, parts)
    elif weight_faults := _weight_faults(kind, weight, targets[f"{name}.weight"]):
        faults |= weight_faults
    else:
        if kind.rank is not None:
            rank = weight[kind.rank].shape[0]
            scale = partial(_scale, rank, alphas.divisor(network, rank), alphas.alpha(*module))
        target = targets[f"{name}.weight"]
        make = partial(_make_weight, kind=kind, scale=scale, shape=target)
        yield PlannedChange(network, f"{name}.weight", weight, make)
    for part, tensor in bias.items():
        shape = targets.get(f"{name}.bias")
        if len(bias) > 1 or (part == "lora_B.bias" and "lora_up.weight" not in parts):
            faults |= _incomplete(bias, parts)
        elif shape is None:
            faults[tensor.name] = "changes a bias, and the module has none"
        elif bias_faults := _shape_faults(bias, {part: shape}):
            faults |= bias_faults
        elif part == "lora_B.bias":  # PEFT's is scaled, as the product beside it is
            scaled_parts = {key: parts[key] for key in (part, "alpha") if key in parts}
            make = partial(_make_bias, part=part, scale=scale)
            yield PlannedChange(network, f"{name}.bias", scaled_parts, make)
        else:
            make = partial(_make_bias, part=part)
            yield PlannedChange(network, f"{name}.bias", bias, make)


def _incomplete(refused_parts: Parts, parts: Parts) -> Faults:
    reason = f"makes up no complete change; its module has the parts {', '.join(parts)}"
    return {tensor.name: reason for tensor in refused_parts.values()}


def _weight_faults(kind: Kind, parts: Parts, target: Shape) -> Faults:
    """Return what is wrong with the shapes of the parts of a weight's change."""
    factors = {part: tensor for part, tensor in parts.items() if part not in MODIFIERS}
    for tensor in factors.values():
        if not tensor.shape:
            return {tensor.name: "is a single number; expected a matrix or a kernel"}
        if kind.modifiers and len(target) < 2:
            return {tensor.name: f"is a matrix's factor; the weight has shape {list(target)}"}
    shapes = kind.shapes({part: tensor.shape for part, tensor in factors.items()}, target)
    faults = _shape_faults(factors, shapes)
    if not faults and kind.rank is not None and factors[kind.rank].shape[0] > MAX_RANK:
        tensor = factors[kind.rank]
        return {tensor.name: f"has rank {tensor.shape[0]}; the most is {MAX_RANK}"}
    return faults or _modifier_faults(parts, target)


def _shape_faults(parts: Parts, shapes: Mapping[Part, Shape]) -> Faults:
    faults = {}
    for part, tensor in parts.items():
        if tensor.dtype in INTEGERS:
            faults[tensor.name] = f"has dtype {tensor.dtype}; expected floating point"
        elif 0 in shapes[part] or not _fits(tensor.shape, shapes[part]):
            shape = " x ".join(str(size or "?") for size in shapes[part])
            faults[tensor.name] = f"has shape {list(tensor.shape)}; expected {shape}"
    return faults


def _fits(shape: Shape, target: Shape) -> bool:
    """Return whether both shapes are the same matrix, as a 1x1 kernel and a linear layer's are."""
    return shape[:1] == target[:1] and math.prod(shape[1:]) == math.prod(target[1:])


def _modifier_faults(parts: Parts, target: Shape) -> Faults:
    alpha = parts.get("alpha")
    norms = {part: tensor for part, tensor in parts.items() if part in NORMS}
    if alpha is not None and math.prod(alpha.shape) != 1:
        return {alpha.name: f"has shape {list(alpha.shape)}; expected a single number"}
    if len(norms) > 1:
        return _incomplete(norms, parts)
    return {
        tensor.name: f"has shape {list(tensor.shape)}; expected {target[0]} norms of rows or"
        f" 1 x {target[1]} of columns"
        for part, tensor in norms.items()
        if _norm_axis(part, tensor.shape, target) is None
    }


def _norm_axis(part: Part, shape: Shape, target: Shape) -> int | None:
    """Return the axis of a tensor along which a file has norms; None if they do not fit.

    PEFT's norms are those of rows, whatever their shape. LyCORIS's shape tells the axis.
    """
    if not shape:
        return None
    size = math.prod(shape)
    rows = part == "lora_magnitude_vector" or shape[0] == target[0]
    if rows:
        return 0 if size == target[0] else None
    return 1 if shape[:2] == (1, size) and size == target[1] else None


def _scale(rank: int | None, divisor: float, file_alpha: float | None, arrays: Arrays) -> float:
    """Return the scale of a module's factors: alpha divided by the rank, or by `divisor`.

    `file_alpha` is alpha from the file's notes. Without a rank the scale is 1.
    """
    if rank is None:
        return 1.0
    alpha = float(arrays["alpha"].item()) if "alpha" in arrays else file_alpha
    # No alpha, and alpha 0, mean the rank: so sd-scripts and LyCORIS read it.
    return (alpha or rank) / divisor


def _make_weight(
    arrays: Arrays, kind: Kind, scale: Callable[[Arrays], float], shape: Shape
) -> Change:
    change = kind.build(arrays, scale(arrays))
    for part in NORMS:
        if part in arrays and isinstance(change, Factored):
            axis = _norm_axis(part, arrays[part].shape, shape)
            return Decomposed(change, arrays[part].reshape(-1), axis or 0)
    return change


def _make_bias(
    arrays: Arrays, part: Part, scale: Callable[[Arrays], float] = lambda _: 1.0
) -> Change:
    return Difference(arrays[part], scale(arrays))


def _digests(file: Path, version: Version) -> tuple[str, str]:
    """Return the SHA-256 of a file, and that of its bytes behind the header.

    Raises:
        CheckpointError: if the file cannot be read, or is not of this version any more.
    """
    file_hash, weights_hash = hashlib.sha256(), hashlib.sha256()
    try:
        with file.open("rb") as stream:
            length = stream.read(8)
            file_hash.update(length + stream.read(int.from_bytes(length, "little")))
            while chunk := stream.read(_CHUNK):
                file_hash.update(chunk)
                weights_hash.update(chunk)
            is_same = version_of(os.fstat(stream.fileno())) == version
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    if not is_same:
        raise CheckpointError(
            f"{file}: the file changed while it was read; load it again when it is complete"
        )
    return file_hash.hexdigest(), weights_hash.hexdigest()


def find_adapter(source: str | Path) -> Path:
    """Return an adapter's file; one on the Hub is downloaded to the cache of the Hub's client.

    Args:
        source: a file; a folder with a single `.safetensors` file; or a file on the Hub, such as
            `owner/name/file.safetensors`.

    Raises:
        CheckpointError: if it is not there, or cannot be downloaded.
    """
    path, on_hub = local_path(str(source)), file_on_hub(str(source))
    if path.is_dir():
        return _only_file(path)
    if path.exists():
        return path
    if on_hub is None or not on_hub.path.endswith(SUFFIX):
        raise CheckpointError(
            f"{source}: no such file or folder; on the Hub it would be owner/name/file{SUFFIX}"
        )
    # Imported here because the Hub's client takes time to import, and a file does not need it.
    from pipeline.checkpoints.hub import download_file

    file, _ = download_file(*on_hub, None)
    return file


def _only_file(folder: Path) -> Path:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == SUFFIX)
    if len(files) == 1:
        return files[0]
    names = ", ".join(path.name for path in files[:3]) or "none"
    ellipsis = ", ..." if len(files) > 3 else ""
    raise CheckpointError(f"{folder}: expected one {SUFFIX} file in it; found {names}{ellipsis}")


def likely(shapes: Mapping[str, Shape], inventory: Inventory) -> str:
    """Return a sentence about the kind of a file, with a space before it; empty if unknown.

    Args:
        shapes: the shape of each tensor in the file.
        inventory: the model's tensors.
    """
    kind = contents(shapes)
    if kind in (None, LORA):
        kind = _other_width(shapes, inventory)
    return f" The file is likely {kind}{use_of(kind)}." if kind else ""


def _other_width(shapes: Mapping[str, Shape], inventory: Inventory) -> str | None:
    """Return the family that a file's cross-attention belongs to, unless it is the model's."""
    model = {
        shape[1]
        for name, shape in inventory.get("unet", {}).items()
        if name.endswith("attn2.to_k.weight")
    }
    file = set(_widths(shapes))
    if not model or not file or model & file:
        return None
    width, model_width = min(file), min(model)
    family = WIDTHS.get(width, "another model")
    return f"for {family}: its cross-attention is {width} wide, and this model's {model_width}"


def _widths(shapes: Mapping[str, Shape]) -> Iterator[int]:
    for key, shape in shapes.items():
        module, suffix = split(key)
        if SUFFIXES.get(suffix) in _INPUTS and len(shape) > 1:
            name = module.replace(".", "_").removesuffix("_lora")
            if "attn2" in name and name.endswith(("to_k", "to_v")):
                yield shape[1]
