"""Uploads of pictures whose settings are to be read: few, small, and kept for a short time."""

import asyncio
import secrets
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from gradio.processing_utils import hash_file
from gradio_client.utils import strip_invalid_filename_characters
from starlette.datastructures import UploadFile

from serving.generator import RequestError
from serving.http import errors
from serving.http.addresses import address_of
from serving.http.limits import MAX_UPLOAD_BYTES, UPLOAD_PATH, body_of
from serving.messages import Code, Message
from serving.requests.shares import Shares
from ui.gradio_compat.context import upload_folder

AT_A_TIME, AT_A_TIME_EACH = 8, 2
# Bytes on disk of files that have not been read yet.
MOST_BYTES, MOST_BYTES_EACH = 32 * MAX_UPLOAD_BYTES, 4 * MAX_UPLOAD_BYTES
# Seconds until an unread file is removed. The page has a picture read at once.
KEPT_S = 300.0
_CHUNK = 2**20


@dataclass(frozen=True)
class _Upload:
    address: str
    size: int
    at: float


class Uploads:
    """The uploaded files, and the routes that take them in place of Gradio's own."""

    def __init__(self) -> None:
        self._files: dict[Path, _Upload] = {}
        self._disk = Shares(MOST_BYTES, MOST_BYTES_EACH)
        self._under_way = Shares(AT_A_TIME, AT_A_TIME_EACH)

    def connect(self, app: FastAPI) -> None:
        """Add the routes by which Gradio's page uploads files."""
        for path in (UPLOAD_PATH, f"{UPLOAD_PATH}/"):
            app.add_api_route(path, self._answer, methods=["POST"], include_in_schema=False)
        app.add_api_route(
            "/gradio_api/upload_progress", _progress, methods=["GET"], include_in_schema=False
        )

    def owns(self, path: str) -> bool:
        """Return whether this is exactly the path of an uploaded file that still exists."""
        file = Path(path)
        return str(file) == path and file in self._files and _is_file(file)

    def remove_unread(self, before: float) -> None:
        """Remove files uploaded before a `time.monotonic`, and forget files that are gone."""
        for path, upload in list(self._files.items()):
            if upload.at < before:
                path.unlink(missing_ok=True)
            if not _is_file(path):
                del self._files[path]
                self._disk.give_back(upload.address, upload.size)
                with suppress(OSError):  # other files are in it
                    path.parent.rmdir()

    async def keep_tidy(self) -> None:
        """Remove, again and again, the files that were not read in time."""
        while True:
            await asyncio.sleep(KEPT_S / 5)
            self.remove_unread(time.monotonic() - KEPT_S)

    async def _answer(self, request: Request) -> Response:
        address = address_of(request)
        if not self._under_way.take(address):
            return _refusal(request, 429, Code.TOO_MANY_UPLOADS)
        try:
            return await self._take_in(request, address)
        except RequestError as error:
            status, headers = errors.status_of(error, request.scope)
            return _text(request, status, error.message, headers)
        finally:
            self._under_way.give_back(address)

    async def _take_in(self, request: Request, address: str) -> Response:
        with body_of(request) as body:
            async with body.form(max_files=1, max_fields=8) as form:
                file = form.get("files")
                if not isinstance(file, UploadFile):
                    return _refusal(request, 400, Code.NO_FILE)
                size = file.size or 0
                self.remove_unread(time.monotonic() - KEPT_S)
                if not self._disk.take(address, size):
                    return _refusal(request, 429, Code.TOO_MANY_UPLOADS)
                try:
                    path = await anyio.to_thread.run_sync(_written, file)
                except OSError:
                    self._disk.give_back(address, size)
                    return _refusal(request, 507, Code.NO_ROOM_FOR_UPLOADS)
        self._files[path] = _Upload(address, size, time.monotonic())
        return JSONResponse([str(path)])


def resolved(path: str | Path) -> Path:
    """Return the real path of an upload: a file in a folder of its own, inside Gradio's folder.

    Raises:
        FileNotFoundError: if the path is not that of an upload.
    """
    try:
        upload = Path(path).resolve(strict=True)
        if upload.parent.parent == upload_folder().resolve() and upload.is_file():
            return upload
    except (OSError, RuntimeError, ValueError):  # missing; a loop of links; a NUL in its name
        pass
    raise FileNotFoundError(path)


def take(path: str) -> bytes:
    """Return the content of an upload, and delete it.

    Raises:
        FileNotFoundError: if the path is not that of an upload.
    """
    upload = resolved(path)
    try:
        return upload.read_bytes()
    finally:
        remove(upload)


def remove(upload: Path) -> None:
    """Delete an upload that was read, and its folder if that is empty."""
    with suppress(OSError):  # somebody may have uploaded the same picture into the folder
        upload.unlink()
        upload.parent.rmdir()


def _written(file: UploadFile) -> Path:
    """Write an upload where Gradio expects it: in a folder named after its content's hash."""
    folder = upload_folder()
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"upload-{secrets.token_urlsafe(16)}"
    try:
        with copy.open("xb") as output:
            while chunk := file.file.read(_CHUNK):
                output.write(chunk)
        name = Path(strip_invalid_filename_characters(Path(file.filename or "file").name))
        # Two visitors may upload the same picture: each gets a file of their own.
        path = folder / hash_file(copy) / f"{name.stem}-{secrets.token_hex(8)}{name.suffix}"
        path.parent.mkdir(exist_ok=True)
        return copy.rename(path)
    finally:
        copy.unlink(missing_ok=True)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _refusal(request: Request, status: int, code: Code) -> Response:
    return _text(request, status, Message(code))


def _text(
    request: Request, status: int, message: Message, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer whose text Gradio's page shows to the visitor."""
    return PlainTextResponse(errors.translated(message, request.scope), status, headers)


async def _progress() -> Response:
    """Tell Gradio's page that an upload is done; files are too small for more progress."""
    return Response('data: {"msg":"done"}\n\n', media_type="text/event-stream")
