"""A small picture for each style, made by `tools/style_pictures.py`, where there are any."""

from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse

from ui.model_kind import Kind
from ui.styles import styles_for

FOLDER = Path(__file__).with_name("style-pictures")


def file_of(kind: Kind, style: str) -> Path:
    """Where the picture of a style is, or would be."""
    slug = style.lower().strip("()").replace(" ", "-")
    return FOLDER / kind.value / f"{slug}.webp"


def addresses(kind: Kind) -> dict[str, str]:
    """The styles that have a picture, and where a browser gets it, seen from the page."""
    files = {style: file_of(kind, style) for style in styles_for(kind)}
    return {
        style: file.relative_to(FOLDER.parent).as_posix()
        for style, file in files.items()
        if file.exists()
    }


def connect(app: FastAPI, kind: Kind) -> None:
    """Has the application hand them out."""
    known = {address: FOLDER.parent / address for address in addresses(kind).values()}

    @app.get(f"/{FOLDER.name}/{{kind}}/{{name}}", include_in_schema=False)
    async def picture(kind: str, name: str) -> FileResponse:
        if not (file := known.get(f"{FOLDER.name}/{kind}/{name}")):
            raise HTTPException(404)
        return FileResponse(file, headers={"Cache-Control": "max-age=86400"})
