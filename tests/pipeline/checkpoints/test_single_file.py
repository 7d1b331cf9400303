"""Checkpoints in one file: their tensors, what they may carry, and what is refused."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.single_file import SingleFileCheckpoint, take_section
from pipeline.checkpoints.source import fetch
from pipeline.checkpoints.tensors import open_file, open_tensors
from pipeline.checkpoints.weights import modern_name
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from pipeline.families.single_files import KINDS
from pipeline.runtime.loading import find_networks
from tests.checkpoints import GOLDEN
from tests.original_layout import EMA_FACTOR, Entry, export, write_safetensors
from tests.single_files import thin_file, thin_folder

NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/checkpoint"))
SECTIONS = {kind.folder: kind.sections for kind in KINDS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thin_folder(tmp_path_factory.mktemp("thin") / "folder", "sd_1")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return thin_file(
        folder,
        folder.parent / "thin.safetensors",
        ema=True,
        extra_keys=["position_ids", "alphas_cumprod"],
    )


def read(file: Path, **options: Any) -> Checkpoint:
    return fetch(str(file), None, FamilyReader(), **options)


def changed(
    file: Path, target: Path, without: str = "$.", more: dict[str, np.ndarray] | None = None
) -> Path:
    """Copy a file without the tensors that match a pattern, and with others."""
    kept = {name: value for name, value in load_file(file).items() if not re.match(without, name)}
    save_file(kept | (more or {}), target)
    return target


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_the_folders(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / name / "checkpoint"
    export(folder, tmp_path / "one.safetensors")
    if (folder / "text_encoder_2").is_dir():
        is_whole = (folder / "text_encoder").is_dir()
        sections = SECTIONS["sdxl" if is_whole else "sdxl_refiner"]
    else:
        sections = SECTIONS["sd_2" if name == "sd_2" else "sd_1"]
    with open_file(tmp_path / "one.safetensors") as tensors:
        for network, section in sections.items():
            found = take_section(tensors, section)
            by_name = {modern_name(name): tensor for name, tensor in found.items()}
            with open_tensors(folder / network) as right:
                rights = {
                    modern_name(name): tensor
                    for name, tensor in right.items()
                    if not name.endswith("position_ids")
                }
                assert by_name.keys() == rights.keys()
                for key, tensor in rights.items():
                    assert by_name[key].shape == tensor.shape
                    np.testing.assert_array_equal(by_name[key].read(), tensor.read())


def test_the_configuration_is_the_folders(folder: Path, file: Path) -> None:
    ours, right = read(file), fetch(str(folder), None, FamilyReader())
    assert (ours.model, ours.revision) == ("thin", None)
    assert ours.config.scheduler == right.config.scheduler
    assert ours.config.family is right.config.family
    for name in ("text_encoder", "vae"):
        assert ours.config.networks[name] == right.config.networks[name]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_every_storage_is_read(folder: Path, dtype: str, tmp_path: Path) -> None:
    file = thin_file(folder, tmp_path / "model.safetensors", dtype=dtype)
    name = "conv_in.weight"
    with read(file).tensors("unet") as ours, open_tensors(folder / "unet") as right:
        stored = right[name].read().astype(np.float32).astype(dtype)
        assert ours[name].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(ours[name].read(), stored)


def test_the_moving_average_is_used_only_when_asked_for(folder: Path, file: Path) -> None:
    name = "mid_block.resnets.0.conv1.weight"
    with open_tensors(folder / "unet") as right:
        own = right[name].read()
    with read(file).tensors("unet") as tensors:
        np.testing.assert_array_equal(tensors[name].read(), own)
    with read(file, ema=True).tensors("unet") as tensors:
        np.testing.assert_array_equal(tensors[name].read(), own * np.float16(EMA_FACTOR))
    with read(file, ema=True).tensors("vae") as tensors:
        assert tensors["decoder.conv_in.weight"].name.startswith("first_stage_model.")


def test_a_moving_average_that_is_not_there(folder: Path, file: Path, tmp_path: Path) -> None:
    none = changed(file, tmp_path / "none.safetensors", r"model_ema\.")
    with pytest.raises(CheckpointError, match=r"none.safetensors: it holds no moving average"):
        read(none, ema=True)
    with pytest.raises(CheckpointError, match="only single files hold a moving average"):
        read(folder, ema=True)
    one = "model_ema.diffusion_modelout2bias"
    damaged = changed(file, tmp_path / "damaged.safetensors", rf"{one}$")
    with pytest.raises(CheckpointError, match=rf"the tensor {one} is missing"):
        read(damaged, ema=True).tensors("unet")


@pytest.mark.parametrize(
    "name",
    [
        "alphas_cumprod",
        "alphas_cumprod_prev",
        "sqrt_one_minus_alphas_cumprod",
        "log_one_minus_alphas_cumprod",
        "sqrt_recipm1_alphas_cumprod",
        "posterior_mean_coef1",
        "denoiser.sigmas",
        "denoiser.log_sigmas",
        "model_sampling.sigmas",
        "epoch",
        "embedding_manager.embedder.transformer.text_model.final_layer_norm.bias",
        "safety_checker.concept_embeds",
        "model_ema.first_stage_modeldecoderconv_inweight",
        "cond_stage_model.transformer.vision_model.embeddings.class_embedding",
        "cond_stage_model.transformer.visual_projection.weight",
        "model.diffusion_model.transformer.position_ids",
        "model.alphas_cumprod",
        "cond_stage_model.attn_mask",
        "conditioner.embedders.1.logit_scale",
        "loss.logvar",
        "first_stage_model.loss.discriminator.main.0.weight",
        "model_ema.num_updates",
        "cond_stage_model.logit_scale",
        "cond_stage_model.transformer.text_projection.weight",
        "cond_stage_model.transformer.text_model.embeddings.position_ids",
    ],
)
def test_tensors_without_effect_are_dropped(file: Path, name: str, tmp_path: Path) -> None:
    more = changed(file, tmp_path / "more.safetensors", more={name: np.ones(3, np.int64)})
    found = read(more)
    for network in found.config.networks:
        with found.tensors(network) as tensors:
            assert not any(
                tensor.name == name and "position_ids" not in name for tensor in tensors.values()
            )


def parameters(file: Path) -> dict[str, np.ndarray]:
    """Return the parameters of all networks in a file, as the devices would get them."""
    pending = find_networks(read(file), np.dtype(np.float32))
    return {
        f"{network}: {path}": value
        for network, weights in pending.items()
        for path, value in weights.read(dict(nnx.to_flat_state(nnx.state(weights.module))))
    }


ATTENTION = {
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "proj_out": "to_out.0",
    "norm": "group_norm",
}


def with_modern_attention(name: str) -> str:
    """Return the name that converters give to a tensor of the VAE's attention."""
    before, mark, rest = name.partition(".mid.attn_1.")
    part, dot, leaf = rest.partition(".")
    return f"{before}{mark}{ATTENTION.get(part, part)}{dot}{leaf}"


# What other programs write in place of a tensor's usual name.
RENAMINGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "UNet twice in a model": (
        "sd_1",
        lambda name: re.sub(r"^model\.d", "model.model.d", name),
    ),
    "UNet in no model": ("sd_1", lambda name: re.sub(r"^model\.d", "d", name)),
    "UNet without a prefix": (
        "sd_1",
        lambda name: name.removeprefix("model.diffusion_model."),
    ),
    "VAE's attention as in diffusers": ("sd_1", with_modern_attention),
    "VAE by another prefix": ("sd_1", lambda name: name.replace("first_stage_model.", "vae.")),
    "CLIP without its text_model": ("sd_1", lambda name: name.replace(".text_model.", ".")),
    "OpenCLIP of sd_turbo": (
        "sd_2_base",
        lambda name: name.replace("cond_stage_model.", "conditioner.embedders.0."),
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a file of each kind that `RENAMINGS` names."""
    scratch = tmp_path_factory.mktemp("kinds")
    return {
        kind: thin_file(thin_folder(scratch / kind, kind), scratch / f"{kind}.safetensors")
        for kind in ("sd_1", "sd_2_base", "sdxl")
    }


def same_parameters(one: Path, other: Path) -> None:
    ours, theirs = parameters(one), parameters(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name], value)


@pytest.mark.parametrize("naming", RENAMINGS)
def test_other_names_give_the_same_parameters(
    files: dict[str, Path], naming: str, tmp_path: Path
) -> None:
    kind, rename = RENAMINGS[naming]
    tensors = load_file(files[kind])
    renamed = {rename(name): value for name, value in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "theirs.safetensors")
    same_parameters(files[kind], tmp_path / "theirs.safetensors")


def test_scaled_float8_gives_the_parameters_of_its_products(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """The weights of the UNet and of a text encoder have scales, as ComfyUI writes them."""
    entries, products = {}, {}
    for name, value in load_file(files["sdxl"]).items():
        is_scaled = name.endswith(".weight") and value.ndim > 1 and "first_stage" not in name
        entries[name], products[name] = value, value.astype(np.float32)
        if is_scaled:
            entries[name] = value.astype(ml_dtypes.float8_e4m3fn)
            scale = np.float32(0.5)
            entries[name.removesuffix("weight") + "scale_weight"] = np.asarray(scale)
            products[name] = entries[name].astype(np.float32) * scale
    entries["model.diffusion_model.scaled_fp8"] = np.zeros(2).astype(ml_dtypes.float8_e4m3fn)
    write_safetensors(
        tmp_path / "scaled.safetensors",
        {
            name: Entry(value.shape, value.dtype, lambda value=value: value)
            for name, value in entries.items()
        },
    )
    save_file(products, tmp_path / "products.safetensors")
    same_parameters(tmp_path / "scaled.safetensors", tmp_path / "products.safetensors")


@pytest.mark.parametrize("kind", ["sdxl", "sd_2_base"])
def test_position_ids_of_open_clip_are_dropped(
    files: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    prefix = {"sdxl": "conditioner.embedders.1.", "sd_2_base": "cond_stage_model."}[kind]
    ids = {f"{prefix}model.transformer.text_model.embeddings.position_ids": np.arange(77)[None]}
    same_parameters(files[kind], changed(files[kind], tmp_path / "ids.safetensors", more=ids))


def test_unknown_tensors_are_named(file: Path, tmp_path: Path) -> None:
    more = {f"adapter.{leaf}": np.ones(3, np.float32) for leaf in ("weight", "bias")}
    odd = changed(file, tmp_path / "odd.safetensors", more=more)
    with pytest.raises(
        CheckpointError, match=r"odd\.safetensors: unknown tensor adapter\.\w+, and 1 more; expect"
    ):
        read(odd)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (r"first_stage_model\.", r"the vae is missing \(no tensors .* or vae\.\*\); VAE_ID names"),
        (
            r"cond_stage_model\.",
            r"this is a UNet without text encoders; UNET_ID names it, and MODEL_ID a checkpoint",
        ),
        (r"model\.|model_ema\.", r"the unet is missing \(no .*on_model\.\*\); UNET_ID names one"),
        (r"(?!first_stage_model\.)", r"this is a VAE; VAE_ID names it, and MODEL_ID a whole"),
        (r"model\.diffusion_model\.time_embed\.0\.weight", r"not built as .*time_embedding\.lin"),
        (r"first_stage_model\.encoder\.down\.2\.", r"vae is not built as .*down_blocks\.2"),
    ],
)
def test_missing_networks_are_named(file: Path, without: str, message: str, tmp_path: Path) -> None:
    part = changed(file, tmp_path / "part.safetensors", without)
    with pytest.raises(CheckpointError, match=rf"part\.safetensors: .*{message}"):
        read(part)


def test_two_names_of_one_tensor(file: Path, tmp_path: Path) -> None:
    more = {"model.diffusion_model.conv_in.bias": np.ones(3, np.float32)}
    twice = changed(file, tmp_path / "twice.safetensors", more=more)
    with pytest.raises(CheckpointError, match=r"conv_in\.bias.* name the same tensor"):
        read(twice)


@pytest.mark.parametrize("name", ["model.ckpt", "model.pt", "owner/name/model.ckpt"])
def test_pickles_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "/" not in name:
        Path(name).write_bytes(b"\x80\x02.")
    with pytest.raises(CheckpointError, match=r"model\.\w+: .*can run code.*\.safetensors"):
        read(Path(name))


@pytest.mark.parametrize("name", ["missing.safetensors", "./a/b/missing.safetensors", "m.ckpt"])
def test_a_file_that_is_not_there(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such file; on the Hub it would be owner/name/"):
        fetch(name, None, FamilyReader())


def test_a_file_has_no_revision(file: Path) -> None:
    with pytest.raises(CheckpointError, match=r"this is a file, which has no revision 'main'"):
        fetch(str(file), "main", FamilyReader())


def test_a_link_is_followed_and_gives_its_name(file: Path, tmp_path: Path) -> None:
    (tmp_path / "pretty.safetensors").symlink_to(file)
    assert read(tmp_path / "pretty.safetensors").model == "pretty"


PEAK = """
import sys
from pipeline.checkpoints.source import fetch
from pipeline.families import FamilyReader
def peak():
    return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1])
checkpoint = fetch(sys.argv[1], None, FamilyReader())
before, kept = peak(), []
for network in checkpoint.config.networks:
    with checkpoint.tensors(network) as tensors:
        kept += [tensor.read() for tensor in tensors.values()]
print(peak() - before, sum(array.nbytes for array in kept) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_the_peak_of_memory_is_a_folders(folder: Path, tmp_path: Path) -> None:
    file = thin_file(folder, tmp_path / "model.safetensors")

    def grown(source: Path) -> tuple[int, int]:
        command = [sys.executable, "-c", PEAK, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, size = map(int, done.stdout.split())
        return peak, size

    (in_folder, size), (in_file, same) = grown(folder), grown(file)
    assert size == same
    assert in_file <= 1.2 * in_folder


def test_each_byte_is_read_once(file: Path) -> None:
    checkpoint = read(file)
    assert isinstance(checkpoint, SingleFileCheckpoint)
    with checkpoint.tensors("text_encoder") as tensors:
        assert len({tensor.name for tensor in tensors.values()}) == len(tensors)


def test_thirds_of_a_tensor_read_their_own_rows(tmp_path: Path) -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        whole = np.arange(24).reshape(6, 4).astype(dtype)
        write_raw(tmp_path / "a.safetensors", "a", whole)
        with open_file(tmp_path / "a.safetensors") as tensors:
            thirds = [third.read() for third in tensors["a"].thirds()]
            assert all(third.dtype == whole.dtype for third in thirds)
            np.testing.assert_array_equal(np.concatenate(thirds), whole)
            np.testing.assert_array_equal(tensors["a"].transposed().read(), whole.T)
            assert tensors["a"].transposed().shape == (4, 6)
            with pytest.raises(CheckpointError, match=r"'a' has shape \[4, 6\].*divided by 3"):
                tensors["a"].transposed().thirds()


def write_raw(file: Path, name: str, values: np.ndarray) -> None:
    from tests.original_layout import DTYPES

    DTYPES[np.dtype(ml_dtypes.float8_e5m2)] = "F8_E5M2"
    write_safetensors(file, {name: Entry(values.shape, values.dtype, lambda: values)})
