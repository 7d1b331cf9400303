"""The web applications that Gradio makes of a page."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradio.routes import App


@contextmanager
def without_applications() -> Iterator[None]:
    """Leave out the applications that Gradio makes of each page while pages are built.

    Gradio makes three of each page, of 80 routes each, and one more when the page is mounted, which
    alone serves. A page that is built in this context has none until `guard` gives it that one.
    """
    create_app = App.create_app
    App.create_app = staticmethod(lambda *_, **__: None)  # type: ignore[assignment]
    try:
        yield
    finally:
        App.create_app = staticmethod(create_app)
