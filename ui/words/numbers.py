"""Numbers and other values, as they stand in the sentences of all languages."""

LONGEST = 40


def duration(seconds: float) -> str:
    """Roughly how long."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def comma(number: str) -> str:
    """A number with a decimal comma."""
    return number.replace(".", ",")


def with_comma(value: object) -> str:
    """A value as text: numbers with a decimal comma, all else as it is."""
    return comma(str(value)) if isinstance(value, float) else str(value)


def size(size: tuple[int, int]) -> str:
    """Width and height."""
    return "{} × {}".format(*size)


def short(value: object) -> str:
    """A value that somebody sent, cut where it is too long to be repeated."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def quoted(message: str) -> str:
    """What stands between the first and the last quotation mark of a message."""
    return message.partition('"')[2].rpartition('"')[0]


def hardware(device: str, count: int) -> str:
    """What draws, such as "4 × TPU v5 lite"; of a CPU nobody counts the cores."""
    if device == "cpu":
        return "CPU"
    return device if count == 1 else f"{count} × {device}"
