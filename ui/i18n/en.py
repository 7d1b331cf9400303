"""English."""

from pipeline.facts import Facts
from serving import messages
from serving.messages import Code, concise, is_soon, plain, short
from ui.i18n.numbers import duration, hardware, size
from ui.i18n.words import Words
from ui.model_kind import Kind

MINIATURE = "Bundled miniature"
MINIATURE_LIMITS = (
    "This small model draws only one or two simple shapes in plain colours. "
    "It may still get a colour, a shape or a position wrong."
)
LIMITS = (
    "The pictures are made by AI. Faces, hands, text, numbers and positions are often wrong, "
    "and the model repeats the biases of its training data."
)
LICENCE = "Model licence"
OWN_LICENCE = "See the model’s page for its licence."

LANGUAGE = "en"

PROMPT_LABEL = "What would you like to see?"
GENERATE = "Generate"
STOP = "Stop"
LIVE = "Live"
LIVE_INFO = "Draws a rough picture at every pause in typing."
LIVE_PICTURE = "Live picture"
LIVE_PAUSED = "Live pauses while there is a picture."
EXAMPLES = "Examples"
SURPRISE = "Surprise me"
EMBED = "Save settings in picture files"
EMBED_INFO = "Anyone with the file can read them."
GALLERY = "Pictures"
PREVIEWS = "Preview of the pictures"
# Texts of Gradio's own that it has only in English, by its key.
GRADIOS = {"common.download_all": "Download All"}
# Texts that Gradio itself shows; # stands for a number.
CONTROLS = {
    "Close": "Close",
    "Fullscreen": "Fullscreen",
    "Exit fullscreen mode": "Exit fullscreen mode",
    "Thumbnail # of #": "Thumbnail # of #",
    "Reset to default value": "Reset to default value",
}

EXPERT = "Expert"
PICTURE = "Picture"
ADVANCED = "Advanced"
STYLES = {
    "(none)": "(none)",
    "Photograph": "Photograph",
    "Film still": "Film still",
    "Watercolour": "Watercolour",
    "Oil painting": "Oil painting",
    "Pencil sketch": "Pencil sketch",
    "Ink and wash": "Ink and wash",
    "Anime": "Anime",
    "Pixel art": "Pixel art",
    "Paper cut-out": "Paper cut-out",
    "3D render": "3D render",
    "Flat": "Flat",
    "Outlined": "Outlined",
    "Soft": "Soft",
    "Glossy": "Glossy",
    "Sticker": "Sticker",
    "Poster": "Poster",
    "Chalkboard": "Chalkboard",
    "Sky": "Sky",
    "Candy": "Candy",
    "Night": "Night",
}

LOOKS = "Looks"
SEARCH = "Search"
NOT_FOUND = "Nothing found."
STRENGTH = "Strength"
STRENGTHS = ("Off", "Subtle", "Medium", "Full", "Strong")
TRIGGER_WORDS = "Press a word to add it to the prompt."

COPY_SETTINGS = "Copy settings"
COPY_LINK = "Copy link"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = "The settings are too long for JPEG. Use PNG or WebP."
COPIED = "Copied"
USE_SETTINGS = "Use these settings"
NEW_SEED = "New seed"
VARIATIONS = "Vary"
LARGER = "Larger"
SHOW_ANYWAY = "Show anyway"
HIDE_AGAIN = "Hide again"
REUSE = "Reuse"
SAVE = "Download"
FINISH = "Finish"
FINISH_INFO = "Draws these pictures again from the start, to the end."
DETAILS = "Details"
PREVIOUS = "Previous picture"
NEXT = "Next picture"
TAKEN_OVER = "Settings loaded. Press Generate."
LINK_NOT_USED = "Part of the link was ignored."
SETTINGS = {
    "prompt": Words("Prompt"),
    "negative_prompt": Words("Negative prompt", "What to leave out."),
    "seed": Words("Seed", "Same seed and settings, same pictures."),
    "variation_seed": Words("Variation seed", "Picks the variation if its strength is above 0."),
    "variation_strength": Words("Variation strength", "How different from the original."),
    "variation_of": Words("Earlier variations", "Seeds and strengths; the result is varied."),
    "num_inference_steps": Words("Steps", "More steps add detail but take longer."),
    "guidance_scale": Words("Guidance scale", "How closely to follow the prompt."),
    "guidance_until": Words("Stop guidance at", "Lower is faster but follows the prompt less."),
    "guidance_rescale": Words("Guidance rescale", "Higher: less overexposed."),
    "cache_interval": Words("Step cache interval", "Higher is faster but less exact."),
    "loras": Words("LoRAs", "Added styles and subjects."),
    "scheduler": Words("Sampler", "How noise becomes a picture."),
    "sigma_schedule": Words("Noise schedule", "How the steps are spread."),
    "timestep_spacing": Words("Timestep spacing", "Which timesteps are used."),
    "timesteps": Words("Timesteps", "Replace the steps. Each is lower than the one before."),
    "eta": Words("Eta", "Share of new noise in DDIM and TCD."),
    "decoder": Words("Decoder", "“tiny” is faster but less detailed."),
    "recipe": Words(
        "Quality", "Quick needs few steps and sets its own sampler and guidance scale."
    ),
    "strength": Words("Strength", "How far the picture is redrawn."),
    "padding": Words("Margin", "Pixels around the mask, if only the masked part is drawn."),
    "prompt_syntax": Words(
        "Prompt syntax", "Weights such as (red:1.3) are understood, unless it is “plain”."
    ),
    "denoising_end": Words("Refiner takes over at", "From 0 to 1; 1 is the base model alone."),
    "enlarge": Words("Redraw in size", "The finished pictures are drawn again, larger."),
    "enlarge_strength": Words("Strength of the redraw", "How far they are redrawn."),
    "enlarge_steps": Words("Steps of the redraw", "The strength decides how many are taken."),
    "sampler": Words("Sampler"),
    "schedule_type": Words("Noise schedule"),
    "size": Words("Size"),
    "model": Words("Model", "Another one takes a moment to load."),
    "vae": Words("VAE"),
    "style": Words("Style"),
    "several": Words("One picture per line", "Each line of the prompt becomes a picture."),
    "randomise": Words("New seed every time"),
    "images": Words(GALLERY),
    "image": Words("Picture to start from"),
    "mask": Words("Mask"),
}

HISTORY = "History"
HISTORY_INFO = "Stored only in this browser."
CLEAR_HISTORY = "Clear history"
HISTORY_CLEARED = "History cleared."
UNDO = "Undo"

RESTORE_TEXT = "Or paste settings as text"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_TEXT = "No settings found. The last line should be like: Steps: 25, Seed: 7, …"
UNREADABLE_SETTINGS = "Can’t read the settings in this picture. Paste them as text."
UNREADABLE_PICTURE = "Can’t read this file. Use PNG, JPEG or WebP."
TOO_LARGE_A_PICTURE = "This picture is too large. Use a smaller one."

START_PICTURE = "Picture to start from, or to take settings from"
TAKE_PICTURE = "Take a picture"
USE_PICTURE = "Start from this"  # of a picture that was drawn
REMOVE_PICTURE = "Remove the picture"
PICTURE_NEEDED = (
    "It began with another picture, which its settings don’t include. "
    "Choose that one under “+ Picture”."
)
MASK_FIRST = "This model redraws a part of a picture: choose one here, then mark what is to change."
START = {
    "least": "keep most",
    "most": "change most",
    "mark": "Mark a part",
    "remove": "Remove",
    "cut": "The shaded edges are cut off.",
    "redrawn": "Marked and added parts are redrawn in full unless you choose less.",
    "only": "Redraw the marked part in full detail",
    "extend": "Extend the picture",
    "top": "Top",
    "left": "Left",
    "right": "Right",
    "bottom": "Bottom",
    "editor": "Mark the part to change",
    "marked": "Marked areas are redrawn.",
    "draw": "Draw",
    "erase": "Erase",
    "brush": "Brush",
    "clear": "Clear",
    "invert": "Invert",
    "numbers": "Rectangle by numbers",
    "width": "Width",
    "height": "Height",
    "add": "Add",
    "cancel": "Cancel",
    "done": "Done",
    "compare": "Before and after",
    "before": "Before",
    "after": "After",
}

NEXT_PROMPT = "Next:"  # before a prompt that waits for its turn
RESTORE_ITS_SETTINGS = "Restore the picture’s settings"
LOOKS_LIKE_SETTINGS = "These look like settings."
USE_THEM = "Use them"

AWAY = "Connection lost. Reconnecting…"
LOST = "The connection was lost, and your request with it. Press Generate again."
END_LEFT_OUT = "The end of the prompt was left out."
NOTHING = "nothing"  # a value that is missing
OWN_VAE = "the model’s own"

MESSAGES = messages.ENGLISH | {
    Code.ABANDONED: "Stopped because the page was closed.",
    Code.UNAVAILABLE: "Can’t generate right now. Try again later.",
    Code.REPLACED: "The model has changed. Try again.",
    Code.FAILED: "Something went wrong while generating. Try again.",
    Code.BROKEN: "Something went wrong. Try again.",
    Code.UNSCREENED: "The pictures could not be checked. Try again.",
    Code.NOT_FINITE: (
        "No picture came out: the numbers grew too large. Lower the strength of the LoRAs."
    ),
    Code.UNKNOWN_REQUEST: "This request does not exist, or is no longer kept.",
    Code.NOT_STARTED: "Your turn did not come in time. Try again later.",
    Code.NOT_FINISHED: "The pictures were not ready in time. Try again later.",
    Code.NO_ROOM: "The server has no room for the pictures. Try again later.",
    Code.TOO_LARGE: "This is too large. The limit is {kib} KiB.",
    Code.BLANK_PROMPT: "Enter a prompt first.",
    Code.TOO_LONG: "{field}: {length} characters are too many. The limit is {limit}.",
    Code.NOT_TEXT: "{field} must be text.",
    Code.NOT_A_NUMBER: "{field}: {value} is not a valid number.",
    Code.UNREADABLE: "{field}: can’t read {value}. Write it like {example}.",
    Code.OUT_OF_RANGE: "{field} must be {low}–{high}.",
    Code.NOT_WHOLE: "{field}: {value} is not a whole number. It must be {low}–{high}.",
    Code.UNKNOWN_CHOICE: "{field}: {value} is unknown. Choose from {choices}.",
    Code.MISSING_RECIPE: "{field}: {value} needs a LoRA that isn’t here.",
    Code.MISSING_REFINER: "{field}: there is no refiner here.",
    Code.NO_STEP_CACHE: "{field}: there is no step cache here.",
    Code.UNFIT_SCHEDULER: "{field}: {value} doesn’t work with this model: {reason}",
    Code.NOT_TIMESTEPS: (
        "{field}: can’t use {value}. Write up to {limit} falling numbers from {low} to {high}, "
        "like {example}."
    ),
    Code.NOT_WITH: (
        "{field}: {value} doesn’t work with {its}. Leave it out, or choose for {other}: {choices}."
    ),
    Code.ONE_OF_TWO: "{field} and {other} can’t be combined. Leave one of them out.",
    Code.NOT_READY: "{field}: {value} is not ready yet. Choose from {choices}.",
    Code.WRONG_COUNT: "{field}: {count} texts for {images} pictures. Give one, or one each.",
    Code.TOO_MANY_LINES: "{lines} lines are too many. The limit is {limit}.",
    Code.UNKNOWN_LORA: "There is no LoRA {value} here. It was looked for in LORA_DIR.",
    Code.DOUBLED_LORA: "Several files in LORA_DIR are named {value}: {files}",
    Code.UNUSABLE_LORA: "The LoRA {value} doesn’t fit this model.",
    Code.UNUSABLE_MODEL: "The model {value} can’t be used here: {reason}",
    Code.UNREADABLE_MODEL: (
        "The model {value} can’t be read right now. Choose another one, or try again later."
    ),
    Code.TOO_MANY_LORAS: "{count} LoRAs are too many. The limit is {limit}.",
    Code.TOO_MANY_TEXTS: (
        "The prompt changes too often. It can have {limit} different texts: "
        "use fewer of [a:b:5] and [a|b]."
    ),
    Code.NOT_LIVE: "Live pictures are too slow here or switched off.",
    Code.UNUSABLE_PICTURE: "{field}: this picture can’t be used ({reason}). Use PNG, JPEG or WebP.",
    Code.MASK_SIZE: "{field}: {value} pixels don’t fit the picture, which has {expected}.",
    Code.EMPTY_MASK: "{field}: no part of the picture is marked.",
    Code.MASK_NEEDED: "{field} is missing. This model only redraws marked parts of a picture.",
    Code.IMAGE_NEEDED: "{field} is missing. This model only redraws pictures.",
    Code.WITHOUT: "{field} needs {other}.",
    Code.INPUT_GONE: "The picture to start from is no longer kept. Send it again.",
}


def title(facts: Facts) -> str:
    """Return the page's title."""
    return f"{facts.family} on JAX"


def model_line(facts: Facts, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else facts.name
    devices = hardware(facts)
    return f"{name} · {size(facts.sizes[0])} pixels · on {devices}"


def written(number: object) -> str:
    """Return a value as text, with numbers as this language writes them."""
    return plain(number)


def caption(prompt: str, seed: int, variation: int | None = None, blurred: bool = False) -> str:
    """Return a picture's caption, which screen readers read out as well."""
    remark = "" if variation is None else f", variation {variation}"
    remark += ", blurred by the safety checker" if blurred else ""
    return f"Seed {seed}{remark}: {prompt}"


def unfinished(done: int, total: int) -> str:
    """Return the caption of a picture whose drawing was stopped."""
    return f"Unfinished: step {done} of {total}"


def progress(done: int, total: int, left_s: float | None) -> str:
    """Return the number of the step and, if known, the time left."""
    step = f"Step {done} of {total}"
    return f"{step}, about {duration(left_s)} left" if left_s else step


def waiting(position: int, wait_s: float | None) -> str:
    """Return the place in the queue and, if known, the time until the drawing begins."""
    place = "Next in the queue" if position == 1 else f"Number {position} in the queue"
    return place if wait_s is None else f"{place}, about {duration(wait_s)}"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "Starting…" if attempt == 1 else f"Trying again, attempt {attempt}…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 picture" if count == 1 else f"{count} pictures"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" in {seconds:.1f} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field}: {_short(value)} isn’t possible here, using {concise(used)}."


def other_size(width: int | None, height: int | None, facts: Facts) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " or ".join(map(size, facts.sizes))
    return f"The picture is {width} × {height}, but the size here is {here}."


def other_model(name: str, facts: Facts) -> str:
    """Return the note that another model drew a picture."""
    return f"The picture was made with {_short(name)}. Here it’s {_short(facts.name)}."


def other_vae(name: str | None, facts: Facts) -> str:
    """Return the note that a picture was decoded with another VAE; None is the model's own."""
    was, here = _short(name or OWN_VAE), _short(facts.vae or OWN_VAE)
    return f"The picture’s VAE was {was}. Here it’s {here}."


BEST = "Best"  # the choice of quality without a recipe


def quick(steps: int, title: str) -> str:
    """Return the choice of a recipe that draws in few steps; `title` names its method."""
    return f"Quick, {steps} step{'s' * (steps > 1)} ({title})"


def automatic(own: str) -> str:
    """Return the choice that leaves a setting to the model; `own` is the model's, "" if unknown."""
    return f"Automatic ({own})" if own else "Automatic"


def other_sampler(name: str, used: str) -> str:
    """Return the note that a sampler is not available here, and which one is used."""
    return f"The sampler {_short(name)} isn’t available here, using {used}."


def looks_full(limit: int) -> str:
    """Return the note that no more looks can be chosen."""
    return f"{limit} at most."


def missing_loras(missing: list[str]) -> str:
    """Return the note that LoRAs are not there."""
    return f"Not here: {', '.join(map(_short, missing))}. Looked for in LORA_DIR."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Only the first {limit} characters of the prompt are used."


def length(tokens: int, limit: int, chunks: int = 1) -> str:
    """Return the number of tokens in a prompt, the model's limit, and the chunks if several."""
    return (
        f"{tokens} of {limit} tokens, {chunks} chunks"
        if chunks > 1
        else f"{tokens} of {limit} tokens"
    )


def too_long(limit: int) -> str:
    """Return the warning that a prompt has more tokens than the model reads."""
    return f"Too long: only the first {limit} tokens count"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the part of the prompt that the model does not read."""
    return f"Left out: “{left_out}”"


def read_as(parts: list[str]) -> str:
    """Return how a prompt is read; `parts` tell of its weights, changes, LoRAs and lists."""
    return f"Read as: {' · '.join(parts)}"


def unknown(words: str, more: int) -> str:
    """Return the words of a prompt that the model does not know, and how many more there are."""
    return f"Not known to this model: {words}" + (f" and {more} more" if more else "")


def in_steps(first: int, last: int, words: str) -> str:
    """Return the words that a prompt has from one step to another."""
    steps = f"step {first}" if first == last else f"steps {first}–{last}"
    return f"{steps}: {words}"


def in_turn(texts: list[str]) -> str:
    """Return the words that take turns in a prompt."""
    return f"in turn: {', '.join(texts)}"


def sections(count: int) -> str:
    """Return the number of parts into which BREAK divides a prompt."""
    return f"{count} parts"


def one_of(options: str, count: int) -> str:
    """Return the list in a prompt from which the seed chooses so many options."""
    return f"{'one' if count == 1 else count} of: {options}"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return "in a moment" if wait_s is None or is_soon(wait_s) else f"in about {duration(wait_s)}"


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
