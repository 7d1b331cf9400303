"""Formatting of numbers and other values, shared by all languages."""

LONGEST = 40
# Whole numbers from here on are written without an exponent and without ".0".
_LARGE = 10**6


def duration(seconds: float) -> str:
    """Return a duration roughly, in seconds or minutes, such as "25 s"."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def comma(number: str) -> str:
    """Return a number with a decimal comma."""
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
    """Return a value as text; a float has a decimal comma."""
    return comma(plain(value)) if isinstance(value, float) else str(value)


def size(size: tuple[int, int]) -> str:
    """Return width and height as text, such as "1024 × 768"."""
    return "{} × {}".format(*size)


def short(value: object) -> str:
    """Return a value as text, shortened to `LONGEST` characters so that a message can quote it."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def quoted(message: str) -> str:
    """Return the text between the first and the last quotation mark of a message."""
    return message.partition('"')[2].rpartition('"')[0]


def hardware(device: str, count: int) -> str:
    """Return the number and name of the devices, such as "4 × TPU v5 lite"; a CPU has no number."""
    if device == "cpu":
        return "CPU"
    return device if count == 1 else f"{count} × {device}"
