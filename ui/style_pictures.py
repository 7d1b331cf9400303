"""Small pictures of the styles, made by `tools/style_pictures.py`; a style may have none."""

from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse

from ui.model_kind import Kind
from ui.styles import styles_for

FOLDER = Path(__file__).with_name("style-pictures")


def file_of(kind: Kind, style: str) -> Path:
    """Return the path of a style's picture, which need not exist."""
    slug = style.lower().strip("()").replace(" ", "-")
    return FOLDER / kind.value / f"{slug}.webp"


def addresses(kind: Kind) -> dict[str, str]:
    """Return the address of each style's picture, relative to the page, where there is one."""
    files = {style: file_of(kind, style) for style in styles_for(kind)}
    return {
        style: file.relative_to(FOLDER.parent).as_posix()
        for style, file in files.items()
        if file.exists()
    }


def connect(app: FastAPI, kind: Kind) -> None:
    """Add the route that serves these pictures."""
    known = {address: FOLDER.parent / address for address in addresses(kind).values()}

    @app.get(f"/{FOLDER.name}/{{kind}}/{{name}}", include_in_schema=False)
    async def picture(kind: str, name: str) -> FileResponse:
        if not (file := known.get(f"{FOLDER.name}/{kind}/{name}")):
            raise HTTPException(404)
        return FileResponse(file, headers={"Cache-Control": "max-age=86400"})
