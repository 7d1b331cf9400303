"""Adapters in every format give the same changes, and files that do not fit say why."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.adapters.adapter import Adapter
from pipeline.adapters.reader import read_adapter
from pipeline.checkpoints.original_names import original_unet_names
from pipeline.errors import CheckpointError
from tests.checkpoints import GOLDEN
from tools.adapter_files import (
    KINDS,
    Drawn,
    Module,
    draw_adapter,
    is_projection,
    read_inventory,
    to_tensors,
    write_adapter,
)

SDXL = read_inventory(GOLDEN / "plain/checkpoint")
SD_1 = read_inventory(GOLDEN / "sd_1/checkpoint")
MODELS = {"SDXL": SDXL, "SD 1": SD_1}


def everything(module: Module) -> bool:
    return True


def unet_only(module: Module) -> bool:
    return module[0] == "unet"


# The model and the modules that each format is tried with.
FORMATS = {
    "peft": ("SDXL", everything),
    "peft default": ("SDXL", everything),
    "peft unet": ("SDXL", unet_only),
    "diffusers": ("SDXL", everything),
    "diffusers old": ("SDXL", is_projection),
    "kohya sd": ("SD 1", everything),
    "kohya sdxl": ("SDXL", everything),
    "kohya sgm": ("SDXL", everything),
    "lycoris": ("SDXL", unet_only),
    "comfyui": ("SDXL", unet_only),
}


def read(file: Path, model: str = "SDXL") -> Adapter:
    return read_adapter(file, "pixel", MODELS[model])


def deltas(adapter: Adapter, model: str, strength: float = 1.0) -> dict[str, np.ndarray]:
    found = {}
    for network, changes in adapter.changes.items():
        for name, change in changes.items():
            weight = np.ones(MODELS[model][network][name], np.float32)
            found[f"{network}: {name}"] = change.delta(weight, strength)
    return found


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def without_alpha(drawn: Drawn) -> Drawn:
    return {
        module: {part: value for part, value in parts.items() if part != "alpha"}
        for module, parts in drawn.items()
    }


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_changes_the_same_modules_alike(tmp_path: Path, name: str) -> None:
    model, chosen = FORMATS[name]
    drawn = without_alpha(draw_adapter(MODELS[model], "lora", 1, chosen))
    adapter = read(write_adapter(tmp_path / "a.safetensors", drawn, name, MODELS[model]), model)
    found = deltas(adapter, model)
    assert found.keys() == {f"{network}: {module}.weight" for network, module in drawn}
    for (network, module), parts in drawn.items():
        down, up = parts["lora_down.weight"], parts["lora_up.weight"]
        right = up.reshape(len(up), -1) @ down.reshape(len(down), -1)
        delta = found[f"{network}: {module}.weight"]
        np.testing.assert_allclose(delta.reshape(right.shape), right, rtol=1e-5, atol=1e-6)


# The prefixes of each network's modules in files of further programs, and in files that converters
# made: with dots or with underscores, before names of diffusers' or of the original layout.
PREFIXES = {
    "comfyui": (
        "diffusion_model.",
        "text_encoders.clip_l.transformer.",
        "text_encoders.clip_g.transformer.",
    ),
    "comfyui short": ("model.diffusion_model.", "clip_l.", "clip_g."),
    "comfyui shorter": ("unet.", "clip_l.transformer.", "clip_g.transformer."),
    "onetrainer legacy": ("lora_unet_", "lora_te1_", "lora_te2_"),
    "peft by network": (
        "unet.base_model.model.",
        "text_encoder.base_model.model.",
        "text_encoder_2.base_model.model.",
    ),
    "twice": ("model.model.diffusion_model.", "text_encoder.text_encoder.", "lora_te2_te2_"),
    "twice joined": ("lora_unet_unet_", "lora_te1_te1_", "lora_te2_text_encoder_2_"),
    "joined comfyui": (
        "lora_unet_diffusion_model_",
        "lora_te1_clip_l_transformer_",
        "lycoris_te2_",
    ),
    "lycoris": ("lycoris_unet_", "lycoris_text_encoder_", "lycoris_text_encoder_2_"),
    "dots after kohya's prefix": ("lora_unet.", "lora_te1.", "lora_te2."),
}


@pytest.mark.parametrize("layout", ["diffusers", "original"])
@pytest.mark.parametrize("naming", PREFIXES)
def test_files_of_other_programs_have_the_same_changes(
    tmp_path: Path, naming: str, layout: str
) -> None:
    drawn = draw_adapter(SDXL, "lora", 11)
    modules = dict.fromkeys(module for network, module in drawn if network == "unet")
    originals = original_unet_names(modules) if layout == "original" else {}
    tensors = {}
    for (network, module), parts in drawn.items():
        prefix = dict(zip(SDXL, PREFIXES[naming], strict=True))[network]
        is_text = network != "unet" and module != "text_projection"
        name = f"text_model.{module}" if is_text else originals.get(module, module)
        joined = name.replace(".", "_") if prefix.endswith("_") else name
        tensors |= {f"{prefix}{joined}.{part}": values for part, values in parts.items()}
    save_file(tensors, tmp_path / "theirs.safetensors")
    theirs = deltas(read(tmp_path / "theirs.safetensors"), "SDXL")
    ours = write_adapter(tmp_path / "ours.safetensors", drawn, "kohya sdxl", SDXL)
    assert same(theirs, deltas(read(ours), "SDXL"))


@pytest.mark.parametrize("ends", [("lora_down", "lora_up"), ("lora_A", "lora_B")])
def test_factors_without_a_leaf(tmp_path: Path, ends: tuple[str, str]) -> None:
    names: dict[str, str] = {"lora_down.weight": ends[0], "lora_up.weight": ends[1]}
    tensors = to_tensors(draw_adapter(SDXL, "lora", 12, unet_only), "kohya sdxl", SDXL)
    bare = {}
    for key, values in tensors.items():
        module, _, part = key.partition(".")
        bare[f"{module}.{names.get(part, part)}"] = values
    save_file(tensors, tmp_path / "a.safetensors")
    save_file(bare, tmp_path / "b.safetensors")
    assert same(*(deltas(read(tmp_path / f"{name}.safetensors"), "SDXL") for name in "ab"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_two_layouts(tmp_path: Path, kind: str) -> None:
    drawn = draw_adapter(SDXL, kind, 2)
    files = [
        write_adapter(tmp_path / f"{number}.safetensors", drawn, name, SDXL)
        for number, name in enumerate(("kohya sdxl", "kohya sgm"))
    ]
    one, other = (deltas(read(file), "SDXL", 0.8) for file in files)
    assert len(one) == len(drawn)
    assert same(one, other)


def test_the_text_model_prefix_is_optional(tmp_path: Path) -> None:
    drawn = draw_adapter(SDXL, "lora", 3, lambda module: module[0] != "unet")
    for name in ("peft", "kohya sdxl"):
        tensors = to_tensors(drawn, name, SDXL)
        bare = {
            key.replace("text_model.", "").replace("text_model_", ""): value
            for key, value in tensors.items()
        }
        assert bare.keys() != tensors.keys()
        save_file(tensors, tmp_path / "a.safetensors")
        save_file(bare, tmp_path / "b.safetensors")
        found = [deltas(read(tmp_path / f"{letter}.safetensors"), "SDXL") for letter in "ab"]
        assert same(*found)


def test_notes_and_digests(tmp_path: Path) -> None:
    drawn = draw_adapter(SDXL, "lora", 4, unet_only)
    notes = {"ss_output_name": "pixel art"}
    file = write_adapter(tmp_path / "a.safetensors", drawn, "kohya sgm", SDXL, metadata=notes)
    adapter = read(file)
    content = file.read_bytes()
    header = int.from_bytes(content[:8], "little")
    assert adapter.name == "pixel"
    assert adapter.file == file
    assert adapter.metadata["ss_output_name"] == "pixel art"
    assert adapter.digest == hashlib.sha256(content).hexdigest()
    assert adapter.weights_digest == hashlib.sha256(content[8 + header :]).hexdigest()


@pytest.fixture
def linear(tmp_path: Path) -> tuple[dict[str, np.ndarray], Path]:
    """Return the factors of one linear layer under PEFT's names, and a file for them."""
    tensors = {
        "unet.time_embedding.linear_1.lora_A.weight": np.ones((2, 16), np.float32),
        "unet.time_embedding.linear_1.lora_B.weight": np.ones((64, 2), np.float32),
    }
    return tensors, tmp_path / "a.safetensors"


def scale(file: Path) -> float:
    """Return the scale of the file's one change; its factors are ones and its rank is 2."""
    [change] = read(file).changes["unet"].values()
    delta = change.delta(np.zeros((64, 16), np.float32), 1.0)
    assert np.ptp(delta) == 0
    return float(delta[0, 0] / 2)


@pytest.mark.parametrize(
    ("note", "right"),
    [
        ({"unet.r": 2, "unet.lora_alpha": 6}, 3.0),
        ({"unet.r": 2, "unet.lora_alpha": 6, "unet.use_rslora": True}, 6 / 2**0.5),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"time_embedding.linear_1": 4}}, 2.0),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"^time_embedding.linear_1": 4}}, 2.0),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"linear_1": 4}}, 2.0),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"embedding.linear_1": 4}}, 3.0),
        ({"text_encoder.lora_alpha": 6}, 1.0),
    ],
)
def test_alpha_of_the_note_that_diffusers_writes(linear, note: dict, right: float) -> None:
    tensors, file = linear
    save_file(tensors, file, metadata={"lora_adapter_metadata": json.dumps(note)})
    assert scale(file) == pytest.approx(right)


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ({"unet.alpha_pattern": {str(i): 1 for i in range(2001)}}, "alpha_pattern has 2001 keys"),
        ({"unet.lora_alpha": "x" * 2**20}, "has more than 1048576 bytes"),
        ({"unet.lora_alpha": "x" * 2**19}, "alpha is 'xxx"),
    ],
)
def test_notes_that_would_take_long(linear, note: dict, message: str) -> None:
    tensors, file = linear
    save_file(tensors, file, metadata={"lora_adapter_metadata": json.dumps(note)})
    refused = refusal(file)
    assert message in refused
    assert len(refused) < 500


def test_alpha_of_the_configuration_beside_a_file_of_peft(linear) -> None:
    tensors, file = linear
    file = file.with_name("adapter_model.safetensors")
    save_file(tensors, file)
    assert scale(file) == 1.0
    file.with_name("adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 8}))
    assert scale(file) == 4.0


@pytest.mark.parametrize(("alpha", "right"), [(0.0, 1.0), (1.0, 0.5), (5.0, 2.5)])
def test_alpha_of_a_tensor_and_zero_as_no_alpha(linear, alpha: float, right: float) -> None:
    tensors, file = linear
    tensors["unet.time_embedding.linear_1.alpha"] = np.asarray(alpha, np.float32)
    save_file(tensors, file, metadata={"lora_adapter_metadata": '{"unet.lora_alpha": 9}'})
    assert scale(file) == right


@pytest.mark.parametrize("note", ["{", "[]", '{"unet.lora_alpha": "x"}', "[" * 10**5])
def test_a_note_that_cannot_be_read(linear, note: str) -> None:
    tensors, file = linear
    save_file(tensors, file, metadata={"lora_adapter_metadata": note})
    with pytest.raises(CheckpointError, match=r"a\.safetensors: the note lora_adapter_metadata"):
        read(file)


def test_norms_under_pefts_name_are_those_of_rows(tmp_path: Path) -> None:
    """PEFT's shape of a convolution's norms is `[1, out, 1, 1]`."""
    drawn = without_alpha(draw_adapter(SDXL, "dora", 5, unet_only))
    tensors = to_tensors(drawn, "peft", SDXL)
    for key, value in tensors.items():
        if key.endswith("lora_magnitude_vector"):
            tensors[key] = value.transpose(1, 0, 2, 3) if value.ndim == 4 else value.reshape(-1)
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, tmp_path / "a")
    right = write_adapter(tmp_path / "b.safetensors", drawn, "kohya sgm", SDXL)
    assert same(deltas(read(tmp_path / "a"), "SDXL"), deltas(read(right), "SDXL"))


def test_biases_and_norms(tmp_path: Path) -> None:
    name = "mid_block.resnets.0"
    norm, conv = SDXL["unet"][f"{name}.norm1.weight"], SDXL["unet"][f"{name}.conv1.weight"]
    tensors = {
        "lora_unet_middle_block_0_in_layers_0.w_norm": np.full(norm, 0.5, np.float32),
        "lora_unet_middle_block_0_in_layers_0.b_norm": np.full(norm, 0.25, np.float32),
        "lora_unet_middle_block_0_in_layers_2.diff": np.full(conv, 0.125, np.float32),
        "lora_unet_middle_block_0_in_layers_2.diff_b": np.full(conv[:1], 2, np.float32),
        "unet.conv_out.lora_A.weight": np.ones((1, *SDXL["unet"]["conv_out.weight"][1:]), "f"),
        "unet.conv_out.lora_B.weight": np.ones((4, 1, 1, 1), np.float32),
        "unet.conv_out.lora_B.bias": np.ones(4, np.float32),
        "unet.conv_out.alpha": np.asarray(3, np.float32),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    found = deltas(read(tmp_path / "a.safetensors"), "SDXL", strength=2.0)
    values = {
        f"{name}.norm1.weight": 1.0,
        f"{name}.norm1.bias": 0.5,
        f"{name}.conv1.weight": 0.25,
        f"{name}.conv1.bias": 4.0,
        "conv_out.weight": 6.0,
        "conv_out.bias": 6.0,
    }
    assert {key.removeprefix("unet: "): float(value.flat[0]) for key, value in found.items()} == (
        values
    )
    assert all(np.ptp(value) == 0 for value in found.values())


def test_ranks_and_dtypes_may_differ(tmp_path: Path) -> None:
    drawn = draw_adapter(SDXL, "lora", 6, ranks=(1, 2, 5))
    file = write_adapter(tmp_path / "a.safetensors", drawn, "kohya sgm", SDXL, np.float16)
    tensors = load_file(file)
    for number, key in enumerate(tensors):
        tensors[key] = tensors[key].astype(np.float32 if number % 2 else np.float16)
    save_file(tensors, tmp_path / "b.safetensors")
    both = [deltas(read(tmp_path / f"{letter}.safetensors"), "SDXL") for letter in "ab"]
    assert same(*both)


def refusal(file: Path, model: str = "SDXL") -> str:
    with pytest.raises(CheckpointError) as caught:
        read(file, model)
    assert str(file) in str(caught.value)
    return str(caught.value)


def changed(tmp_path: Path, change, kind: str = "lora") -> Path:
    """Write an adapter of 4 modules whose tensors `change` has changed."""
    chosen = [module for module in draw_adapter(SDXL, "lora", 0) if unet_only(module)][:4]
    drawn = draw_adapter(SDXL, kind, 7, lambda module: module in chosen)
    tensors = to_tensors(drawn, "kohya sdxl", SDXL)
    change(tensors)
    save_file(tensors, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_unknown_modules_are_counted(tmp_path: Path) -> None:
    def change(tensors) -> None:
        for number in (2, 1):
            tensors[f"lora_unet_mystery_{number}.lora_down.weight"] = np.ones((2, 2), np.float32)

    message = refusal(changed(tmp_path, change))
    assert "'lora_unet_mystery_" in message
    assert "belongs to no module of this model" in message
    assert "2 of 14 tensors" in message


def test_an_unknown_part(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors["lora_unet_conv_in.lora_sideways.weight"] = np.ones(1, np.float32)

    message = refusal(changed(tmp_path, change))
    assert "'lora_unet_conv_in.lora_sideways.weight' is no known part of an adapter" in message


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [("oft_blocks", "OFT"), ("a1.weight", "GLoRA"), ("boft_R", "BOFT"), ("lambda_layer", "T-LoRA")],
)
def test_kinds_that_are_not_supported_are_named(tmp_path: Path, suffix: str, kind: str) -> None:
    def change(tensors) -> None:
        tensors.clear()
        tensors[f"lora_unet_conv_in.{suffix}"] = np.ones((2, 2), np.float32)

    message = refusal(changed(tmp_path, change))
    assert f"is part of {kind}" in message
    assert "not supported" in message


def test_a_part_without_its_partner(tmp_path: Path) -> None:
    message = refusal(
        changed(tmp_path, lambda tensors: tensors.pop("lora_unet_conv_in.lora_up.weight"))
    )
    assert "makes up no complete change; its module has the parts" in message
    assert "2 of 11 tensors" in message


def test_one_module_under_two_names(tmp_path: Path) -> None:
    def change(tensors) -> None:
        down = tensors["lora_unet_conv_in.lora_down.weight"]
        tensors["lora_unet_input_blocks_0_0.lora_down.weight"] = down

    message = refusal(changed(tmp_path, change))
    assert "is the same part of the same module as 'lora_unet_" in message


@pytest.mark.parametrize(
    "shape", [(2, 4, 3, 1), (2, 5, 3, 3), (2,), (), (0, 4, 3, 3), (3, 4, 3, 3), (10**6, 0, 3, 3)]
)
def test_wrong_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    def change(tensors) -> None:
        tensors["lora_unet_conv_in.lora_down.weight"] = np.zeros(shape, np.float32)

    message = refusal(changed(tmp_path, change))
    assert "conv_in.lora_" in message


def test_a_rank_beyond_reason(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors["lora_unet_conv_in.lora_down.weight"] = np.zeros((5000, 4, 3, 3), np.float32)
        tensors["lora_unet_conv_in.lora_up.weight"] = np.zeros((16, 5000, 1, 1), np.float32)

    assert "has rank 5000; the most is 4096" in refusal(changed(tmp_path, change))


@pytest.mark.parametrize("kind", ["lokr", "lokr low left", "lokr tucker", "loha tucker", "tucker"])
def test_every_part_has_one_right_shape(tmp_path: Path, kind: str) -> None:
    names: list[str] = []
    changed(tmp_path, lambda tensors: names.extend(tensors), kind)
    for name in names:

        def change(tensors, name=name) -> None:
            tensors[name] = np.ones((*tensors[name].shape, 7), np.float32)

        assert name.split(".")[0] in refusal(changed(tmp_path, change, kind)), name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["lora_up.weight", "alpha"])
def test_values_that_are_not_finite(tmp_path: Path, part: str, value: float) -> None:
    def change(tensors) -> None:
        tensors[f"lora_unet_conv_in.{part}"].flat[-1] = value

    message = refusal(changed(tmp_path, change))
    assert f"'lora_unet_conv_in.{part}' has values that are not finite numbers" in message
    assert "1 of 12 tensors" in message


def test_integers_are_no_factors(tmp_path: Path) -> None:
    def change(tensors) -> None:
        key = "lora_unet_conv_in.lora_up.weight"
        tensors[key] = tensors[key].astype(np.int64)

    assert "has dtype int64; expected floating point" in refusal(changed(tmp_path, change))


def width(inventory, size: int):
    """Return the inventory with another width of the prompt's embeddings."""
    unet = {
        name: (shape[0], size)
        if name.endswith(("attn2.to_k.weight", "attn2.to_v.weight"))
        else shape
        for name, shape in inventory["unet"].items()
    }
    return {**inventory, "unet": unet}


@pytest.mark.parametrize(
    ("theirs", "family"),
    [(768, "Stable Diffusion 1"), (1024, "Stable Diffusion 2"), (2048, "Stable Diffusion XL")],
)
@pytest.mark.parametrize("name", ["kohya sdxl", "peft"])
def test_another_familys_file_names_the_family(
    tmp_path: Path, theirs: int, family: str, name: str
) -> None:
    other = width(SDXL, theirs)
    drawn = draw_adapter(other, "lora", 8, lambda module: "attn" in module[1])
    message = refusal(write_adapter(tmp_path / "a.safetensors", drawn, name, other))
    assert f"likely for {family}" in message
    assert f"{theirs} wide, and this model's 40" in message


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", "a LoRA for FLUX."),
        ("transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight", "a LoRA for FLUX."),
        (
            "lora_unet_joint_blocks_0_x_block_attn_qkv.lora_down.weight",
            "a LoRA for Stable Diffusion 3.",
        ),
        (
            "transformer.transformer_blocks.0.attn.to_q.lora_A.weight",
            "a LoRA for Stable Diffusion 3 or another transformer.",
        ),
        (
            "conditioner.embedders.1.model.ln_final.bias",
            "a whole checkpoint; MODEL_ID names it, or copy it into MODEL_DIR.",
        ),
        ("model.diffusion_model.input_blocks.0.0.weight", "a UNet without text encoders; UNET_ID"),
        ("down_blocks.0.resnets.0.conv1.weight", "a UNet without text encoders; UNET_ID"),
        ("clip_g", "a textual inversion; copy it into EMBEDDING_DIR."),
        ("decoder.up.0.block.0.conv1.weight", "a VAE; VAE_ID names it"),
        ("controlnet_down_blocks.0.weight", "a ControlNet; copy it into CONTROL_DIR."),
        ("image_proj.proj.weight", "an IP-Adapter or another adapter for image prompts."),
    ],
)
def test_other_kinds_of_files(tmp_path: Path, key: str, kind: str) -> None:
    save_file({key: np.ones((2, 2), np.float32)}, tmp_path / "a.safetensors")
    message = refusal(tmp_path / "a.safetensors")
    assert repr(key) in message
    assert f"The file is likely {kind}" in message


def test_marks_of_the_trained_model_change_nothing(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors |= {name: np.zeros(0, np.float32) for name in ("v_pred", "ztsnr")}

    assert len(read(changed(tmp_path, change)).changes["unet"]) == 4


def test_a_fault_of_one_tensor_makes_a_lora_no_other_kind(tmp_path: Path) -> None:
    """The names of ComfyUI's text encoders are parts of an embedding's names."""

    def change(tensors) -> None:
        tensors["clip_g.mystery.lora_down.weight"] = np.ones((2, 2), np.float32)

    message = refusal(changed(tmp_path, change))
    assert "1 of 13 tensors cannot be used" in message
    assert "likely" not in message


def test_a_file_without_tensors(tmp_path: Path) -> None:
    save_file({}, tmp_path / "a.safetensors")
    assert "has no tensors" in refusal(tmp_path / "a.safetensors")
