"""The page's own functions, with a stand-in for what draws."""

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from serving.generator import Model, Pictures, Request, RequestError, Step
from ui import drawing, files, inputs, status, words
from ui.drawing import Drawing
from ui.examples import examples_for
from ui.kinds import Kind, kind_of
from ui.page import build_page
from ui.styles import NONE, styles_for

ROOT = Path(__file__).parent.parent
MODEL = Model("org/model", None, "cpu", 1, 256, 256, 4, 25, 50)
VALUES: dict[str, Any] = {
    "prompt": "a red star",
    "style": NONE,
    "negative_prompt": "",
    "guidance_scale": 5,
    "steps": 25,
    "seed": 7,
}


class StandIn:
    """A generator that draws nothing, but notes what it was asked."""

    model = MODEL

    def __init__(self, truncated: str = "", error: Exception | None = None) -> None:
        self.asked: list[Request] = []
        self.closed = False
        self._truncated = truncated
        self._error = error

    async def run(self, request: Request) -> AsyncGenerator[Step | Pictures]:
        self.asked.append(request)
        try:
            for step in range(request.num_inference_steps):
                await asyncio.sleep(0)
                yield Step(step + 1, request.num_inference_steps)
            if self._error:
                raise self._error
            seeds = tuple(request.seed + i for i in range(4))
            yield Pictures(tuple(b"png%d" % s for s in seeds), seeds, self._truncated)
        finally:
            self.closed = True


@pytest.fixture(autouse=True)
def served_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


def to_request(**changes: Any) -> Request:
    return inputs.to_request(MODEL, styles_for(Kind.SDXL), **VALUES | changes)


def shown(stand_in: StandIn, *, randomise: bool = False, **changes: Any) -> list[tuple[Any, ...]]:
    """Everything the page is told during one request."""

    async def collect() -> list[tuple[Any, ...]]:
        page = Drawing(stand_in, Kind.MINIATURE).for_page
        values = VALUES | changes
        return [update async for update in page(**values, randomise=randomise)]

    return asyncio.run(collect())


# --- what is sent becomes a request ---


def test_plain_request():
    assert to_request(prompt="  a red star \n") == Request("a red star", None, 5.0, 25, 7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": ""}, words.BLANK_PROMPT),
        ({"prompt": " \t\u2003\n"}, words.BLANK_PROMPT),
        ({"prompt": None}, words.BLANK_PROMPT),
        ({"prompt": ["a", "b"]}, "Prompt: text is needed"),
        ({"prompt": "x" * 2001}, "Prompt: 2001 characters are too many; at most 2000"),
        ({"negative_prompt": "x" * 10**7}, "Negative prompt: 10000000 characters"),
        ({"style": "Baroque"}, "Style: Baroque is unknown"),
        ({"style": None}, "Style: nothing is unknown"),
        ({"guidance_scale": float("nan")}, "Guidance scale: nan"),
        ({"guidance_scale": float("inf")}, "Guidance scale: inf"),
        ({"guidance_scale": 50.5}, "from 0 to 50"),
        ({"guidance_scale": -1}, "Guidance scale: -1"),
        ({"guidance_scale": "5"}, "Guidance scale: 5 is not possible"),
        ({"guidance_scale": 10**400}, "Guidance scale: 1000"),
        ({"steps": 0}, "Steps: 0 is not possible; whole numbers from 1 to 50"),
        ({"steps": 51}, "Steps: 51"),
        ({"steps": 2.5}, "Steps: 2.5"),
        ({"steps": True}, "Steps: True"),
        ({"steps": float("nan")}, "Steps: nan"),
        ({"steps": None}, "Steps: nothing"),
        ({"seed": -1}, "Seed: -1"),
        ({"seed": 2**32}, "from 0 to 4294967295"),
        ({"seed": "seven"}, "Seed: seven"),
    ],
)
def test_refused(changes: dict[str, Any], said: str):
    with pytest.raises(RequestError, match=re.escape(said)):
        to_request(**changes)


def test_limits_themselves_are_possible():
    request = to_request(prompt="x" * 2000, guidance_scale=50, steps=50, seed=2**32 - 1)
    assert (request.guidance_scale, request.num_inference_steps) == (50.0, 50)
    assert to_request(seed=7.0).seed == 7


def test_no_seed_means_any_seed():
    seeds = {to_request(seed=None).seed for _ in range(20)}
    assert len(seeds) > 15
    assert all(0 <= seed < 2**32 for seed in seeds)


# --- styles and examples ---


def test_ten_styles_and_none():
    styles = styles_for(Kind.SDXL)
    assert next(iter(styles)) == NONE
    assert len(styles) == 11
    assert styles[NONE].apply("a {star}", " dull ") == ("a {star}", "dull")


@pytest.mark.parametrize("kind", Kind)
def test_styles_keep_the_visitors_words(kind: Kind):
    for style in styles_for(kind).values():
        prompt, negative = style.apply("a {prompt} % star", "dull")
        assert "a {prompt} % star" in prompt
        assert negative.startswith("dull")
        assert style.prompt.count("{prompt}") == 1


def test_style_reaches_the_request():
    request = to_request(style="Watercolour", negative_prompt="people")
    assert request.prompt.startswith("a red star, watercolour")
    assert request.negative_prompt is not None
    assert request.negative_prompt.startswith("people, ")


@pytest.mark.parametrize("kind", Kind)
def test_examples_are_short_enough_to_be_read_whole(kind: Kind):
    assert examples_for(kind)
    assert all(len(example) <= 60 for example in examples_for(kind))


def test_kinds():
    assert kind_of("pipeline/miniature", bundled=True) is Kind.MINIATURE
    assert kind_of("stabilityai/stable-diffusion-xl-base-1.0", bundled=False) is Kind.SDXL
    assert kind_of("/models/mine", bundled=False) is Kind.OTHER


# --- what a visitor is shown ---


def test_page_is_told_steps_and_then_pictures(served_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "BAR_SECONDS", 0.0)
    updates = shown(StandIn(), steps=3)
    strips = [strip for strip, _, _ in updates]
    assert words.STARTING in strips[0]
    assert [words.progress(i, 3) in strips[i] for i in (1, 2, 3)] == [True] * 3
    assert re.search(r"4 pictures in \d+\.\d s", strips[-1])
    assert updates[0][2] == 7  # the seed used is written back

    gallery = updates[-1][1]
    assert [caption for _, caption in gallery] == [f"Seed {s}: a red star" for s in (7, 8, 9, 10)]
    paths = [Path(path) for path, _ in gallery]
    assert [path.name for path in paths] == [f"a-red-star-{s}.png" for s in (7, 8, 9, 10)]
    assert paths[0].read_bytes() == b"png7"
    assert all(path.is_relative_to(served_folder) for path in paths)


def test_random_seed_is_written_back():
    stand_in = StandIn()
    updates = shown(stand_in, randomise=True, steps=1)
    assert updates[0][2] == stand_in.asked[0].seed


def test_cut_prompt_is_shown_as_text():
    strip = shown(StandIn(truncated="<b>the end</b>"), steps=1)[-1][0]
    assert "&lt;b&gt;the end&lt;/b&gt;" in strip
    assert "<b>" not in strip


@pytest.mark.parametrize(
    ("error", "said"),
    [(RequestError("<i>no</i>"), "&lt;i&gt;no&lt;/i&gt;"), (MemoryError("0x1234"), words.FAILED)],
)
def test_error_ends_as_a_message(error: Exception, said: str):
    stand_in = StandIn(error=error)
    strip, gallery, _ = shown(stand_in, steps=1)[-1]
    assert strip == f'<p class="error" role="alert">{said}</p>'
    assert gallery == gr.skip()
    assert stand_in.closed


def test_blank_prompt_reaches_no_generator():
    stand_in = StandIn()
    ((strip, _, _),) = shown(stand_in, prompt=" ")
    assert words.BLANK_PROMPT in strip
    assert stand_in.asked == []


def test_leaving_closes_the_generator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "BAR_SECONDS", 0.0)
    stand_in = StandIn()

    async def leave() -> None:
        updates = Drawing(stand_in, Kind.MINIATURE).for_page(**VALUES, randomise=False)
        async for _ in updates:
            if stand_in.asked:
                break
        await updates.aclose()

    asyncio.run(leave())
    assert stand_in.closed


def test_bar_says_how_far():
    bar = status.progress(3, 25)
    assert 'value="3" max="25"' in bar
    assert "Step 3 of 25" in bar


def test_bar_moves_calmly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "BAR_SECONDS", 60.0)
    assert len(shown(StandIn(), steps=50)) == 2  # that it starts, and how it ended


# --- programs ---


def test_programs_get_files_and_seeds():
    program = Drawing(StandIn(truncated="end"), Kind.MINIATURE).for_programs
    found, seeds, left_out = asyncio.run(program("a red star", seed=7))
    assert seeds == [7, 8, 9, 10]
    assert left_out == "end"
    assert [file["orig_name"] for file in found] == [f"a-red-star-{s}.png" for s in seeds]


def test_programs_get_errors_without_details():
    for error, said in ((RequestError("no"), "no"), (KeyError("secret"), words.FAILED)):
        program = Drawing(StandIn(error=error), Kind.MINIATURE).for_programs
        with pytest.raises(gr.Error) as raised:
            asyncio.run(program("a red star", steps=1))
        assert raised.value.message == said


def test_only_generate_is_open_to_programs():
    page = build_page(StandIn(), Kind.MINIATURE, max_waiting=3)
    info: dict[str, Any] = dict(page.get_api_info())
    assert list(info["named_endpoints"]) == ["/generate"]
    assert "0 to 4294967295" in info["named_endpoints"]["/generate"]["description"]
    drawing_events = [fn for fn in page.fns.values() if fn.concurrency_id == "devices"]
    assert len(drawing_events) == 2
    assert {fn.concurrency_limit for fn in drawing_events} == {1}


# --- odds and ends ---


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("../../etc/passwd\0", "etc-passwd-0.png"),
        ("星", "picture-0.png"),
        ("Écran <script>", "ecran-script-0.png"),
        ("x" * 500, f"{'x' * 60}-0.png"),
    ],
)
def test_file_names_are_harmless(prompt: str, name: str):
    assert files.save((b"",), (0,), prompt)[0].name == name


def test_model_line():
    line = words.model_line(replace(MODEL, device="TPU v5 lite", num_devices=4), Kind.OTHER)
    assert line == "org/model · 256 × 256 pixels · on 4 × TPU v5 lite"


def test_page_needs_no_jax():
    program = "import sys, ui.page, ui.theme; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("folder", "foreign"),
    [("pipeline", {"gradio", "ui", "serving", "app"}), ("serving", {"gradio", "ui", "jax", "app"})],
)
def test_imports_run_one_way(folder: str, foreign: set[str]):
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            assert not {name.partition(".")[0] for name in names} & foreign, path
