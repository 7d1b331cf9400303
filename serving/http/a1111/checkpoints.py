"""The checkpoints of AUTOMATIC1111's API: their titles, and the one that each client has chosen."""

import re
import time
from collections.abc import Callable, Mapping

from pipeline.facts import Facts
from pipeline.images.metadata import HASH_LENGTH

LIFETIME_S = 12 * 3600.0  # of a choice
MAX_CHOICES = 1000
MAX_TITLE = 200  # characters; longer texts mean no model
_ENDING = re.compile(r"(\.safetensors|\.ckpt)?(\s*\[\w*\])?\s*$")


def title(name: str, known_digests: Mapping[str, str]) -> str:
    """Return a model's name with the beginning of its file's hash, if that is known."""
    digest = known_digests.get(name, "")
    return f"{name} [{digest[:HASH_LENGTH]}]" if digest else name


def find(text: str, facts: Facts) -> str | None:
    """Return the name of the model that a text means; None if it means none."""
    known_digests = facts.hashes
    return match(text, {name: known_digests.get(name, "") for name in facts.model_names})


def match(text: str, digests: Mapping[str, str]) -> str | None:
    """Return the name that a text means, of names with the digests of their files, or "".

    It may be a title, a name, a file's name, a hash, or a part of a name. Of several names that
    have the part, the shortest is meant.
    """
    if len(text) > MAX_TITLE:
        return None
    folded = text.casefold().strip()
    bare = _ENDING.sub("", folded)
    for name, digest in digests.items():
        hashes = {digest, digest[:HASH_LENGTH]}
        names = {name.casefold(), name.rpartition("/")[2].casefold()} | hashes
        if {folded, bare} & names - {""}:
            return name
    parts = (name for name in digests if bare and bare in name.casefold())
    return min(parts, key=len, default=None)


class Choices:
    """The models that clients have chosen in place of the first one, for a while.

    In AUTOMATIC1111 a choice holds for everybody. Here it holds for the client that made it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._choices: dict[str, tuple[str, float]] = {}  # oldest first

    def add(self, visitor: str, name: str) -> None:
        """Note the choice of a client."""
        self._choices.pop(visitor, None)
        self._choices[visitor] = name, self._clock() + LIFETIME_S
        if len(self._choices) > MAX_CHOICES:
            del self._choices[next(iter(self._choices))]

    def of(self, visitor: str, facts: Facts) -> str:
        """Return the name of the model that a client has chosen, or that of the first one."""
        name, expires_at = self._choices.get(visitor, ("", 0.0))
        return name if name in facts.model_names and self._clock() < expires_at else facts.name
