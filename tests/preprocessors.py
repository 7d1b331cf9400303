"""Preprocessors that an operator could name, as `package.module:function`."""

from typing import Any

import numpy as np

NO_FUNCTION = 7


def unchanged(image: np.ndarray) -> np.ndarray:
    return image


def red(image: np.ndarray) -> np.ndarray:
    return image[..., 0]


def too_deep(image: np.ndarray) -> Any:
    return image.astype(np.float32)


def failing(image: np.ndarray) -> Any:
    raise RuntimeError("no memory")
