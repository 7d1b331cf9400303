"""One page with the texts of all languages, from which the browser chooses.

The page is built once in each language rather than with Gradio's keys: a key stands for one whole
property, and many properties are HTML, JSON or sentences with several texts and values in them.
"""

from collections.abc import Mapping, Sequence

import gradio as gr
from gradio.i18n import I18nData

# The properties of a component that browsers translate. They translate the names of choices too.
_TRANSLATED = ("label", "info", "placeholder", "value")


def in_every_language(
    pages: Mapping[str, gr.Blocks], gradios: Mapping[str, Mapping[str, str]]
) -> tuple[gr.Blocks, gr.I18n]:
    """Return the first page with its texts replaced by keys, and the translations of the keys.

    Args:
        pages: the same page, built once in each language, by the language's code.
        gradios: translations that Gradio itself lacks, by the language's code and Gradio's key.
    """
    translations = {language: dict(gradios[language]) for language in pages}
    i18n = gr.I18n(**translations)

    def keyed(key: str, texts: Sequence[object]) -> I18nData | None:
        """Return a key for the same text in all languages, or None if there is nothing to do."""
        if not all(isinstance(text, str) for text in texts) or len(set(texts)) == 1:
            return None
        for language, text in zip(pages, texts, strict=True):
            translations[language][key] = str(text)
        return i18n(key)

    first_page, *_ = pages.values()
    counterparts = zip(*(page.blocks.values() for page in pages.values()), strict=True)
    for number, blocks in enumerate(counterparts):
        for name in _TRANSLATED:
            texts = [getattr(block, name, None) for block in blocks]
            if (key := keyed(f"{name}-{number}", texts)) is not None:
                setattr(blocks[0], name, key)
        choice_names = [
            [name for name, _ in getattr(block, "choices", None) or ()] for block in blocks
        ]
        for i, texts in enumerate(zip(*choice_names, strict=True)):
            if (key := keyed(f"choice-{number}-{i}", texts)) is not None:
                choices = getattr(blocks[0], "choices")  # noqa: B009
                choices[i] = key, choices[i][1]
    return first_page, i18n
