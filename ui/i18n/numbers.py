"""Numbers and other values, as they stand in the sentences of all languages."""

LONGEST = 40
# From here on a whole number is never written with an exponent or with ".0".
_LARGE = 10**6


def duration(seconds: float) -> str:
    """Roughly how long."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def comma(number: str) -> str:
    """A number with a decimal comma."""
    return number.replace(".", ",")


def plain(value: object) -> str:
    """Return a value as text; a large whole number has all its digits: 4294967296, not 4.3e+09."""
    if isinstance(value, float) and value.is_integer() and _LARGE <= abs(value) < 10**LONGEST:
        return f"{value:.0f}"
    return str(value)


def concise(number: float) -> str:
    """Return a number without needless decimals: 20 rather than 20.0; a whole one in full."""
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def with_comma(value: object) -> str:
    """A value as text: numbers with a decimal comma, all else as it is."""
    return comma(plain(value)) if isinstance(value, float) else str(value)


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
