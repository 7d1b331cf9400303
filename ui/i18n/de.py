"""German."""

from pipeline.facts import Facts
from serving.messages import Code, concise, is_soon, short
from ui.i18n.numbers import comma, duration, hardware, size, with_comma
from ui.i18n.words import Words
from ui.model_kind import Kind

LANGUAGE = "de"

MINIATURE = "Mitgelieferte Miniatur"
MINIATURE_LIMITS = (
    "Dieses kleine Modell zeichnet nur ein oder zwei einfache Formen in klaren Farben. "
    "Auch dabei können Farbe, Form oder Lage falsch sein."
)
LIMITS = (
    "Die Bilder sind KI-generiert. Gesichter, Hände, Schrift, Anzahl und Lage sind oft falsch, und "
    "das Modell wiederholt die Vorurteile seiner Trainingsdaten."
)
LICENCE = "Lizenz des Modells"
OWN_LICENCE = "Die Lizenz steht auf der Seite des Modells."

PROMPT_LABEL = "Was möchtest du sehen? (auf Englisch)"
GENERATE = "Generieren"
STOP = "Stoppen"
LIVE = "Live"
LIVE_INFO = "Zeichnet beim Tippen in jeder Pause ein grobes Bild."
LIVE_PICTURE = "Livebild"
LIVE_PAUSED = "Live pausiert, solange ein Bild da ist."
EXAMPLES = "Beispiele"
SURPRISE = "Überrasch mich"
EMBED = "Einstellungen in Bilddateien speichern"
EMBED_INFO = "Wer eine Datei hat, kann die Einstellungen lesen."
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
    "Reset to default value": "Zurücksetzen",
}

EXPERT = "Für Experten"
PICTURE = "Bild"
ADVANCED = "Erweitert"
STYLES = {
    "(none)": "Ohne Stil",
    "Photograph": "Fotografie",
    "Film still": "Filmszene",
    "Watercolour": "Aquarell",
    "Oil painting": "Ölgemälde",
    "Pencil sketch": "Bleistiftskizze",
    "Ink and wash": "Tusche",
    "Anime": "Anime",
    "Pixel art": "Pixelgrafik",
    "Paper cut-out": "Papierschnitt",
    "3D render": "3D-Rendering",
    "Flat": "Flächig",
    "Outlined": "Umriss",
    "Soft": "Weich",
    "Glossy": "Glänzend",
    "Sticker": "Aufkleber",
    "Poster": "Plakat",
    "Chalkboard": "Kreidetafel",
    "Sky": "Himmel",
    "Candy": "Bonbon",
    "Night": "Nacht",
}

LOOKS = "Zusatzstile"
SEARCH = "Suchen"
NOT_FOUND = "Nichts gefunden."
STRENGTH = "Stärke"
STRENGTHS = ("Aus", "Dezent", "Mittel", "Voll", "Stark")
TRIGGER_WORDS = "Ein Wort antippen, um es zum Prompt hinzuzufügen."

COPY_SETTINGS = "Einstellungen kopieren"
COPY_LINK = "Link kopieren"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = "Die Einstellungen sind zu lang für JPEG. Nimm PNG oder WebP."
COPIED = "Kopiert"
USE_SETTINGS = "Einstellungen übernehmen"
NEW_SEED = "Neuer Seed"
VARIATIONS = "Variieren"
LARGER = "Größer"
SHOW_ANYWAY = "Trotzdem anzeigen"
HIDE_AGAIN = "Wieder ausblenden"
REUSE = "Übernehmen"
SAVE = "Herunterladen"
FINISH = "Fertig zeichnen"
FINISH_INFO = "Zeichnet diese Bilder noch einmal von vorn, bis zum Ende."
DETAILS = "Angaben"
PREVIOUS = "Vorheriges Bild"
NEXT = "Nächstes Bild"
TAKEN_OVER = "Einstellungen geladen. Drück auf „Generieren“."
LINK_NOT_USED = "Ein Teil des Links wurde ignoriert."
SETTINGS = {
    "prompt": Words("Prompt"),
    "negative_prompt": Words("Negativer Prompt", "Was nicht zu sehen sein soll."),
    "seed": Words("Seed", "Gleicher Seed, gleiche Einstellungen: gleiche Bilder."),
    "variation_seed": Words(
        "Variations-Seed", "Wählt die Variation, wenn ihre Stärke über 0 liegt."
    ),
    "variation_strength": Words("Variationsstärke", "Wie stark das Bild vom Original abweicht."),
    "variation_of": Words("Frühere Variationen", "Seeds und Stärken; das Ergebnis wird variiert."),
    "num_inference_steps": Words("Schritte", "Mehr Schritte: mehr Details, aber langsamer."),
    "guidance_scale": Words("CFG-Skala", "Wie genau das Bild dem Prompt folgt."),
    "guidance_until": Words("CFG beenden bei", "Niedriger: schneller, aber weniger nah am Prompt."),
    "guidance_rescale": Words("CFG-Reskalierung", "Höher: weniger überbelichtet."),
    "cache_interval": Words(
        "Intervall des Schritt-Caches", "Höher: schneller, aber weniger genau."
    ),
    "loras": Words("LoRAs", "Zusätzliche Stile und Motive."),
    "scheduler": Words("Sampler", "Wie aus Rauschen ein Bild wird."),
    "sigma_schedule": Words("Rauschplan", "Wie sich die Schritte verteilen."),
    "timestep_spacing": Words("Zeitschrittabstand", "Welche Zeitschritte verwendet werden."),
    "timesteps": Words("Zeitschritte", "Ersetzen die Schritte. Jeder ist kleiner als der davor."),
    "eta": Words("Eta", "Anteil neuen Rauschens bei DDIM und TCD."),
    "decoder": Words("Decoder", "„tiny“ ist schneller, zeigt aber weniger Details."),
    "recipe": Words(
        "Qualität", "„Schnell“ braucht wenige Schritte, mit eigenem Sampler und eigener CFG-Skala."
    ),
    "strength": Words("Stärke", "Wie weit das Bild neu gezeichnet wird."),
    "padding": Words("Rand", "Pixel um die Maske, wenn nur der maskierte Teil gezeichnet wird."),
    "prompt_syntax": Words(
        "Syntax des Prompts", "Gewichte wie (red:1.3) werden verstanden, außer mit „plain“."
    ),
    "denoising_end": Words("Refiner übernimmt bei", "Von 0 bis 1; 1 heißt: nur das Basismodell."),
    "enlarge": Words("Neu zeichnen in", "Die fertigen Bilder werden größer neu gezeichnet."),
    "enlarge_strength": Words("Stärke beim Vergrößern", "Wie weit sie neu gezeichnet werden."),
    "enlarge_steps": Words("Schritte beim Vergrößern", "Die Stärke bestimmt, wie viele es sind."),
    "sampler": Words("Sampler"),
    "schedule_type": Words("Rauschplan"),
    "size": Words("Größe"),
    "model": Words("Modell", "Ein anderes zu laden dauert einen Moment."),
    "vae": Words("VAE"),
    "style": Words("Stil"),
    "several": Words("Ein Bild pro Zeile", "Jede Zeile des Prompts wird ein Bild."),
    "randomise": Words("Jedes Mal ein neuer Seed"),
    "images": Words(GALLERY),
    "image": Words("Ausgangsbild"),
    "mask": Words("Maske"),
}

HISTORY = "Verlauf"
HISTORY_INFO = "Nur in diesem Browser gespeichert."
CLEAR_HISTORY = "Verlauf löschen"
HISTORY_CLEARED = "Verlauf gelöscht."
UNDO = "Rückgängig"

RESTORE_TEXT = "Oder Einstellungen als Text einfügen"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_TEXT = (
    "Keine Einstellungen gefunden. Die letzte Zeile sollte so aussehen: Steps: 25, Seed: 7, …"
)
UNREADABLE_SETTINGS = "Die Einstellungen in diesem Bild sind nicht lesbar. Füge sie als Text ein."
UNREADABLE_PICTURE = "Diese Datei ist nicht lesbar. Nimm PNG, JPEG oder WebP."
TOO_LARGE_A_PICTURE = "Dieses Bild ist zu groß. Nimm ein kleineres."

START_PICTURE = "Bild als Ausgangspunkt oder für seine Einstellungen"
TAKE_PICTURE = "Foto aufnehmen"
USE_PICTURE = "Hiervon ausgehen"  # of a picture that was drawn
REMOVE_PICTURE = "Bild entfernen"
PICTURE_NEEDED = (
    "Es begann mit einem anderen Bild, das die Einstellungen nicht enthalten. "
    "Wähle es unter „+ Bild“."
)
MASK_FIRST = (
    "Dieses Modell zeichnet einen Teil eines Bildes neu: Wähle hier eines und markiere, "
    "was sich ändern soll."
)
START = {
    "least": "fast alles behalten",
    "most": "fast alles ändern",
    "mark": "Bereich markieren",
    "remove": "Entfernen",
    "cut": "Die abgedunkelten Ränder werden abgeschnitten.",
    "redrawn": "Markierte und neue Teile werden ganz neu gezeichnet, wenn du nicht weniger wählst.",
    "only": "Markierten Bereich in voller Auflösung neu zeichnen",
    "extend": "Bild erweitern",
    "top": "Oben",
    "left": "Links",
    "right": "Rechts",
    "bottom": "Unten",
    "editor": "Markiere, was sich ändern soll",
    "marked": "Markierte Bereiche werden neu gezeichnet.",
    "draw": "Malen",
    "erase": "Radieren",
    "brush": "Pinsel",
    "clear": "Leeren",
    "invert": "Umkehren",
    "numbers": "Rechteck mit Zahlen",
    "width": "Breite",
    "height": "Höhe",
    "add": "Hinzufügen",
    "cancel": "Abbrechen",
    "done": "Fertig",
    "compare": "Vorher und nachher",
    "before": "Vorher",
    "after": "Nachher",
}

NEXT_PROMPT = "Als Nächstes:"  # before a prompt that waits for its turn
RESTORE_ITS_SETTINGS = "Einstellungen aus dem Bild übernehmen"
LOOKS_LIKE_SETTINGS = "Das sieht nach Einstellungen aus."
USE_THEM = "Übernehmen"

AWAY = "Verbindung unterbrochen. Wird wiederhergestellt…"
LOST = "Die Verbindung ist abgebrochen und deine Anfrage verloren. Generiere noch einmal."
END_LEFT_OUT = "Das Ende des Prompts wurde weggelassen."
NOTHING = "nichts"  # a value that is missing
OWN_VAE = "der eigene des Modells"

MESSAGES = {
    Code.UNTRANSLATED: "{text}",
    Code.CANCELLED: "Gestoppt.",
    Code.ABANDONED: "Gestoppt, weil die Seite geschlossen war.",
    Code.STOPPING: "Der Server wird gerade beendet. Versuch es gleich noch einmal.",
    Code.UNAVAILABLE: "Generieren ist gerade nicht möglich. Versuch es später noch einmal.",
    Code.REPLACED: "Das Modell wurde gewechselt. Versuch es noch einmal.",
    Code.OUT_OF_MEMORY: "Der Speicher reichte nicht aus. Versuch es noch einmal.",
    Code.FAILED: "Beim Generieren ist etwas schiefgegangen. Versuch es noch einmal.",
    Code.BROKEN: "Etwas ist schiefgegangen. Versuch es noch einmal.",
    Code.UNSCREENED: "Die Bilder konnten nicht geprüft werden. Versuch es noch einmal.",
    Code.NOT_FINITE: (
        "Es kam kein Bild zustande: Die Zahlen wurden zu groß. Verringere die Stärke der LoRAs."
    ),
    Code.LOOP: (
        "Diese Instanz reicht Anfragen weiter; BACKEND_URLS muss Instanzen nennen, die generieren."
    ),
    Code.UNKNOWN_REQUEST: "Diese Anfrage gibt es nicht oder nicht mehr.",
    Code.DUPLICATE: "Diese Anfrage gibt es schon.",
    Code.FULL: "Die Warteschlange ist voll. Versuch es {wait_s} noch einmal.",
    Code.TOO_MANY_REQUESTS: "Zu viele Anfragen. Versuch es {wait_s} noch einmal.",
    Code.NOT_STARTED: "Du warst nicht rechtzeitig an der Reihe. Versuch es später noch einmal.",
    Code.NOT_FINISHED: (
        "Die Bilder wurden nicht rechtzeitig fertig. Versuch es später noch einmal."
    ),
    Code.NO_ROOM: "Der Server hat keinen Platz für die Bilder. Versuch es später noch einmal.",
    Code.PICTURE_GONE: "Dieses Bild gibt es nicht oder nicht mehr.",
    Code.CROWDED: "Gerade ist zu viel los. Versuch es gleich noch einmal.",
    Code.TOO_MANY_CONNECTIONS: (
        "Von deiner Adresse sind zu viele Verbindungen offen. "
        "Schließ einige und versuch es noch einmal."
    ),
    Code.TOO_MANY_PAGES: (
        "Von deiner Adresse sind zu viele Seiten offen. Schließ einige und versuch es noch einmal."
    ),
    Code.TOO_MANY_CALLS: "Zu viele deiner Aufrufe sind noch offen. Warte auf die Antworten.",
    Code.TOO_LARGE: "Das ist zu groß. Möglich sind höchstens {kib} KiB.",
    Code.TOO_MANY_UPLOADS: (
        "Gerade werden zu viele Dateien hochgeladen. Versuch es gleich noch einmal."
    ),
    Code.UPLOAD_TOO_SLOW: "Die Datei kam nicht rechtzeitig an. Versuch es noch einmal.",
    Code.NO_ROOM_FOR_UPLOADS: (
        "Der Server hat keinen Platz für Dateien. Versuch es später noch einmal."
    ),
    Code.NO_FILE: "Das Formular enthält keine Datei namens „files“.",
    Code.KEY_NEEDED: "Ein gültiger API-Schlüssel ist nötig: „Authorization: Bearer KEY“.",
    Code.WRONG_HOST: (
        "Dieser Server antwortet nicht unter diesem Namen. "
        "Der Betreiber kann ihn in ALLOWED_HOSTS eintragen."
    ),
    Code.WRONG_ORIGIN: (
        "Fremde Seiten dürfen dies nicht senden. "
        "Der Betreiber kann ihre Herkunft in CORS_ORIGINS eintragen."
    ),
    Code.WRONG_PATH: "Unter diesem Pfad gibt es nichts.",
    Code.TWO_LENGTHS: "Sende Content-Length oder Transfer-Encoding, nicht beides.",
    Code.BLOCKED: "„{word}“ ist hier nicht erlaubt. Lass es weg.",
    Code.BLANK_PROMPT: "Gib zuerst einen Prompt ein.",
    Code.TOO_LONG: "{field}: {length} Zeichen sind zu viele. Möglich sind {limit}.",
    Code.NOT_TEXT: "{field}: Nur Text ist möglich.",
    Code.NOT_A_NUMBER: "{field}: {value} ist keine gültige Zahl.",
    Code.UNREADABLE: "{field}: {value} ist nicht lesbar. Schreib es so: {example}.",
    Code.OUT_OF_RANGE: "{field}: Möglich ist {low} bis {high}.",
    Code.NOT_WHOLE: "{field}: {value} ist keine ganze Zahl. Möglich ist {low} bis {high}.",
    Code.UNKNOWN_CHOICE: "{field}: {value} ist unbekannt. Möglich ist {choices}.",
    Code.MISSING_RECIPE: "{field}: {value} braucht ein LoRA, das es hier nicht gibt.",
    Code.MISSING_REFINER: "{field}: Hier gibt es keinen Refiner.",
    Code.NO_STEP_CACHE: "{field}: Einen Schritt-Cache gibt es hier nicht.",
    Code.UNFIT_SCHEDULER: "{field}: {value} passt nicht zu diesem Modell: {reason}",
    Code.NOT_TIMESTEPS: (
        "{field}: {value} geht nicht. Schreib bis zu {limit} fallende Zahlen von {low} bis {high}, "
        "etwa {example}."
    ),
    Code.NOT_WITH: (
        "{field}: {value} geht nicht mit {its}. Lass es weg oder wähle für {other}: {choices}."
    ),
    Code.ONE_OF_TWO: "{field} und {other} gehen nicht zusammen. Lass eins davon weg.",
    Code.NOT_READY: "{field}: {value} ist noch nicht bereit. Möglich ist {choices}.",
    Code.WRONG_COUNT: (
        "{field}: {count} Texte für {images} Bilder. Nötig ist einer oder einer pro Bild."
    ),
    Code.TOO_MANY_LINES: "{lines} Zeilen sind zu viele. Möglich sind {limit}.",
    Code.UNKNOWN_LORA: "Das LoRA {value} gibt es hier nicht. Gesucht wurde in LORA_DIR.",
    Code.DOUBLED_LORA: "Mehrere Dateien in LORA_DIR heißen {value}: {files}",
    Code.UNUSABLE_LORA: "Das LoRA {value} passt nicht zu diesem Modell.",
    Code.UNUSABLE_MODEL: "Das Modell {value} passt hier nicht: {reason}",
    Code.UNREADABLE_MODEL: (
        "Das Modell {value} lässt sich gerade nicht laden. Wähle ein anderes, oder versuche es "
        "später noch einmal."
    ),
    Code.TOO_MANY_LORAS: "{count} LoRAs sind zu viele. Möglich sind {limit}.",
    Code.TOO_MANY_TEXTS: (
        "Der Prompt ändert sich zu oft. Möglich sind {limit} verschiedene Texte: "
        "weniger von [a:b:5] und [a|b]."
    ),
    Code.TOO_LONG_FOR_FORMAT: "{field}: {value} hat keinen Platz für so lange Prompts.",
    Code.NOT_LIVE: "Livebilder sind hier zu langsam oder abgeschaltet.",
    Code.TOO_LARGE_FOR_URLS: ("{field}: Für „url“ sind diese Bilder zu groß. Nimm „b64_json“."),
    Code.UNUSABLE_PICTURE: "{field}: Dieses Bild geht nicht ({reason}). Nimm PNG, JPEG oder WebP.",
    Code.MASK_SIZE: "{field}: {value} Pixel passen nicht zum Bild. Es hat {expected}.",
    Code.EMPTY_MASK: "{field}: Es ist kein Teil des Bildes markiert.",
    Code.MASK_NEEDED: "{field} fehlt. Dieses Modell zeichnet nur markierte Teile eines Bildes neu.",
    Code.IMAGE_NEEDED: "{field} fehlt. Dieses Modell zeichnet nur Bilder neu.",
    Code.WITHOUT: "{field} geht nur zusammen mit {other}.",
    Code.INPUT_GONE: "Das Ausgangsbild ist nicht mehr da. Schick es noch einmal.",
}


def title(facts: Facts) -> str:
    """Return the page's title."""
    return f"{facts.family} auf JAX"


def model_line(facts: Facts, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else facts.name
    devices = hardware(facts)
    return f"{name} · {size(facts.sizes[0])} Pixel · auf {devices}"


def written(number: object) -> str:
    """Return a value as text, with numbers as this language writes them."""
    return with_comma(number)


def caption(prompt: str, seed: int, variation: int | None = None, blurred: bool = False) -> str:
    """Return a picture's caption, which screen readers read out as well."""
    remark = "" if variation is None else f", Variation {variation}"
    remark += ", vom Sicherheitsfilter unkenntlich gemacht" if blurred else ""
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
    place = "Als Nächstes dran" if position == 1 else f"Platz {position} in der Warteschlange"
    return place if wait_s is None else f"{place}, etwa {duration(wait_s)}"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "Startet…" if attempt == 1 else f"Startet neu, Versuch {attempt}…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 Bild" if count == 1 else f"{count} Bilder"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" in {comma(f'{seconds:.1f}')} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field}: {_short(value)} geht hier nicht, stattdessen {comma(concise(used))}."


def other_size(width: int | None, height: int | None, facts: Facts) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " oder ".join(map(size, facts.sizes))
    return f"Das Bild hat {width} × {height}, die Größe hier ist {here}."


def other_model(name: str, facts: Facts) -> str:
    """Return the note that another model drew a picture."""
    return f"Das Bild wurde mit {short(name)} generiert. Hier ist es {short(facts.name)}."


def other_vae(name: str | None, facts: Facts) -> str:
    """Return the note that a picture was decoded with another VAE; None is the model's own."""
    was, here = short(name or OWN_VAE), short(facts.vae or OWN_VAE)
    return f"Der VAE des Bildes war {was}. Hier ist es {here}."


BEST = "Beste"  # the choice of quality without a recipe


def quick(steps: int, title: str) -> str:
    """Return the choice of a recipe that draws in few steps; `title` names its method."""
    return f"Schnell, {steps} Schritt{'e' * (steps > 1)} ({title})"


def automatic(own: str) -> str:
    """Return the choice that leaves a setting to the model; `own` is the model's, "" if unknown."""
    return f"Automatisch ({own})" if own else "Automatisch"


def other_sampler(name: str, used: str) -> str:
    """Return the note that a sampler is not available here, and which one is used."""
    return f"Den Sampler {_short(name)} gibt es hier nicht, verwendet wird {used}."


def looks_full(limit: int) -> str:
    """Return the note that no more looks can be chosen."""
    return f"Höchstens {limit}."


def missing_loras(missing: list[str]) -> str:
    """Return the note that LoRAs are not there."""
    return f"Nicht vorhanden: {', '.join(map(_short, missing))}. Gesucht wurde in LORA_DIR."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Nur die ersten {limit} Zeichen des Prompts werden verwendet."


def length(tokens: int, limit: int, chunks: int = 1) -> str:
    """Return the number of tokens in a prompt, the model's limit, and the chunks if several."""
    return (
        f"{tokens} von {limit} Token, {chunks} Abschnitte"
        if chunks > 1
        else f"{tokens} von {limit} Token"
    )


def too_long(limit: int) -> str:
    """Return the warning that a prompt has more tokens than the model reads."""
    return f"Zu lang: Nur die ersten {limit} Token zählen"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the part of the prompt that the model does not read."""
    return f"Weggelassen: „{left_out}“"


def read_as(parts: list[str]) -> str:
    """Return how a prompt is read; `parts` tell of its weights, changes, LoRAs and lists."""
    return f"Gelesen als: {' · '.join(parts)}"


def unknown(words: str, more: int) -> str:
    """Return the words of a prompt that the model does not know, and how many more there are."""
    return f"Diesem Modell unbekannt: {words}" + (f" und {more} weitere" if more else "")


def in_steps(first: int, last: int, words: str) -> str:
    """Return the words that a prompt has from one step to another."""
    steps = f"Schritt {first}" if first == last else f"Schritte {first}–{last}"
    return f"{steps}: {words}"


def in_turn(texts: list[str]) -> str:
    """Return the words that take turns in a prompt."""
    return f"abwechselnd: {', '.join(texts)}"


def sections(count: int) -> str:
    """Return the number of parts into which BREAK divides a prompt."""
    return f"{count} Teile"


def one_of(options: str, count: int) -> str:
    """Return the list in a prompt from which the seed chooses so many options."""
    return f"{'eins' if count == 1 else count} von: {options}"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return "gleich" if wait_s is None or is_soon(wait_s) else f"in etwa {duration(wait_s)}"


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
