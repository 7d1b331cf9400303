"""An instance that is killed while it changes its model, and started again."""

from pathlib import Path

import httpx
import pytest

from benchmarks.processes import Instance, is_ready
from serving.generators import backends
from tests.calls import Background, generate, metric
from tests.checkpoints import EXECUTABLES, SMALLEST, make_model
from tests.fleets import front_of, pictures
from tests.halted import SAYS
from tests.web import start, wait_until

pytestmark = pytest.mark.slow  # starts the program again and again

LOAD = "sdxl_queue_depth", "sdxl_inflight"
# While the second model is read, while it is copied to the devices, and on the way back.
STAGES = (
    "pipeline.runtime.models._shared 9",
    "pipeline.runtime.adapters.Adapters._place 9",
    "pipeline.runtime.models.Model.read 2",
)


def test_requests_outlive_kills_in_mid_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is lost, no picture comes twice, and each has the bits of an undisturbed one."""
    monkeypatch.setattr(backends, "HEALTH_S", 0.1)
    (tmp_path / "models").mkdir()
    make_model(tmp_path / "made", "unet", "vae").rename(tmp_path / "models" / "b")
    options = {"model": SMALLEST, "model-dir": tmp_path / "models", "cache-dir": EXECUTABLES}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    instance = Instance(["-m", "tests.halted", *flags], tmp_path / "log")
    others = [{"model": "b", "seed": i, "num_inference_steps": 2, "images": 1} for i in range(3)]
    firsts = [each | {"model": "checkpoint"} for each in others]
    asked, waiting = [*others, *firsts], list[Background]()
    try:
        start(instance)
        with front_of(instance.url) as front:
            wait_until(lambda: httpx.get(f"{front.url}/v1/model").json()["models"])
            right = [pictures(generate(front, **each)) for each in asked]
            instance.kill()
            for stage in STAGES:
                monkeypatch.setenv("HALTS_AT", stage)
                start(instance)
                wait_until(lambda: is_ready(front.url))
                waiting = waiting or [Background(front, **each) for each in others]
                wait_until(lambda: SAYS in instance.log.read_text(), 120)
                if len(waiting) < len(asked):
                    waiting += [Background(front, **each) for each in firsts]
                    wait_until(lambda: sum(metric(front, name) for name in LOAD) == len(asked))
                instance.kill()
                instance.log.write_text("")
            monkeypatch.setenv("HALTS_AT", "")
            start(instance)
            drawn = [each.finished() for each in waiting]
    finally:
        instance.kill()
    assert [events[-1][0] for events in drawn] == ["done"] * len(asked)
    assert [pictures(events) for events in drawn] == right
    assert len({*map(tuple, right)}) == len(asked)
