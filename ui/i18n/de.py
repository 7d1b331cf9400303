"""German."""

from serving import messages as said
from serving.generator import ErrorKind, Model
from ui.i18n.numbers import comma, concise, duration, hardware, quoted, short, size, with_comma
from ui.model_kind import Kind

LANGUAGE = "de"

MINIATURE = "Mitgelieferte Miniatur"
MINIATURE_LIMITS = (
    "Diese Miniatur zeichnet ein oder zwei einfache Formen in klaren Farben, sonst nichts. "
    "Auch dabei kann ihr eine Farbe, eine Form oder ein Ort missraten."
)
LIMITS = (
    "Die Bilder sind erfunden. Gesichter, Hände, Schrift, Anzahlen und Orte sind oft falsch, "
    "und das Modell wiederholt die Vorurteile der Bilder, aus denen es gelernt hat."
)
LICENCE = "Lizenz des Modells"
OWN_LICENCE = "Die Lizenz des Modells steht bei ihm selbst."

PROMPT = "Beschreibung"
PROMPT_LABEL = "Was möchten Sie sehen? (auf Englisch)"
GENERATE = "Zeichnen"
STOP = "Anhalten"
EXAMPLES = "Zum Ausprobieren"
SURPRISE = "Überraschung"
SEVERAL = "Ein Bild je Zeile"
SEVERAL_INFO = "Jede Zeile der Beschreibung wird ein eigenes Bild."
EMBED = "Einstellungen in den Bilddateien"
EMBED_INFO = "Von dort kann sie jeder wiederherstellen, der die Datei hat."
GALLERY = "Bilder"
LOOKS = "Wie die Bilder bis jetzt aussehen"
# Texts of Gradio's own that it has only in English, by its key.
GRADIOS = {"common.download_all": "Alle herunterladen"}
# Texts that Gradio itself shows; # stands for a number.
CONTROLS = {
    "Close": "Schließen",
    "Fullscreen": "Vollbild",
    "Exit fullscreen mode": "Vollbild verlassen",
    "Thumbnail # of #": "Vorschaubild # von #",
    "Reset to default value": "Auf den Ausgangswert zurücksetzen",
}

ADVANCED = "Mehr Einstellungen"
STYLE = "Stil"
STYLES = {
    "(none)": "(ohne)",
    "Photograph": "Fotografie",
    "Film still": "Filmszene",
    "Watercolour": "Aquarell",
    "Oil painting": "Ölgemälde",
    "Pencil sketch": "Bleistiftskizze",
    "Ink and wash": "Tusche",
    "Anime": "Anime",
    "Pixel art": "Pixelgrafik",
    "Paper cut-out": "Papierschnitt",
    "3D render": "3D-Grafik",
    "Flat": "Flächig",
    "Outlined": "Umrissen",
    "Soft": "Weich",
    "Glossy": "Glänzend",
    "Sticker": "Aufkleber",
    "Poster": "Plakat",
    "Chalkboard": "Tafel",
    "Sky": "Himmel",
    "Candy": "Bonbon",
    "Night": "Nacht",
}
NEGATIVE = "Unerwünschtes"
NEGATIVE_INFO = "Was die Bilder nicht zeigen sollen."
GUIDANCE = "Texttreue"
GUIDANCE_INFO = "Wie genau den Worten gefolgt wird."
GUIDANCE_UNTIL = "Texttreue bis"
GUIDANCE_UNTIL_INFO = "Für welchen Teil der Schritte. Weniger geht schneller, folgt aber weniger."
STEPS = "Schritte"
STEPS_INFO = "Mehr Schritte: mehr Einzelheiten, mehr Zeit."
SEED = "Startzahl"
SEED_INFO = "Gleiche Startzahl und Einstellungen ergeben gleiche Bilder."
RANDOMISE = "Jedes Mal eine neue Startzahl"
VARIATION_STRENGTH = "Stärke der Abwandlung"
VARIATION_STRENGTH_INFO = (
    "Über 0 sind die Bilder Abwandlungen des Bildes der Startzahl: so weit weg."
)
VARIATION_SEED = "Startzahl der Abwandlung"
VARIATION_SEED_INFO = "Wohin abgewandelt wird, wenn es eine Stärke gibt."

COPY_SETTINGS = "Einstellungen kopieren"
COPY_LINK = "Link kopieren"
DOWNLOAD = "Herunterladen als"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
GONE = "Dieses Bild wird nicht mehr aufbewahrt."
TOO_LONG_FOR_JPEG = (
    "Die Einstellungen sind zu lang für eine JPEG-Datei. In PNG und WebP passen sie."
)
COPIED = "Kopiert"
USE_SETTINGS = "Einstellungen übernehmen"
NEW_SEED = "Mit neuer Startzahl"
VARIATIONS = "Dieses abwandeln"
SHOW_ANYWAY = "Trotzdem zeigen"
HIDE_AGAIN = "Wieder verbergen"
TAKEN_OVER = "Die Einstellungen sind übernommen. „Zeichnen“ verwendet sie."
LINK_NOT_USED = "Nicht alles in diesem Link lässt sich verwenden."
SETTINGS = {
    "prompt": PROMPT,
    "negative_prompt": NEGATIVE,
    "seed": SEED,
    "variation_seed": VARIATION_SEED,
    "variation_strength": VARIATION_STRENGTH,
    "num_inference_steps": STEPS,
    "guidance_scale": GUIDANCE,
    "guidance_until": GUIDANCE_UNTIL,
    "sampler": "Verfahren",
    "model": "Modell",
}
SIZE = "Größe"

HISTORY = "Verlauf"
HISTORY_INFO = "Nur in diesem Browser aufbewahrt."
CLEAR_HISTORY = "Verlauf löschen"

RESTORE = "Aus einem Bild wiederherstellen"
RESTORE_PICTURE = "Ein Bild von hier oder aus AUTOMATIC1111s Web-UI"
RESTORE_TEXT = "Oder der Text, der dabei war"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_PICTURE = "In diesem Bild stehen keine Einstellungen."
NO_SETTINGS_IN_TEXT = (
    "Es wurden keine Einstellungen gefunden. Die letzte Zeile sollte lauten: Steps: 25, Seed: 7, …"
)
UNREADABLE_SETTINGS = "Die Einstellungen in diesem Bild sind nicht lesbar."
UNREADABLE_PICTURE = "Das ist kein lesbares Bild. Möglich sind PNG, JPEG und WebP."
TOO_LARGE_A_PICTURE = "Dieses Bild ist zu groß, um gelesen zu werden."

BLANK_PROMPT = "Bitte beschreiben Sie zuerst das Bild."
FAILED = "Etwas ist schiefgegangen. Bitte noch einmal versuchen."
AWAY = "Die Seite wartet auf die Verbindung…"
LOST = "Die Verbindung brach ab, und die Anfrage ging verloren. Bitte noch einmal zeichnen."
NO_ROOM = (
    "Die Bilder sind gezeichnet, aber dieser Server hat keinen Platz mehr für sie. "
    "Bitte später noch einmal versuchen."
)

_SAID = {
    said.CANCELLED: "Angehalten.",
    said.ABANDONED: "Niemand hat mehr auf die Bilder gewartet.",
    said.STOPPING: "Der Server wird gerade beendet. Bitte gleich noch einmal versuchen.",
    said.REPLACED: "Das Modell wurde inzwischen ausgetauscht. Bitte noch einmal versuchen.",
    said.UNAVAILABLE: "Zurzeit kann niemand zeichnen. Bitte später noch einmal versuchen.",
    said.OUT_OF_MEMORY: "Der Speicher hat nicht gereicht. Bitte noch einmal versuchen.",
    said.FAILED: "Beim Zeichnen ist etwas schiefgegangen. Bitte noch einmal versuchen.",
    said.BROKEN: FAILED,
    said.UNSCREENED: "Die Bilder ließen sich nicht prüfen. Bitte noch einmal versuchen.",
    said.UNKNOWN: "Eine solche Anfrage gibt es nicht oder nicht mehr.",
    said.CROWDED: "Gerade sind zu viele Besucher hier. Bitte versuchen Sie es gleich noch einmal.",
    said.TOO_MANY_CALLS: "Von Ihrer Adresse sind zu viele Verbindungen offen. "
    "Bitte schließen Sie einige und versuchen Sie es noch einmal.",
    said.DUPLICATE: "Eine solche Anfrage gibt es schon.",
}


def title(model: Model) -> str:
    """Return the page's title."""
    return f"{model.family} auf JAX"


def model_line(model: Model, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else model.name
    devices = hardware(model.device, model.num_devices)
    return f"{name} · {size(model.sizes[0])} Pixel · auf {devices}"


def written(number: object) -> str:
    """Return a value as text, with numbers as this language writes them."""
    return with_comma(number)


def caption(prompt: str, seed: int, variation: int | None = None, blurred: bool = False) -> str:
    """Return a picture's caption, which screen readers read out as well."""
    remark = "" if variation is None else f", Abwandlung {variation}"
    remark += ", vom Filter unscharf gemacht" if blurred else ""
    return f"Startzahl {seed}{remark}: {prompt}"


def unfinished(done: int, total: int) -> str:
    """Return the caption of a picture whose drawing was stopped."""
    return f"Unfertig: Schritt {done} von {total}"


def progress(done: int, total: int, left_s: float | None) -> str:
    """Return the number of the step and, if known, the time left."""
    step = f"Schritt {done} von {total}"
    return f"{step}, noch etwa {duration(left_s)}" if left_s else step


def waiting(position: int, wait_s: float | None) -> str:
    """Return the place in the queue and, if known, the time until the drawing begins."""
    place = "Als Nächstes an der Reihe" if position == 1 else f"Platz {position} der Warteschlange"
    return place if wait_s is None else f"{place}, etwa {duration(wait_s)}"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "Es geht los …" if attempt == 1 else f"Es geht von vorn los, Versuch {attempt} …"


def finished(pictures: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    noun = "Bild" if pictures == 1 else "Bilder"
    return f"{pictures} {noun}" + ("" if seconds is None else f" in {comma(f'{seconds:.1f}')} s")


def in_short(style: str, guidance_scale: float, steps: int, seed: int) -> str:
    """Return a request's settings in one line; an empty style is left out."""
    guidance = comma(f"{guidance_scale:g}")
    numbers = f"{SEED} {seed} · {STEPS} {steps} · {GUIDANCE} {guidance}"
    return f"{STYLES[style]} · {numbers}" if style else numbers


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field}: {_short(value)} ist hier nicht möglich; {comma(concise(used))} gilt."


def other_size(width: int | None, height: int | None, model: Model) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " oder ".join(map(size, model.sizes))
    return f"Jenes Bild hat {width} × {height} Pixel; hier sind es {here}."


def other_model(name: str, model: Model) -> str:
    """Return the note that another model drew a picture."""
    return f"Es wurde von {short(name)} gezeichnet; hier zeichnet {short(model.name)}."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Von seinen Worten gelten die ersten {limit} Zeichen."


def length(tokens: int, limit: int) -> str:
    """Return the number of tokens in a prompt, and the model's limit."""
    return f"{tokens} von {limit} Token"


def too_many_lines(lines: int, limit: int) -> str:
    """Return the error for more prompts than a request can have pictures."""
    return (
        f"{PROMPT}: {lines} Zeilen sind zu viele; "
        f"höchstens {limit} Bilder werden zugleich gezeichnet."
    )


def truncated(left_out: str) -> str:
    """Return the warning that quotes the end of the prompt, which the model does not read."""
    return f"Die Beschreibung ist länger, als das Modell lesen kann. Weggelassen: „{left_out}“"


def too_long(field: str, length: int, limit: int) -> str:
    """Return the error for a text over its limit."""
    return f"{field}: {length} Zeichen sind zu viele; höchstens {limit} sind möglich."


def not_text(field: str) -> str:
    """Return the error for a value that should be text and is not."""
    return f"{field}: Hier muss Text stehen."


def out_of_range(field: str, value: object, low: float, high: float) -> str:
    """Return the error for a value that is not a number or is out of range."""
    bounds = f"von {written(low)} bis {written(high)}"
    return f"{field}: {_short(value)} ist nicht möglich; es geht {bounds}."


def not_whole(field: str, value: object, low: int, high: int) -> str:
    """Return the error for a value that is not a whole number or is out of range."""
    return f"{field}: {_short(value)} ist nicht möglich; nur ganze Zahlen von {low} bis {high}."


def not_a_number(field: str, value: str) -> str:
    """Return the error for a text that cannot be read as a number."""
    return f"{field}: {_short(value)} ist keine brauchbare Zahl."


def unknown(field: str, value: object, known: list[str]) -> str:
    """Return the error for a value that is not one of the `known` ones."""
    return f"{field}: {_short(value)} ist unbekannt; es gibt {', '.join(known)}."


def problem(message: str, kind: ErrorKind, retry_after_s: float | None) -> str:
    """Return `serving`'s message about a request that was refused or ended early, translated."""
    if kind is ErrorKind.FULL:
        return f"Die Warteschlange ist voll. Bitte {_soon(retry_after_s)} noch einmal versuchen."
    if kind is ErrorKind.TOO_MANY:
        return f"Das waren viele Anfragen. Bitte {_soon(retry_after_s)} noch einmal versuchen."
    if kind is ErrorKind.DEADLINE:
        return "Es hat zu lange gedauert. Bitte später noch einmal versuchen."
    if kind is ErrorKind.BLOCKED:
        return f"„{quoted(message)}“ wird hier nicht gezeichnet. Bitte lassen Sie es weg."
    return _SAID.get(message, message)


def _soon(wait_s: float | None) -> str:
    return "gleich" if wait_s is None or wait_s < 2 else f"in etwa {duration(wait_s)}"


def _short(value: object) -> str:
    return "nichts" if value is None else short(written(value))
