"""The command line: its files, messages and exit statuses."""

import errno
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from PIL import Image

from pipeline import Result, SDXLPipeline, metadata
from pipeline import __main__ as command
from pipeline.runtime import memory
from pipeline.runtime.compiled import CompiledSampler
from serving.settings import Options
from tests.checkpoints import (
    SMALLEST,
    CompilationCount,
    change_json,
    copy_checkpoint,
    nothing_compiles,
    shared_pipeline,
)
from tools.adapter_files import draw_adapter, write_adapter

SIZE = 16


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    logger = logging.getLogger("pipeline")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executables")


@pytest.fixture
def run(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str], str]]:
    """Return a function that runs the command line on the smallest checkpoint.

    It returns the exit status, the printed lines and the messages on stderr.
    """

    def run(*arguments: str, model: Path = SMALLEST) -> tuple[int, list[str], str]:
        folders = ["--out", str(tmp_path / "out"), "--cache-dir", str(cache)]
        status = command.main(["--model", str(model), "--steps", "2", *folders, *arguments])
        output = capsys.readouterr()
        return status, output.out.splitlines(), output.err

    return run


def settings(file: Path) -> metadata.Settings:
    found = metadata.read(file)
    assert found is not None
    return found


def test_four_pictures_and_a_grid(tmp_path: Path, run: Callable[..., tuple]) -> None:
    status, printed, messages = run(
        "a red star", "--negative", "blue", "--seed", "7", "--guidance", "4.5"
    )
    out = tmp_path / "out"
    files = [out / f"{seed}.png" for seed in (7, 8, 9, 10)]
    assert (status, messages) == (0, "")
    assert printed == [str(file) for file in (*files, out / "grid.png")]
    assert sorted(out.iterdir()) == sorted((*files, out / "grid.png"))
    for seed, file in enumerate(files, start=7):
        assert settings(file) == metadata.Settings(
            prompt="a red star",
            negative_prompt="blue",
            seed=seed,
            num_inference_steps=2,
            guidance_scale=4.5,
            width=SIZE,
            height=SIZE,
            model="checkpoint",
            revision=None,
            scheduler="euler",
            sigma_schedule="karras",
        )
    assert settings(out / "grid.png") == settings(files[0])
    with Image.open(out / "grid.png") as grid:
        tiles = np.asarray(grid)
    assert tiles.shape == (2 * SIZE, 2 * SIZE, 3)
    for i, file in enumerate(files):
        row, column = SIZE * (i // 2), SIZE * (i % 2)
        with Image.open(file) as image:
            tile = tiles[row : row + SIZE, column : column + SIZE]
            np.testing.assert_array_equal(tile, np.asarray(image))


def test_a_prompt_for_each_picture(tmp_path: Path, run: Callable[..., tuple]) -> None:
    long = "star " * 75 + "ring"
    with CompilationCount() as count:
        status, printed, messages = run("a star", "a ring", "a square", long)
    assert (status, len(printed)) == (0, 5)
    assert count.value in (0, 7)  # 0 if an earlier test has stored the executables
    drawn, cut = messages.splitlines()
    assert drawn.startswith("one picture of each: 'a star' 'a ring' 'a square' 'star ")
    assert cut.startswith("cut off, too long: ")
    assert cut.endswith("ring")
    prompts = [settings(tmp_path / f"out/{seed}.png").prompt for seed in range(4)]
    assert prompts == ["a star", "a ring", "a square", long.strip()]


def test_parts_of_a_prompt_without_effect_are_named(run: Callable[..., tuple]) -> None:
    given = "--images", "1", "--prompt-syntax", "a1111"
    assert run("a star <lora:gone:1>", *given)[2] == "without effect: <lora:gone:1>\n"


def test_a_blank_prompt(tmp_path: Path, run: Callable[..., tuple]) -> None:
    status, printed, messages = run("", "--seed", "3")
    assert (status, len(printed), messages) == (0, 5, "")
    assert settings(tmp_path / "out/3.png").prompt == ""


def test_a_picture_to_start_from(tmp_path: Path, run: Callable[..., tuple]) -> None:
    image, mask = tmp_path / "image.png", tmp_path / "mask.png"
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    white = np.zeros((SIZE, SIZE), np.uint8)
    white[:, SIZE // 2 :] = 255
    Image.fromarray(pixels).save(image)
    Image.fromarray(white).save(mask)
    given = "--image", str(image), "--mask", str(mask), "--strength", "1"
    status, (file, *_), _ = run("a star", "--images", "1", *given)
    assert status == 0
    found = np.asarray(Image.open(file))
    np.testing.assert_array_equal(found[white == 0], pixels[white == 0])
    settings = metadata.read(Path(file))
    assert settings is not None
    assert settings.strength == 1


def test_variations_of_a_picture(tmp_path: Path, run: Callable[..., tuple]) -> None:
    varied = ("--variation-strength", "0.5", "--variation-seed", "3")
    status, printed, _ = run("a star", "--seed", "7", "--guidance-until", "0.5", *varied)
    names = [f"7-{seed}.png" for seed in (3, 4, 5, 6)]
    assert (status, printed) == (0, [str(tmp_path / "out" / name) for name in (*names, "grid.png")])
    found = [settings(tmp_path / "out" / name) for name in names]
    assert [each.variation_seed for each in found] == [3, 4, 5, 6]
    assert {(each.seed, each.variation_strength, each.guidance_until) for each in found} == {
        (7, 0.5, 0.5)
    }


@pytest.mark.slow
def test_loras(tmp_path: Path, run: Callable[..., tuple]) -> None:
    inventory = shared_pipeline(1)._adapters.inventory
    drawn = draw_adapter(inventory, "lora", 0)
    file = str(write_adapter(tmp_path / "pixel.safetensors", drawn, "kohya sdxl", inventory))
    status, _, _ = run("a star", "--lora", file, "--loras", "pixel:0.5:0.25")
    assert status == 0
    assert settings(tmp_path / "out/0.png").loras == "pixel:0.5:0.25"
    status, _, messages = run("a star", "--lora", file, "--loras", "other:0.5")
    assert (status, messages.strip()) == (
        2,
        "error: no LoRA named 'other' is loaded; loaded are: 'pixel'",
    )
    status, _, messages = run("a star", "--loras", "pixel:5")
    assert (status, messages.startswith("error: loras is 'pixel:5'; expected up to 8")) == (2, True)


@pytest.mark.slow
def test_models(tmp_path: Path, run: Callable[..., tuple]) -> None:
    other = shutil.copytree(SMALLEST, tmp_path / "other")
    status, _, _ = run("a star", "--models", str(other), "--checkpoint", "other")
    assert status == 0
    assert settings(tmp_path / "out/0.png").model == "other"
    status, _, messages = run("a star", "--checkpoint", "other")
    assert (status, messages.strip()) == (
        2,
        "error: model is 'other'; expected one of 'checkpoint'",
    )


@pytest.mark.parametrize("wanted", ["yes", "no"])
def test_blurred_pictures_are_named_in_the_output(
    run: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    images = [Image.new("RGB", (SIZE, SIZE)) for _ in range(2)]
    asked: list[bool] = []

    class Drawing:
        def generate(self, *_: object, **__: object) -> Result:
            return Result(images, [7, 8], [False, asked[-1]], ["", ""], ["", ""])

    def from_pretrained(*_: object, safety_checker: bool, **__: object) -> Drawing:
        asked.append(safety_checker)
        return Drawing()

    monkeypatch.setattr(SDXLPipeline, "from_pretrained", from_pretrained)
    status, _, messages = run("a star", "--images", "2", "--safety-checker", wanted)
    assert (status, asked) == (0, [wanted == "yes"])
    said = "blurred by the safety checker: 8.png\n" if wanted == "yes" else ""
    assert messages == said


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("RESOURCE_EXHAUSTED: no room\nwhere", "too little memory; fewer pictures or"),
        ("INTERNAL: a fault\nwhere", "INTERNAL: a fault\n"),
    ],
)
def test_a_device_that_fails(
    run: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch, reason: str, message: str
) -> None:
    monkeypatch.setattr(
        CompiledSampler, "decode", Mock(side_effect=jax.errors.JaxRuntimeError(reason))
    )
    status, printed, messages = run("a star")
    assert (status, printed) == (1, [])
    assert messages.startswith(f"error: the device failed: {message}")
    assert messages.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a star", "a ring"], "prompt must be one text, or a list of 4"),
        (["a star", "--steps", "0"], "num_inference_steps is 0; expected 1 to 50"),
        (["a star", "--steps", "51"], "num_inference_steps is 51; expected 1 to 50"),
        (["a star", "--seed", "-1"], "seed is -1; expected 0 to 4294967295"),
        (["a star", "--seed", str(2**32)], "seed is 4294967296; expected 0 to 4294967295"),
        (["a star", "--guidance", "nan"], "guidance_scale is nan; expected a number from 0"),
        (["a star", "--guidance-until", "2"], "guidance_until is 2.0; expected a number from 0"),
        (["a star", "--guidance", "inf"], "guidance_scale is inf; expected a number from 0"),
        (["a star", "--strength", "0.5"], "strength is given without image; pass image too"),
        (["a star", "--images", "0"], "images_per_request is 0; expected 1 to 64"),
        (["a star", "--images", str(10**15)], "images_per_request is 1000000000000000; expected"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_loaded(
    tmp_path: Path, run: Callable[..., tuple], arguments: list[str], message: str
) -> None:
    """Bad requests are refused before the checkpoint is read, and leave no files behind."""
    status, printed, messages = run(*arguments, model=tmp_path / "nothing")
    assert (status, printed) == (2, [])
    assert messages.startswith(f"error: {message}")
    assert messages.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("height", "message"),
    [("15", "height is 15; expected a multiple of 4"), ("0", "height is 0; expected 4 to 8192")],
)
def test_an_impossible_size_is_refused(
    run: Callable[..., tuple], height: str, message: str
) -> None:
    status, printed, messages = run("a star", "--height", height)
    assert (status, printed) == (2, [])
    assert messages == f"error: {message}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a star", "--seed", "1.5"],
        ["a star", "--steps", "many"],
        ["a star", "--dtype", "float16"],
        ["a star", "--colour", "red"],
    ],
)
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m pipeline" in capsys.readouterr().err


def test_a_model_that_is_missing(tmp_path: Path, run: Callable[..., tuple]) -> None:
    status, printed, messages = run("a star", model=tmp_path / "nothing")
    assert (status, printed) == (1, [])
    assert messages.startswith(f"error: {tmp_path / 'nothing'}: no such folder")


def test_a_model_of_another_kind(tmp_path: Path, run: Callable[..., tuple]) -> None:
    folder = copy_checkpoint(tmp_path)
    change_json(folder / "model_index.json", _class_name="StableDiffusion3Pipeline")
    status, printed, messages = run("a star", model=folder)
    assert (status, printed) == (1, [])
    assert messages.startswith(f"error: {folder / 'model_index.json'}: _class_name = ")
    assert messages.count("\n") == 1


def test_a_file_in_place_of_the_folder(tmp_path: Path, run: Callable[..., tuple]) -> None:
    (tmp_path / "out").touch()
    status, printed, messages = run("a star", model=tmp_path / "nothing")
    assert (status, printed) == (1, [])
    assert "name another one with --out" in messages
    assert str(tmp_path / "out") in messages


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, run: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permissions do not stop root, so the system's answer is replaced.
    def refuse(**options: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(options["dir"]))

    monkeypatch.setattr(command, "TemporaryFile", refuse)
    status, printed, messages = run("a star", model=tmp_path / "nothing")
    assert (status, printed) == (1, [])
    assert "name another one with --out" in messages


def test_a_cache_open_to_others(tmp_path: Path, run: Callable[..., tuple]) -> None:
    tmp_path.chmod(0o755)
    status, printed, messages = run("a star", "--cache-dir", str(tmp_path))
    assert (status, printed) == (1, [])
    assert f"chmod 700 {tmp_path}" in messages


def test_interrupted(run: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_draw", Mock(side_effect=KeyboardInterrupt))
    assert run("a star") == (130, [], "interrupted\n")


@pytest.mark.parametrize(
    ("count", "grid"),
    [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (5, (1, 5)), (6, (2, 3)), (64, (8, 8))],
)
def test_grid(count: int, grid: tuple[int, int]) -> None:
    assert command._grid(count) == grid


def test_options_of_the_server_have_its_names_and_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in command._OF_SERVER:
        variable = name.replace("-", "_")
        assert variable in Options.model_fields
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setenv("MODEL_ID", "a.safetensors")
    monkeypatch.setenv("MODELS", "b.safetensors, c.safetensors")
    monkeypatch.setenv("SAFETY_CHECKER", "no")
    monkeypatch.setenv("STEPS", "8")
    options = command._options(["a star", "--vae-id", "vae", "--step-cache", "yes"], None)
    assert (options.model_id, options.vae_id) == ("a.safetensors", "vae")
    assert options.models == ["b.safetensors", "c.safetensors"]
    assert (options.num_inference_steps, options.safety_checker, options.step_cache) == (
        *(8, False, True),
    )
    monkeypatch.setenv("STEP_CACHE", "perhaps")
    with pytest.raises(SystemExit):
        command.main(["a star"])
    assert "'perhaps' is not possible; expected yes or no" in capsys.readouterr().err


@jax.numpy_dtype_promotion("standard")  # in the attention of text encoders, which is JAX's
def plan(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the exit status, the output and the messages of `--plan`."""
    status = command.main(["--plan", *arguments])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_a_plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan needs no prompt, compiles nothing and needs no weights."""
    monkeypatch.delenv("CACHE_DIR", raising=False)
    with CompilationCount() as count:
        model = ("--model", str(SMALLEST), "--images", "2")
        status, printed, messages = plan(*model, "--sizes", "16x16,24x16", capsys=capsys)
    assert (status, messages, count.value) == (0, "", 0)
    _, here = printed.split("\n\n")
    assert here.startswith("cpu: 2 pictures on 4 of them, float32\n  text_encoder ")
    assert re.search(r"\n  unet +0\.\d MB\n  vae .*\n  parameters \d\.\d MB, slots \d", here)
    assert "programs are not counted; --cache-dir compiles them" in here
    assert re.search(r"sum \d+\.\d MB, memory of this machine \d+\.\d\d GB: fits\n$", here)


@pytest.mark.slow
def test_a_plan_with_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are compiled into the folder once, and a pipeline finds them there."""
    options = ("--model", str(SMALLEST), "--images", "1", "--cache-dir", str(tmp_path))
    shown = []
    for compiles in (True, False):
        with CompilationCount() as count:
            status, printed, _ = plan(*options, "--sizes", "16x16,24x16", capsys=capsys)
        assert (status, count.value > 0) == (0, compiles)
        shown.append(printed.rpartition("sum")[0])
    assert shown[0] == shown[1]
    assert re.search(r"\n  step of 24x16 +\d\.\d MB +\d\.\d MB\n", shown[0])
    assert re.search(r"\n  all code \d\.\d MB, largest temporaries \d\.\d MB\n", shown[0])
    used = jax.devices()[:2]
    with nothing_compiles():
        pipe = SDXLPipeline.from_pretrained(
            SMALLEST, images_per_request=1, devices=used, cache_dir=tmp_path
        )
        pipe.add_size(16, 24)


def test_a_plan_needs_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_checkpoint(tmp_path)
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    status, printed, _ = plan("--model", str(folder), capsys=capsys)
    assert status == 0
    assert printed.startswith("checkpoint\n")


def test_a_plan_that_does_not_fit_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters and slots are known without compiling."""
    monkeypatch.setattr(memory, "available_memory", lambda: 60_000_000)
    options = ("--sizes", "16x16,1024x1024", "--cache-dir", str(tmp_path))
    with CompilationCount() as count:
        status, printed, messages = plan("--model", str(SMALLEST), *options, capsys=capsys)
    assert (status, count.value) == (1, 0)
    assert "memory of this machine 60.0 MB: does not fit" in printed
    assert messages.startswith("error: too little memory: 16x16, 1024x1024, 4 pictures per request")
    assert "leave out the size 1024x1024" in messages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "16"], "--sizes: '16'; expected sizes such as 1024x1024,1152x896"),
        (["a star", "--sizes", "16x16"], "--sizes needs --plan"),
        ([], "a prompt is needed, or --plan"),
    ],
)
def test_bad_usage_of_a_plan(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_size_that_cannot_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, messages = plan("--model", str(SMALLEST), "--sizes", "15x16", capsys=capsys)
    assert (status, messages) == (2, "error: width is 15; expected a multiple of 4\n")


def test_help() -> None:
    """The program prints its help and nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    for option in ("--negative", "--seed", "--out", "--model", "--cache-dir", "Exit status"):
        assert option in done.stdout
    assert done.stderr == ""
