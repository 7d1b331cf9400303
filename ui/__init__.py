"""What the visitor sees: layout, wording, looks. No JAX and no model code here."""

import inspect
from typing import NoReturn


def _import_gradio() -> None:
    """Gradio, in half the time.

    At every import it parses the sources of its components, to write stubs for editors beside
    them. What has no source file it leaves out, and so nothing has one meanwhile.
    """

    def no_file(_: object) -> NoReturn:
        raise OSError

    getfile, inspect.getfile = inspect.getfile, no_file
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = getfile


_import_gradio()
