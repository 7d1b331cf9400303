"""Gradio's sessions, one for each open page: small, limited in number, and removed in time."""

import asyncio
from asyncio import Queue as AsyncQueue
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import datetime, timedelta
from typing import Any

import gradio as gr
from gradio.routes import file_upload_statuses
from gradio.state_holder import SessionState, StateHolder
from gradio.utils import LRUCache

# Beyond these limits the session that was used longest ago is forgotten. If its page is used again,
# it gets a new session; what the browser shows stays.
MOST, MOST_EACH = 2000, 200  # of all addresses, and of one
# Limits of calls that have not been answered, or whose answer was not fetched: per page, and for
# all pages of an address. Gradio works on `CALLS_AT_A_TIME` calls at once; each page that waits for
# pictures takes one.
MOST_CALLS, MOST_CALLS_EACH, CALLS_AT_A_TIME = 32, 128, 1024


class _Session(SessionState):
    """A session without the copy of every component's properties, which takes most of its memory.

    Gradio keeps the copy, with the values of every call, for deep links, which are disabled here.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        self.blocks_config = copy(blocks.default_config)
        self.config_values = {}
        self.state_data = {}
        self._state_ttl = {}
        self.is_closed = False
        self.STATE_TTL_WHEN_CLOSED = 3600

    def __setitem__(self, key: int, value: Any) -> None:
        block = self.blocks_config.blocks.get(key)
        if isinstance(block, gr.State):
            self._state_ttl[key] = block.time_to_live, datetime.now()
            self.state_data[key] = value
        else:
            self.blocks_config.blocks[key] = value

    def _update_config(self, key: int) -> None:
        pass

    def _update_value_in_config(self, key: int, value: Any) -> None:
        pass


class _Messages(LRUCache[str, Any]):
    """The messages that pages have not fetched yet, by session.

    Gradio also reads and deletes a session's messages after another stream has deleted them. The
    KeyError would end the loop that sends progress to all pages, and the stream's heartbeat would
    never end.
    """

    def __missing__(self, session: str) -> Any:
        return AsyncQueue()

    def __delitem__(self, session: str) -> None:
        if session in self:
            super().__delitem__(session)


class Sessions(StateHolder):
    """The sessions of one Gradio page, limited in number for each address and in total."""

    def __init__(self, page: gr.Blocks) -> None:
        super().__init__()
        page.state_session_capacity = MOST
        # With Gradio's default of 40, one address could occupy all of them.
        page._queue.max_thread_count = CALLS_AT_A_TIME
        # By default Gradio looks for calls a thousand times a second, and for progress a hundred
        # times, also while nobody uses the page.
        page._queue.sleep_when_free, page._queue.progress_update_sleep_when_free = 0.02, 0.2
        self.set_blocks(page)
        self._queue = page._queue
        self._queue.pending_messages_per_session = _Messages(MOST)
        self._of: dict[str, OrderedDict[str, None]] = {}  # sessions by address, last used last
        self._open: Counter[str] = Counter()

    def __getitem__(self, session_id: str) -> SessionState:
        with self.lock:
            if session_id not in self.session_data:
                self.session_data[session_id] = _Session(self.blocks)
        return super().__getitem__(session_id)

    def admit(self, session: str, address: str) -> bool:
        """Note that `address` uses a session; return False if it may not have one more.

        An address with too many loses the one it used longest ago, unless all are in use.
        """
        sessions = self._of.setdefault(address, OrderedDict())
        sessions[session] = None
        sessions.move_to_end(session)
        if len(sessions) > MOST_EACH:
            return self._forget_idle(sessions, session)
        if sum(map(len, self._of.values())) > MOST:
            return self._forget_idle(max(self._of.values(), key=len), session)
        return True

    def _forget_idle(self, sessions: OrderedDict[str, None], new_session: str) -> bool:
        """Forget the oldest idle session of `sessions`; without one, forget `new_session`.

        Return whether `new_session` is kept.
        """
        idle = next(
            (key for key in sessions if key != new_session and not self._in_use(key)), new_session
        )
        self._forget(idle)
        return idle != new_session

    def admit_event(self, event: str, address: str) -> None:
        """Note the session that Gradio makes up for a call without one; its id is the event's."""
        if event in self._queue.pending_event_ids_session:
            self.admit(event, address)

    def is_crowded(self, session: str, address: str) -> bool:
        """Return whether a session, or an address, has as many unfinished calls as it may have."""
        pending = self._queue.pending_event_ids_session
        of_address = sum(len(pending.get(key, ())) for key in self._of.get(address, ()))
        return len(pending.get(session, ())) >= MOST_CALLS or of_address >= MOST_CALLS_EACH

    def has_events(self, session: str) -> bool:
        """Return whether there is anything to follow in a session."""
        return session in self._queue.pending_messages_per_session

    @contextmanager
    def held(self, session: str) -> Iterator[None]:
        """Keep a session from being forgotten while one of its streams is open."""
        self._open[session] += 1
        try:
            yield
        finally:
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]

    def forget_unused(self, since: datetime) -> None:
        """Forget the sessions that have not been used since `since`."""
        with self.lock:
            unused_sessions = [
                session for session, used in self.time_last_used.items() if used < since
            ]
        known_sessions = {session for sessions in self._of.values() for session in sessions}
        for session in {*unused_sessions, *(known_sessions - self.session_data.keys())}:
            if not self._in_use(session):
                self._forget(session)
        for upload in file_upload_statuses._signals.keys() - file_upload_statuses._statuses.keys():
            del file_upload_statuses._signals[upload]

    def _in_use(self, session: str) -> bool:
        pending = self._queue.pending_event_ids_session.get(session, ())
        running = any(event in self._queue.event_ids_to_events for event in pending)
        return running or session in self._open

    def _forget(self, session: str) -> None:
        with self.lock:
            self.session_data.pop(session, None)
            self.time_last_used.pop(session, None)
        self._queue.pending_messages_per_session.pop(session, None)
        self._queue.pending_event_ids_session.pop(session, None)
        for address, sessions in list(self._of.items()):
            sessions.pop(session, None)
            if not sessions:
                del self._of[address]


async def forget_unused(sessions: Sessions, unused_s: float, every_s: float) -> None:
    """Forget, every `every_s` seconds, the sessions that have not been used for `unused_s`."""
    while True:
        await asyncio.sleep(every_s)
        sessions.forget_unused(datetime.now() - timedelta(seconds=unused_s))
