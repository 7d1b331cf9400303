"""Choice of the checkpoint where none is named."""

from types import SimpleNamespace

import pytest

from pipeline.default_model import BUNDLED, SDXL, SDXL_REVISION, choose_model
from pipeline.runtime import mesh


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    found = [SimpleNamespace(platform=request.param)]
    monkeypatch.setattr(mesh, "find_devices", lambda: found)


@pytest.mark.parametrize("platform", ["cpu"], indirect=True)
def test_without_an_accelerator_the_bundled_one(platform: None) -> None:
    assert choose_model(None, None) == (str(BUNDLED), None)


@pytest.mark.parametrize("platform", ["tpu", "gpu"], indirect=True)
def test_with_an_accelerator_sdxl_at_a_pinned_commit(platform: None) -> None:
    assert choose_model(None, None) == (SDXL, SDXL_REVISION)


def test_a_named_model_is_kept() -> None:
    assert choose_model("some/model", None) == ("some/model", None)
    assert choose_model(SDXL, "main") == (SDXL, "main")
    assert choose_model(SDXL, None) == (SDXL, SDXL_REVISION)
