"""Random adapters in the formats that people's files have.

An adapter is drawn for the tensors of a model, as parts of each module's change under LyCORIS's
names. A format says how a file names modules and parts. Needs no torch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pipeline.adapters.adapter import Inventory, Shape
from pipeline.checkpoints.original_names import original_unet_names
from pipeline.checkpoints.tensors import open_tensors
from pipeline.checkpoints.weights import IGNORED, modern_name

Module = tuple[str, str]  # network, and name in diffusers' layout
Parts = dict[str, np.ndarray]
Drawn = dict[Module, Parts]

OLD_PROJECTIONS = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


class Draw:
    """Functions that draw the parts of a change to a weight `[out, in, *kernel]`."""

    def __init__(self, seed: int, rank: int = 2) -> None:
        self.rng = np.random.default_rng(seed)
        self.rank = rank

    def normal(self, *shape: int) -> np.ndarray:
        """Return values whose products are about as large as a layer's weights."""
        values = self.rng.standard_normal(shape, dtype=np.float32)
        return (values / np.sqrt(max(1, shape[-1]))).astype(np.float32)

    def alpha(self) -> Parts:
        return {"alpha": np.asarray(self.rng.uniform(0.5, 4), np.float32)}

    def lora(self, shape: Shape) -> Parts:
        """Draw LoRA's factors, or LoCon's."""
        ones = (1,) * len(shape[2:])
        return {
            "lora_down.weight": self.normal(self.rank, *shape[1:]),
            "lora_up.weight": self.normal(shape[0], self.rank, *ones),
            **self.alpha(),
        }

    def tucker(self, shape: Shape) -> Parts:
        """Draw LoCon's factors with a core; only kernels larger than 1x1 have one."""
        if shape[2:] in ((), (1, 1)):
            return self.lora(shape)
        return {
            "lora_down.weight": self.normal(self.rank, shape[1], 1, 1),
            "lora_mid.weight": self.normal(self.rank, self.rank, *shape[2:]),
            "lora_up.weight": self.normal(shape[0], self.rank, 1, 1),
            **self.alpha(),
        }

    def dora(self, shape: Shape) -> Parts:
        """Draw LoRA with the norms of rows."""
        norms = np.abs(self.normal(shape[0], *(1,) * len(shape[1:]))) + 0.5
        return {**self.lora(shape), "dora_scale": norms}

    def dora_columns(self, shape: Shape) -> Parts:
        """Draw LoRA with the norms of columns, as older LyCORIS has them."""
        norms = np.abs(self.normal(1, shape[1], *(1,) * len(shape[2:]))) + 0.5
        return {**self.lora(shape), "dora_scale": norms}

    def loha(self, shape: Shape) -> Parts:
        inputs = int(np.prod(shape[1:]))
        names = [(f"hada_w{number}_a", f"hada_w{number}_b") for number in (1, 2)]
        factors = {}
        for up, down in names:
            factors[up] = self.normal(shape[0], self.rank)
            factors[down] = self.normal(self.rank, inputs)
        return {**factors, **self.alpha()}

    def loha_tucker(self, shape: Shape) -> Parts:
        if shape[2:] in ((), (1, 1)):
            return self.loha(shape)
        factors = {}
        for number in (1, 2):
            factors[f"hada_t{number}"] = self.normal(self.rank, self.rank, *shape[2:])
            factors[f"hada_w{number}_a"] = self.normal(self.rank, shape[0])
            factors[f"hada_w{number}_b"] = self.normal(self.rank, shape[1])
        return {**factors, **self.alpha()}

    def lokr(self, shape: Shape, low_left: bool = False, right: str = "low") -> Parts:
        """Draw LoKr's factors.

        Args:
            shape: the weight's.
            low_left: whether the small matrix is a product of two.
            right: "full", "low", or "tucker" with a core where there is a kernel.
        """
        rows, columns = _near_root(shape[0]), _near_root(shape[1])
        a, b = shape[0] // rows, shape[1] // columns
        parts = self._lokr_left(rows, columns, low_left)
        if right == "full":
            parts["lokr_w2"] = self.normal(a, b, *shape[2:])
        elif right == "tucker" and shape[2:] not in ((), (1, 1)):
            parts["lokr_t2"] = self.normal(self.rank, self.rank, *shape[2:])
            parts["lokr_w2_a"] = self.normal(self.rank, a)
            parts["lokr_w2_b"] = self.normal(self.rank, b)
        else:
            parts["lokr_w2_a"] = self.normal(a, self.rank)
            parts["lokr_w2_b"] = self.normal(self.rank, b * int(np.prod(shape[2:])))
        return {**parts, **self.alpha()}

    def _lokr_left(self, rows: int, columns: int, low: bool) -> Parts:
        if not low:
            return {"lokr_w1": self.normal(rows, columns)}
        return {
            "lokr_w1_a": self.normal(rows, self.rank),
            "lokr_w1_b": self.normal(self.rank, columns),
        }

    def full(self, shape: Shape) -> Parts:
        return {"diff": 0.2 * self.normal(*shape)}


KINDS: dict[str, Callable[[Draw, Shape], Parts]] = {
    "lora": Draw.lora,
    "tucker": Draw.tucker,
    "dora": Draw.dora,
    "dora columns": Draw.dora_columns,
    "loha": Draw.loha,
    "loha tucker": Draw.loha_tucker,
    "lokr": Draw.lokr,
    "lokr low left": lambda draw, shape: draw.lokr(shape, low_left=True),
    "lokr full": lambda draw, shape: draw.lokr(shape, right="full"),
    "lokr low left full": lambda draw, shape: draw.lokr(shape, low_left=True, right="full"),
    "lokr tucker": lambda draw, shape: draw.lokr(shape, right="tucker"),
    "full": Draw.full,
}


def _near_root(size: int) -> int:
    """Return a divisor near the root, as LyCORIS chooses."""
    return max(divisor for divisor in range(1, int(size**0.5) + 1) if size % divisor == 0)


def read_inventory(checkpoint: Path) -> dict[str, dict[str, Shape]]:
    """Return the tensors of a folder in diffusers' layout that adapters can change."""
    inventory: dict[str, dict[str, Shape]] = {}
    for network in ("unet", "text_encoder", "text_encoder_2"):
        if (checkpoint / network).is_dir():
            with open_tensors(checkpoint / network) as tensors:
                inventory[network] = {
                    modern_name(name): tensor.shape
                    for name, tensor in tensors.items()
                    if not IGNORED.match(name)
                }
    return inventory


def weights(inventory: Inventory) -> Iterable[tuple[Module, Shape]]:
    """Yield the modules that adapters usually change, linear layers and convolutions."""
    for network, tensors in inventory.items():
        for name, shape in tensors.items():
            module, _, leaf = name.rpartition(".")
            if leaf == "weight" and len(shape) > 1 and "embedding." not in name:
                yield (network, module), shape


def draw_adapter(
    inventory: Inventory,
    kind: str,
    seed: int,
    is_chosen: Callable[[Module], bool] = lambda _: True,
    ranks: Iterable[int] = (2, 3),
    alpha: float | None = None,
) -> Drawn:
    """Draw parts of one of `KINDS` for every module that `is_chosen` returns True for.

    The modules get `ranks` in turns. None for `alpha` draws one for each module.
    """
    ranks = list(ranks)
    adapter: Drawn = {}
    for number, (module, shape) in enumerate(weights(inventory)):
        if is_chosen(module):
            draw = Draw(seed + number, ranks[number % len(ranks)])
            parts = KINDS[kind](draw, shape)
            if alpha is not None and "alpha" in parts:
                parts["alpha"] = np.asarray(alpha, np.float32)
            adapter[module] = parts
    return adapter


def is_projection(module: Module) -> bool:
    """Return whether a module is a projection of attention; the oldest files change only these."""
    name = module[1].removesuffix(".0").rpartition(".")[2]
    return name in (*OLD_PROJECTIONS, *OLD_PROJECTIONS.values())


@dataclass(frozen=True)
class Format:
    """The way in which a file names modules and parts.

    Attributes:
        module: returns a module's name from its network, its name in diffusers' layout and that in
            the original layout.
        parts: the names of parts that differ from LyCORIS's; parts with an empty name are left out.
        text_parts: the same for text encoders.
    """

    module: Callable[[str, str, str], str]
    parts: Mapping[str, str]
    text_parts: Mapping[str, str]

    def key(self, module: Module, original: str, part: str) -> str:
        """Return a tensor's name in a file, or an empty one if the file has no such tensor."""
        parts = self.parts if module[0] == "unet" else self.text_parts
        name = parts.get(part, part)
        return f"{self.module(*module, original)}.{name}" if name else ""


def _text_model(network: str, module: str) -> str:
    """Return a module's name with the prefix that text encoders had before transformers 5."""
    has_prefix = network != "unet" and module != "text_projection"
    return f"text_model.{module}" if has_prefix else module


def _dotted(network: str, module: str, original: str) -> str:
    return f"{network}.{_text_model(network, module)}"


def _old(network: str, module: str, original: str) -> str:
    parent, _, leaf = module.removesuffix(".0").rpartition(".")
    processor = ".processor" if network == "unet" else ""
    name = f"{parent}{processor}.{OLD_PROJECTIONS.get(leaf, leaf)}_lora"
    return f"{network}.{_text_model(network, name)}"


def _joined(prefixes: Mapping[str, str], layout: str) -> Callable[[str, str, str], str]:
    """Return the naming with underscores of the original or of diffusers' layout."""

    def name(network: str, module: str, original: str) -> str:
        inner = original if layout == "original" else _text_model(network, module)
        return prefixes[network] + inner.replace(".", "_")

    return name


_SD = {"unet": "lora_unet_", "text_encoder": "lora_te_"}
_SDXL = {"unet": "lora_unet_", "text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}


def _factors(down: str, up: str, **other_names: str) -> dict[str, str]:
    """Return names of the two factors, without alpha."""
    return {"lora_down.weight": down, "lora_up.weight": up, "alpha": "", **other_names}


_PEFT = _factors("lora_A.weight", "lora_B.weight", dora_scale="lora_magnitude_vector")
_NAMED = _factors("lora_A.default.weight", "lora_B.default.weight")
_DIFFUSERS = _factors("lora.down.weight", "lora.up.weight")
_LINEAR = _factors("lora_linear_layer.down.weight", "lora_linear_layer.up.weight")
_OLD = _factors("down.weight", "up.weight")

FORMATS = {
    "peft": Format(_dotted, _PEFT, _PEFT),
    "peft default": Format(lambda *names: f"base_model.model.{_dotted(*names)}", _NAMED, _NAMED),
    "peft unet": Format(lambda _, module, __: f"base_model.model.{module}", _PEFT, _PEFT),
    "diffusers": Format(_dotted, _DIFFUSERS, _LINEAR),
    "diffusers old": Format(_old, _OLD, _OLD),
    "kohya sd": Format(_joined(_SD, "diffusers"), {}, {}),
    "kohya sdxl": Format(_joined(_SDXL, "diffusers"), {}, {}),
    "kohya sgm": Format(_joined(_SDXL, "original"), {}, {}),
    "lycoris": Format(_joined({"unet": "lycoris_"}, "diffusers"), {}, {}),
    "comfyui": Format(lambda _, __, original: f"diffusion_model.{original}", {}, {}),
}


def to_tensors(adapter: Drawn, format_name: str, inventory: Inventory) -> Parts:
    """Return a file's tensors in one of `FORMATS`."""
    form = FORMATS[format_name]
    modules = {name.rpartition(".")[0] for name in inventory.get("unet", {})}
    originals = original_unet_names(sorted(modules))
    tensors = {}
    for (network, module), parts in adapter.items():
        original = originals[module] if network == "unet" else _text_model(network, module)
        for part, values in parts.items():
            if key := form.key((network, module), original, part):
                tensors[key] = values
    return tensors


def write_adapter(
    file: Path,
    adapter: Drawn,
    format_name: str,
    inventory: Inventory,
    dtype: np.dtype | type = np.float32,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a drawn adapter in one of `FORMATS`, and return the file."""
    tensors = to_tensors(adapter, format_name, inventory)
    arrays = {key: np.ascontiguousarray(value.astype(dtype)) for key, value in tensors.items()}
    save_file(arrays, file, metadata={"format": "pt", **(metadata or {})})
    return file
