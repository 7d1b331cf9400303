"""The application that Gradio makes of a page, for tests that look inside it."""

from fastapi import FastAPI
from gradio.routes import App
from starlette.routing import Mount


def mounted_in(app: FastAPI) -> App:
    """Return the application of the one page that is mounted in another."""
    [mounted] = [route.app for route in app.routes if isinstance(route, Mount)]
    assert isinstance(mounted, App)
    return mounted
