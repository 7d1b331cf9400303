"""Files of embeddings."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def save_embedding(pipe: Any, file: Path, value: float = 0.5, count: int = 1) -> None:
    widths = [encoder.hidden_size for encoder in pipe._config.text_encoders.values()]
    rows = [np.full((count, width), value, np.float32) for width in widths]
    save_file(dict(zip(("clip_l", "clip_g"), rows, strict=True)), file)
