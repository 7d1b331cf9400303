"""Words about one setting, for the tables of all languages."""

from typing import NamedTuple


class Words(NamedTuple):
    """The label of a setting, and an explanation, if it has one."""

    label: str
    info: str = ""
