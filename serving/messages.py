"""Messages to visitors about their requests, for the page and every API."""

CANCELLED = "Stopped."
ABANDONED = "Nobody waited for the pictures any more."
STOPPING = "The server is being shut down. Please try again in a moment."
UNAVAILABLE = "No instance can draw at the moment. Please try again in a while."
REPLACED = "The model that drew these pictures has been replaced meanwhile. Please try again."
CROWDED = "Too many visitors are here at the moment. Please try again in a moment."
TOO_MANY_CALLS = "Your address has too many open connections. Please close some and try again."
OUT_OF_MEMORY = "The device ran out of memory while drawing. Please try again."
FAILED = "Something went wrong while drawing. Please try again."
BROKEN = "Something went wrong here. Please try again."
UNSCREENED = "The pictures could not be screened. Please try again."
LOOP = "This instance passes requests on itself; point BACKEND_URLS at instances that draw."
UNKNOWN = "There is no request of this id, or no longer."
DUPLICATE = "There is a request of this id already."


def blocked(found: str) -> str:
    """Return the message for a prompt with a blocked word."""
    return f'"{found}" is not drawn here. Please leave it out.'


def full(places: int, wait_s: float | None) -> str:
    """Return the message for a full queue, with the time until there is room."""
    taken = "The only place" if places == 1 else f"All {places} places"
    return f"{taken} in the queue {_is(places)} taken. Please try again {_soon(wait_s)}."


def too_large(most_bytes: int) -> str:
    """Return the message for a body over the limit of its route."""
    return f"This is too large to send: at most {most_bytes // 1024} KiB are possible."


def too_many(wait_s: float) -> str:
    """Return the message for a visitor over the rate limit."""
    return f"That was a lot of requests. Please try again {_soon(wait_s)}."


def too_late(started: bool, seconds: float) -> str:
    """Return the message for a request whose deadline has passed."""
    what = "The pictures were not finished" if started else "It was not your turn"
    return f"{what} within {seconds:g} seconds. Please try again later."


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _soon(wait_s: float | None) -> str:
    return "in a moment" if wait_s is None or wait_s < 2 else f"in about {wait_s:.0f} seconds"
