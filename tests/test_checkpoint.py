"""Which files of a checkpoint are needed."""

import pytest

from pipeline.checkpoint import list_folder, needed_files
from pipeline.errors import CheckpointError
from tests.checkpoints import PLAIN

NAMES = list_folder(PLAIN)
OTHERS = ["README.md", "vae_1_0/diffusion_pytorch_model.safetensors", "unet/model.onnx"]
WEIGHTS = {name for name in NAMES if name.endswith(".safetensors")}
FP16 = {name.replace(".safetensors", ".fp16.safetensors") for name in WEIGHTS}


def test_nothing_that_is_there_for_other_programs():
    assert len(WEIGHTS) == 4
    assert set(needed_files([*NAMES, *FP16, *OTHERS])) == set(NAMES)


def test_half_precision_takes_the_place_of_single():
    names = [*NAMES, *FP16, *OTHERS]
    assert set(needed_files(names, prefer_fp16=True)) == set(NAMES) - WEIGHTS | FP16


def test_a_tokenizer_is_one_file_or_two():
    names = [name for name in NAMES if not name.endswith(("vocab.json", "merges.txt"))]
    with pytest.raises(CheckpointError, match=r"^tokenizer/ has no tokenizer"):
        needed_files(names)
    names += ["tokenizer/tokenizer.json", "tokenizer_2/tokenizer.json"]
    assert set(needed_files(names)) == set(names)
