"""Checkpoints from folders and from the Hub: its real client with a server on this machine."""

import json
import os
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save

from pipeline.checkpoints.folder import FolderCheckpoint
from pipeline.checkpoints.source import fetch
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from tests.checkpoints import GOLDEN, change_json, copy_checkpoint
from tests.fetching import fetch_with
from tests.hub_server import HubServer, Repo
from tests.single_files import thin_file, thin_folder

MODEL = "studio/sdxl"
FIRST, SECOND = "1" * 40, "2" * 40

TEXT_ENCODER = {"model_type": "clip_text_model", "hidden_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "model_index.json": {
        "_class_name": "StableDiffusionXLPipeline",
        "scheduler": ["diffusers", "EulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
    },
    "scheduler/scheduler_config.json": {"_class_name": "EulerDiscreteScheduler"},
    "text_encoder/config.json": TEXT_ENCODER,
    "text_encoder_2/config.json": TEXT_ENCODER | {"projection_dim": 64},
    "unet/config.json": {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 32,
        "attention_head_dim": 1,
        "block_out_channels": [32, 64],
        "cross_attention_dim": 128,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "projection_class_embeddings_input_dim": 64 + 6 * 32,
        "sample_size": 16,
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
        "use_linear_projection": True,
    },
    "vae/config.json": {},
}
TOKENIZER = ["vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"]
WEIGHTS = [
    "text_encoder/model.safetensors",
    "text_encoder_2/model.safetensors",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
]
FP16 = [name.replace(".safetensors", ".fp16.safetensors") for name in WEIGHTS]
NEEDED = {
    *CONFIGS,
    *(f"{folder}/{name}" for folder in ("tokenizer", "tokenizer_2") for name in TOKENIZER),
    *WEIGHTS,
}
# Other files in published repositories.
OTHERS = [
    ".gitattributes",
    "README.md",
    "sd_xl_base_1.0.safetensors",
    "feature_extractor/preprocessor_config.json",
    "safety_checker/model.safetensors",
    "text_encoder/flax_model.msgpack",
    "unet/diffusion_pytorch_model.bin",
    "unet/model.onnx",
    "unet/openvino_model.xml",
    "vae_1_0/diffusion_pytorch_model.safetensors",
    "vae_decoder/model.onnx",
]


def content(name: str) -> bytes:
    if name in CONFIGS:
        return json.dumps(CONFIGS[name]).encode()
    if name in WEIGHTS or name in FP16:
        dtype = np.float16 if "fp16" in name else np.float32
        values = np.arange(50_000) + len(name)  # no two files are the same
        return save({name: values.astype(dtype)})
    if name.endswith("tokenizer_config.json"):
        return json.dumps({"model_max_length": 77, "name": name}).encode()
    return f"content of {name}".encode()


def repository(*without: str) -> dict[str, bytes]:
    return {name: content(name) for name in [*NEEDED, *FP16, *OTHERS] if name not in without}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    repo = Repo({FIRST: repository(), SECOND: repository()}, {"main": SECOND, "v1": FIRST})
    with HubServer({MODEL: repo}) as server:
        yield server


class Found(NamedTuple):
    """The parts of a checkpoint that a test compares."""

    folder: Path
    model: str
    revision: str | None
    weights: dict[str, list[str]]


def read(
    model: str, revision: str | None = None, prefer_fp16: bool = False, scheduler: str | None = None
) -> FolderCheckpoint:
    found = fetch(model, revision, FamilyReader(scheduler), prefer_fp16)
    assert isinstance(found, FolderCheckpoint)
    return found


def fetch_apart(
    hub: str,
    cache: Path,
    environment: dict[str, str] | None = None,
    largest_file: int = resource.RLIM_INFINITY,
    **kwargs: Any,
) -> Found:
    """Call `fetch` in a process of its own: the client reads its environment when imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub, "HF_HOME": str(cache), "NO_PROXY": "127.0.0.1,localhost"}
    folder, *others = fetch_with(
        kept | settings | (environment or {}), largest_file, {"model": MODEL} | kwargs
    )
    return Found(Path(folder), *others)


def by_network(names: list[str]) -> dict[str, list[str]]:
    return {name.split("/")[0]: [name] for name in names}


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()  # a link must lead to a file
    }


OFFLINE = {"HF_HUB_OFFLINE": "1"}
NOBODY = "http://127.0.0.1:9"  # the port of the discard service: nothing listens there


def test_only_what_is_needed_is_downloaded(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_apart(hub.url, tmp_path)
    assert (found.model, found.revision) == (MODEL, SECOND)
    assert hub.downloaded() == NEEDED
    assert files_below(found.folder) == NEEDED
    for name in NEEDED:
        assert (found.folder / name).read_bytes() == content(name)


def test_the_configuration_alone(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_apart(hub.url, tmp_path, weights=False)
    assert (found.model, found.revision, found.weights) == (MODEL, SECOND, {})
    assert set(CONFIGS) <= hub.downloaded() <= {name for name in NEEDED if name.endswith(".json")}
    again = fetch_apart(NOBODY, tmp_path, OFFLINE, weights=False)
    assert (again.folder, again.weights) == (found.folder, {})


def test_half_precision_where_offered(hub: HubServer, tmp_path: Path) -> None:
    hub.repos[MODEL].commits[SECOND].pop(FP16[-1])  # fp16 for all but the VAE
    found = fetch_apart(hub.url, tmp_path, prefer_fp16=True)
    weights = {name for name in files_below(found.folder) if name.endswith(".safetensors")}
    assert weights == {*FP16[:-1], WEIGHTS[-1]}
    assert found.weights == by_network([*FP16[:-1], WEIGHTS[-1]])


def test_what_is_read_does_not_depend_on_what_else_was_downloaded(
    hub: HubServer, tmp_path: Path
) -> None:
    for prefer_fp16 in (False, True, False):
        found = fetch_apart(hub.url, tmp_path, prefer_fp16=prefer_fp16)
        assert found.weights == by_network(FP16 if prefer_fp16 else WEIGHTS)
        assert fetch_apart(NOBODY, tmp_path, prefer_fp16=prefer_fp16) == found
    assert {*WEIGHTS, *FP16} <= files_below(found.folder)


def test_warm_cache(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_apart(hub.url, tmp_path)
    hub.requests.clear()
    assert fetch_apart(hub.url, tmp_path) == found
    assert hub.downloaded() == set()
    hub.requests.clear()
    assert fetch_apart(hub.url, tmp_path, OFFLINE) == found
    assert fetch_apart(hub.url, tmp_path, OFFLINE, revision="main") == found
    assert hub.requests == []
    assert fetch_apart(NOBODY, tmp_path) == found  # offline without OFFLINE being set


def test_warm_cache_serves_the_other_precision(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_apart(hub.url, tmp_path, prefer_fp16=True)
    assert found.weights == by_network(FP16)
    assert fetch_apart(hub.url, tmp_path, OFFLINE, prefer_fp16=False) == found


def test_warm_cache_without_its_listing(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_apart(hub.url, tmp_path)
    for listing in tmp_path.rglob("trees/*.json"):  # older clients kept none
        listing.unlink()
    assert fetch_apart(hub.url, tmp_path, OFFLINE) == found


def test_pinned_revision(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_apart(hub.url, tmp_path, revision="v1")
    assert found.revision == FIRST
    assert not [line for line in hub.requests if SECOND in line]
    hub.requests.clear()
    assert fetch_apart(hub.url, tmp_path, revision=FIRST) == found
    assert hub.requests == []  # a commit never changes


def test_main_moves_on(hub: HubServer, tmp_path: Path) -> None:
    hub.repos[MODEL].branches["main"] = FIRST
    assert fetch_apart(hub.url, tmp_path).revision == FIRST
    hub.repos[MODEL].branches["main"] = SECOND
    assert fetch_apart(hub.url, tmp_path).revision == SECOND


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("model_index.json", r"studio/sdxl: no checkpoint in diffusers' layout"),
        ("unet/config.json", r"unet/config\.json: this file is missing"),
        ("tokenizer_2/merges.txt", r"studio/sdxl: tokenizer_2/ has no tokenizer; expected vocab"),
        ("text_encoder/model", r"studio/sdxl: text_encoder/flax_model\.msgpack: only safetensors"),
        ("vae/diffusion", r"studio/sdxl: vae/: no weights found; expected vae/diffusion"),
    ],
)
def test_repo_without_a_file(hub: HubServer, tmp_path: Path, missing: str, message: str) -> None:
    files = hub.repos[MODEL].commits[SECOND]
    for name in [name for name in files if name.startswith(missing)]:
        del files[name]
    with pytest.raises(CheckpointError, match=message):
        fetch_apart(hub.url, tmp_path)
    assert not [name for name in hub.downloaded() if name.endswith(".safetensors")]


def test_another_kind_of_model_is_refused_before_its_weights(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.repos[MODEL].commits[SECOND]["model_index.json"] = b'{"_class_name": "FluxPipeline"}'
    with pytest.raises(CheckpointError, match=r"model_index\.json: _class_name = 'FluxPipeline'"):
        fetch_apart(hub.url, tmp_path)
    assert hub.downloaded() <= set(CONFIGS)


def test_download_that_breaks_off_is_resumed(hub: HubServer, tmp_path: Path) -> None:
    files = hub.repos[MODEL].commits[SECOND]
    # The client writes in pieces of 10 MiB.
    files[WEIGHTS[2]] = save({"weight": np.arange(3 * 2**20, dtype=np.float32)})
    hub.break_off = {WEIGHTS[2]: [11 * 2**20], "unet/config.json": [10]}
    found = fetch_apart(hub.url, tmp_path)
    [resumed] = [line for line in hub.requests if line.startswith("RANGE")]
    assert resumed.endswith(f"{WEIGHTS[2]} from {10 * 2**20}")
    for name in (WEIGHTS[2], "unet/config.json"):
        assert (found.folder / name).read_bytes() == files[name]


@pytest.mark.slow
def test_download_that_keeps_breaking_off(hub: HubServer, tmp_path: Path) -> None:
    hub.break_off = {WEIGHTS[2]: [0] * 99}
    with pytest.raises(CheckpointError, match=r"broke off .*start again to resume"):
        fetch_apart(hub.url, tmp_path)
    assert not list(tmp_path.rglob("*.incomplete"))
    with pytest.raises(CheckpointError, match=r"In the cache: .*unet/"):
        fetch_apart(hub.url, tmp_path, OFFLINE)
    hub.break_off.clear()
    hub.requests.clear()
    found = fetch_apart(hub.url, tmp_path)
    assert files_below(found.folder) == NEEDED
    assert WEIGHTS[2] in hub.downloaded()
    assert "unet/config.json" not in hub.downloaded()  # complete files are kept


def test_unknown_repo(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nobody/nothing: no such folder.*HF_TOKEN"):
        fetch_apart(hub.url, tmp_path, model="nobody/nothing")


def test_unknown_revision(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no revision 'v9' at http"):
        fetch_apart(hub.url, tmp_path, revision="v9")
    with pytest.raises(CheckpointError, match=rf"no revision '{'9' * 40}' at http"):
        fetch_apart(hub.url, tmp_path, revision="9" * 40)


def test_private_and_gated(hub: HubServer, tmp_path: Path) -> None:
    hub.repos[MODEL].token = "hf_secret"
    with pytest.raises(CheckpointError, match=r"no access to it.*HF_TOKEN"):
        fetch_apart(hub.url, tmp_path)
    assert fetch_apart(hub.url, tmp_path, {"HF_TOKEN": "hf_secret"}).revision == SECOND
    hub.repos["studio/gated"] = Repo({FIRST: {}}, {"main": FIRST}, gated=True)
    with pytest.raises(CheckpointError, match=r"studio/gated: access must be requested at http"):
        fetch_apart(hub.url, tmp_path, model="studio/gated")


@pytest.mark.parametrize("environment", [OFFLINE, {}])
def test_no_network_and_nothing_cached(tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be reached .*'main' is not complete in the"):
        fetch_apart(NOBODY, tmp_path, environment)


def test_cache_that_cannot_be_written(hub: HubServer, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file where a folder should be")  # unlike permissions, this stops root, too
    with pytest.raises(CheckpointError, match=r"cache.*: Not a directory; the cache needs room"):
        fetch_apart(hub.url, cache)


def test_disk_that_takes_no_more(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"File too large; .* room .* HF_HOME"):
        fetch_apart(hub.url, tmp_path, largest_file=100_000)
    assert not list(tmp_path.rglob("*.incomplete"))
    assert files_below(fetch_apart(hub.url, tmp_path).folder) == NEEDED


@pytest.mark.slow
def test_a_hub_that_does_not_answer(hub: HubServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        impatient = {"HF_HUB_ETAG_TIMEOUT": "1"}
        with pytest.raises(CheckpointError, match=r"cannot be reached \(.*'main' is not complete"):
            fetch_apart(url, tmp_path, impatient)
        fetch_apart(hub.url, tmp_path)
        assert files_below(fetch_apart(url, tmp_path, impatient).folder) == NEEDED


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/such/folder", "a/b/c", "~/none", "~nosuchuser/x", "bad name", ""]
)
def test_neither_folder_nor_id(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such folder, and not a valid id of a model"):
        read(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NEEDED:
        path = tmp_path / "miniature" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(name))
    return tmp_path / "miniature"


def test_folder(folder: Path) -> None:
    found = read(str(folder))
    assert (found.folder, found.model, found.revision) == (folder, "miniature", None)
    assert found.weights == by_network(WEIGHTS)


def test_a_folder_with_both_precisions_is_read_as_it_would_be_downloaded(folder: Path) -> None:
    for name in FP16[:-1]:
        (folder / name).write_bytes(content(name))
    assert read(str(folder)).weights == by_network(WEIGHTS)
    assert read(str(folder), prefer_fp16=True).weights == by_network([*FP16[:-1], WEIGHTS[-1]])


def test_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"miniature: this is a folder.*no revision 'main'"):
        read(str(folder), revision="main")


def test_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint in diffusers' layout"):
        read(str(tmp_path))


@pytest.mark.parametrize("from_hub", [False, True])
def test_a_network_by_itself_is_named(tmp_path: Path, from_hub: bool) -> None:
    """A single network, as ControlNets are published, is refused with a message that names it."""
    config = json.dumps({"_class_name": "ControlNetModel"}).encode()
    named = "its config.json is that of a lone ControlNetModel; this is a ControlNet"
    if not from_hub:
        (tmp_path / "config.json").write_bytes(config)
        with pytest.raises(CheckpointError, match=named):
            read(str(tmp_path))
        return
    files = {"config.json": config, "diffusion_pytorch_model.safetensors": b"weights"}
    with HubServer({MODEL: Repo({FIRST: files}, {"main": FIRST})}) as server:
        with pytest.raises(CheckpointError, match=named):
            fetch_apart(server.url, tmp_path)
        assert server.downloaded() == {"config.json"}


def test_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "sd_xl_base_1.0.txt"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a file; .* folder in diffusers' layout"):
        read(str(path))


@pytest.mark.parametrize(
    ("end", "name"), [("gguf", "this is GGUF"), ("onnx", "this is ONNX"), ("sft", "rename it")]
)
@pytest.mark.parametrize("source", ["model", "owner/name/model"])
def test_file_of_another_format(tmp_path: Path, source: str, end: str, name: str) -> None:
    if "/" not in source:
        source = str(tmp_path / source)
        Path(f"{source}.{end}").write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"model\.{end}: only safetensors .* {name}"):
        read(f"{source}.{end}")


def test_folder_with_a_file_missing(folder: Path) -> None:
    (folder / WEIGHTS[2]).unlink()
    with pytest.raises(CheckpointError, match=r"miniature: unet/: no weights found"):
        read(str(folder))
    (folder / "unet/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"unet/config\.json: this file is missing"):
        read(str(folder))


def test_stable_diffusion_1_has_one_text_encoder(tmp_path: Path) -> None:
    """A second text encoder and files for other programs are not fetched."""
    source = GOLDEN / "sd_1/checkpoint"
    needed = files_below(source)
    files = {name: (source / name).read_bytes() for name in needed}
    others = dict.fromkeys((*OTHERS, "text_encoder_2/model.safetensors"), b"")
    with HubServer({MODEL: Repo({FIRST: files | others}, {"main": FIRST})}) as server:
        found = fetch_apart(server.url, tmp_path)
        assert server.downloaded() == needed
    assert files_below(found.folder) == needed


@pytest.mark.parametrize("wanted", [True, False])
def test_a_safety_checker_is_downloaded_where_it_is_wanted(tmp_path: Path, wanted: bool) -> None:
    source = GOLDEN / "safety/checkpoint"
    files = {name: (source / name).read_bytes() for name in files_below(source)}
    parts = ("safety_checker/", "feature_extractor/")
    needed = {name for name in files if wanted or not name.startswith(parts)}
    others = {"safety_checker/pytorch_model.bin": b"", "safety_checker/flax_model.msgpack": b""}
    with HubServer({MODEL: Repo({FIRST: files | others}, {"main": FIRST})}) as server:
        fetch_apart(server.url, tmp_path, safety_checker=wanted)
        assert server.downloaded() == needed


def test_a_scheduler_may_be_chosen_where_the_checkpoints_own_is_not_supported(
    tmp_path: Path,
) -> None:
    folder = copy_checkpoint(tmp_path)
    class_name = "DEISMultistepScheduler"
    change_json(folder / "scheduler/scheduler_config.json", _class_name=class_name)
    change_json(folder / "model_index.json", scheduler=["diffusers", class_name])
    with pytest.raises(CheckpointError, match=class_name):
        read(str(folder))
    assert read(str(folder), scheduler="ddim").folder == folder


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("single")
    thin_folder(folder / "thin", "sd_1")
    return thin_file(folder / "thin", folder / "thin.safetensors").read_bytes()


@pytest.mark.parametrize(
    "path",
    ["thin.safetensors", pytest.param("old/odd [name].safetensors", marks=pytest.mark.slow)],
)
def test_only_the_single_file_is_downloaded(single: bytes, path: str, tmp_path: Path) -> None:
    commits = {FIRST: repository() | {path: single}, SECOND: repository()}
    with HubServer({MODEL: Repo(commits, {"main": SECOND, "v1": FIRST})}) as server:
        found = fetch_apart(server.url, tmp_path, model=f"{MODEL}/{path}", revision="v1")
        assert (found.model, found.revision) == (f"{MODEL}/{path}", FIRST)
        assert server.downloaded() == {path}
        assert found.folder.read_bytes() == single
        with pytest.raises(
            CheckpointError,
            match=rf"{re.escape(path)}: {MODEL} has no such file at revision 'main'; it has .*unet",
        ):
            fetch_apart(server.url, tmp_path, model=f"{MODEL}/{path}")
    again: dict[str, Any] = {"model": f"{MODEL}/{path}", "revision": "v1"}
    assert fetch_apart(NOBODY, tmp_path, **again) == found
    assert fetch_apart(NOBODY, tmp_path, OFFLINE, **again) == found
    assert fetch_apart(NOBODY, tmp_path, OFFLINE, **again, weights=False) == found
    with pytest.raises(CheckpointError, match=r"cannot be reached.*In the cache: .*not complete"):
        fetch_apart(NOBODY, tmp_path, **{**again, "model": f"{MODEL}/sd_xl_base_1.0.safetensors"})


def test_a_single_file_is_not_downloaded_for_its_configuration(
    single: bytes, tmp_path: Path
) -> None:
    files = {"thin.safetensors": single}
    with HubServer({MODEL: Repo({FIRST: files}, {"main": FIRST})}) as server:
        with pytest.raises(CheckpointError, match=r"thin\.safetensors: .*not in the cache.*first"):
            fetch_apart(server.url, tmp_path, model=f"{MODEL}/thin.safetensors", weights=False)
        assert server.downloaded() == set()


OTHER_VAE = "studio/vae"


@pytest.mark.parametrize("where", ["", pytest.param("vae/", marks=pytest.mark.slow)])
def test_only_the_other_vae_is_downloaded(where: str, tmp_path: Path) -> None:
    source = GOLDEN / "sd_1/checkpoint"
    needed = files_below(source)
    files = {name: (source / name).read_bytes() for name in needed}
    vae = {"config.json", "diffusion_pytorch_model.safetensors"}
    other = {where + name: files[f"vae/{name}"] for name in vae} | {"README.md": b""}
    repos = {
        MODEL: Repo({FIRST: files}, {"main": FIRST}),
        OTHER_VAE: Repo({SECOND: other}, {"main": SECOND}),
    }
    with HubServer(repos) as server:
        fetch_apart(server.url, tmp_path, vae=OTHER_VAE)
        own = needed - {"vae/diffusion_pytorch_model.safetensors"}
        assert server.downloaded() == own | {where + name for name in vae}
    found = fetch_apart(NOBODY, tmp_path, vae=OTHER_VAE)
    assert "vae" not in found.weights
    with pytest.raises(CheckpointError, match=r"vae/: no weights found"):
        fetch_apart(NOBODY, tmp_path)


def test_a_repository_without_a_vae(hub: HubServer, tmp_path: Path) -> None:
    hub.repos[OTHER_VAE] = Repo({FIRST: {"README.md": b""}}, {"main": FIRST})
    with pytest.raises(CheckpointError, match=rf"{OTHER_VAE}: holds no vae; expected a config"):
        fetch_apart(hub.url, tmp_path, vae=OTHER_VAE)
    with pytest.raises(CheckpointError, match=r"studio/none: no such folder, and no such model"):
        fetch_apart(hub.url, tmp_path, vae="studio/none")
