"""Startup steps that processes share."""

import logging
from typing import cast

import pytest

from pipeline import DeviceError, SDXLPipeline
from serving import bootstrap


class SmallPipeline:
    """Stand-in for `SDXLPipeline` whose memory holds the programs of one size more, 8 wide."""

    def check_memory(self, sizes: list[tuple[int, int]]) -> None:
        if len(sizes) > 1 or sizes[0][1] != 8:
            raise DeviceError("too little memory: leave something out")


def test_sizes_that_do_not_fit_are_left_out(caplog: pytest.LogCaptureFixture):
    pipe = cast(SDXLPipeline, SmallPipeline())
    with caplog.at_level(logging.INFO, logger="serving"):
        fitting = bootstrap._fitting(pipe, [(16, 8), (8, 24), (8, 32)])
    assert fitting == ((8, 24),)
    reason = "too little memory: leave something out"
    assert caplog.messages == [
        f"Pictures of 16x8 cannot be drawn: {reason}",
        f"Pictures of 8x32 cannot be drawn: {reason}",
    ]
