"""Values that the page's components cannot take are refused without a traceback."""

import itertools
import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.pages import StandIn
from tests.ui.gradio_compat.mounted import mounted_in
from ui.mount import mount

WRONG: list[Any] = [{"a": {}}, [{}], -7.5, "no such" * 100, True, float("nan"), 1e-320, 10**4000]


@pytest.mark.lasting
def test_wrong_values_are_refused_without_a_traceback(capfd: pytest.CaptureFixture[str]):
    app = FastAPI()
    mount(app, StandIn(), "127.0.0.1", 0, keep_files_s=600)
    client = TestClient(app)
    refused = 0
    for index, function in mounted_in(app).get_blocks().fns.items():
        inputs = range(len(function.inputs) if function.fn else 0)
        for place, wrong in itertools.product(inputs, WRONG):
            data = [wrong if at == place else None for at in inputs]
            body = {"data": data, "session_hash": "s", "fn_index": index}
            answer = client.post("/gradio_api/run/predict", content=json.dumps(body))
            assert "Traceback" not in capfd.readouterr().err, (function.name, place, wrong)
            assert "no such" * 50 not in answer.json().get("error", "")
            refused += answer.status_code == 500 and bool(answer.json()["error"])
    assert refused > 10
