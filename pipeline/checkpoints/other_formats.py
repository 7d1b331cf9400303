"""Recognising files that are not safetensors at all, to say what they are."""

from pathlib import Path

from pipeline.checkpoints.tensors import PICKLE_SUFFIXES
from pipeline.errors import CheckpointError

_PICKLE = "pickle, which can run code and is never opened; convert the file to safetensors"
# The beginnings of files, and what to say of them. A safetensors file begins with the length of
# its header: eight bytes, the last four of them zero.
_BEGINNINGS = {
    b"PK\x03\x04": f"torch's zip format, which holds {_PICKLE}",
    **{bytes([0x80, version]): _PICKLE for version in range(2, 6)},
    b"version ": "a pointer of Git LFS, and not the file itself; fetch it with `git lfs pull`",
    b"<!": "a web page, and not the file itself; a download that needs a login ends so",
    b"<h": "a web page, and not the file itself; a download that needs a login ends so",
    b"GGUF": "GGUF, which is not supported; expected safetensors",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"{": "JSON, and not safetensors; choose the file with the weights",
}


def refuse_other_formats(path: Path) -> None:
    """Raise a CheckpointError if a file cannot be read or begins like another format."""
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path}: its name is that of {_PICKLE}")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: not a file; expected a .safetensors file")
    try:
        with path.open("rb") as file:
            beginning = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(beginning) < 8:
        raise CheckpointError(
            f"{path}: has {len(beginning)} bytes, too few for a safetensors file; fetch it again"
        )
    if beginning[4:] == bytes(4):
        return
    for start, meaning in _BEGINNINGS.items():
        if beginning.startswith(start):
            raise CheckpointError(f"{path}: the file is {meaning}")
