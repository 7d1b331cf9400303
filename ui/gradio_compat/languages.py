"""One page out of several, one for each language, among which the browser chooses."""

from collections.abc import Mapping

import gradio as gr

# The properties of a component that browsers translate.
_SHOWN = ("label", "info", "placeholder", "value")


def in_every_language(pages: Mapping[str, gr.Blocks]) -> tuple[gr.Blocks, gr.I18n]:
    """Return the first page with its texts replaced by keys, and the translations of the keys.

    Args:
        pages: the same page, built once in each language, by the language's code.
    """
    translations: dict[str, dict[str, str]] = {language: {} for language in pages}
    i18n = gr.I18n(**translations)
    first, *_ = pages.values()
    same = zip(*(page.blocks.values() for page in pages.values()), strict=True)
    for number, blocks in enumerate(same):
        for shown in _SHOWN:
            texts = [getattr(block, shown, None) for block in blocks]
            if not all(isinstance(text, str) for text in texts) or len(set(texts)) == 1:
                continue
            key = f"{shown}-{number}"
            for language, text in zip(pages, texts, strict=True):
                translations[language][key] = str(text)
            setattr(blocks[0], shown, i18n(key))
    return first, i18n
