"""Names in JSON objects are not repeated, and files are not too long."""

from pathlib import Path

import pytest

from pipeline.errors import CheckpointError
from pipeline.strict_json import MOST_BYTES, StrictJson, unique_names


def test_a_repeated_name_among_many_is_found() -> None:
    pairs = [(f"n{number % 200_000}", number) for number in range(200_001)]
    with pytest.raises(ValueError, match="it has 'n0' twice"):
        unique_names(pairs)


def test_a_long_name_does_not_make_a_long_message() -> None:
    with pytest.raises(ValueError, match="twice") as caught:
        unique_names([("a" * 10**6, 1), ("a" * 10**6, 2)])
    assert len(str(caught.value)) < 100


def test_a_file_beyond_reason_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    with file.open("wb") as content:
        content.truncate(2**33)  # takes no room on the disk
    with pytest.raises(CheckpointError, match=f"it has more than {MOST_BYTES} bytes"):
        StrictJson(file)
