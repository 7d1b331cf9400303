"""The call that Gradio is answering, and the folder that it serves files from."""

from pathlib import Path
from typing import Any

from gradio.context import LocalContext
from gradio.utils import get_upload_folder


def current_request() -> Any:
    """Return the `gr.Request` of the call that is being answered; None outside of any."""
    return LocalContext.request.get(None)


def upload_folder() -> Path:
    """Return the folder that uploads are written to and served from."""
    return Path(get_upload_folder())
