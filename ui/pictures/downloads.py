"""Downloads of pictures as PNG, JPEG or WebP files, converted when they are requested."""

import re
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

from pipeline.errors import MetadataError
from pipeline.images import metadata
from serving.generator import RequestError
from serving.http.addresses import address_of
from serving.messages import Code, Message
from serving.requests.workers import Workers
from ui import i18n
from ui.gradio_compat.context import upload_folder

Kind: TypeAlias = Literal["PNG", "JPEG", "WEBP"]
KINDS: dict[str, Kind] = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP"}

# Files that are made or wait to be made, one after the other, addresses in turn: of all and of one.
AT_A_TIME, AT_A_TIME_EACH = 32, 4
# The names that `ui.pictures.files` gives; no other path is opened.
_FOLDER = re.compile(r"[\w-]{22}", re.ASCII)
_NAME = re.compile(r"([a-z0-9-]{1,90})\.(png|jpg|webp)")


def connect(app: FastAPI) -> None:
    """Add the route that serves the files; `static/bar.js` knows their addresses."""
    workers = Workers(1, AT_A_TIME, AT_A_TIME_EACH)  # leaves the processors to the drawing

    @app.get("/pictures/{folder}/{name}", include_in_schema=False)
    async def picture(folder: str, name: str, sender: Request) -> Response:
        match = _NAME.fullmatch(name)
        if not _FOLDER.fullmatch(folder) or not match:
            raise HTTPException(404)
        path = upload_folder() / folder / f"{match[1]}.png"
        work = partial(_content, path, KINDS[match[2]])
        try:
            with i18n.speaking(i18n.preferred(sender.headers.get("Accept-Language", ""))):
                content = await workers.run(address_of(sender), work)
        except RequestError:
            raise HTTPException(429, headers={"Retry-After": "1"}) from None
        return Response(
            content,
            media_type=f"image/{KINDS[match[2]].lower()}",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )


def _content(path: Path, kind: Kind) -> bytes:
    try:
        png = path.read_bytes()
        return png if kind == "PNG" else metadata.converted(png, kind)
    except OSError:
        raise HTTPException(404, i18n.translate(Message(Code.PICTURE_GONE))) from None
    except MetadataError:
        raise HTTPException(422, i18n.TOO_LONG_FOR_JPEG) from None
