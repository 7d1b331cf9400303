"""ControlNets: agreement with torch's ControlNetModel and ControlNetUnionModel."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, ControlNetUnionModel, UNet2DConditionModel
from flax import nnx

from pipeline.checkpoints.tensors import open_tensors
from pipeline.families import read_config
from pipeline.models.controlnet import ControlNet
from pipeline.models.controlnet_config import read_controlnet
from pipeline.models.unet import UNet
from tests.checkpoints import GOLDEN
from tests.controlnets import save_controlnet
from tests.reference.torch_reference import to_numpy, to_torch
from tools import agreement
from tools.agreement import relative_error

BOUND = 2e-5
SDXL = GOLDEN / "three_levels/checkpoint"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--seed")


class Inputs:
    """Random inputs of a UNet and its ControlNets: two rows, of which both have the same hint."""

    def __init__(self, checkpoint: Path, seed: int) -> None:
        config = read_config(checkpoint)
        unet = config.networks["unet"]
        rng = np.random.default_rng(seed)

        def noise(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        height, width = unet.sample_size
        factor = config.networks["vae"].scale_factor
        self.latents = noise(2, height, width, 4)
        self.timesteps = rng.uniform(0, 999, 2).astype(np.float32)
        self.hints = rng.random((2, 1, height * factor, width * factor, 3), dtype=np.float32)
        self.hints[:, :, :3] = -1  # as where a picture is redrawn
        self.prompt_embeds = noise(2, 77, unet.cross_attention_dim)
        self.conditions: dict[str, np.ndarray] = {}
        if unet.addition is not None:
            width = unet.addition.input_dim - 6 * unet.addition.time_embed_dim
            sizes = rng.integers(0, 2048, (2, 6)).astype(np.float32)
            self.conditions = {"text_embeds": noise(2, width), "time_ids": sizes}

    @torch.no_grad()
    def theirs(self, network: Callable[..., Any], **inputs: Any) -> Any:
        conditions = {key: torch.from_numpy(value) for key, value in self.conditions.items()}
        return network(
            to_torch(self.latents),
            torch.from_numpy(self.timesteps),
            encoder_hidden_states=torch.from_numpy(self.prompt_embeds),
            added_cond_kwargs=conditions,
            **inputs,
        )

    def residuals(self, output: Any) -> list[np.ndarray]:
        both = (*output.down_block_res_samples, output.mid_block_res_sample)
        return [to_numpy(x) for x in both]

    def ours(
        self, network: ControlNet, types: list[int], scales: list[float], count: int = 0
    ) -> list[np.ndarray]:
        """Return the residuals with these types of hints, of `count` types, and their scales."""
        given = np.zeros((2, count), np.float32)
        if count:
            given[:, types] = 1

        @nnx.jit
        def run(network: ControlNet) -> tuple[Any, ...]:
            hint = sum(
                network.hint(
                    jnp.tile(image, (2, 1, 1, 1)),
                    jnp.full(2, kind, jnp.int32),
                    jnp.full(2, scale, jnp.float32),
                )
                for image, kind, scale in zip(self.hints, types, scales, strict=False)
            )
            context = network.condition(
                jnp.asarray(self.prompt_embeds),
                *map(jnp.asarray, self.conditions.values()),
                control_types=jnp.asarray(given),
            )
            return network(jnp.asarray(self.latents), jnp.asarray(self.timesteps), context, hint)

        return [np.asarray(x) for x in run(network)]


def load(folder: Path) -> ControlNet:
    config = read_controlnet(folder / "config.json")
    return agreement.load_tensors(
        ControlNet,
        config,
        partial(open_tensors, folder, ["controlnet/diffusion_pytorch_model.safetensors"]),
    )


def check(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(ours) == len(theirs)
    for mine, right in zip(ours, theirs, strict=True):
        assert relative_error(mine, np.broadcast_to(right, mine.shape)) <= BOUND


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("sd_1", "full"),
        ("sd_1", "pool"),
        ("sd_1", "bgr"),
        ("sd_2", "full"),
        ("plain", "full"),
        ("three_levels", "full"),
        ("three_levels", "mid"),
        ("three_levels", "small"),
        ("three_levels", "resnets"),
    ],
)
def test_networks_agree(model: str, kind: str, seed: int, tmp_path: Path) -> None:
    checkpoint = GOLDEN / model / "checkpoint"
    ours = load(save_controlnet(tmp_path, checkpoint, kind, seed))
    theirs = ControlNetModel.from_pretrained(tmp_path)
    inputs = Inputs(checkpoint, seed)
    image = to_torch(np.tile(inputs.hints[0], (2, 1, 1, 1)))
    right = inputs.residuals(inputs.theirs(theirs, controlnet_cond=image))
    check(inputs.ours(ours, [0], [1.0]), right)
    if kind == "pool":
        assert all(x.shape[1:3] == (1, 1) for x in right)


@pytest.mark.parametrize(
    ("kind", "types", "scales"),
    [
        ("union", [0], [1.0]),
        ("union", [5], [1.0]),
        ("union", [1, 3], [1.0, 1.0]),
        ("union", [3, 4], [0.4, 1.3]),
        ("promax", [7], [1.0]),
        ("promax", [6, 2], [0.9, 0.6]),
    ],
)
def test_union_networks_agree(
    kind: str, types: list[int], scales: list[float], seed: int, tmp_path: Path
) -> None:
    ours = load(save_controlnet(tmp_path, SDXL, kind, seed))
    theirs = ControlNetUnionModel.from_pretrained(tmp_path)
    inputs = Inputs(SDXL, seed)
    count = theirs.config.num_control_type
    given = torch.zeros(2, count)
    given[:, types] = 1
    right = inputs.theirs(
        theirs,
        controlnet_cond=[to_torch(np.tile(x, (2, 1, 1, 1))) for x in inputs.hints[: len(types)]],
        control_type=given,
        control_type_idx=types,
        conditioning_scale=scales,
    )
    check(inputs.ours(ours, types, scales, count), inputs.residuals(right))


@pytest.mark.parametrize("model", ["sd_1", "sd_2", "plain", "three_levels"])
def test_unets_with_residuals_agree(model: str, seed: int) -> None:
    checkpoint = GOLDEN / model / "checkpoint"
    config = read_config(checkpoint).networks["unet"]
    variant = "fp16" if list(checkpoint.glob("unet/*.fp16*")) else None
    theirs = UNet2DConditionModel.from_pretrained(checkpoint, subfolder="unet", variant=variant)
    ours = agreement.load_module(UNet, config, checkpoint / "unet")
    inputs = Inputs(checkpoint, seed)
    rng = np.random.default_rng([seed, 1])
    shapes, level = [], 0
    for i, channels in enumerate(config.skip_channels):
        # The last skip of every block but the last one has half of its block's sides.
        past = i and i % (config.layers_per_block[0] + 1) == 0
        level += bool(past)
        shapes.append((level, channels))
    shapes.append((level, config.block_out_channels[-1]))
    height, width = config.sample_size
    residuals = [
        rng.standard_normal((2, height >> down, width >> down, channels), dtype=np.float32)
        for down, channels in shapes
    ]
    *down, mid = map(to_torch, residuals)
    right = inputs.theirs(
        theirs, down_block_additional_residuals=down, mid_block_additional_residual=mid
    )

    @nnx.jit
    def run(unet: UNet) -> tuple[Any, Any]:
        context = unet.condition(
            jnp.asarray(inputs.prompt_embeds), *map(jnp.asarray, inputs.conditions.values())
        )
        context = context._replace(residuals=tuple(map(jnp.asarray, residuals)))
        given = jnp.asarray(inputs.latents), jnp.asarray(inputs.timesteps), context
        return unet(*given), unet.shallow(*given, unet.deep(*given))

    for prediction in run(ours):
        assert relative_error(np.asarray(prediction), to_numpy(right.sample)) <= BOUND
