"""The text of docs/settings.md, made from the class that declares the settings.

python -m tools.settings_docs > docs/settings.md
"""

from itertools import groupby

from serving.settings import Setting, described

INTRODUCTION = """# Settings

The settings of `app.py`. Each can be given as a flag, such as `--port 8000`, or as an environment
variable, such as `PORT=8000`. A flag wins over its variable, and an empty variable counts as unset.
`cluster.py` reads the variables only. Settings that are on or off take the words `yes` and `no`.

This page is made from `serving/settings.py` by `python -m tools.settings_docs > docs/settings.md`.

| Setting | Default | Description |
|---|---|---|
"""


def text() -> str:
    """Return the page: an introduction and a table with a row for each setting."""
    lines: list[str] = []
    for section, settings in groupby(described(), lambda setting: setting.section):
        lines += [f"| **{section}** | | |", *map(_row, settings)]
    return INTRODUCTION + "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    name = f"`{setting.variable}`<br>`{setting.flag}`"
    return f"| {name} | {_cell(setting.default)} | {_cell(setting.description)} |"


def _cell(words: str) -> str:
    return words.replace("|", r"\|").replace("*", r"\*")


if __name__ == "__main__":
    print(text(), end="")
