"""Files of drawn pictures: limits for each address and in total."""

from pathlib import Path

import pytest

from ui.pictures import files

OWNER = ["a"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(files, "_disk", files._Disk())
    monkeypatch.setattr(files, "_address", lambda: OWNER[0])
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    monkeypatch.setattr(files, "MOST_BYTES_EACH", 60)
    return tmp_path


def save(owner: str, size: int = 20) -> Path:
    OWNER[0] = owner
    return files.save({"a.png": b"x" * size})[0]


def test_the_oldest_files_of_an_address_go_first():
    other = save("b")
    saved = [save("a") for _ in range(5)]
    assert [path.exists() for path in saved] == [False, False, True, True, True]
    assert other.exists()


def test_in_all_the_address_with_most_files_loses_some():
    few = save("b")
    saved = [save("a") for _ in range(3)]
    others = [save("c"), save("d")]
    assert [path.exists() for path in (few, *saved, *others)] == [True, False, *[True] * 4]


def test_files_that_are_gone_do_not_count(folder: Path):
    saved = [save("a") for _ in range(3)]
    saved[2].unlink()
    saved[2].parent.rmdir()
    files._remove_older(0)
    save("a")
    assert saved[0].exists()
    assert len(list(folder.iterdir())) == 3
