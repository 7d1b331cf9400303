"""The page that visitors see: layout, texts and look. It contains no JAX and no model code."""

import inspect
from typing import NoReturn


def _import_gradio() -> None:
    """Import Gradio in half the usual time.

    At every import Gradio parses the sources of its components, to write stubs for editors beside
    them. It leaves out objects without a source file, so during the import no object has one.
    """

    def no_file(_: object) -> NoReturn:
        raise OSError

    getfile, inspect.getfile = inspect.getfile, no_file
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = getfile


_import_gradio()
