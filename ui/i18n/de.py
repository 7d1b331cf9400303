"""German."""

from serving.generator import Model
from serving.messages import Code, concise, is_soon, short
from ui.i18n.numbers import comma, duration, hardware, size, with_comma
from ui.i18n.words import Words
from ui.model_kind import Kind

LANGUAGE = "de"

MINIATURE = "Mitgelieferte Miniatur"
MINIATURE_LIMITS = (
    "Diese Miniatur zeichnet ein oder zwei einfache Formen in klaren Farben und sonst nichts. "
    "Auch dabei können Farbe, Form oder Lage falsch sein."
)
LIMITS = (
    "Die Bilder sind erfunden. Gesichter, Hände, Schrift, Anzahl und Lage sind oft falsch, und "
    "das Modell wiederholt die Vorurteile der Bilder, mit denen es trainiert wurde."
)
LICENCE = "Lizenz des Modells"
OWN_LICENCE = "Die Lizenz steht auf der Seite des Modells."

PROMPT_LABEL = "Was möchten Sie sehen? (auf Englisch)"
GENERATE = "Zeichnen"
STOP = "Stopp"
EXAMPLES = "Beispiele"
SURPRISE = "Überraschen Sie mich"
EMBED = "Einstellungen in den Bilddateien speichern"
EMBED_INFO = "Wer eine Datei hat, kann sie lesen."
GALLERY = "Bilder"
PREVIEWS = "Vorschau der Bilder"
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

EXPERT = "Für Fortgeschrittene"
PICTURE = "Bild"
RANDOM_SEED = "Zufälliger Seed"
ADVANCED = "Weitere Einstellungen"
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

COPY_SETTINGS = "Einstellungen kopieren"
COPY_LINK = "Link kopieren"
DOWNLOAD = "Herunterladen als"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = (
    "Die Einstellungen sind zu lang für eine JPEG-Datei. Bitte wählen Sie PNG oder WebP."
)
COPIED = "Kopiert"
USE_SETTINGS = "Einstellungen übernehmen"
NEW_SEED = "Mit neuem Seed wiederholen"
VARIATIONS = "Variationen zeichnen"
SHOW_ANYWAY = "Trotzdem anzeigen"
HIDE_AGAIN = "Wieder ausblenden"
TAKEN_OVER = "Die Einstellungen sind eingetragen. Drücken Sie „Zeichnen“, um sie zu verwenden."
LINK_NOT_USED = "Teile des Links lassen sich nicht verwenden."
SETTINGS = {
    "prompt": Words("Beschreibung"),
    "negative_prompt": Words("Unerwünschtes", "Was die Bilder nicht zeigen sollen."),
    "seed": Words("Seed", "Gleicher Seed und gleiche Einstellungen ergeben gleiche Bilder."),
    "variation_seed": Words(
        "Seed der Variation", "Bestimmt die Variation, wenn deren Stärke über 0 liegt."
    ),
    "variation_strength": Words(
        "Stärke der Variation",
        "Über 0 entstehen Variationen des Bildes zum Seed; höhere Werte weichen stärker ab.",
    ),
    "variation_of": Words("Frühere Variationen", "Seeds und Stärken; das Ergebnis wird variiert."),
    "num_inference_steps": Words(
        "Schritte", "Mehr Schritte ergeben mehr Einzelheiten und dauern länger."
    ),
    "guidance_scale": Words("Texttreue", "Wie genau die Bilder der Beschreibung folgen."),
    "guidance_until": Words(
        "Texttreue bis",
        "Anteil der Schritte mit Texttreue. "
        "Weniger ist schneller, folgt der Beschreibung aber weniger.",
    ),
    "sampler": Words("Verfahren"),
    "size": Words("Größe"),
    "model": Words("Modell"),
    "style": Words("Stil"),
    "several": Words("Ein Bild pro Zeile", "Jede Zeile der Beschreibung ergibt ein eigenes Bild."),
    "randomise": Words("Jedes Mal ein neuer Seed"),
    "images": Words(GALLERY),
}

HISTORY = "Verlauf"
HISTORY_INFO = "Nur in diesem Browser gespeichert."
CLEAR_HISTORY = "Verlauf löschen"

RESTORE_PICTURE = "Ein Bild von dieser Seite oder aus AUTOMATIC1111s Web-UI"
RESTORE_TEXT = "Oder seine Einstellungen als Text"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_PICTURE = "Dieses Bild enthält keine Einstellungen."
NO_SETTINGS_IN_TEXT = (
    "Es wurden keine Einstellungen gefunden. Die letzte Zeile sollte so aussehen: Steps: 25, "
    "Seed: 7, …"
)
UNREADABLE_SETTINGS = "Die Einstellungen in diesem Bild lassen sich nicht lesen."
UNREADABLE_PICTURE = (
    "Diese Datei lässt sich nicht als Bild lesen. Bitte verwenden Sie PNG, JPEG oder WebP."
)
TOO_LARGE_A_PICTURE = "Dieses Bild ist zu groß."

AWAY = "Warten auf die Verbindung…"
LOST = (
    "Die Verbindung ist abgebrochen, und Ihre Anfrage ging verloren. Bitte zeichnen Sie noch "
    "einmal."
)
NOTHING = "nichts"  # a value that is missing

MESSAGES = {
    Code.UNTRANSLATED: "{text}",
    Code.CANCELLED: "Angehalten.",
    Code.ABANDONED: "Das Zeichnen wurde beendet, weil die Seite geschlossen war.",
    Code.STOPPING: "Der Server wird gerade beendet. Bitte versuchen Sie es gleich noch einmal.",
    Code.UNAVAILABLE: "Zurzeit kann nicht gezeichnet werden. Bitte versuchen Sie es später erneut.",
    Code.REPLACED: "Das Modell wurde inzwischen ausgetauscht. Bitte versuchen Sie es noch einmal.",
    Code.OUT_OF_MEMORY: "Der Speicher reichte nicht aus. Bitte versuchen Sie es noch einmal.",
    Code.FAILED: "Beim Zeichnen ist ein Fehler aufgetreten. Bitte versuchen Sie es noch einmal.",
    Code.BROKEN: "Etwas ist schiefgegangen. Bitte versuchen Sie es noch einmal.",
    Code.UNSCREENED: (
        "Die Bilder konnten nicht geprüft werden. Bitte versuchen Sie es noch einmal."
    ),
    Code.LOOP: (
        "Diese Instanz reicht Anfragen weiter; BACKEND_URLS muss Instanzen nennen, die zeichnen."
    ),
    Code.UNKNOWN_REQUEST: "Diese Anfrage gibt es nicht, oder sie wird nicht mehr aufbewahrt.",
    Code.DUPLICATE: "Diese Anfrage gibt es schon.",
    Code.FULL: "Die Warteschlange ist voll. Bitte versuchen Sie es {wait_s} noch einmal.",
    Code.TOO_MANY_REQUESTS: (
        "Sie haben zu viele Anfragen gestellt. Bitte versuchen Sie es {wait_s} noch einmal."
    ),
    Code.NOT_STARTED: (
        "Sie kamen nicht rechtzeitig an die Reihe. Bitte versuchen Sie es später noch einmal."
    ),
    Code.NOT_FINISHED: (
        "Die Bilder wurden nicht rechtzeitig fertig. Bitte versuchen Sie es später noch einmal."
    ),
    Code.NO_ROOM: (
        "Die Bilder sind gezeichnet, aber der Server hat keinen Platz mehr für sie. "
        "Bitte versuchen Sie es später noch einmal."
    ),
    Code.PICTURE_GONE: "Dieses Bild gibt es nicht, oder es wird nicht mehr aufbewahrt.",
    Code.CROWDED: "Gerade sind zu viele Besucher hier. Bitte versuchen Sie es gleich noch einmal.",
    Code.TOO_MANY_CONNECTIONS: (
        "Von Ihrer Adresse sind zu viele Verbindungen offen. "
        "Bitte schließen Sie einige und versuchen Sie es noch einmal."
    ),
    Code.TOO_MANY_PAGES: (
        "Von Ihrer Adresse sind zu viele Seiten offen. "
        "Bitte schließen Sie einige und versuchen Sie es noch einmal."
    ),
    Code.TOO_MANY_CALLS: (
        "Zu viele Ihrer Aufrufe sind noch nicht beantwortet. Bitte warten Sie auf die Antworten."
    ),
    Code.TOO_LARGE: "Das ist zu groß zum Senden: höchstens {kib} KiB sind möglich.",
    Code.TOO_MANY_UPLOADS: (
        "Gerade werden zu viele Dateien hochgeladen. Bitte versuchen Sie es gleich noch einmal."
    ),
    Code.UPLOAD_TOO_SLOW: (
        "Die Datei kam nicht rechtzeitig an. Bitte versuchen Sie es noch einmal."
    ),
    Code.NO_ROOM_FOR_UPLOADS: (
        "Der Server hat keinen Platz für Dateien. Bitte versuchen Sie es später noch einmal."
    ),
    Code.NO_FILE: "Das Formular enthält keine Datei namens „files“.",
    Code.KEY_NEEDED: (
        "Ein gültiger API-Schlüssel ist nötig, in der Form „Authorization: Bearer KEY“."
    ),
    Code.WRONG_HOST: (
        "Dieser Server antwortet nicht unter dem angefragten Namen. "
        "Der Betreiber kann den Namen in ALLOWED_HOSTS eintragen."
    ),
    Code.WRONG_ORIGIN: (
        "Fremde Seiten dürfen dies nicht senden. "
        "Der Betreiber dieses Servers kann ihre Herkunft in CORS_ORIGINS eintragen."
    ),
    Code.WRONG_PATH: "Unter diesem Pfad gibt es nichts.",
    Code.TWO_LENGTHS: "Bitte senden Sie Content-Length oder Transfer-Encoding, nicht beides.",
    Code.BLOCKED: "„{word}“ wird hier nicht gezeichnet. Bitte lassen Sie es weg.",
    Code.BLANK_PROMPT: "Bitte beschreiben Sie zuerst das Bild.",
    Code.TOO_LONG: "{field}: {length} Zeichen sind zu viele; höchstens {limit} sind möglich.",
    Code.NOT_TEXT: "{field}: Bitte geben Sie Text ein.",
    Code.NOT_A_NUMBER: "{field}: {value} ist keine brauchbare Zahl.",
    Code.UNREADABLE: "{field}: {value} ist nicht lesbar. Schreib es so: {example}.",
    Code.OUT_OF_RANGE: "{field}: {value} ist nicht möglich; bitte wählen Sie {low} bis {high}.",
    Code.NOT_WHOLE: (
        "{field}: {value} ist nicht möglich; bitte wählen Sie eine ganze Zahl von {low} bis {high}."
    ),
    Code.UNKNOWN_CHOICE: "{field}: {value} ist unbekannt; zur Wahl stehen {choices}.",
    Code.NOT_READY: "{field}: {value} ist noch nicht bereit; zur Wahl stehen {choices}.",
    Code.WRONG_COUNT: (
        "{field}: {count} Texte für {images} Bilder; nötig ist einer, oder einer für jedes Bild."
    ),
    Code.TOO_MANY_LINES: (
        "{lines} Zeilen sind zu viele; höchstens {limit} Bilder werden gleichzeitig gezeichnet."
    ),
    Code.TOO_LONG_FOR_FORMAT: (
        "{field}: {value}-Dateien haben keinen Platz für so lange Beschreibungen."
    ),
    Code.TOO_LARGE_FOR_URLS: (
        "{field}: Für „url“ sind diese Bilder zu groß; bitte verwenden Sie „b64_json“."
    ),
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
    remark = "" if variation is None else f", Variation {variation}"
    remark += ", vom Sicherheitsfilter unscharf gemacht" if blurred else ""
    return f"Seed {seed}{remark}: {prompt}"


def unfinished(done: int, total: int) -> str:
    """Return the caption of a picture whose drawing was stopped."""
    return f"Unfertig: Schritt {done} von {total}"


def progress(done: int, total: int, left_s: float | None) -> str:
    """Return the number of the step and, if known, the time left."""
    step = f"Schritt {done} von {total}"
    return f"{step}, noch etwa {duration(left_s)}" if left_s else step


def waiting(position: int, wait_s: float | None) -> str:
    """Return the place in the queue and, if known, the time until the drawing begins."""
    place = (
        "Sie sind als Nächstes an der Reihe"
        if position == 1
        else f"Platz {position} der Warteschlange"
    )
    return place if wait_s is None else f"{place}, etwa {duration(wait_s)}"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "Das Zeichnen beginnt…" if attempt == 1 else f"Neuer Beginn, Versuch {attempt}…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 Bild" if count == 1 else f"{count} Bilder"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" in {comma(f'{seconds:.1f}')} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return (
        f"{field}: {_short(value)} ist hier nicht möglich; stattdessen gilt {comma(concise(used))}."
    )


def other_size(width: int | None, height: int | None, model: Model) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " oder ".join(map(size, model.sizes))
    return f"Das Bild hat {width} × {height} Pixel; hier haben Bilder {here}."


def other_model(name: str, model: Model) -> str:
    """Return the note that another model drew a picture."""
    return f"Das Bild wurde von {short(name)} gezeichnet; hier zeichnet {short(model.name)}."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Nur die ersten {limit} Zeichen einer Beschreibung werden verwendet."


def length(tokens: int, limit: int) -> str:
    """Return the number of tokens in a prompt, and the model's limit."""
    return f"{tokens} von {limit} Token"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the end of the prompt, which the model does not read."""
    return f"Die Beschreibung ist länger, als das Modell lesen kann. Nicht gelesen: „{left_out}“"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return "gleich" if wait_s is None or is_soon(wait_s) else f"in etwa {duration(wait_s)}"


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
