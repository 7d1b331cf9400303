"""Screening functions for tests of `--screen`."""

from PIL import Image


def every_second(images: list[Image.Image]) -> list[bool]:
    return [i % 2 == 0 for i in range(len(images))]


def broken(images: list[Image.Image]) -> list[bool]:
    raise KeyError("a secret")


def too_few(images: list[Image.Image]) -> list[bool]:
    return [False] * (len(images) - 1)


NOT_A_FUNCTION = "a text"
