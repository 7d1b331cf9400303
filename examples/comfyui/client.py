"""A client of the server's own API, in Python's standard library alone."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

TIMEOUT_S = 60.0  # of silence; a server sends something every 15 seconds


def draw(
    server: str, body: dict[str, Any], key: str, on_event: Callable[[str, dict[str, Any]], None]
) -> list[bytes]:
    """Draw pictures, and return their PNG files in order.

    Args:
        server: the server's address, such as "http://127.0.0.1:7860".
        body: the fields of the request; docs/api.md lists them.
        key: an API key, or "".
        on_event: called with the name and the fields of each event. If it raises an exception, the
            connection is closed, which stops the drawing.

    Raises:
        RuntimeError: if the server cannot be reached, refuses the request or fails; the message
            says why.
    """
    files: dict[int, bytes] = {}
    with closing(_events(server, body, key)) as events:
        for name, fields in events:
            if name == "error":
                raise RuntimeError(fields["message"])
            if name == "image":
                files[fields["index"]] = base64.b64decode(fields["png"])
            on_event(name, fields)
            if name == "done":
                return [files[index] for index in sorted(files)]
    raise RuntimeError(f"{server} closed the connection before the pictures were finished")


def _events(server: str, body: dict[str, Any], key: str) -> Generator[tuple[str, dict[str, Any]]]:
    """Yield the names and the fields of the events, which the server sends as they happen."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    url = f"{server.rstrip('/')}/v1/generate"
    try:
        call = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(call, timeout=TIMEOUT_S) as answer:
            name = ""
            for line in answer:
                field, _, value = line.decode().rstrip("\r\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)
    except urllib.error.HTTPError as error:
        raise RuntimeError(_message(error)) from error
    except (OSError, ValueError) as error:  # no connection, no such address, or no event
        raise RuntimeError(f"{server} cannot draw: {error}") from error


def _message(error: urllib.error.HTTPError) -> str:
    """Return the message of a refusal."""
    try:
        return json.loads(error.read())["error"]["message"]
    except (KeyError, TypeError, ValueError):
        return f"{error.url} answered {error.code} {error.reason}"
