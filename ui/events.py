"""Options of the page's two kinds of events, neither of which programs can call."""

from typing import Any

# For events that take time: the strip above the pictures shows their progress.
IN_THE_STRIP: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# For events that are answered at once, and do not wait in Gradio's queue.
AT_ONCE: dict[str, Any] = {**IN_THE_STRIP, "queue": False}
