"""French."""

from pipeline.facts import Facts
from serving.messages import Code, concise, is_soon, short
from ui.i18n.numbers import comma, duration, hardware, size, with_comma
from ui.i18n.words import Words
from ui.model_kind import Kind

LANGUAGE = "fr"

MINIATURE = "Miniature fournie"
MINIATURE_LIMITS = (
    "Ce petit modèle ne dessine qu’une ou deux formes simples en couleurs unies. Même ainsi, il "
    "peut se tromper de couleur, de forme ou de position."
)
LIMITS = (
    "Les images sont générées par IA. Visages, mains, textes, nombres et positions sont souvent "
    "faux, et le modèle reproduit les biais de ses données d’entraînement."
)
LICENCE = "Licence du modèle"
OWN_LICENCE = "La licence figure sur la page du modèle."

PROMPT_LABEL = "Que voulez-vous voir ? (en anglais)"
GENERATE = "Générer"
STOP = "Arrêter"
LIVE = "En direct"
LIVE_INFO = "Dessine une ébauche à chaque pause de la frappe."
LIVE_PICTURE = "Image en direct"
LIVE_PAUSED = "« En direct » s’arrête tant qu’il y a une image."
EXAMPLES = "Exemples"
SURPRISE = "Surprenez-moi"
EMBED = "Enregistrer les réglages dans les images"
EMBED_INFO = "Toute personne ayant le fichier peut les lire."
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
    "Reset to default value": "Réinitialiser",
}

EXPERT = "Réglages experts"
PICTURE = "Image"
ADVANCED = "Avancé"
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

LOOKS = "Styles en plus"
SEARCH = "Rechercher"
NOT_FOUND = "Rien trouvé."
STRENGTH = "Intensité"
STRENGTHS = ("Aucune", "Légère", "Moyenne", "Pleine", "Forte")
TRIGGER_WORDS = "Appuyez sur un mot pour l’ajouter au prompt."

COPY_SETTINGS = "Copier les réglages"
COPY_LINK = "Copier le lien"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = "Les réglages sont trop longs pour le JPEG. Utilisez PNG ou WebP."
COPIED = "Copié"
USE_SETTINGS = "Utiliser ces réglages"
NEW_SEED = "Nouvelle graine"
VARIATIONS = "Varier"
LARGER = "Plus grande"
SHOW_ANYWAY = "Afficher quand même"
HIDE_AGAIN = "Masquer à nouveau"
REUSE = "Réutiliser"
SAVE = "Télécharger"
FINISH = "Terminer"
FINISH_INFO = "Redessine ces images depuis le début, jusqu’au bout."
DETAILS = "Détails"
PREVIOUS = "Image précédente"
NEXT = "Image suivante"
TAKEN_OVER = "Réglages chargés. Appuyez sur « Générer »."
LINK_NOT_USED = "Une partie du lien a été ignorée."
SETTINGS = {
    "prompt": Words("Prompt"),
    "negative_prompt": Words("Prompt négatif", "Ce qui ne doit pas apparaître."),
    "seed": Words("Graine", "Même graine et mêmes réglages : mêmes images."),
    "variation_seed": Words(
        "Graine de variation", "Choisit la variation si son intensité dépasse 0."
    ),
    "variation_strength": Words("Intensité de variation", "À quel point s’écarter de l’original."),
    "variation_of": Words(
        "Variations précédentes", "Graines et intensités ; le résultat est varié à son tour."
    ),
    "num_inference_steps": Words("Étapes", "Plus d’étapes : plus de détails, mais plus lent."),
    "guidance_scale": Words("Échelle CFG", "À quel point suivre le prompt."),
    "guidance_until": Words(
        "Arrêter le CFG à", "Plus bas : plus rapide, mais moins fidèle au prompt."
    ),
    "guidance_rescale": Words("Rééchelonnage CFG", "Plus haut : moins surexposé."),
    "cache_interval": Words(
        "Intervalle du cache d’étapes", "Plus haut : plus rapide, mais moins exact."
    ),
    "loras": Words("LoRA", "Styles et sujets ajoutés."),
    "scheduler": Words("Échantillonneur", "Comment le bruit devient une image."),
    "sigma_schedule": Words("Plan de bruit", "Comment les étapes sont réparties."),
    "timestep_spacing": Words("Espacement temporel", "Quels pas de temps sont utilisés."),
    "timesteps": Words(
        "Pas de temps", "Remplacent les étapes. Chacun est plus petit que le précédent."
    ),
    "eta": Words("Eta", "Part de bruit nouveau avec DDIM et TCD."),
    "decoder": Words("Décodeur", "« tiny » est plus rapide, mais moins détaillé."),
    "recipe": Words(
        "Qualité",
        "« Rapide » demande peu d’étapes, avec son échantillonneur et son échelle CFG.",
    ),
    "strength": Words("Force", "À quel point l’image est redessinée."),
    "padding": Words("Marge", "Pixels autour du masque, si seule la partie masquée est dessinée."),
    "prompt_syntax": Words(
        "Syntaxe du prompt", "Les poids comme (red:1.3) sont compris, sauf avec « plain »."
    ),
    "denoising_end": Words(
        "Le refiner prend le relais à", "De 0 à 1 ; 1 : le modèle de base seul."
    ),
    "enlarge": Words("Redessiner en taille", "Les images finies sont redessinées en plus grand."),
    "enlarge_strength": Words("Force de l’agrandissement", "À quel point elles sont redessinées."),
    "enlarge_steps": Words("Étapes de l’agrandissement", "La force décide combien sont faites."),
    "sampler": Words("Échantillonneur"),
    "schedule_type": Words("Plan de bruit"),
    "size": Words("Taille"),
    "model": Words("Modèle", "En charger un autre prend un moment."),
    "vae": Words("VAE"),
    "style": Words("Style"),
    "several": Words("Une image par ligne", "Chaque ligne du prompt donne une image."),
    "randomise": Words("Nouvelle graine à chaque fois"),
    "images": Words(GALLERY),
    "image": Words("Image de départ"),
    "mask": Words("Masque"),
}

HISTORY = "Historique"
HISTORY_INFO = "Conservé dans ce navigateur uniquement."
CLEAR_HISTORY = "Effacer l’historique"
HISTORY_CLEARED = "Historique effacé."
UNDO = "Annuler"

RESTORE_TEXT = "Ou collez des réglages en texte"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_TEXT = (
    "Aucun réglage trouvé. La dernière ligne doit ressembler à : Steps: 25, Seed: 7, …"
)
UNREADABLE_SETTINGS = "Les réglages de cette image sont illisibles. Collez-les sous forme de texte."
UNREADABLE_PICTURE = "Ce fichier est illisible. Utilisez PNG, JPEG ou WebP."
TOO_LARGE_A_PICTURE = "Cette image est trop grande. Utilisez-en une plus petite."

START_PICTURE = "Image de départ, ou dont reprendre les réglages"
TAKE_PICTURE = "Prendre une photo"
USE_PICTURE = "Partir de celle-ci"  # of a picture that was drawn
REMOVE_PICTURE = "Retirer l’image"
PICTURE_NEEDED = (
    "Elle est partie d’une autre image, que les réglages ne contiennent pas. "
    "Choisissez-la sous « + Image »."
)
MASK_FIRST = (
    "Ce modèle redessine une partie d’une image : choisissez-en une ici, puis marquez ce "
    "qui doit changer."
)
START = {
    "least": "presque tout garder",
    "most": "presque tout changer",
    "mark": "Marquer une partie",
    "remove": "Retirer",
    "cut": "Les bords assombris sont coupés.",
    "redrawn": (
        "Les parties marquées et ajoutées sont entièrement redessinées, "
        "sauf si vous choisissez moins."
    ),
    "only": "Redessiner la partie marquée en pleine résolution",
    "extend": "Étendre l’image",
    "top": "Haut",
    "left": "Gauche",
    "right": "Droite",
    "bottom": "Bas",
    "editor": "Marquez la partie à changer",
    "marked": "Les zones marquées sont redessinées.",
    "draw": "Dessiner",
    "erase": "Gommer",
    "brush": "Pinceau",
    "clear": "Vider",
    "invert": "Inverser",
    "numbers": "Rectangle avec des nombres",
    "width": "Largeur",
    "height": "Hauteur",
    "add": "Ajouter",
    "cancel": "Annuler",
    "done": "Terminé",
    "compare": "Avant et après",
    "before": "Avant",
    "after": "Après",
}

NEXT_PROMPT = "Ensuite :"  # before a prompt that waits for its turn
RESTORE_ITS_SETTINGS = "Reprendre les réglages de l’image"
LOOKS_LIKE_SETTINGS = "Cela ressemble à des réglages."
USE_THEM = "Les utiliser"

AWAY = "Connexion perdue. Reconnexion…"
LOST = "La connexion a été perdue, et votre demande avec elle. Appuyez de nouveau sur « Générer »."
END_LEFT_OUT = "La fin du prompt a été ignorée."
NOTHING = "rien"  # a value that is missing
OWN_VAE = "celui du modèle"

MESSAGES = {
    Code.UNTRANSLATED: "{text}",
    Code.CANCELLED: "Arrêté.",
    Code.ABANDONED: "Arrêté, car la page était fermée.",
    Code.STOPPING: "Le serveur s’arrête. Réessayez dans un instant.",
    Code.UNAVAILABLE: "Impossible de générer pour l’instant. Réessayez plus tard.",
    Code.REPLACED: "Le modèle a changé. Réessayez.",
    Code.OUT_OF_MEMORY: "Mémoire insuffisante. Réessayez.",
    Code.FAILED: "Une erreur s’est produite pendant la génération. Réessayez.",
    Code.BROKEN: "Une erreur s’est produite. Réessayez.",
    Code.UNSCREENED: "Les images n’ont pas pu être vérifiées. Réessayez.",
    Code.NOT_FINITE: (
        "Aucune image : les nombres sont devenus trop grands. Baissez l’intensité des LoRA."
    ),
    Code.LOOP: (
        "Cette instance transmet les demandes ; "
        "BACKEND_URLS doit indiquer des instances qui génèrent."
    ),
    Code.UNKNOWN_REQUEST: "Cette demande n’existe pas, ou plus.",
    Code.DUPLICATE: "Cette demande existe déjà.",
    Code.FULL: "La file d’attente est pleine. Réessayez {wait_s}.",
    Code.TOO_MANY_REQUESTS: "Trop de demandes. Réessayez {wait_s}.",
    Code.NOT_STARTED: "Votre tour n’est pas venu à temps. Réessayez plus tard.",
    Code.NOT_FINISHED: "Les images n’étaient pas prêtes à temps. Réessayez plus tard.",
    Code.NO_ROOM: "Le serveur n’a plus de place pour les images. Réessayez plus tard.",
    Code.PICTURE_GONE: "Cette image n’existe pas, ou plus.",
    Code.CROWDED: "Il y a trop de monde. Réessayez dans un instant.",
    Code.TOO_MANY_CONNECTIONS: (
        "Trop de connexions sont ouvertes depuis votre adresse. "
        "Fermez-en quelques-unes, puis réessayez."
    ),
    Code.TOO_MANY_PAGES: (
        "Trop de pages sont ouvertes depuis votre adresse. Fermez-en quelques-unes, puis réessayez."
    ),
    Code.TOO_MANY_CALLS: "Trop de vos appels sont encore sans réponse. Attendez les réponses.",
    Code.TOO_LARGE: "C’est trop volumineux. Le maximum est de {kib} Kio.",
    Code.TOO_MANY_UPLOADS: "Trop de fichiers sont en cours d’envoi. Réessayez dans un instant.",
    Code.UPLOAD_TOO_SLOW: "Le fichier n’est pas arrivé à temps. Réessayez.",
    Code.NO_ROOM_FOR_UPLOADS: (
        "Le serveur n’a pas de place pour les fichiers. Réessayez plus tard."
    ),
    Code.NO_FILE: "Le formulaire ne contient pas de fichier nommé « files ».",
    Code.KEY_NEEDED: "Une clé d’API valide est nécessaire : « Authorization: Bearer KEY ».",
    Code.WRONG_HOST: (
        "Ce serveur ne répond pas sous ce nom. Son administrateur peut l’ajouter à ALLOWED_HOSTS."
    ),
    Code.WRONG_ORIGIN: (
        "Les pages d’autres origines ne peuvent pas envoyer ceci. "
        "L’administrateur peut ajouter leur origine à CORS_ORIGINS."
    ),
    Code.WRONG_PATH: "Il n’y a rien à cette adresse.",
    Code.TWO_LENGTHS: "Envoyez Content-Length ou Transfer-Encoding, mais pas les deux.",
    Code.BLOCKED: "« {word} » n’est pas autorisé ici. Retirez-le du prompt.",
    Code.BLANK_PROMPT: "Saisissez d’abord un prompt.",
    Code.TOO_LONG: "{field} : {length} caractères, c’est trop. Le maximum est de {limit}.",
    Code.NOT_TEXT: "{field} : saisissez du texte.",
    Code.NOT_A_NUMBER: "{field} : {value} n’est pas un nombre valide.",
    Code.UNREADABLE: "{field} : {value} est illisible. Écrivez par exemple {example}.",
    Code.OUT_OF_RANGE: "{field} : choisissez de {low} à {high}.",
    Code.NOT_WHOLE: "{field} : {value} n’est pas un nombre entier. Choisissez de {low} à {high}.",
    Code.UNKNOWN_CHOICE: "{field} : {value} est inconnu. Choisissez parmi {choices}.",
    Code.MISSING_RECIPE: "{field} : {value} demande un LoRA qui n’est pas ici.",
    Code.MISSING_REFINER: "{field} : il n’y a pas de refiner ici.",
    Code.NO_STEP_CACHE: "{field} : il n’y a pas de cache d’étapes ici.",
    Code.UNFIT_SCHEDULER: "{field} : {value} ne convient pas à ce modèle : {reason}",
    Code.NOT_TIMESTEPS: (
        "{field} : {value} ne convient pas. Écrivez jusqu’à {limit} nombres décroissants "
        "de {low} à {high}, par exemple {example}."
    ),
    Code.NOT_WITH: (
        "{field} : {value} ne va pas avec {its}. Retirez-le ou choisissez pour {other} : {choices}."
    ),
    Code.ONE_OF_TWO: "{field} et {other} ne vont pas ensemble. Retirez l’un des deux.",
    Code.NOT_READY: "{field} : {value} n’est pas encore prêt. Choisissez parmi {choices}.",
    Code.WRONG_COUNT: (
        "{field} : {count} textes pour {images} images. Il en faut un, ou un par image."
    ),
    Code.TOO_MANY_LINES: "{lines} lignes, c’est trop. Le maximum est de {limit}.",
    Code.UNKNOWN_LORA: "Le LoRA {value} n’est pas ici. Il a été cherché dans LORA_DIR.",
    Code.DOUBLED_LORA: "Plusieurs fichiers de LORA_DIR s’appellent {value} : {files}",
    Code.UNUSABLE_LORA: "Le LoRA {value} ne convient pas à ce modèle.",
    Code.UNUSABLE_MODEL: "Le modèle {value} ne convient pas ici : {reason}",
    Code.UNREADABLE_MODEL: (
        "Le modèle {value} est illisible pour le moment. Choisissez-en un autre, ou réessayez plus "
        "tard."
    ),
    Code.TOO_MANY_LORAS: "{count} LoRA, c’est trop. Le maximum est de {limit}.",
    Code.TOO_MANY_TEXTS: (
        "Le prompt change trop souvent. Il peut avoir {limit} textes différents : "
        "moins de [a:b:5] et [a|b]."
    ),
    Code.TOO_LONG_FOR_FORMAT: "{field} : {value} n’a pas de place pour un prompt aussi long.",
    Code.NOT_LIVE: "Les images en direct sont trop lentes ici, ou désactivées.",
    Code.TOO_LARGE_FOR_URLS: (
        "{field} : ces images sont trop grandes pour « url ». Utilisez « b64_json »."
    ),
    Code.UNUSABLE_PICTURE: (
        "{field} : cette image est inutilisable ({reason}). Utilisez PNG, JPEG ou WebP."
    ),
    Code.MASK_SIZE: "{field} : {value} pixels ne correspondent pas à l’image, qui en a {expected}.",
    Code.EMPTY_MASK: "{field} : aucune partie de l’image n’est marquée.",
    Code.MASK_NEEDED: "{field} manque. Ce modèle ne redessine que des parties marquées d’images.",
    Code.IMAGE_NEEDED: "{field} manque. Ce modèle ne fait que redessiner des images.",
    Code.WITHOUT: "{field} ne va qu’avec {other}.",
    Code.INPUT_GONE: "L’image de départ n’est plus conservée. Envoyez-la de nouveau.",
}


def title(facts: Facts) -> str:
    """Return the page's title."""
    return f"{facts.family} sur JAX"


def model_line(facts: Facts, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else facts.name
    devices = hardware(facts)
    return f"{name} · {size(facts.sizes[0])} pixels · sur {devices}"


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
    return "Démarrage…" if attempt == 1 else f"Nouvel essai ({attempt})…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 image" if count == 1 else f"{count} images"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" en {comma(f'{seconds:.1f}')} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field} : {_short(value)} est impossible ici, remplacé par {comma(concise(used))}."


def other_size(width: int | None, height: int | None, facts: Facts) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " ou ".join(map(size, facts.sizes))
    return f"L’image fait {width} × {height}, mais la taille ici est {here}."


def other_model(name: str, facts: Facts) -> str:
    """Return the note that another model drew a picture."""
    return f"L’image a été faite avec {short(name)}. Ici, c’est {short(facts.name)}."


def other_vae(name: str | None, facts: Facts) -> str:
    """Return the note that a picture was decoded with another VAE; None is the model's own."""
    was, here = short(name or OWN_VAE), short(facts.vae or OWN_VAE)
    return f"Le VAE de l’image était {was}. Ici, c’est {here}."


BEST = "Meilleure"  # the choice of quality without a recipe


def quick(steps: int, title: str) -> str:
    """Return the choice of a recipe that draws in few steps; `title` names its method."""
    return f"Rapide, {steps} étape{'s' * (steps > 1)} ({title})"


def automatic(own: str) -> str:
    """Return the choice that leaves a setting to the model; `own` is the model's, "" if unknown."""
    return f"Automatique ({own})" if own else "Automatique"


def other_sampler(name: str, used: str) -> str:
    """Return the note that a sampler is not available here, and which one is used."""
    return f"L’échantillonneur {_short(name)} n’est pas disponible ici ; {used} est utilisé."


def looks_full(limit: int) -> str:
    """Return the note that no more looks can be chosen."""
    return f"{limit} au maximum."


def missing_loras(missing: list[str]) -> str:
    """Return the note that LoRAs are not there."""
    return f"Introuvable : {', '.join(map(_short, missing))}. Recherche dans LORA_DIR."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Seuls les {limit} premiers caractères du prompt sont utilisés."


def length(tokens: int, limit: int, chunks: int = 1) -> str:
    """Return the number of tokens in a prompt, the model's limit, and the chunks if several."""
    return (
        f"{tokens} tokens sur {limit}, {chunks} segments"
        if chunks > 1
        else f"{tokens} tokens sur {limit}"
    )


def too_long(limit: int) -> str:
    """Return the warning that a prompt has more tokens than the model reads."""
    return f"Trop long : seuls les {limit} premiers tokens comptent"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the part of the prompt that the model does not read."""
    return f"Ignoré : « {left_out} »"


def read_as(parts: list[str]) -> str:
    """Return how a prompt is read; `parts` tell of its weights, changes, LoRAs and lists."""
    return f"Lu comme : {' · '.join(parts)}"


def unknown(words: str, more: int) -> str:
    """Return the words of a prompt that the model does not know, and how many more there are."""
    return f"Ce modèle ne connaît pas : {words}" + (f" et {more} autres" if more else "")


def in_steps(first: int, last: int, words: str) -> str:
    """Return the words that a prompt has from one step to another."""
    steps = f"étape {first}" if first == last else f"étapes {first}–{last}"
    return f"{steps} : {words}"


def in_turn(texts: list[str]) -> str:
    """Return the words that take turns in a prompt."""
    return f"à tour de rôle : {', '.join(texts)}"


def sections(count: int) -> str:
    """Return the number of parts into which BREAK divides a prompt."""
    return f"{count} parties"


def one_of(options: str, count: int) -> str:
    """Return the list in a prompt from which the seed chooses so many options."""
    return f"{'une' if count == 1 else count} parmi : {options}"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return (
        "dans un instant"
        if wait_s is None or is_soon(wait_s)
        else f"dans {duration(wait_s)} environ"
    )


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
