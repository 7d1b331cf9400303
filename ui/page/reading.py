"""How prompts are read, and how long they are: a line under each of both prompts' fields."""

import string
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice, takewhile

import gradio as gr

from pipeline.errors import InputError
from pipeline.facts import Facts
from pipeline.request import GenerateRequest
from pipeline.resolve import with_recipe
from pipeline.text.explanation import Explanation, Text, explain
from pipeline.text.prompt_syntax import A1111, comments
from pipeline.text.unknown_words import unknown_words
from pipeline.text.wildcards import Choice
from serving.generator import MAX_CHARACTERS, Generator, Length, RequestError
from serving.messages import short
from serving.requests import readers
from ui import i18n, scripts, status
from ui.form import requests
from ui.form.fields import Fields, Visitor
from ui.samples.styles import Style
from ui.wiring import Call, Updates, Wiring

LINES = "length", "negative-length"  # under the prompt and the negative prompt
_QUOTED = 40  # characters of a part of a prompt
_MOST = 8  # weights, or options of a list, that a line tells of
# The fields that decide how prompts are read.
_FIELDS = (
    *("prompt", "style", "several", "negative_prompt"),
    *("prompt_syntax", "recipe", "steps", "timesteps", "model"),
)


def layout(wiring: Wiring, name: str) -> None:
    """Lay out the line under a field; the name is the id of the line's element too."""
    wiring.add(
        name,
        gr.HTML(
            status.EMPTY,
            js_on_load=scripts.part("reading"),
            elem_id=name,
            elem_classes=["reading"],
            padding=False,
        ),
    )


def connect(wiring: Wiring, generator: Generator, styles: Mapping[str, Style]) -> None:
    """Keep the lines under the prompt and the negative prompt up to date."""

    async def length(call: Call) -> Updates:
        # A text field that was never in view may be sent as None.
        fields = Fields(**{name: v for name, v in call.values.items() if v is not None})
        address = Visitor.behind(call.sender).address
        return dict(zip(LINES, await told(fields, address, generator, styles), strict=True))

    wiring.on(
        " ".join(f"{name}.change" for name in _FIELDS),
        length,
        reads=_FIELDS,
        updates=LINES,
        trigger_mode="always_last",
    )


async def told(
    fields: Fields, address: str, generator: Generator, styles: Mapping[str, Style]
) -> tuple[str, str]:
    """Return the HTML of both lines, about the prompts with the words of the style.

    Both are empty for prompts that are refused, and while an address asks too often.
    """
    model, syntax = generator.facts.for_known(fields.model), fields.prompt_syntax
    negative = requests.uncommented(fields.negative_prompt, syntax)
    if fields.style not in styles or len(max(fields.prompt, negative, key=len)) > MAX_CHARACTERS:
        return status.EMPTY, status.EMPTY
    lines = requests.split(fields.prompt, fields.several, syntax)
    lines = lines[: model.images_per_request]
    # Tags of LoRAs are taken in any syntax.
    untagged = lines if syntax == A1111 else [*map(requests.without_tags, lines)]
    style = styles[fields.style]
    prompts = [style.apply(text, "")[0] for text in untagged]
    negatives = [style.apply("", negative)[1]] if negative.strip() else []
    try:
        steps = _steps(fields, model)
        html_lines = [
            await _line(texts, typed, syntax, steps, address, model, generator, lora_names)
            for texts, typed, lora_names in (
                (prompts, untagged, None),
                (negatives, [negative] if negatives else [], ()),  # it names no LoRAs
            )
        ]
    except (InputError, RequestError):  # Generate tells why
        return status.EMPTY, status.EMPTY
    noted = comments(fields.prompt) if syntax == A1111 else []
    return html_lines[0] + status.ignored(noted), html_lines[1]


def _steps(fields: Fields, facts: Facts) -> int:
    """Return the number of steps that the fields ask for, which may be any."""
    steps = int(min(fields.steps if fields.steps >= 1 else 1, facts.max_inference_steps))
    request = GenerateRequest(
        "",
        num_inference_steps=None if fields.recipe else steps,
        timesteps=fields.timesteps,
        recipe=fields.recipe,
    )
    return min(max(with_recipe(request, facts.recipes).steps, 1), facts.max_inference_steps)


async def _line(
    texts: Sequence[str],
    typed: Sequence[str],
    syntax: str,
    steps: int,
    address: str,
    model: Facts,
    generator: Generator,
    lora_names: Sequence[str] | None,
) -> str:
    """Return the HTML about texts, which are the `typed` ones with the words of the style.

    They can name the LoRAs in `lora_names`; None for any.
    """
    workers = readers.of_prompts()
    explanations: list[Explanation] = []
    lengths: list[tuple[Length, str]] = []  # and the words of the style after the visitor's
    for text, words in zip(texts, typed, strict=True):
        reading = partial(explain, text, syntax, steps, lora_names)
        explanations.append(await workers.run(address, reading))
        async with workers.turn(address):
            length = await generator.measure(text, syntax, steps)
        added = text[text.rfind(words) + len(words) :]
        lengths += [] if length is None else [(length, added)]
    longest, added = max(lengths, key=lambda pair: pair[0].tokens, default=(None, ""))
    unknown = await workers.run(address, partial(_unknown, typed, syntax, steps, model))
    has_files = model.lists != ""
    readings = dict.fromkeys(chain(*(parts(read, has_files) for read in explanations)))
    html = status.reading([*readings]) + status.length(longest, added) + status.unknown(unknown)
    return html + status.ignored([part for read in explanations for part in read.ignored])


def _unknown(texts: Sequence[str], syntax: str, steps: int, model: Facts) -> list[str]:
    """Return the words of texts that the model does not know."""
    if not model.words:
        return []
    # LoRAs and embeddings bring words of their own.
    added_words = [word for lora in model.loras for word in lora.words]
    added_words += [embedding.name for embedding in model.embeddings]
    known_words = [*model.words, *" ".join(added_words).replace(",", " ").split()]
    return unknown_words([explain(text, syntax, steps) for text in texts], known_words)


def parts(explanation: Explanation, has_files: bool) -> list[str]:
    """Return phrases that say how a prompt is read; a plain text has none.

    `has_files`: whether there are lists in files; the names of lists are words without them.
    """
    sections = [section for text in explanation.texts for section in text.sections]
    weights = dict.fromkeys(
        _weighted(words, fragment.weight)
        for section in sections
        for fragment in section
        if fragment.weight != 1 and (words := fragment.text.strip(string.whitespace + ",.;"))
    )
    breaks = max(len(text.sections) for text in explanation.texts)
    loras = [
        f"LoRA {name} {' / '.join(dict.fromkeys(map(_number, weights)))}"
        for name, weights in explanation.loras.items()
    ]
    return [
        *islice(weights, _MOST),
        *(["…"] if len(weights) > _MOST else []),
        *_changes(explanation.texts),
        *([i18n.text("sections", count=breaks)] if breaks > 1 else []),
        *loras,
        *(_choice(text.choice) for text in explanation.lists if has_files or not text.choice.file),
        *_ignored(explanation),
    ]


def _ignored(explanation: Explanation) -> list[str]:
    """Return a phrase about the parts of a prompt without effect, if there are any."""
    names = [short(part, _QUOTED) for part in dict.fromkeys(explanation.ignored)]
    return [i18n.text("without_effect", parts=", ".join(names[:_MOST]))] if names else []


def _choice(choice: Choice) -> str:
    """Return the options of a list in a prompt; the seed chooses one of them."""
    options, limit = choice.options, len(choice.options) if choice.file is None else choice.high
    option_texts = [short(option.strip(), _QUOTED) or i18n.NOTHING for option in options[:_MOST]]
    option_texts += ["…"] if len(options) > _MOST else []
    low, high = min(choice.low, limit), min(choice.high, limit)
    count = low if low == high else f"{low}–{high}"
    return i18n.text("one_of", options=", ".join(option_texts), count=count)


def _weighted(words: str, weight: float) -> str:
    return f"{short(words, _QUOTED)} ×{_number(weight)}"


def _number(weight: float) -> str:
    rounded = round(weight, 2)
    return i18n.written(int(rounded) if rounded.is_integer() else rounded)


def _changes(texts: Sequence[Text]) -> list[str]:
    """Return the words that change during the run, each with its steps."""
    if len(texts) == 1:
        return []
    changing_words = [
        short(words, _QUOTED) for words in _differences([_words(text) for text in texts])
    ]
    runs = [(text.steps[0], text.steps[-1], len(text.steps)) for text in texts]
    if any(last_step - first_step + 1 > count for first_step, last_step, count in runs):
        return [
            i18n.text("in_turn", words=", ".join(words or i18n.NOTHING for words in changing_words))
        ]
    pairs = zip(runs, changing_words, strict=True)
    return [
        i18n.text("in_steps", first=first_step, last=last_step if count > 1 else None, words=words)
        for (first_step, last_step, count), words in pairs
        if words
    ]


def _words(text: Text) -> list[str]:
    return " ".join(words for section in text.sections for words, _ in section).split()


def _differences(texts: Sequence[list[str]]) -> list[str]:
    """Return texts of words without the words with which all of them begin and end."""
    start = _shared(texts)
    remainders = [words[start:] for words in texts]
    end = _shared([words[::-1] for words in remainders])
    return [" ".join(words[: len(words) - end]) for words in remainders]


def _shared(texts: Sequence[list[str]]) -> int:
    """Return the number of words with which all texts begin."""
    places = zip(*texts, strict=False)
    return len([*takewhile(lambda words: len({*words}) == 1, places)])
