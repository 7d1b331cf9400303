"""Small pictures of the styles and of the examples, made by `tools/sample_pictures.py`."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse

from ui.samples.examples import examples_for
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for

_HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Samples:
    """A folder with a picture for each name; a kind of model may have none.

    Attributes:
        folder: the folder's name, which begins the pictures' addresses too.
        names: the names that a kind of model has.
    """

    folder: str
    names: Callable[[Kind], Iterable[str]]

    def file_of(self, kind: Kind, name: str) -> Path:
        """Return the path of a name's picture, which need not exist."""
        slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        return _HERE / self.folder / kind.value / f"{slug}.webp"

    def addresses(self, kind: Kind) -> dict[str, str]:
        """Return the address of each name's picture, relative to the page, where there is one."""
        files = {name: self.file_of(kind, name) for name in self.names(kind)}
        return {
            name: file.relative_to(_HERE).as_posix()
            for name, file in files.items()
            if file.exists()
        }

    def connect(self, app: FastAPI, kind: Kind) -> None:
        """Add the route that serves these pictures."""
        files = {address: _HERE / address for address in self.addresses(kind).values()}

        @app.get(f"/{self.folder}/{{kind}}/{{name}}", include_in_schema=False)
        async def picture(kind: str, name: str) -> FileResponse:
            if not (file := files.get(f"{self.folder}/{kind}/{name}")):
                raise HTTPException(404)
            return FileResponse(file, headers={"Cache-Control": "max-age=86400"})


STYLES = Samples("style-pictures", styles_for)
EXAMPLES = Samples("example-pictures", examples_for)
