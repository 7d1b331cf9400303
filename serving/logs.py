"""The log, as text for people or as JSON for machines."""

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from serving.generator import Request

_SAFE_NAME = re.compile(r"[\w.]{1,60}", re.ASCII)
_MOST_NAMES = 20  # in a line


def log_fields(request: Request) -> dict[str, Any]:
    """Return the `extra` of a log message about a request: its id, and nothing of its content."""
    return {"fields": {"request_id": request.id}}


class JsonLines(logging.Formatter):
    """Formatter of one JSON object per line; `extra={"fields": {...}}` adds fields to it."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """Formatter of lines with time, level, message, and the fields of its `extra`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        fields: dict[str, object] = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{k}={v!r}" for k, v in fields.items())])


def loggable(names: Iterable[str]) -> list[str]:
    """Return names that a client chose, few, and without line breaks and texts."""
    safe = (name if _SAFE_NAME.fullmatch(name) else "?" for name in names)
    return list(dict.fromkeys(safe))[:_MOST_NAMES]


def start(log_format: str) -> None:
    """Log this program's messages, and the warnings of libraries, to the standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines() if log_format == "json" else PlainLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # A checkout has these packages by themselves; `sdxl_jax` has them all where it is installed.
    for package in ("app", "cluster", "pipeline", "serving", "ui", "sdxl_jax"):
        logging.getLogger(package).setLevel(logging.INFO)
