from pathlib import Path

import pytest

from tools import statements

PROGRAM = '''"""A module's docstring."""

import json  # one


class Reader:
    """A class's docstring."""

    size: int = 3  # two, three with the class

    def read(self) -> int:  # four
        """A function's docstring."""
        if self.size: return 1; return 2  # noqa
        "not a docstring"
'''


def test_docstrings_and_layout_do_not_count():
    # import, class, field, function, if, return, return, text
    assert statements.count(PROGRAM) == 8
    assert statements.count(PROGRAM.replace("\n\n", "\n# a comment\n")) == 8


def test_a_package_above_its_ceiling_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, source in (("small", "x = 1\n"), ("large/inside", "x = 1\ny = 2\nz = 3\n")):
        file = tmp_path / f"{name}/module.py"
        file.parent.mkdir(parents=True)
        file.write_text(source)
    (tmp_path / "pyproject.toml").write_text("[tool.statements]\nsmall = 1\nlarge = 2\n")
    monkeypatch.setattr(statements, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"^large has 1 statements too many$"):
        statements.main()
    assert "large             3 statements of at most 2" in capsys.readouterr().out
