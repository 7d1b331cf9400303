"""French."""

from serving.generator import Model
from serving.messages import Code, concise, is_soon, short
from ui.i18n.numbers import comma, duration, hardware, size, with_comma
from ui.i18n.words import Words
from ui.model_kind import Kind

LANGUAGE = "fr"

MINIATURE = "Miniature fournie"
MINIATURE_LIMITS = (
    "Cette miniature dessine une ou deux formes simples en couleurs unies, et rien d’autre. Même "
    "ainsi, elle peut se tromper de couleur, de forme ou de position."
)
LIMITS = (
    "Les images sont inventées. Visages, mains, lettres, nombres et positions sont souvent faux, "
    "et le modèle reproduit les biais des images de son entraînement."
)
LICENCE = "Licence du modèle"
OWN_LICENCE = "La licence figure sur la page du modèle."

PROMPT_LABEL = "Que voulez-vous voir ? (en anglais)"
GENERATE = "Dessiner"
STOP = "Arrêter"
EXAMPLES = "Essayez un exemple"
SURPRISE = "Surprenez-moi"
EMBED = "Enregistrer les réglages dans les fichiers"
EMBED_INFO = "Quiconque a un fichier peut les lire."
GALLERY = "Images"
PREVIEWS = "Aperçu des images"
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

EXPERT = "Réglages experts"
PICTURE = "Image"
RANDOM_SEED = "Graine aléatoire"
ADVANCED = "Plus de réglages"
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

COPY_SETTINGS = "Copier les réglages"
COPY_LINK = "Copier le lien"
DOWNLOAD = "Télécharger en"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = "Les réglages sont trop longs pour un fichier JPEG. Choisissez PNG ou WebP."
COPIED = "Copié"
USE_SETTINGS = "Utiliser ces réglages"
NEW_SEED = "Refaire avec une nouvelle graine"
VARIATIONS = "Dessiner des variations"
SHOW_ANYWAY = "Afficher quand même"
HIDE_AGAIN = "Masquer à nouveau"
TAKEN_OVER = "Les réglages sont remplis. Appuyez sur « Dessiner » pour les utiliser."
LINK_NOT_USED = "Certaines parties du lien sont inutilisables."
SETTINGS = {
    "prompt": Words("Description"),
    "negative_prompt": Words("À éviter", "Ce que les images ne doivent pas montrer."),
    "seed": Words("Graine", "La même graine et les mêmes réglages donnent les mêmes images."),
    "variation_seed": Words(
        "Graine des variations", "Choisit la variation, si sa force est supérieure à 0."
    ),
    "variation_strength": Words(
        "Force des variations",
        "Au-dessus de 0, les images sont des variations de celle de la graine ; "
        "plus c’est haut, plus elles diffèrent.",
    ),
    "variation_of": Words(
        "Variations précédentes", "Graines et intensités ; le résultat est varié à son tour."
    ),
    "num_inference_steps": Words(
        "Étapes", "Plus d’étapes donnent plus de détails et prennent plus de temps."
    ),
    "guidance_scale": Words("Fidélité au texte", "À quel point les images suivent la description."),
    "guidance_until": Words(
        "Fidélité jusqu’à",
        "Part des étapes avec fidélité. "
        "Moins, c’est plus rapide, mais moins proche de la description.",
    ),
    "sampler": Words("Méthode"),
    "size": Words("Taille"),
    "model": Words("Modèle"),
    "style": Words("Style"),
    "several": Words(
        "Une image par ligne", "Chaque ligne de la description donne une image à part."
    ),
    "randomise": Words("Nouvelle graine à chaque fois"),
    "images": Words(GALLERY),
}

HISTORY = "Historique"
HISTORY_INFO = "Conservé uniquement dans ce navigateur."
CLEAR_HISTORY = "Effacer l’historique"

RESTORE_PICTURE = "Une image de cette page ou de l’interface web d’AUTOMATIC1111"
RESTORE_TEXT = "Ou ses réglages sous forme de texte"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_PICTURE = "Cette image ne contient pas de réglages."
NO_SETTINGS_IN_TEXT = (
    "Aucun réglage n’a été trouvé. La dernière ligne devrait ressembler à ceci : Steps: 25, Seed:"
    " 7, …"
)
UNREADABLE_SETTINGS = "Les réglages de cette image sont illisibles."
UNREADABLE_PICTURE = "Ce fichier n’est pas lisible comme image. Utilisez PNG, JPEG ou WebP."
TOO_LARGE_A_PICTURE = "Cette image est trop grande."

AWAY = "En attente du retour de la connexion…"
LOST = "La connexion a été perdue, et votre demande avec elle. Veuillez dessiner de nouveau."
NOTHING = "rien"  # a value that is missing

MESSAGES = {
    Code.UNTRANSLATED: "{text}",
    Code.CANCELLED: "Arrêté.",
    Code.ABANDONED: "Le dessin a été arrêté, car la page était fermée.",
    Code.STOPPING: "Le serveur est en train de s’arrêter. Veuillez réessayer dans un instant.",
    Code.UNAVAILABLE: "Il est impossible de dessiner pour l’instant. Veuillez réessayer plus tard.",
    Code.REPLACED: "Le modèle a été remplacé entre-temps. Veuillez réessayer.",
    Code.OUT_OF_MEMORY: "La mémoire n’a pas suffi pour dessiner. Veuillez réessayer.",
    Code.FAILED: "Une erreur s’est produite pendant le dessin. Veuillez réessayer.",
    Code.BROKEN: "Une erreur s’est produite. Veuillez réessayer.",
    Code.UNSCREENED: "Les images n’ont pas pu être vérifiées. Veuillez réessayer.",
    Code.LOOP: (
        "Cette instance transmet les demandes ; "
        "BACKEND_URLS doit indiquer des instances qui dessinent."
    ),
    Code.UNKNOWN_REQUEST: "Cette demande n’existe pas, ou n’est plus conservée.",
    Code.DUPLICATE: "Cette demande existe déjà.",
    Code.FULL: "La file d’attente est pleine. Veuillez réessayer {wait_s}.",
    Code.TOO_MANY_REQUESTS: "Vous avez envoyé trop de demandes. Veuillez réessayer {wait_s}.",
    Code.NOT_STARTED: "Votre tour n’est pas venu à temps. Veuillez réessayer plus tard.",
    Code.NOT_FINISHED: (
        "Les images n’ont pas été terminées à temps. Veuillez réessayer plus tard."
    ),
    Code.NO_ROOM: (
        "Les images sont dessinées, mais le serveur n’a plus de place pour les conserver. "
        "Veuillez réessayer plus tard."
    ),
    Code.PICTURE_GONE: "Cette image n’existe pas, ou n’est plus conservée.",
    Code.CROWDED: "Il y a trop de visiteurs en ce moment. Veuillez réessayer dans un instant.",
    Code.TOO_MANY_CONNECTIONS: (
        "Trop de connexions sont ouvertes depuis votre adresse. "
        "Fermez-en quelques-unes, puis réessayez."
    ),
    Code.TOO_MANY_PAGES: (
        "Trop de pages sont ouvertes depuis votre adresse. Fermez-en quelques-unes, puis réessayez."
    ),
    Code.TOO_MANY_CALLS: (
        "Trop de vos appels sont encore sans réponse. Veuillez attendre les réponses."
    ),
    Code.TOO_LARGE: "C’est trop volumineux pour être envoyé : le maximum est de {kib} Kio.",
    Code.TOO_MANY_UPLOADS: (
        "Trop de fichiers sont en cours d’envoi. Veuillez réessayer dans un instant."
    ),
    Code.UPLOAD_TOO_SLOW: "Le fichier n’est pas arrivé à temps. Veuillez réessayer.",
    Code.NO_ROOM_FOR_UPLOADS: (
        "Le serveur n’a pas de place pour les fichiers. Veuillez réessayer plus tard."
    ),
    Code.NO_FILE: "Le formulaire ne contient pas de fichier nommé « files ».",
    Code.KEY_NEEDED: (
        "Une clé d’API valide est nécessaire, sous la forme « Authorization: Bearer KEY »."
    ),
    Code.WRONG_HOST: (
        "Ce serveur ne répond pas sous le nom demandé. "
        "Son administrateur peut ajouter ce nom à ALLOWED_HOSTS."
    ),
    Code.WRONG_ORIGIN: (
        "Les pages d’autres origines ne peuvent pas envoyer ceci. "
        "L’administrateur de ce serveur peut ajouter leur origine à CORS_ORIGINS."
    ),
    Code.WRONG_PATH: "Il n’y a rien à cette adresse.",
    Code.TWO_LENGTHS: "Envoyez Content-Length ou Transfer-Encoding, mais pas les deux.",
    Code.BLOCKED: "« {word} » n’est pas dessiné ici. Veuillez le retirer de la description.",
    Code.BLANK_PROMPT: "Veuillez d’abord décrire l’image.",
    Code.TOO_LONG: "{field} : {length} caractères, c’est trop ; le maximum est de {limit}.",
    Code.NOT_TEXT: "{field} : veuillez saisir du texte.",
    Code.NOT_A_NUMBER: "{field} : {value} n’est pas un nombre valide.",
    Code.UNREADABLE: "{field} : {value} est illisible. Écrivez par exemple {example}.",
    Code.OUT_OF_RANGE: (
        "{field} : {value} n’est pas possible ; choisissez une valeur de {low} à {high}."
    ),
    Code.NOT_WHOLE: (
        "{field} : {value} n’est pas possible ; choisissez un nombre entier de {low} à {high}."
    ),
    Code.UNKNOWN_CHOICE: "{field} : {value} est inconnu ; choisissez parmi {choices}.",
    Code.NOT_READY: "{field} : {value} n’est pas encore prêt ; choisissez parmi {choices}.",
    Code.WRONG_COUNT: (
        "{field} : {count} textes pour {images} images ; il en faut un, ou un par image."
    ),
    Code.TOO_MANY_LINES: (
        "{lines} lignes, c’est trop ; au plus {limit} images sont dessinées à la fois."
    ),
    Code.TOO_LONG_FOR_FORMAT: (
        "{field} : un fichier {value} n’a pas de place pour des descriptions aussi longues."
    ),
    Code.TOO_LARGE_FOR_URLS: (
        "{field} : ces images sont trop grandes pour « url » ; utilisez « b64_json »."
    ),
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
    remark += ", floutée par le filtre de sécurité" if blurred else ""
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
    place = "Vous êtes le suivant" if position == 1 else f"Numéro {position} dans la file"
    return place if wait_s is None else f"{place}, {duration(wait_s)} environ"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "Le dessin commence…" if attempt == 1 else f"Le dessin recommence, essai {attempt}…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 image" if count == 1 else f"{count} images"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" en {comma(f'{seconds:.1f}')} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    instead = f"{comma(concise(used))} est utilisé à la place."
    return f"{field} : {_short(value)} n’est pas possible ici ; {instead}"


def other_size(width: int | None, height: int | None, model: Model) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " ou ".join(map(size, model.sizes))
    return f"L’image fait {width} × {height} pixels ; ici, les images font {here}."


def other_model(name: str, model: Model) -> str:
    """Return the note that another model drew a picture."""
    return f"L’image a été dessinée par {short(name)} ; ici, {short(model.name)} dessine."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Seuls les {limit} premiers caractères d’une description sont utilisés."


def length(tokens: int, limit: int) -> str:
    """Return the number of tokens in a prompt, and the model's limit."""
    return f"{tokens} jetons sur {limit}"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the end of the prompt, which the model does not read."""
    return f"La description est plus longue que ce que le modèle peut lire. Non lu : « {left_out} »"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return (
        "dans un instant"
        if wait_s is None or is_soon(wait_s)
        else f"dans {duration(wait_s)} environ"
    )


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
