"""English."""

from serving import messages
from serving.generator import Model
from serving.messages import Code, concise, is_soon, plain, short
from ui.i18n.numbers import duration, hardware, size
from ui.i18n.words import Words
from ui.model_kind import Kind

MINIATURE = "Bundled miniature"
MINIATURE_LIMITS = (
    "This miniature draws one or two simple shapes in plain colours and nothing else. Even so, it"
    " may get a colour, a shape or a position wrong."
)
LIMITS = (
    "The pictures are invented. Faces, hands, lettering, counts and positions are often wrong, "
    "and the model repeats the biases of the pictures it was trained on."
)
LICENCE = "Model licence"
OWN_LICENCE = "The model’s own page states its licence."

LANGUAGE = "en"

PROMPT_LABEL = "What would you like to see?"
GENERATE = "Generate"
STOP = "Stop"
EXAMPLES = "Try one of these"
SURPRISE = "Surprise me"
EMBED = "Save settings in the picture files"
EMBED_INFO = "Anyone who has a file can read them."
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
RANDOM_SEED = "Random seed"
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

COPY_SETTINGS = "Copy settings"
COPY_LINK = "Copy link"
DOWNLOAD = "Download as"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = "The settings are too long for a JPEG file. Please choose PNG or WebP."
COPIED = "Copied"
USE_SETTINGS = "Use these settings"
NEW_SEED = "Repeat with a new seed"
VARIATIONS = "Draw variations"
SHOW_ANYWAY = "Show anyway"
HIDE_AGAIN = "Hide again"
TAKEN_OVER = "The settings are filled in. Press Generate to use them."
LINK_NOT_USED = "Parts of the link cannot be used."
SETTINGS = {
    "prompt": Words("Prompt"),
    "negative_prompt": Words("Negative prompt", "What the pictures should not show."),
    "seed": Words("Seed", "The same seed and settings give the same pictures."),
    "variation_seed": Words("Variation seed", "Chooses the variation, if its strength is above 0."),
    "variation_strength": Words(
        "Variation strength",
        "Above 0, the pictures are variations of the seed’s picture; higher values differ more.",
    ),
    "variation_of": Words("Earlier variations", "Seeds and strengths; the result is varied."),
    "num_inference_steps": Words("Steps", "More steps give more detail and take longer."),
    "guidance_scale": Words("Guidance scale", "How closely the pictures follow the prompt."),
    "guidance_until": Words(
        "Guidance until",
        "The share of the steps with guidance. Less is faster, but follows the prompt less.",
    ),
    "sampler": Words("Sampler"),
    "size": Words("Size"),
    "model": Words("Model"),
    "style": Words("Style"),
    "several": Words(
        "One picture per line", "Each line of the prompt becomes a picture of its own."
    ),
    "randomise": Words("New seed every time"),
    "images": Words(GALLERY),
}

HISTORY = "History"
HISTORY_INFO = "Stored in this browser only."
CLEAR_HISTORY = "Clear history"

RESTORE_PICTURE = "A picture from this page or from AUTOMATIC1111’s web UI"
RESTORE_TEXT = "Or its settings as text"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_PICTURE = "This picture contains no settings."
NO_SETTINGS_IN_TEXT = (
    "No settings were found. The last line should look like this: Steps: 25, Seed: 7, …"
)
UNREADABLE_SETTINGS = "The settings in this picture cannot be read."
UNREADABLE_PICTURE = "This file cannot be read as a picture. Please use PNG, JPEG or WebP."
TOO_LARGE_A_PICTURE = "This picture is too large to read."

AWAY = "Waiting for the connection to return…"
LOST = "The connection was lost, and your request with it. Please generate again."
NOTHING = "nothing"  # a value that is missing

MESSAGES = messages.ENGLISH | {
    Code.ABANDONED: "The drawing was stopped because its page was closed.",
    Code.UNKNOWN_REQUEST: "This request does not exist, or is no longer kept.",
    Code.NOT_STARTED: "Your turn did not come in time. Please try again later.",
    Code.NOT_FINISHED: "The pictures were not finished in time. Please try again later.",
    Code.BROKEN: "Something went wrong. Please try again.",
    Code.BLANK_PROMPT: "Please describe the picture first.",
    Code.TOO_LONG: "{field}: {length} characters are too many; at most {limit} are possible.",
    Code.NOT_TEXT: "{field}: please enter text.",
    Code.NOT_A_NUMBER: "{field}: {value} is not a usable number.",
    Code.UNREADABLE: "{field}: {value} cannot be read. Write it like this: {example}.",
    Code.OUT_OF_RANGE: "{field}: {value} is not possible; please choose {low} to {high}.",
    Code.NOT_WHOLE: (
        "{field}: {value} is not possible; please choose a whole number from {low} to {high}."
    ),
    Code.UNKNOWN_CHOICE: "{field}: {value} is unknown; please choose from {choices}.",
    Code.NOT_READY: "{field}: {value} is not ready yet; please choose from {choices}.",
    Code.WRONG_COUNT: "{field}: {count} texts for {images} pictures; please give one, or one each.",
    Code.TOO_MANY_LINES: "{lines} lines are too many; at most {limit} pictures are drawn at once.",
}


def title(model: Model) -> str:
    """Return the page's title."""
    return f"{model.family} on JAX"


def model_line(model: Model, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else model.name
    devices = hardware(model.device, model.num_devices)
    return f"{name} · {size(model.sizes[0])} pixels · on {devices}"


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
    return "Starting…" if attempt == 1 else f"Starting again, attempt {attempt}…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 picture" if count == 1 else f"{count} pictures"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" in {seconds:.1f} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field}: {_short(value)} is not possible here; {concise(used)} is used instead."


def other_size(width: int | None, height: int | None, model: Model) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " or ".join(map(size, model.sizes))
    return f"The picture has {width} × {height} pixels; here pictures have {here}."


def other_model(name: str, model: Model) -> str:
    """Return the note that another model drew a picture."""
    return f"The picture was drawn by {_short(name)}; here {_short(model.name)} draws."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Only the first {limit} characters of a prompt are used."


def length(tokens: int, limit: int) -> str:
    """Return the number of tokens in a prompt, and the model's limit."""
    return f"{tokens} of {limit} tokens"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the end of the prompt, which the model does not read."""
    return f"The prompt is longer than the model can read. Left out: “{left_out}”"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return "in a moment" if wait_s is None or is_soon(wait_s) else f"in about {duration(wait_s)}"


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
