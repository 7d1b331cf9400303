"""French."""

from serving import messages as said
from serving.generator import ErrorKind, Model
from ui.i18n.numbers import comma, concise, duration, hardware, quoted, short, size, with_comma
from ui.model_kind import Kind

LANGUAGE = "fr"

MINIATURE = "Miniature fournie"
MINIATURE_LIMITS = (
    "Cette miniature dessine une ou deux formes simples en couleurs unies, rien d’autre. "
    "Elle peut se tromper de couleur, de forme ou de place."
)
LIMITS = (
    "Les images sont inventées. Visages, mains, lettres, nombres et lieux sont souvent faux, "
    "et le modèle répète les préjugés des images dont il a appris."
)
LICENCE = "Licence du modèle"
OWN_LICENCE = "La fiche du modèle indique sa licence."

PROMPT = "Description"
PROMPT_LABEL = "Que voulez-vous voir ? (en anglais)"
GENERATE = "Dessiner"
STOP = "Arrêter"
EXAMPLES = "Essayez l’une de celles-ci"
SURPRISE = "Surprenez-moi"
SEVERAL = "Une image par ligne"
SEVERAL_INFO = "Chaque ligne de la description devient une image à part."
EMBED = "Réglages dans les fichiers des images"
EMBED_INFO = "Quiconque a le fichier peut les y retrouver."
GALLERY = "Images"
LOOKS = "Les images telles qu’elles sont pour l’instant"
# Texts of Gradio's own that it has only in English, by its key.
GRADIOS = {"common.download_all": "Tout télécharger"}
# Texts that Gradio itself shows; # stands for a number.
CONTROLS = {
    "Close": "Fermer",
    "Fullscreen": "Plein écran",
    "Exit fullscreen mode": "Quitter le plein écran",
    "Thumbnail # of #": "Vignette # sur #",
    "Reset to default value": "Rétablir la valeur initiale",
}

ADVANCED = "Plus de réglages"
STYLE = "Style"
STYLES = {
    "(none)": "(aucun)",
    "Photograph": "Photographie",
    "Film still": "Image de film",
    "Watercolour": "Aquarelle",
    "Oil painting": "Peinture à l’huile",
    "Pencil sketch": "Dessin au crayon",
    "Ink and wash": "Encre et lavis",
    "Anime": "Anime",
    "Pixel art": "Pixel art",
    "Paper cut-out": "Papier découpé",
    "3D render": "Rendu 3D",
    "Flat": "En aplats",
    "Outlined": "Avec contours",
    "Soft": "Doux",
    "Glossy": "Brillant",
    "Sticker": "Autocollant",
    "Poster": "Affiche",
    "Chalkboard": "Tableau noir",
    "Sky": "Ciel",
    "Candy": "Bonbon",
    "Night": "Nuit",
}
NEGATIVE = "À éviter"
NEGATIVE_INFO = "Ce que les images ne doivent pas montrer."
GUIDANCE = "Fidélité au texte"
GUIDANCE_INFO = "À quel point suivre les mots."
GUIDANCE_UNTIL = "Fidélité jusqu’à"
GUIDANCE_UNTIL_INFO = (
    "La part des étapes qui suivent le texte. Moins, c’est plus rapide et moins fidèle."
)
STEPS = "Étapes"
STEPS_INFO = "Plus d’étapes, plus de détails, plus de temps."
SEED = "Graine"
SEED_INFO = "La même graine et les mêmes réglages donnent les mêmes images."
RANDOMISE = "Une nouvelle graine à chaque fois"
VARIATION_STRENGTH = "Force des variations"
VARIATION_STRENGTH_INFO = "Au-dessus de 0, les images s’écartent d’autant de celle de la graine."
VARIATION_SEED = "Graine des variations"
VARIATION_SEED_INFO = "Vers quoi tendent les variations, si elles ont une force."

COPY_SETTINGS = "Copier les réglages"
COPY_LINK = "Copier le lien"
DOWNLOAD = "Télécharger en"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
GONE = "Cette image n’est plus conservée."
TOO_LONG_FOR_JPEG = (
    "Les réglages sont trop longs pour un fichier JPEG. Les fichiers PNG et WebP les contiennent."
)
COPIED = "Copié"
USE_SETTINGS = "Reprendre ces réglages"
NEW_SEED = "Avec une nouvelle graine"
VARIATIONS = "Variations de celle-ci"
SHOW_ANYWAY = "Afficher quand même"
HIDE_AGAIN = "Masquer à nouveau"
TAKEN_OVER = "Les réglages sont en place. « Dessiner » les utilise."
LINK_NOT_USED = "Tout n’est pas utilisable dans ce lien."
SETTINGS = {
    "prompt": PROMPT,
    "negative_prompt": NEGATIVE,
    "seed": SEED,
    "variation_seed": VARIATION_SEED,
    "variation_strength": VARIATION_STRENGTH,
    "num_inference_steps": STEPS,
    "guidance_scale": GUIDANCE,
    "guidance_until": GUIDANCE_UNTIL,
    "sampler": "Méthode",
    "model": "Modèle",
}
SIZE = "Taille"

HISTORY = "Historique"
HISTORY_INFO = "Conservé dans ce navigateur seulement."
CLEAR_HISTORY = "Effacer l’historique"

RESTORE = "Restaurer à partir d’une image"
RESTORE_PICTURE = "Une image faite ici, ou par l’interface web d’AUTOMATIC1111"
RESTORE_TEXT = "Ou le texte qui l’accompagnait"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_PICTURE = "Cette image ne contient pas de réglages."
NO_SETTINGS_IN_TEXT = (
    "Aucun réglage n’a été trouvé. La dernière ligne devrait être : Steps: 25, Seed: 7, …"
)
UNREADABLE_SETTINGS = "Les réglages de cette image sont illisibles."
UNREADABLE_PICTURE = "Ce n’est pas une image lisible. Les fichiers PNG, JPEG et WebP le sont."
TOO_LARGE_A_PICTURE = "Cette image est trop grande pour être lue."

BLANK_PROMPT = "Décrivez d’abord l’image, s’il vous plaît."
FAILED = "Quelque chose a échoué. Veuillez réessayer."
AWAY = "En attente du retour de la connexion…"
LOST = "La connexion a été perdue, et la demande avec elle. Veuillez dessiner de nouveau."
NO_ROOM = (
    "Les images sont dessinées, mais ce serveur n’a plus de place pour elles. "
    "Veuillez réessayer plus tard."
)

_SAID = {
    said.CANCELLED: "Arrêté.",
    said.ABANDONED: "Plus personne n’attendait les images.",
    said.STOPPING: "Le serveur est en train de s’arrêter. Veuillez réessayer dans un instant.",
    said.REPLACED: "Le modèle de ces images a été remplacé entre-temps. Veuillez réessayer.",
    said.UNAVAILABLE: "Personne ne peut dessiner pour le moment. Veuillez réessayer plus tard.",
    said.OUT_OF_MEMORY: "La mémoire n’a pas suffi pour dessiner. Veuillez réessayer.",
    said.FAILED: "Quelque chose a échoué pendant le dessin. Veuillez réessayer.",
    said.BROKEN: FAILED,
    said.UNSCREENED: "Les images n’ont pas pu être vérifiées. Veuillez réessayer.",
    said.UNKNOWN: "Il n’y a pas, ou plus, de telle demande.",
    said.CROWDED: "Il y a trop de visiteurs en ce moment. Veuillez réessayer dans un instant.",
    said.TOO_MANY_CALLS: "Trop de connexions sont ouvertes depuis votre adresse. "
    "Fermez-en quelques-unes, puis réessayez.",
    said.DUPLICATE: "Il y a déjà une telle demande.",
}


def title(model: Model) -> str:
    """Return the page's title."""
    return f"{model.family} sur JAX"


def model_line(model: Model, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else model.name
    devices = hardware(model.device, model.num_devices)
    return f"{name} · {size(model.sizes[0])} pixels · sur {devices}"


def written(number: object) -> str:
    """Return a value as text, with numbers as this language writes them."""
    return with_comma(number)


def caption(prompt: str, seed: int, variation: int | None = None, blurred: bool = False) -> str:
    """Return a picture's caption, which screen readers read out as well."""
    remark = "" if variation is None else f", variation {variation}"
    remark += ", floutée par le filtre" if blurred else ""
    return f"Graine {seed}{remark} : {prompt}"


def unfinished(done: int, total: int) -> str:
    """Return the caption of a picture whose drawing was stopped."""
    return f"Inachevée : étape {done} sur {total}"


def progress(done: int, total: int, left_s: float | None) -> str:
    """Return the number of the step and, if known, the time left."""
    step = f"Étape {done} sur {total}"
    return f"{step}, encore {duration(left_s)} environ" if left_s else step


def waiting(position: int, wait_s: float | None) -> str:
    """Return the place in the queue and, if known, the time until the drawing begins."""
    place = "Vous êtes le prochain" if position == 1 else f"Numéro {position} dans la file"
    return place if wait_s is None else f"{place}, {duration(wait_s)} environ"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "C’est parti…" if attempt == 1 else f"On recommence, essai {attempt}…"


def finished(pictures: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    noun = "image" if pictures == 1 else "images"
    return f"{pictures} {noun}" + ("" if seconds is None else f" en {comma(f'{seconds:.1f}')} s")


def in_short(style: str, guidance_scale: float, steps: int, seed: int) -> str:
    """Return a request's settings in one line; an empty style is left out."""
    guidance = comma(f"{guidance_scale:g}")
    numbers = f"{SEED} {seed} · {STEPS} {steps} · {GUIDANCE} {guidance}"
    return f"{STYLES[style]} · {numbers}" if style else numbers


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field} : {_short(value)} n’est pas possible ici ; {comma(concise(used))} est utilisé."


def other_size(width: int | None, height: int | None, model: Model) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " ou ".join(map(size, model.sizes))
    return f"Cette image-là fait {width} × {height} pixels ; ici, c’est {here}."


def other_model(name: str, model: Model) -> str:
    """Return the note that another model drew a picture."""
    return f"Elle a été dessinée par {short(name)} ; ici, c’est {short(model.name)} qui dessine."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"De ses mots, les {limit} premiers caractères sont utilisés."


def length(tokens: int, limit: int) -> str:
    """Return the number of tokens in a prompt, and the model's limit."""
    return f"{tokens} jetons sur {limit}"


def too_many_lines(lines: int, limit: int) -> str:
    """Return the error for more prompts than a request can have pictures."""
    return (
        f"{PROMPT} : {lines} lignes, c’est trop ; au plus {limit} images sont dessinées ensemble."
    )


def truncated(left_out: str) -> str:
    """Return the warning that quotes the end of the prompt, which the model does not read."""
    return f"La description est plus longue que ce que le modèle peut lire. Omis : « {left_out} »"


def too_long(field: str, length: int, limit: int) -> str:
    """Return the error for a text over its limit."""
    return f"{field} : {length} caractères, c’est trop ; au plus {limit} sont possibles."


def not_text(field: str) -> str:
    """Return the error for a value that should be text and is not."""
    return f"{field} : il faut du texte."


def out_of_range(field: str, value: object, low: float, high: float) -> str:
    """Return the error for a value that is not a number or is out of range."""
    bounds = f"de {written(low)} à {written(high)}"
    return f"{field} : {_short(value)} n’est pas possible ; cela va {bounds}."


def not_whole(field: str, value: object, low: int, high: int) -> str:
    """Return the error for a value that is not a whole number or is out of range."""
    bounds = f"de {low} à {high}"
    return f"{field} : {_short(value)} n’est pas possible ; des nombres entiers {bounds} le sont."


def not_a_number(field: str, value: str) -> str:
    """Return the error for a text that cannot be read as a number."""
    return f"{field} : {_short(value)} n’est pas un nombre utilisable."


def unknown(field: str, value: object, known: list[str]) -> str:
    """Return the error for a value that is not one of the `known` ones."""
    return f"{field} : {_short(value)} est inconnu ; il y a {', '.join(known)}."


def problem(message: str, kind: ErrorKind, retry_after_s: float | None) -> str:
    """Return `serving`'s message about a request that was refused or ended early, translated."""
    if kind is ErrorKind.FULL:
        return f"La file est pleine. Veuillez réessayer {_soon(retry_after_s)}."
    if kind is ErrorKind.TOO_MANY:
        return f"Cela fait beaucoup de demandes. Veuillez réessayer {_soon(retry_after_s)}."
    if kind is ErrorKind.DEADLINE:
        return "Cela a duré trop longtemps. Veuillez réessayer plus tard."
    if kind is ErrorKind.BLOCKED:
        return f"« {quoted(message)} » n’est pas dessiné ici. Veuillez l’omettre."
    return _SAID.get(message, message)


def _soon(wait_s: float | None) -> str:
    return "dans un instant" if wait_s is None or wait_s < 2 else f"dans {duration(wait_s)} environ"


def _short(value: object) -> str:
    return "rien" if value is None else short(written(value))
