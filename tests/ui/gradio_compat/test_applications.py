"""Gradio makes one application of the page in all languages: the one that serves it."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from gradio.routes import App

from tests.ui.gradio_compat.mounted import mounted_in
from tests.ui.test_generation import StandIn
from ui.gradio_compat.applications import without_applications
from ui.mount import mount


def test_only_the_application_that_serves_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[App] = []

    def counted(create_app: Callable[..., App]) -> Callable[..., App]:
        def create(*args: Any, **kwargs: Any) -> App:
            made.append(create_app(*args, **kwargs))
            return made[-1]

        return create

    monkeypatch.setattr(App, "create_app", staticmethod(counted(App.create_app)))
    app = FastAPI()
    mount(app, StandIn(), "127.0.0.1", 7860, 3600)
    served = mounted_in(app)
    assert made == [served]
    assert served.get_blocks().app is served


def test_gradio_makes_applications_again_after_an_error() -> None:
    create_app = App.create_app

    def fail() -> None:
        with without_applications():
            assert App.create_app is not create_app
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert App.create_app is create_app
