"""The log: lines for people, or JSON for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from serving.generator import Request


def about(request: Request) -> dict[str, Any]:
    """The `extra` of a message that says which request it is about, and nothing of what it asks."""
    return {"fields": {"request_id": request.id}}


class JsonLines(logging.Formatter):
    """One JSON object a line; `extra={"fields": {...}}` adds to it."""

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
    """The message, and the added fields behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        fields: dict[str, object] = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{k}={v!r}" for k, v in fields.items())])


def start(log_format: str) -> None:
    """Has our own messages, and others' warnings, written to the standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines() if log_format == "json" else PlainLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for ours in ("app", "pipeline", "serving", "ui"):
        logging.getLogger(ours).setLevel(logging.INFO)
