"""Sentences in docstrings and comments can be read once.

A sentence that begins with "Of" or "Who" has to be decoded. ruff's D401 checks that the docstring
of a function begins with a verb in the imperative.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("pipeline", "serving", "ui", "tests", "benchmarks", "tools", "examples")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
OPENERS = "Of|What|Who|Whoever|Whom|Whose|Those|Nobody|None but"
# At the beginning of a text, after the end of a sentence, or after the name of a field.
_SENTENCE = re.compile(rf"(?:^|[.!?:]\s+|\n\s*\n\s*|- )({OPENERS}) [a-z]\S*")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield every docstring and every block of comments, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text
    block, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        own_line = token.line.lstrip().startswith("#")
        if block and not (own_line and line == last + 1):
            yield last, " ".join(block)
            block = []
        block.append(token.string.lstrip("#! "))
        last = line if own_line else -1
    if block:
        yield last, " ".join(block)


def faults(source: str) -> list[str]:
    """Return the beginnings of sentences that a reader would have to decode."""
    return [
        f"line {line}: {match[0].strip()}"
        for line, text in texts(source)
        for match in _SENTENCE.finditer(text)
    ]


@pytest.mark.parametrize("folder", [*FOLDERS, "."])
def test_no_sentence_begins_with_a_relative_clause(folder: str):
    files = (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
    found = {str(file.relative_to(ROOT)): faults(file.read_text("utf-8")) for file in files}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("# Of a prompt: its tokens.", 1),
        ("# Fine. Who asks is told.", 1),
        ("x = 1  # what it is\n# Nobody waits\n# for it.", 1),
        ('def f():\n    """What is kept."""', 1),
        ('def f():\n    """Return what is kept, of course."""', 0),
    ],
)
def test_the_rule_itself(text: str, count: int):
    assert len(faults(text)) == count
