"""Adapters change a model's weights as torch's diffusers, PEFT and LyCORIS change them.

diffusers with PEFT reads files of every format that it knows into a random checkpoint, fuses them,
and its weights are compared. LyCORIS makes its own modules from the parts of a file; their forward
pass is compared, which is how they are trained: its merge of LoHa and LoKr multiplies by alpha /
rank twice.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lycoris.functional.general import apply_dora_scale
from lycoris.modules import FullModule, LoConModule, LohaModule, LokrModule, NormModule

from pipeline.adapters.adapter import Change
from pipeline.adapters.reader import read_adapter
from pipeline.checkpoints.weights import modern_name
from tests.reference.tiny_checkpoints import TINY, Pipeline, load, write
from tools.adapter_files import (
    KINDS,
    Draw,
    Drawn,
    Module,
    Parts,
    draw_adapter,
    is_projection,
    read_inventory,
    write_adapter,
)

WEIGHTS_BOUND = 1e-5  # relative
STRENGTH = 0.8


@dataclass(frozen=True)
class Model:
    """A random checkpoint of one family."""

    name: str  # "sd" or "sdxl"
    folder: Path
    seed: int

    @property
    def inventory(self) -> dict[str, dict[str, tuple[int, ...]]]:
        return read_inventory(self.folder)

    def weights(self, pipe: Pipeline) -> dict[tuple[str, str], np.ndarray]:
        """Return copies of the weights of torch's networks, by network and tensor."""
        found = {}
        for network, names in self.inventory.items():
            state = getattr(pipe, network).state_dict()
            tensors = {modern_name(name): tensor.numpy() for name, tensor in state.items()}
            found |= {(network, name): tensors[name].copy() for name in names}
        return found


@pytest.fixture(scope="module", autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=["sd_1", "plain"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    seed = request.config.getoption("--seed")
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny = dataclasses.replace(TINY[request.param], seed=seed % 2**31)
    write(tiny, folder)
    return Model("sd" if request.param == "sd_1" else "sdxl", folder, seed)


def changes(model: Model, file: Path) -> dict[tuple[str, str], Change]:
    """Return the changes that a file makes, by network and tensor."""
    found = read_adapter(file, "drawn", model.inventory).changes
    return {
        (network, name): change for network, each in found.items() for name, change in each.items()
    }


def compare(model: Model, file: Path, strength: float = STRENGTH) -> None:
    """Assert that both sides change the same weights alike."""
    theirs = load(model.folder, None)
    before = model.weights(theirs)
    theirs.load_lora_weights(file)
    theirs.fuse_lora(lora_scale=strength)
    theirs.unload_lora_weights()
    after = model.weights(theirs)
    ours = changes(model, file)
    assert ours.keys() == {key for key in before if not np.array_equal(before[key], after[key])}
    for key, change in ours.items():
        mine = before[key] + change.delta(before[key], strength)
        check(mine, after[key], str(key))


def check(ours: np.ndarray, theirs: np.ndarray, name: str = "") -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= WEIGHTS_BOUND * np.abs(theirs).max(), name


@pytest.fixture
def drawn(model: Model) -> Callable[..., Drawn]:
    """Return a function that draws an adapter.

    All its modules have one alpha: diffusers ignores that of attention's projections in kohya's
    files if they differ.
    """

    def draw(kind: str = "lora", chosen: Callable[[Module], bool] = lambda _: True) -> Drawn:
        return draw_adapter(model.inventory, kind, model.seed, chosen, (2, 3), alpha=1.5)

    return draw


@pytest.mark.parametrize("name", ["peft", "diffusers", "diffusers old", "kohya"])
def test_diffusers_formats(
    model: Model, drawn: Callable[..., Drawn], name: str, tmp_path: Path
) -> None:
    chosen = is_projection if name == "diffusers old" else lambda _: True
    name = f"kohya {model.name}" if name == "kohya" else name
    file = write_adapter(tmp_path / "a.safetensors", drawn(chosen=chosen), name, model.inventory)
    compare(model, file)


@pytest.mark.parametrize("model", ["plain"], indirect=True)
def test_original_names(model: Model, drawn: Callable[..., Drawn], tmp_path: Path) -> None:
    """diffusers reads the original names of SDXL alone."""
    compare(model, write_adapter(tmp_path / "a.safetensors", drawn(), "kohya sgm", model.inventory))


def test_alphas_in_the_note_that_diffusers_writes(
    model: Model, drawn: Callable[..., Drawn], tmp_path: Path
) -> None:
    file = write_adapter(
        tmp_path / "a.safetensors",
        parts := drawn(),
        "peft",
        model.inventory,
        metadata={"lora_adapter_metadata": json.dumps(note(parts))},
    )
    compare(model, file)


def note(drawn: Drawn) -> dict[str, Any]:
    """Return PEFT's configuration of each network, with an alpha for every other module."""
    values: dict[str, Any] = {}
    for network in {network for network, _ in drawn}:
        modules = [name for each, name in drawn if each == network]
        ranks = {name: len(drawn[network, name]["lora_down.weight"]) for name in modules}
        config = {
            "r": 2,
            "lora_alpha": 3,
            "rank_pattern": ranks,
            "alpha_pattern": {name: 1 + number for number, name in enumerate(modules[::2])},
            "target_modules": modules,
        }
        values |= {f"{network}.{key}": value for key, value in config.items()}
    return values


def test_dora_of_peft(model: Model, drawn: Callable[..., Drawn], tmp_path: Path) -> None:
    """PEFT scales the product within the norm, so that only strength 1 means the same."""
    parts = drawn("dora", lambda module: module[0] == "unet")
    for each in parts.values():
        scale = each["dora_scale"]
        each["dora_scale"] = scale.reshape(-1) if scale.ndim == 2 else scale.transpose(1, 0, 2, 3)
    file = write_adapter(tmp_path / "a.safetensors", parts, "peft", model.inventory)
    compare(model, file, strength=1.0)


# LyCORIS makes low-rank factors of LoKr only where they are much smaller than a full one.
SHAPES = {"linear": (96, 64), "pointwise": (96, 64, 1, 1), "kernel": (64, 96, 3, 3)}
LYCORIS: dict[str, tuple[type, dict[str, Any]]] = {
    "locon": (LoConModule, {}),
    "locon tucker": (LoConModule, {"use_tucker": True}),
    "dora": (LoConModule, {"weight_decompose": True}),
    "dora of columns": (LoConModule, {"weight_decompose": True, "wd_on_out": False}),
    "rslora": (LoConModule, {"rs_lora": True}),
    "loha": (LohaModule, {}),
    "loha tucker": (LohaModule, {"use_tucker": True}),
    "loha with norms": (LohaModule, {"weight_decompose": True}),
    "lokr": (LokrModule, {}),
    "lokr of three": (LokrModule, {"decompose_both": True}),
    "lokr tucker": (LokrModule, {"use_tucker": True}),
    "lokr by 4": (LokrModule, {"factor": 4}),
    "lokr full": (LokrModule, {"full_matrix": True}),
    "lokr turned": (LokrModule, {"unbalanced_factorization": True}),
    "lokr with norms": (LokrModule, {"weight_decompose": True, "decompose_both": True}),
    "full": (FullModule, {}),
}


def layer(shape: tuple[int, ...], bias: bool = False) -> torch.nn.Module:
    """Return a layer with random weights."""
    outputs, inputs, *kernel = shape
    made = (
        torch.nn.Conv2d(inputs, outputs, tuple(kernel), padding=kernel[0] // 2, bias=bias)
        if kernel
        else torch.nn.Linear(inputs, outputs, bias=bias)
    )
    torch.nn.init.normal_(made.weight, std=0.1)
    return made


def randomise(module: torch.nn.Module) -> None:
    """Fill the parameters of LyCORIS's module, some of which begin as zeros."""
    for name, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        if name == "dora_scale":
            parameter.abs_().add_(0.5)


STRENGTHS = [
    (kind, strength)
    for kind, (_, options) in LYCORIS.items()
    for strength in ([1.0] if options.get("weight_decompose") else [1.0, 0.6])
]


@pytest.mark.parametrize(("kind", "strength"), STRENGTHS)
@pytest.mark.parametrize("name", SHAPES)
def test_lycoris(
    kind: str, name: str, strength: float, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """LyCORIS interpolates norms in its own way, which does not end at the weight without them."""
    make, options = LYCORIS[kind]
    shape = SHAPES[name]
    torch.manual_seed(request.config.getoption("--seed"))
    made = layer(shape)
    module = make("drawn", made, multiplier=strength, lora_dim=3, alpha=1.7, **options)
    randomise(module)
    weight = made.weight.numpy().copy()
    x = torch.randn((2, shape[1], 5, 5) if len(shape) > 2 else (4, shape[1]))
    module.apply_to()
    theirs = made(x)
    parts = {part: value.numpy() for part, value in module.custom_state_dict().items()}
    module.restore()
    delta = read_one(tmp_path, parts, shape).delta(weight, strength)
    made.weight.copy_(torch.from_numpy(weight + delta))
    check(made(x).numpy(), theirs.numpy())
    made.weight.copy_(torch.from_numpy(weight))
    assert (made(x) - theirs).abs().max() > 0.01


def test_norm_layers_of_lycoris(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    torch.manual_seed(request.config.getoption("--seed"))
    made = torch.nn.GroupNorm(4, 16)
    module = NormModule("drawn", made, multiplier=0.6)
    randomise(module)
    x = torch.randn((2, 16, 5, 5))
    module.apply_to()
    theirs = made(x)
    parts = {part: value.detach().numpy() for part, value in module.named_parameters()}
    module.restore()
    for leaf, change in read_parts(tmp_path, parts, {"weight": (16,), "bias": (16,)}).items():
        parameter = getattr(made, leaf)
        parameter.add_(torch.from_numpy(change.delta(parameter.numpy(), 0.6)))
    check(made(x).numpy(), theirs.numpy())


def read_parts(
    tmp_path: Path, parts: Parts, shapes: dict[str, tuple[int, ...]]
) -> dict[str, Change]:
    """Write parts of one module and return the changes of its tensors."""
    inventory = {"unet": {f"conv_in.{leaf}": shape for leaf, shape in shapes.items()}}
    drawn = {("unet", "conv_in"): parts}
    file = write_adapter(tmp_path / "a.safetensors", drawn, "kohya sd", inventory)
    found = read_adapter(file, "a", inventory).changes["unet"]
    return {name.removeprefix("conv_in."): change for name, change in found.items()}


def read_one(tmp_path: Path, parts: Parts, shape: tuple[int, ...]) -> Change:
    return read_parts(tmp_path, parts, {"weight": shape})["weight"]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_norms_of_columns(
    name: str, strength: float, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """LyCORIS's function, unlike its modules, interpolates as this project does."""
    shape = SHAPES[name]
    torch.manual_seed(request.config.getoption("--seed"))
    weight = layer(shape).weight
    parts = KINDS["dora columns"](Draw(request.config.getoption("--seed")), shape)
    bare = {part: value for part, value in parts.items() if part != "dora_scale"}
    rebuilt = torch.from_numpy(read_one(tmp_path, bare, shape).delta(weight.numpy(), 1.0))
    right = apply_dora_scale(weight, rebuilt, torch.from_numpy(parts["dora_scale"]), strength)
    delta = read_one(tmp_path, parts, shape).delta(weight.numpy(), strength)
    check(weight.numpy() + delta, right.numpy())
