"""Choice of the files that a checkpoint needs."""

from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.checkpoints.folder import (
    INDEX,
    config_patterns,
    count_parameters,
    needed_files,
)
from pipeline.checkpoints.source import fetch
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from tests.checkpoints import PLAIN, PLAIN_CONFIG, PLAIN_FILES, copy_checkpoint

OTHERS = ["README.md", "vae_1_0/diffusion_pytorch_model.safetensors", "unet/model.onnx"]
WEIGHTS = {name for name in PLAIN_FILES if name.endswith(".safetensors")}
FP16 = {name.replace(".safetensors", ".fp16.safetensors") for name in WEIGHTS}


def all_needed(names: list[str], prefer_fp16: bool = False) -> set[str]:
    """Return the files of configuration, and the files that the configuration asks for."""
    patterns = [INDEX, *config_patterns(PLAIN)]
    configs = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    return configs | set(needed_files(names, PLAIN_CONFIG, prefer_fp16).files)


def test_files_for_other_programs_are_not_needed():
    assert len(WEIGHTS) == 4
    assert all_needed([*PLAIN_FILES, *FP16, *OTHERS]) == set(PLAIN_FILES)


def test_half_precision_replaces_single_where_preferred():
    names = [*PLAIN_FILES, *FP16, *OTHERS]
    needed = needed_files(names, PLAIN_CONFIG, prefer_fp16=True)
    assert all_needed(names, prefer_fp16=True) == set(PLAIN_FILES) - WEIGHTS | FP16
    assert set(chain.from_iterable(needed.weights.values())) == FP16
    assert all(file.startswith(f"{name}/") for name, [file] in needed.weights.items())


def test_a_tokenizer_is_one_file_or_two():
    names = [name for name in PLAIN_FILES if not name.endswith(("vocab.json", "merges.txt"))]
    with pytest.raises(CheckpointError, match=r"^tokenizer/ has no tokenizer"):
        needed_files(names, PLAIN_CONFIG)
    names += ["tokenizer/tokenizer.json", "tokenizer_2/tokenizer.json"]
    assert all_needed(names) == set(names)


def test_parameters_are_counted_once_and_whatever_their_precision(tmp_path: Path):
    folder = copy_checkpoint(tmp_path, PLAIN)
    right = sum(value.size for file in WEIGHTS for value in load_file(PLAIN / file).values())
    assert count_parameters(fetch(str(folder), None, FamilyReader())) == right
    for file in WEIGHTS:
        half = {name: value.astype(np.float16) for name, value in load_file(folder / file).items()}
        save_file(half, folder / file.replace(".safetensors", ".fp16.safetensors"))
    (folder / "all_in_one.safetensors").write_bytes(bytes(10**6))
    for prefer_fp16 in (False, True):
        checkpoint = fetch(str(folder), None, FamilyReader(), prefer_fp16)
        assert count_parameters(checkpoint) == right
