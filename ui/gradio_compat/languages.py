"""The page in every language: built once in each, and where they differ the browser chooses."""

from collections.abc import Callable

import gradio as gr

from ui import i18n as words

# What of a component browsers translate.
_SHOWN = ("label", "info", "placeholder", "value")


def in_every_language(build: Callable[[], gr.Blocks]) -> tuple[gr.Blocks, gr.I18n]:
    """The page in English, whose texts are names of what is said in the language of the browser."""
    pages: list[gr.Blocks] = []
    for language in words.LANGUAGES:
        with words.speaking(language):
            pages.append(build())
    texts: dict[str, dict[str, str]] = {language: {} for language in words.LANGUAGES}
    i18n = gr.I18n(**texts)
    for number, blocks in enumerate(zip(*(page.blocks.values() for page in pages), strict=True)):
        for shown in _SHOWN:
            said = [getattr(block, shown, None) for block in blocks]
            if not all(isinstance(text, str) for text in said) or len(set(said)) == 1:
                continue
            key = f"{shown}-{number}"
            for language, text in zip(words.LANGUAGES, said, strict=True):
                texts[language][key] = str(text)
            setattr(blocks[0], shown, i18n(key))
    return pages[0], i18n
