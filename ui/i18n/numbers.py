"""Formatting of numbers and other values, shared by all languages."""

from pipeline.facts import Facts


def duration(seconds: float) -> str:
    """Return a duration roughly, in seconds or minutes, such as "25 s"."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def per_cent(share: float) -> float:
    """Return a share in per cent, without the rounding errors of the multiplication."""
    value = float(f"{100 * share:.15g}")
    return int(value) if value.is_integer() else value


def size(size: tuple[int, int]) -> str:
    """Return width and height as text, such as "1024 × 768"."""
    return "{} × {}".format(*size)


def hardware(facts: Facts) -> str:
    """Return the number and name of the devices, and quantisation: "4 × TPU v5 lite, int8".

    A CPU has no number.
    """
    device = facts.device if facts.num_devices == 1 else f"{facts.num_devices} × {facts.device}"
    names = "CPU" if facts.device == "cpu" else device, facts.quantization
    return ", ".join(filter(None, names))
