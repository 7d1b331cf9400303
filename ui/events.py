"""How the page's events behave, of which there are two kinds; programs can use neither."""

from typing import Any

# For what takes its time: the strip above the pictures says how it goes.
IN_THE_STRIP: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# For what answers at once and waits for nothing.
AT_ONCE: dict[str, Any] = {**IN_THE_STRIP, "queue": False}
