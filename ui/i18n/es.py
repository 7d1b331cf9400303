"""Spanish."""

from pipeline.facts import Facts
from serving.messages import Code, concise, is_soon, short
from ui.i18n.numbers import comma, duration, hardware, size, with_comma
from ui.i18n.words import Words
from ui.model_kind import Kind

LANGUAGE = "es"

MINIATURE = "Miniatura incluida"
MINIATURE_LIMITS = (
    "Este modelo pequeño solo dibuja una o dos formas sencillas en colores planos. Aun así, puede "
    "equivocarse de color, de forma o de posición."
)
LIMITS = (
    "Las imágenes están hechas con IA. Caras, manos, textos, cantidades y posiciones suelen ser "
    "erróneos, y el modelo repite los sesgos de sus datos de entrenamiento."
)
LICENCE = "Licencia del modelo"
OWN_LICENCE = "La licencia figura en la página del modelo."

PROMPT_LABEL = "¿Qué quiere ver? (en inglés)"
GENERATE = "Generar"
STOP = "Detener"
LIVE = "En directo"
LIVE_INFO = "Dibuja un boceto en cada pausa al escribir."
LIVE_PICTURE = "Imagen en directo"
LIVE_PAUSED = "«En directo» no funciona con una imagen."
EXAMPLES = "Ejemplos"
SURPRISE = "Sorpréndame"
EMBED = "Guardar los ajustes en las imágenes"
EMBED_INFO = "Quien tenga el archivo puede leerlos."
GALLERY = "Imágenes"
PREVIEWS = "Vista previa de las imágenes"
# Texts of Gradio's own that it has only in English, by its key.
GRADIOS = {"common.download_all": "Descargar todo"}
# Texts that Gradio itself shows; # stands for a number.
CONTROLS = {
    "Close": "Cerrar",
    "Fullscreen": "Pantalla completa",
    "Exit fullscreen mode": "Salir de la pantalla completa",
    "Thumbnail # of #": "Miniatura # de #",
    "Reset to default value": "Restablecer",
}

EXPERT = "Experto"
PICTURE = "Imagen"
ADVANCED = "Avanzado"
STYLES = {
    "(none)": "(ninguno)",
    "Photograph": "Fotografía",
    "Film still": "Fotograma",
    "Watercolour": "Acuarela",
    "Oil painting": "Óleo",
    "Pencil sketch": "Boceto a lápiz",
    "Ink and wash": "Tinta y aguada",
    "Anime": "Anime",
    "Pixel art": "Pixel art",
    "Paper cut-out": "Papel recortado",
    "3D render": "Render 3D",
    "Flat": "Plano",
    "Outlined": "Con contornos",
    "Soft": "Suave",
    "Glossy": "Brillante",
    "Sticker": "Pegatina",
    "Poster": "Cartel",
    "Chalkboard": "Pizarra",
    "Sky": "Cielo",
    "Candy": "Caramelo",
    "Night": "Noche",
}

LOOKS = "Estilos extra"
SEARCH = "Buscar"
NOT_FOUND = "No se encontró nada."
STRENGTH = "Intensidad"
STRENGTHS = ("Nada", "Sutil", "Media", "Plena", "Fuerte")
TRIGGER_WORDS = "Pulse una palabra para añadirla al prompt."

COPY_SETTINGS = "Copiar los ajustes"
COPY_LINK = "Copiar el enlace"
KINDS = {"png": "PNG", "jpg": "JPEG", "webp": "WebP"}
TOO_LONG_FOR_JPEG = "Los ajustes son demasiado largos para JPEG. Use PNG o WebP."
COPIED = "Copiado"
USE_SETTINGS = "Usar estos ajustes"
NEW_SEED = "Nueva semilla"
VARIATIONS = "Variar"
LARGER = "Más grande"
SHOW_ANYWAY = "Mostrar de todos modos"
HIDE_AGAIN = "Volver a ocultar"
REUSE = "Reutilizar"
SAVE = "Descargar"
FINISH = "Terminar"
FINISH_INFO = "Vuelve a dibujar estas imágenes desde el principio hasta el final."
DETAILS = "Detalles"
PREVIOUS = "Imagen anterior"
NEXT = "Imagen siguiente"
TAKEN_OVER = "Ajustes cargados. Pulse «Generar»."
LINK_NOT_USED = "Se ignoró una parte del enlace."
SETTINGS = {
    "prompt": Words("Prompt"),
    "negative_prompt": Words("Prompt negativo", "Lo que no debe aparecer."),
    "seed": Words("Semilla", "Misma semilla y mismos ajustes: mismas imágenes."),
    "variation_seed": Words(
        "Semilla de variación", "Elige la variación si su intensidad es mayor que 0."
    ),
    "variation_strength": Words("Intensidad de variación", "Cuánto se aparta del original."),
    "variation_of": Words(
        "Variaciones anteriores", "Semillas e intensidades; se varía el resultado."
    ),
    "num_inference_steps": Words("Pasos", "Más pasos: más detalle, pero más lento."),
    "guidance_scale": Words("Escala CFG", "Con qué exactitud se sigue el prompt."),
    "guidance_until": Words("Detener CFG en", "Más bajo: más rápido, pero menos fiel al prompt."),
    "guidance_rescale": Words("Reescalado CFG", "Más alto: menos sobreexpuesto."),
    "cache_interval": Words(
        "Intervalo de la caché de pasos", "Más alto: más rápido, pero menos exacto."
    ),
    "loras": Words("LoRA", "Estilos y motivos añadidos."),
    "scheduler": Words("Muestreador", "Cómo el ruido se convierte en imagen."),
    "sigma_schedule": Words("Plan de ruido", "Cómo se reparten los pasos."),
    "timestep_spacing": Words("Espaciado temporal", "Qué instantes se usan."),
    "timesteps": Words("Instantes", "Sustituyen a los pasos. Cada uno es menor que el anterior."),
    "eta": Words("Eta", "Proporción de ruido nuevo en DDIM y TCD."),
    "decoder": Words("Decodificador", "«tiny» es más rápido, pero menos detallado."),
    "recipe": Words(
        "Calidad", "«Rápida» usa pocos pasos, con su propio muestreador y su propia escala CFG."
    ),
    "strength": Words("Intensidad", "Cuánto se redibuja la imagen."),
    "padding": Words(
        "Margen", "Píxeles alrededor de la máscara, si solo se dibuja la parte enmascarada."
    ),
    "prompt_syntax": Words(
        "Sintaxis del prompt", "Se entienden pesos como (red:1.3), salvo con «plain»."
    ),
    "denoising_end": Words("El refiner continúa en", "De 0 a 1; 1: solo el modelo base."),
    "enlarge": Words("Redibujar en", "Las imágenes terminadas se redibujan más grandes."),
    "enlarge_strength": Words("Intensidad al ampliar", "Cuánto se redibujan."),
    "enlarge_steps": Words("Pasos al ampliar", "La intensidad decide cuántos son."),
    "sampler": Words("Muestreador"),
    "schedule_type": Words("Plan de ruido"),
    "size": Words("Tamaño"),
    "model": Words("Modelo", "Cargar otro tarda un momento."),
    "vae": Words("VAE"),
    "style": Words("Estilo"),
    "several": Words("Una imagen por línea", "Cada línea del prompt da una imagen."),
    "randomise": Words("Semilla nueva cada vez"),
    "images": Words(GALLERY),
    "image": Words("Imagen de partida"),
    "mask": Words("Máscara"),
}

HISTORY = "Historial"
HISTORY_INFO = "Se guarda solo en este navegador."
CLEAR_HISTORY = "Borrar el historial"
HISTORY_CLEARED = "Historial borrado."
UNDO = "Deshacer"

RESTORE_TEXT = "O pegue los ajustes como texto"
RESTORE_HINT = "a large red star\nSteps: 25, CFG scale: 5, Seed: 7"
NO_SETTINGS_IN_TEXT = (
    "No se encontraron ajustes. La última línea debe ser así: Steps: 25, Seed: 7, …"
)
UNREADABLE_SETTINGS = "No se pueden leer los ajustes de esta imagen. Péguelos como texto."
UNREADABLE_PICTURE = "No se puede leer este archivo. Use PNG, JPEG o WebP."
TOO_LARGE_A_PICTURE = "Esta imagen es demasiado grande. Use una más pequeña."

START_PICTURE = "Imagen de partida, o de la que tomar los ajustes"
TAKE_PICTURE = "Hacer una foto"
USE_PICTURE = "Partir de esta"  # of a picture that was drawn
REMOVE_PICTURE = "Quitar la imagen"
PICTURE_NEEDED = "Empezó con otra imagen, que los ajustes no incluyen. Elíjala en «+ Imagen»."
MASK_FIRST = (
    "Este modelo redibuja una parte de una imagen: elija una aquí y marque lo que debe cambiar."
)
START = {
    "least": "conservar casi todo",
    "most": "cambiar casi todo",
    "mark": "Marcar una parte",
    "remove": "Quitar",
    "cut": "Los bordes oscurecidos se recortan.",
    "redrawn": "Las partes marcadas y añadidas se redibujan por completo, salvo que elija menos.",
    "only": "Redibujar la parte marcada a plena resolución",
    "extend": "Extender la imagen",
    "top": "Arriba",
    "left": "Izquierda",
    "right": "Derecha",
    "bottom": "Abajo",
    "editor": "Marque la parte que debe cambiar",
    "marked": "Las zonas marcadas se redibujan.",
    "draw": "Dibujar",
    "erase": "Borrar",
    "brush": "Pincel",
    "clear": "Vaciar",
    "invert": "Invertir",
    "numbers": "Rectángulo con números",
    "width": "Ancho",
    "height": "Alto",
    "add": "Añadir",
    "cancel": "Cancelar",
    "done": "Listo",
    "compare": "Antes y después",
    "before": "Antes",
    "after": "Después",
}

NEXT_PROMPT = "A continuación:"  # before a prompt that waits for its turn
RESTORE_ITS_SETTINGS = "Recuperar los ajustes de la imagen"
LOOKS_LIKE_SETTINGS = "Esto parece una lista de ajustes."
USE_THEM = "Usarlos"

AWAY = "Conexión perdida. Reconectando…"
LOST = "Se perdió la conexión y, con ella, su petición. Pulse «Generar» de nuevo."
END_LEFT_OUT = "Se omitió el final del prompt."
NOTHING = "nada"  # a value that is missing
OWN_VAE = "el del modelo"

MESSAGES = {
    Code.UNTRANSLATED: "{text}",
    Code.CANCELLED: "Detenido.",
    Code.ABANDONED: "Se detuvo porque se cerró la página.",
    Code.STOPPING: "El servidor se está apagando. Inténtelo de nuevo en un momento.",
    Code.UNAVAILABLE: "Ahora no se puede generar. Inténtelo de nuevo más tarde.",
    Code.REPLACED: "El modelo ha cambiado. Inténtelo de nuevo.",
    Code.OUT_OF_MEMORY: "Memoria insuficiente. Inténtelo de nuevo.",
    Code.FAILED: "Se produjo un error al generar. Inténtelo de nuevo.",
    Code.BROKEN: "Algo ha fallado. Inténtelo de nuevo.",
    Code.UNSCREENED: "No se pudieron revisar las imágenes. Inténtelo de nuevo.",
    Code.NOT_FINITE: (
        "No salió ninguna imagen: los números crecieron demasiado. Baje la intensidad de los LoRA."
    ),
    Code.LOOP: (
        "Esta instancia reenvía las peticiones; BACKEND_URLS debe indicar instancias que generen."
    ),
    Code.UNKNOWN_REQUEST: "Esta petición no existe o ya no se conserva.",
    Code.DUPLICATE: "Esta petición ya existe.",
    Code.FULL: "La cola está llena. Inténtelo de nuevo {wait_s}.",
    Code.TOO_MANY_REQUESTS: "Demasiadas peticiones. Inténtelo de nuevo {wait_s}.",
    Code.NOT_STARTED: "Su turno no llegó a tiempo. Inténtelo de nuevo más tarde.",
    Code.NOT_FINISHED: "Las imágenes no estuvieron listas a tiempo. Inténtelo de nuevo más tarde.",
    Code.NO_ROOM: ("El servidor no tiene espacio para las imágenes. Inténtelo de nuevo más tarde."),
    Code.PICTURE_GONE: "Esta imagen no existe o ya no se conserva.",
    Code.CROWDED: "Ahora hay demasiados visitantes. Inténtelo de nuevo en un momento.",
    Code.TOO_MANY_CONNECTIONS: (
        "Hay demasiadas conexiones abiertas desde su dirección. "
        "Cierre algunas e inténtelo de nuevo."
    ),
    Code.TOO_MANY_PAGES: (
        "Hay demasiadas páginas abiertas desde su dirección. Cierre algunas e inténtelo de nuevo."
    ),
    Code.TOO_MANY_CALLS: "Demasiadas llamadas suyas siguen sin respuesta. Espere las respuestas.",
    Code.TOO_LARGE: "Es demasiado grande. El máximo es de {kib} KiB.",
    Code.TOO_MANY_UPLOADS: (
        "Se están subiendo demasiados archivos. Inténtelo de nuevo en un momento."
    ),
    Code.UPLOAD_TOO_SLOW: "El archivo no llegó a tiempo. Inténtelo de nuevo.",
    Code.NO_ROOM_FOR_UPLOADS: (
        "El servidor no tiene espacio para archivos. Inténtelo de nuevo más tarde."
    ),
    Code.NO_FILE: "El formulario no contiene ningún archivo llamado «files».",
    Code.KEY_NEEDED: "Se necesita una clave de API válida: «Authorization: Bearer KEY».",
    Code.WRONG_HOST: (
        "Este servidor no responde con ese nombre. El administrador puede añadirlo a ALLOWED_HOSTS."
    ),
    Code.WRONG_ORIGIN: (
        "Las páginas de otros orígenes no pueden enviar esto. "
        "El administrador puede añadir su origen a CORS_ORIGINS."
    ),
    Code.WRONG_PATH: "No hay nada en esta ruta.",
    Code.TWO_LENGTHS: "Envíe Content-Length o Transfer-Encoding, pero no ambos.",
    Code.BLOCKED: "«{word}» no se permite aquí. Quítelo del prompt.",
    Code.BLANK_PROMPT: "Escriba primero un prompt.",
    Code.TOO_LONG: "{field}: {length} caracteres son demasiados. El máximo es {limit}.",
    Code.NOT_TEXT: "{field}: escriba un texto.",
    Code.NOT_A_NUMBER: "{field}: {value} no es un número válido.",
    Code.UNREADABLE: "{field}: no se puede leer {value}. Escriba, por ejemplo, {example}.",
    Code.OUT_OF_RANGE: "{field}: elija de {low} a {high}.",
    Code.NOT_WHOLE: "{field}: {value} no es un número entero. Elija de {low} a {high}.",
    Code.UNKNOWN_CHOICE: "{field}: {value} no se conoce. Elija entre {choices}.",
    Code.MISSING_RECIPE: "{field}: {value} necesita un LoRA que no está aquí.",
    Code.MISSING_REFINER: "{field}: aquí no hay refiner.",
    Code.NO_STEP_CACHE: "{field}: aquí no hay caché de pasos.",
    Code.UNFIT_SCHEDULER: "{field}: {value} no funciona con este modelo: {reason}",
    Code.NOT_TIMESTEPS: (
        "{field}: {value} no sirve. Escriba hasta {limit} números decrecientes de {low} a {high}, "
        "por ejemplo, {example}."
    ),
    Code.NOT_WITH: (
        "{field}: {value} no funciona con {its}. Quítelo o elija para {other}: {choices}."
    ),
    Code.ONE_OF_TWO: "{field} y {other} no se pueden combinar. Quite uno de los dos.",
    Code.NOT_READY: "{field}: {value} aún no está listo. Elija entre {choices}.",
    Code.WRONG_COUNT: (
        "{field}: {count} textos para {images} imágenes. Se necesita uno, o uno por imagen."
    ),
    Code.TOO_MANY_LINES: "{lines} líneas son demasiadas. El máximo es {limit}.",
    Code.UNKNOWN_LORA: "El LoRA {value} no está aquí. Se buscó en LORA_DIR.",
    Code.DOUBLED_LORA: "Varios archivos de LORA_DIR se llaman {value}: {files}",
    Code.UNUSABLE_LORA: "El LoRA {value} no sirve para este modelo.",
    Code.UNUSABLE_MODEL: "El modelo {value} no sirve aquí: {reason}",
    Code.UNREADABLE_MODEL: (
        "El modelo {value} no se puede leer ahora. Elige otro o vuelve a intentarlo más tarde."
    ),
    Code.TOO_MANY_LORAS: "{count} LoRA son demasiados. El máximo es {limit}.",
    Code.TOO_MANY_TEXTS: (
        "El prompt cambia demasiado. Puede tener {limit} textos distintos: "
        "usa menos [a:b:5] y [a|b]."
    ),
    Code.TOO_LONG_FOR_FORMAT: "{field}: en {value} no cabe un prompt tan largo.",
    Code.NOT_LIVE: "Las imágenes en directo son demasiado lentas aquí o están desactivadas.",
    Code.TOO_LARGE_FOR_URLS: (
        "{field}: estas imágenes son demasiado grandes para «url». Use «b64_json»."
    ),
    Code.UNUSABLE_PICTURE: (
        "{field}: no se puede usar esta imagen ({reason}). Use PNG, JPEG o WebP."
    ),
    Code.MASK_SIZE: "{field}: {value} píxeles no encajan con la imagen, que tiene {expected}.",
    Code.EMPTY_MASK: "{field}: no hay ninguna parte de la imagen marcada.",
    Code.MASK_NEEDED: "Falta {field}. Este modelo solo redibuja partes marcadas de una imagen.",
    Code.IMAGE_NEEDED: "Falta {field}. Este modelo solo redibuja imágenes.",
    Code.WITHOUT: "{field} solo es posible con {other}.",
    Code.INPUT_GONE: "La imagen de partida ya no se conserva. Envíela de nuevo.",
}


def title(facts: Facts) -> str:
    """Return the page's title."""
    return f"{facts.family} en JAX"


def model_line(facts: Facts, kind: Kind) -> str:
    """Return a line with the model, the size of its pictures and its hardware."""
    name = MINIATURE if kind is Kind.MINIATURE else facts.name
    devices = hardware(facts)
    return f"{name} · {size(facts.sizes[0])} píxeles · en {devices}"


def written(number: object) -> str:
    """Return a value as text, with numbers as this language writes them."""
    return with_comma(number)


def caption(prompt: str, seed: int, variation: int | None = None, blurred: bool = False) -> str:
    """Return a picture's caption, which screen readers read out as well."""
    remark = "" if variation is None else f", variación {variation}"
    remark += ", desenfocada por el filtro de seguridad" if blurred else ""
    return f"Semilla {seed}{remark}: {prompt}"


def unfinished(done: int, total: int) -> str:
    """Return the caption of a picture whose drawing was stopped."""
    return f"Sin terminar: paso {done} de {total}"


def progress(done: int, total: int, left_s: float | None) -> str:
    """Return the number of the step and, if known, the time left."""
    step = f"Paso {done} de {total}"
    return f"{step}, faltan unos {duration(left_s)}" if left_s else step


def waiting(position: int, wait_s: float | None) -> str:
    """Return the place in the queue and, if known, the time until the drawing begins."""
    place = "Siguiente en la cola" if position == 1 else f"Número {position} en la cola"
    return place if wait_s is None else f"{place}, unos {duration(wait_s)}"


def starting(attempt: int = 1) -> str:
    """Return the message that the drawing begins, or begins again on another replica."""
    return "Iniciando…" if attempt == 1 else f"Nuevo intento ({attempt})…"


def pictures(count: int) -> str:
    """Return a number of pictures."""
    return "1 imagen" if count == 1 else f"{count} imágenes"


def finished(count: int, seconds: float | None) -> str:
    """Return how many pictures were drawn and, unless they are only shown again, in what time."""
    return pictures(count) + ("" if seconds is None else f" en {comma(f'{seconds:.1f}')} s")


def adjusted(field: str, value: float, used: float) -> str:
    """Return the note that a setting is out of range here and is replaced by `used`."""
    return f"{field}: {_short(value)} no es posible aquí, se usa {comma(concise(used))}."


def other_size(width: int | None, height: int | None, facts: Facts) -> str:
    """Return the note that a picture was drawn in a size that is not available here."""
    here = " o ".join(map(size, facts.sizes))
    return f"La imagen mide {width} × {height}, pero el tamaño aquí es {here}."


def other_model(name: str, facts: Facts) -> str:
    """Return the note that another model drew a picture."""
    return f"La imagen se hizo con {short(name)}. Aquí es {short(facts.name)}."


def other_vae(name: str | None, facts: Facts) -> str:
    """Return the note that a picture was decoded with another VAE; None is the model's own."""
    was, here = short(name or OWN_VAE), short(facts.vae or OWN_VAE)
    return f"El VAE de la imagen era {was}. Aquí es {here}."


BEST = "Máxima"  # the choice of quality without a recipe


def quick(steps: int, title: str) -> str:
    """Return the choice of a recipe that draws in few steps; `title` names its method."""
    return f"Rápida, {steps} paso{'s' * (steps > 1)} ({title})"


def automatic(own: str) -> str:
    """Return the choice that leaves a setting to the model; `own` is the model's, "" if unknown."""
    return f"Automático ({own})" if own else "Automático"


def other_sampler(name: str, used: str) -> str:
    """Return the note that a sampler is not available here, and which one is used."""
    return f"El muestreador {_short(name)} no está disponible aquí; se usa {used}."


def looks_full(limit: int) -> str:
    """Return the note that no more looks can be chosen."""
    return f"{limit} como máximo."


def missing_loras(missing: list[str]) -> str:
    """Return the note that LoRAs are not there."""
    return f"No está aquí: {', '.join(map(_short, missing))}. Se buscó en LORA_DIR."


def shortened(limit: int) -> str:
    """Return the note that only the first `limit` characters of a prompt are used."""
    return f"Solo se usan los primeros {limit} caracteres del prompt."


def length(tokens: int, limit: int, chunks: int = 1) -> str:
    """Return the number of tokens in a prompt, the model's limit, and the chunks if several."""
    return (
        f"{tokens} de {limit} tokens, {chunks} fragmentos"
        if chunks > 1
        else f"{tokens} de {limit} tokens"
    )


def too_long(limit: int) -> str:
    """Return the warning that a prompt has more tokens than the model reads."""
    return f"Demasiado largo: solo cuentan los primeros {limit} tokens"


def truncated(left_out: str) -> str:
    """Return the warning that quotes the part of the prompt that the model does not read."""
    return f"Omitido: «{left_out}»"


def read_as(parts: list[str]) -> str:
    """Return how a prompt is read; `parts` tell of its weights, changes, LoRAs and lists."""
    return f"Leído así: {' · '.join(parts)}"


def unknown(words: str, more: int) -> str:
    """Return the words of a prompt that the model does not know, and how many more there are."""
    return f"Este modelo no conoce: {words}" + (f" y {more} más" if more else "")


def in_steps(first: int, last: int, words: str) -> str:
    """Return the words that a prompt has from one step to another."""
    steps = f"paso {first}" if first == last else f"pasos {first}–{last}"
    return f"{steps}: {words}"


def in_turn(texts: list[str]) -> str:
    """Return the words that take turns in a prompt."""
    return f"por turnos: {', '.join(texts)}"


def sections(count: int) -> str:
    """Return the number of parts into which BREAK divides a prompt."""
    return f"{count} partes"


def one_of(options: str, count: int) -> str:
    """Return the list in a prompt from which the seed chooses so many options."""
    return f"{'una' if count == 1 else count} de: {options}"


def soon(wait_s: float | None) -> str:
    """Return when to try again, to be used in a sentence."""
    return "en un momento" if wait_s is None or is_soon(wait_s) else f"en unos {duration(wait_s)}"


def _short(value: object) -> str:
    return NOTHING if value is None else short(written(value))
