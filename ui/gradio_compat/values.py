"""Refusal of values that Gradio's components cannot take, without a traceback in the log."""

import logging
from typing import Any

import gradio as gr
from gradio.block_function import BlockFunction

from serving.messages import short

log = logging.getLogger(__name__)

_MOST_REPEATED = 200  # characters of a message, which may repeat the value


def refuse_wrong_values(page: gr.Blocks) -> None:
    """Let a call with wrong values end with an error that says so, and with one line in the log."""
    preprocess = page.preprocess_data

    async def preprocess_data(block_fn: BlockFunction, *args: Any, **options: Any) -> list[Any]:
        try:
            return await preprocess(block_fn, *args, **options)
        except Exception as error:
            log.info("A call of %s has wrong values: %s", block_fn.name, type(error).__name__)
            text = "A value has the wrong type."
            message = str(error.message) if isinstance(error, gr.Error) else text
            raise gr.Error(short(message, _MOST_REPEATED), print_exception=False) from None

    page.preprocess_data = preprocess_data
