"""The settings of NovelAI and ComfyUI in pictures are read as AUTOMATIC1111's; odd JSON is none."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.images.image_text import read_text
from pipeline.images.metadata import Settings, read
from pipeline.images.other_programs import READERS, text_of
from tests.pictures import jpeg, png, webp
from tests.pipeline.images.test_image_text import exif, exif_segments

MODEL, MAKE = 0x0110, 0x010F  # EXIF's tags
NOVELAI = {
    "prompt": "1girl, rain",
    "steps": 28,
    "height": 1216,
    "width": 832,
    "scale": 5.5,
    "seed": 3071474384,
    "noise_schedule": "karras",
    "sampler": "k_euler_ancestral",
    "sm": False,
    "uc": "lowres,\nbad",
    "reference_strength_multiple": [],
}
SAMPLER = {
    "seed": 156680208700286,
    "steps": 20,
    "cfg": 8,
    "sampler_name": "dpmpp_2m_sde_gpu",
    "scheduler": "normal",
    "denoise": 1.0,
    "model": ["4", 0],
    "positive": ["6", 0],
    "negative": ["7", 0],
    "latent_image": ["5", 0],
}


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


COMFYUI: dict[str, Any] = {
    "20": node("KSampler", **SAMPLER | {"seed": 1, "steps": 2, "positive": ["7", 0]}),
    "21": node("PreviewImage", images=["20", 0]),
    "3": node("KSampler", **SAMPLER),
    "4": node("CheckpointLoaderSimple", ckpt_name="xl\\sd_xl_base_1.0.safetensors"),
    "5": node("EmptyLatentImage", width=832, height=1216, batch_size=1),
    "6": node("CLIPTextEncode", text="a cat: red", clip=["4", 1]),
    "7": node("CLIPTextEncode", text="text, watermark", clip=["4", 1]),
    "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
    "9": node("SaveImage", filename_prefix="ComfyUI", images=["8", 0]),
}
WORKFLOW = {
    "nodes": [
        {
            "id": 3,
            "type": "KSampler",
            "inputs": [
                *({"name": name, "link": i} for i, name in enumerate(("positive", "negative"))),
                {"name": "latent_image", "link": 2},
                {"name": "model", "link": 3},
                {"name": "seed", "widget": {"name": "seed"}, "link": None},
            ],
            "widgets_values": [
                *(156680208700286, "randomize", 20, 8, "dpmpp_2m_sde_gpu", "normal", 1),
            ],
        },
        {"id": 4, "type": "CheckpointLoaderSimple", "widgets_values": ["sd_xl_base_1.0.ckpt"]},
        {"id": 5, "type": "EmptyLatentImage", "widgets_values": [832, 1216, 1], "inputs": []},
        {"id": 6, "type": "CLIPTextEncode", "widgets_values": ["a cat: red"]},
        {"id": 7, "type": "CLIPTextEncode", "widgets_values": ["text, watermark"]},
        {"id": 9, "type": "SaveImage", "inputs": [{"name": "images", "link": 4}]},
        {"id": 10, "type": "Note", "widgets_values": {"a": 1}},
    ],
    "links": [[i, place, 0, 3, i, "X"] for i, place in enumerate((6, 7, 5, 4))]
    + [[4, 3, 0, 9, 0, "IMAGE"]],
}
EXPECTED = Settings(
    "a cat: red",
    "text, watermark",
    width=832,
    height=1216,
    seed=156680208700286,
    num_inference_steps=20,
    guidance_scale=8.0,
    scheduler="dpmsolver++-2m-sde",
    sigma_schedule="default",
    model="sd_xl_base_1.0",
)


def camera(texts: dict[int, str]) -> bytes:
    """Return an EXIF block with texts of a camera, as ComfyUI writes it."""
    block = Image.Exif()
    block.update(texts)
    return block.tobytes().removeprefix(b"Exif\0\0")


def changed(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return ComfyUI's nodes with other inputs, and with further nodes."""
    nodes = {key: value for key, value in COMFYUI.items() if key not in changes}
    return nodes | {
        key: COMFYUI.get(key, {}) | {"inputs": COMFYUI.get(key, {}).get("inputs", {}) | inputs}
        for key, inputs in changes.items()
    }


def text(keyword: str, value: Any) -> bytes:
    content = value if isinstance(value, str) else json.dumps(value)
    return png((b"tEXt", keyword.encode() + b"\0" + content.encode()))


def found(folder: Path, content: bytes) -> Settings | None:
    (folder / "picture").write_bytes(content)
    return read(folder / "picture")


def prompts(folder: Path, value: Any) -> tuple[str, str]:
    settings = found(folder, text("prompt", value))
    assert settings is not None
    return settings.prompt, settings.negative_prompt


@pytest.mark.parametrize(
    "file",
    [
        lambda comment: text("Comment", comment),
        lambda comment: jpeg(*exif_segments(exif(b"ASCII\0\0\0" + comment.encode()))),
        lambda comment: webp((b"EXIF", exif(json.dumps({"Comment": comment}).encode()))),
    ],
)
def test_novelai(tmp_path: Path, file: Callable[[str], bytes]) -> None:
    assert found(tmp_path, file(json.dumps(NOVELAI))) == Settings(
        "1girl, rain",
        "lowres,\nbad",
        width=832,
        height=1216,
        seed=3071474384,
        num_inference_steps=28,
        guidance_scale=5.5,
        scheduler="euler-ancestral",
        sigma_schedule="karras",
    )


@pytest.mark.parametrize(
    "content",
    [
        text("prompt", COMFYUI),
        text("workflow", WORKFLOW),
        png(
            (b"tEXt", b"workflow\0" + json.dumps(WORKFLOW).encode()),
            (b"tEXt", b"prompt\0damaged"),
            (b"zTXt", b"Comment\0\0damaged"),
        ),
        webp((b"EXIF", exif(b"UNICODE\0" + json.dumps(COMFYUI).encode("utf-16-le")))),
        webp((b"EXIF", exif(json.dumps({"prompt": COMFYUI, "workflow": WORKFLOW}).encode()))),
        webp((b"EXIF", camera({MODEL: f"prompt:{json.dumps(COMFYUI)}", MAKE: "workflow:{}"}))),
        jpeg(*exif_segments(camera({MAKE: f"workflow:{json.dumps(WORKFLOW)}"}))),
    ],
)
def test_comfyui(tmp_path: Path, content: bytes) -> None:
    assert found(tmp_path, content) == EXPECTED


def test_a_text_of_this_program_precedes_the_texts_of_a_camera() -> None:
    both = Image.Exif()
    both[MODEL], both.get_ifd(0x8769)[0x9286] = f"prompt:{json.dumps(COMFYUI)}", b"a\nSteps: 3"
    file = webp((b"EXIF", both.tobytes()))
    assert read_text(io.BytesIO(file), "parameters") == "a\nSteps: 3"


def test_prompts_behind_other_nodes(tmp_path: Path) -> None:
    control = {"30": {"positive": ["6", 0], "negative": ["7", 0], "image": ["31", 0]}}
    through = {"3": {"positive": ["30", 0], "negative": ["30", 1]}, "31": {"image": "pose.png"}}
    both = prompts(tmp_path, changed(**control, **through))
    assert both == (EXPECTED.prompt, EXPECTED.negative_prompt)
    linked = changed(**{"6": {"text": ["40", 0]}, "40": {"string": "a dog"}})
    assert prompts(tmp_path, linked)[0] == "a dog"
    named = changed(**{"6": {"text": "a (embedding:style:1.2)"}})
    assert prompts(tmp_path, named)[0] == "a (style:1.2)"
    zero = COMFYUI | {"7": node("ConditioningZeroOut", conditioning=["6", 0])}
    assert prompts(tmp_path, zero) == (EXPECTED.prompt, "")
    loop = changed(**{"6": {"text": ["7", 0]}, "7": {"text": ["6", 0]}})
    assert prompts(tmp_path, loop) == ("", "")


def test_settings_in_several_nodes(tmp_path: Path) -> None:
    nodes = {
        "1": node("SamplerCustomAdvanced", noise=["2", 0], guider=["3", 0], sigmas=["4", 0]),
        "2": node("RandomNoise", noise_seed=7),
        "3": node("CFGGuider", cfg=3.5, positive=["5", 0], negative=["6", 0], model=["7", 0]),
        "4": node("BasicScheduler", scheduler="karras", steps=9, model=["7", 0]),
        "5": node("CLIPTextEncodeSDXL", width=4096, height=4096, text_g="a", text_l="b"),
        "6": node("CLIPTextEncode", text="c"),
        "7": node("UNETLoader", unet_name="unet.safetensors"),
        "8": node("SaveImage", filename_prefix="x", images=["1", 0]),
    }
    settings = found(tmp_path, text("prompt", nodes))
    assert settings == Settings(
        *("a", "c"), seed=7, num_inference_steps=9, guidance_scale=3.5, sigma_schedule="karras",
        model="unet",
    )  # fmt: skip


@pytest.mark.parametrize("keyword", READERS)
@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "Created with GIMP",
            "[" * 100_000,
            "{}",
            "[]",
            "1",
            "null",
            '{"nodes": 1, "links": 2}',
        ),
        '{"steps": 1}',
        {"1": {"inputs": []}},
        {"1": {"inputs": {"steps": [["1"]], "seed": {}}}},
        {"1": 2, "3": {"inputs": None}},
        {"nodes": [{"id": 1}], "links": [[]]},
        {"nodes": [{"id": [], "type": []}], "links": [[[], []]]},
    ],
)
def test_odd_texts_are_no_settings(tmp_path: Path, keyword: str, value: Any) -> None:
    assert found(tmp_path, text(keyword, value)) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["1", "text", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*("1", "2", "inputs", "nodes", "links", "type", "id", "steps", "seed", "positive")]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of busy machines
@given(VALUES)
def test_any_json_is_read_or_is_none(value: Any) -> None:
    content = json.dumps(value)
    text_of(dict.fromkeys(READERS, lambda: content))


@pytest.mark.parametrize("depth", [2_000])
def test_long_chains_of_nodes_take_linear_time(tmp_path: Path, depth: int) -> None:
    chain = {f"n{i}": {"conditioning": [f"n{i + 1}", 0]} for i in range(depth)}
    nodes = changed(**{"3": {"positive": ["n0", 0]}}, **chain, **{f"n{depth}": {"text": "end"}})
    assert prompts(tmp_path, nodes)[0] == "end"
