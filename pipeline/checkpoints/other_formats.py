"""Saying what a file is that is not in safetensors."""

from pathlib import Path

from pipeline.errors import CheckpointError

_PICKLE = "pickle, which can run code and is never opened; convert the file to safetensors"
_PAGE = "a web page in place of the file; a download that needs a login ends so"
# The beginnings of files, and what to say of them.
_BEGINNINGS = {
    b"PK\x03\x04": f"torch's zip format, which holds {_PICKLE}",
    **{bytes([0x80, version]): _PICKLE for version in range(2, 6)},
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself with `git lfs pull`",
    b"<": _PAGE,
    b"GGUF": "GGUF, which is not supported; expected safetensors",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"{": "JSON; choose the file with the weights",
}


def refuse_other_formats(path: Path) -> None:
    """Raise a CheckpointError if a file begins like one in another format.

    Call it for files that are not in safetensors: the first bytes of those are the length of their
    header, which could be any.
    """
    if not path.is_file():  # to open a pipe would wait until something writes into it
        return
    try:
        with path.open("rb") as file:
            beginning = file.read(max(map(len, _BEGINNINGS)))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    for start, meaning in _BEGINNINGS.items():
        if beginning.startswith(start):
            raise CheckpointError(f"{path}: the file is {meaning}")
