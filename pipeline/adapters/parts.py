"""The parts that files give of a module's change: factors, their scale, new norms."""

from enum import Enum


class Part(Enum):
    """A part of a module's change; the value is its name in most files."""

    DOWN = "lora_down.weight"
    UP = "lora_up.weight"
    MID = "lora_mid.weight"
    UP_BIAS = "lora_B.bias"
    W1_A = "hada_w1_a"
    W1_B = "hada_w1_b"
    W2_A = "hada_w2_a"
    W2_B = "hada_w2_b"
    T1 = "hada_t1"
    T2 = "hada_t2"
    LOKR_W1 = "lokr_w1"
    LOKR_W1_A = "lokr_w1_a"
    LOKR_W1_B = "lokr_w1_b"
    LOKR_W2 = "lokr_w2"
    LOKR_W2_A = "lokr_w2_a"
    LOKR_W2_B = "lokr_w2_b"
    LOKR_T2 = "lokr_t2"
    DIFF = "diff"
    DIFF_BIAS = "diff_b"
    NORM = "w_norm"
    NORM_BIAS = "b_norm"
    SET = "set_weight"
    ALPHA = "alpha"
    DORA_SCALE = "dora_scale"
    MAGNITUDE = "lora_magnitude_vector"


# The ends of tensors' names, after the name of a module.
SUFFIXES = {
    **{part.value: part for part in Part},
    "lora_A.weight": Part.DOWN,
    "lora_A.default.weight": Part.DOWN,
    "lora.down.weight": Part.DOWN,
    "lora_linear_layer.down.weight": Part.DOWN,
    "down.weight": Part.DOWN,  # after old names such as `to_q_lora`
    "lora_B.weight": Part.UP,
    "lora_B.default.weight": Part.UP,
    "lora.up.weight": Part.UP,
    "lora_linear_layer.up.weight": Part.UP,
    "up.weight": Part.UP,
    "lora_B.default.bias": Part.UP_BIAS,
    "lora_magnitude_vector.weight": Part.MAGNITUDE,
    "lora_magnitude_vector.default": Part.MAGNITUDE,
    "lora_magnitude_vector.default.weight": Part.MAGNITUDE,
}
LONGEST = max(suffix.count(".") + 1 for suffix in SUFFIXES)

# The parts of kinds of adapters that are not supported.
UNSUPPORTED = {
    "oft_blocks": "OFT or BOFT",
    "oft_diag": "OFT",
    "oft_r": "OFT",
    "oft_R": "OFT",
    "oft_R.weight": "OFT",
    "boft_R": "BOFT",
    "boft_s": "BOFT",
    "a1.weight": "GLoRA",
    "a2.weight": "GLoRA",
    "b1.weight": "GLoRA",
    "b2.weight": "GLoRA",
    "bm.weight": "GLoRA",
    "on_input": "IA3",
    "ia3_l": "IA3",
    "lambda_layer": "T-LoRA",
    "vera_lambda_b": "VeRA",
    "vera_lambda_d": "VeRA",
}


def split(key: str) -> tuple[str, str]:
    """Return the name of a tensor in a file as a module's name and a known suffix.

    The suffix is empty if there is none.
    """
    pieces = key.split(".")
    for count in range(min(LONGEST, len(pieces) - 1), 0, -1):
        suffix = ".".join(pieces[-count:])
        if suffix in SUFFIXES or suffix in UNSUPPORTED:
            return ".".join(pieces[:-count]), suffix
    return key, ""
