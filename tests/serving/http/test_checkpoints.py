"""Checkpoints in AUTOMATIC1111's API: how calls and options choose one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pipeline.facts import ModelFacts
from serving.http.a1111 import checkpoints
from serving.http.a1111.checkpoints import Choices
from serving.http.a1111.listings import chosen_model
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.models import MODEL
from tests.web import Site, serve

HASH = "ab12" * 16
PONY = ModelFacts(name="pony", scheduler="euler", schedulers=("euler",), hash=HASH)
BIG = ModelFacts(name="sub/ponyDiffusionV6", scheduler="euler", schedulers=("euler",))


@pytest.fixture
def site() -> Iterator[Site]:
    pipe = FakePipeline()
    pipe.truncated = ""
    pipe.facts = replace(pipe.facts, models=(PONY, BIG))
    generator = local_generator(pipe.as_pipeline(), Limits(), Observer())
    with serve(a1111="keys", keys=["one", "other"], generator=generator) as served:
        yield replace(served, pipe=pipe)


def post(site: Site, path: str, key: str = "one", **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{site.url}/sdapi/v1/{path}", json=body, headers=headers)


def get(site: Site, path: str, key: str = "one") -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{site.url}/sdapi/v1/{path}", headers=headers).json()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("stand-in", "stand-in"),
        ("pony", "pony"),
        ("Pony.safetensors", "pony"),
        (f"pony.safetensors [{HASH[:10]}]", "pony"),
        (f"pony [{HASH[:10]}]", "pony"),
        ("pony.safetensors [0123456789]", "pony"),
        (HASH[:10], "pony"),
        (HASH, "pony"),
        ("ponyDiffusionV6.safetensors", "sub/ponyDiffusionV6"),
        ("diffusion", "sub/ponyDiffusionV6"),
        ("pon", "pony"),
        ("dreamshaper", None),
        ("pony" + " " * 50_000 + "x", None),
        ("", None),
        (" [ab]", None),
    ],
)
def test_names_of_checkpoints(text: str, name: str | None):
    facts = replace(MODEL, name="stand-in", models=(PONY, BIG))
    assert checkpoints.find(text, facts) == name


def test_a_call_chooses_a_checkpoint(site: Site):
    listed = get(site, "sd-models")
    titles = ["stand-in", f"pony [{HASH[:10]}]", "sub/ponyDiffusionV6"]
    assert [model["title"] for model in listed] == titles
    assert (listed[1]["model_name"], listed[1]["sha256"]) == ("pony", HASH)
    for text, name, ignored in (
        (titles[1], "pony", []),
        ("pony.safetensors", "pony", []),
        ("", "", []),
        ("dreamshaper", "", ["override_settings.sd_model_checkpoint"]),
    ):
        override = {"sd_model_checkpoint": text}
        answer = post(site, "txt2img", prompt="a", override_settings=override)
        info = json.loads(answer.json()["info"])
        assert (site.pipe.calls[-1]["model"], info["ignored"]) == (name, ignored)
        assert info["sd_model_name"] == (name or "stand-in")
        assert info["sd_model_hash"] == (HASH[:10] if name else "")
    assert get(site, "options")["sd_model_checkpoint"] == "stand-in"


def test_a_client_chooses_a_checkpoint_for_itself_alone(site: Site):
    # As Open WebUI does: all options are sent back.
    changed = get(site, "options") | {"sd_model_checkpoint": "pony.safetensors"}
    assert post(site, "options", **changed).status_code == 200
    assert get(site, "options")["sd_model_checkpoint"] == f"pony [{HASH[:10]}]"
    assert get(site, "options")["sd_checkpoint_hash"] == HASH
    assert get(site, "options", "other")["sd_model_checkpoint"] == "stand-in"
    for key, name in (("one", "pony"), ("other", "")):
        assert post(site, "txt2img", key, prompt="a").status_code == 200
        assert site.pipe.calls[-1]["model"] == name
    refused = post(site, "options", sd_model_checkpoint="dreamshaper")
    assert (refused.status_code, "not found" in refused.text) == (500, True)


@pytest.mark.parametrize("layer", [0, 2])
def test_options_may_be_those_of_either_model(layer: int):
    facts = replace(MODEL, models=(replace(PONY, clip_skip=2),))
    values = {"sd_model_checkpoint": "pony", "CLIP_stop_at_last_layers": layer}
    assert chosen_model(values, facts, MODEL.name) == "pony"


@pytest.mark.parametrize(
    ("restore", "name"), [(True, ""), (None, ""), (False, "sub/ponyDiffusionV6")]
)
def test_a_call_may_keep_its_checkpoint(site: Site, restore: bool | None, name: str):
    override = {"sd_model_checkpoint": "diffusion"}
    body = {"override_settings": override, "override_settings_restore_afterwards": restore}
    assert post(site, "txt2img", prompt="a", **body).status_code == 200
    assert post(site, "txt2img", prompt="a").status_code == 200
    assert site.pipe.calls[-1]["model"] == name


def test_choices_of_checkpoints_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch):
    now, facts = 0.0, replace(MODEL, name="stand-in", models=(PONY, BIG))
    choices = Choices(lambda: now)
    monkeypatch.setattr(checkpoints, "MAX_CHOICES", 2)
    for visitor in ("a", "b", "a", "c"):
        choices.add(visitor, "pony")
    assert [choices.of(visitor, facts) for visitor in "abc"] == ["pony", "stand-in", "pony"]
    assert choices.of("a", MODEL) == MODEL.name  # the model is gone
    now = checkpoints.LIFETIME_S
    assert choices.of("a", facts) == "stand-in"
