"""Finding of an adapter's file: here, in a folder, on the Hub."""

from pathlib import Path

import pytest

from pipeline.adapters.reader import find_adapter
from pipeline.errors import CheckpointError


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "pixel.bin"
    file.touch()
    assert find_adapter(file) == find_adapter(str(file)) == file


def test_the_only_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"expected one \.safetensors file in it; found none"):
        find_adapter(tmp_path)
    (tmp_path / "b.safetensors").touch()
    assert find_adapter(tmp_path) == tmp_path / "b.safetensors"
    (tmp_path / "a.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"found a\.safetensors, b\.safetensors$"):
        find_adapter(tmp_path)


def test_a_file_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def download(*arguments: object) -> tuple[Path, str]:
        asked.append(arguments)
        return tmp_path / "pixel.safetensors", "commit"

    monkeypatch.setattr("pipeline.checkpoints.hub.download_file", download)
    assert find_adapter("owner/name/folder/pixel.safetensors") == tmp_path / "pixel.safetensors"
    assert asked == [("owner/name", "folder/pixel.safetensors", None)]


@pytest.mark.parametrize(
    "source",
    ["pixel", "owner/name", "/pixel.safetensors", "a/../b.safetensors", "a/b/../c.safetensors"],
)
def test_what_is_nowhere(source: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such file or folder; on the Hub it would be"):
        find_adapter(source)
