"""What Gradio keeps of every page that is opened, about 100 kB: bounded, and not kept for good."""

import asyncio
from datetime import datetime, timedelta

from gradio.state_holder import StateHolder

# Of more than so many pages, those used longest ago are forgotten first.
MOST = 2000


async def forget_unused(holder: StateHolder, unused_s: float, every_s: float) -> None:
    """Forgets, again and again, the pages that nobody has used for so long.

    One that is used once more starts afresh there; what the browser shows stays.
    """
    while True:
        await asyncio.sleep(every_s)
        before = datetime.now() - timedelta(seconds=unused_s)
        with holder.lock:
            for session, used in list(holder.time_last_used.items()):
                if used < before:
                    holder.time_last_used.pop(session)
                    holder.session_data.pop(session, None)
