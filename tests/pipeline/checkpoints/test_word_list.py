"""The list of a checkpoint's words is read strictly: it may come from anybody."""

from pathlib import Path

import pytest

from pipeline.checkpoints.folder import needed_files
from pipeline.checkpoints.source import fetch
from pipeline.checkpoints.word_list import MAX_FILE, read_words
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from tests.checkpoints import PLAIN_CONFIG, PLAIN_FILES, copy_checkpoint


def test_a_checkpoint_has_the_words_of_its_list(tmp_path: Path):
    folder = copy_checkpoint(tmp_path)
    assert fetch(str(folder), None, FamilyReader()).words == ()
    (folder / "words.txt").write_text("star\r\nfox\n🐻‍❄️\nfox\n狐狸", encoding="utf-8-sig")
    assert fetch(str(folder), None, FamilyReader()).words == ("fox", "star", "狐狸", "🐻‍❄️")


def test_the_list_is_downloaded_with_a_model():
    assert "words.txt" not in needed_files(PLAIN_FILES, PLAIN_CONFIG).files
    assert "words.txt" in needed_files([*PLAIN_FILES, "words.txt"], PLAIN_CONFIG).files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fox\nred star\n", r"words\.txt: line 2 is 'red star'; expected one word or emoji"),
        (b"fox\n\nstar", "line 2 is ''"),
        (b"fox\x00", "line 1 is"),
        (b"x" * 41, "line 1 is 'x{40}'; .* at most 40 characters"),
        (b"fox\xff", r"words\.txt: cannot be read as text in UTF-8"),
        (b"fox\n" * (MAX_FILE // 4) + b"\n", "more than 64 KiB; list fewer words"),
    ],
)
def test_a_bad_list_is_refused(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_words(tmp_path)
