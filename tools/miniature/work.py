"""The folder in which training keeps the state that it resumes from."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
ENCODED_AT_ONCE = 16


def _setting(default: int, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class Settings:
    """The settings that, with the code, determine the weights.

    Raises:
        ValueError: if a value cannot be used; the message names the option.
    """

    vae_steps: int = _setting(3600, "of the VAE")
    vae_pictures: int = _setting(6000, "that the VAE trains on")
    normalised_over: int = _setting(512, "pictures that give the latents their scale")
    reading_steps: int = _setting(400, "of the text encoders")
    pictures: int = _setting(12288, "that the UNet trains on")
    steps: int = _setting(6800, "of the UNet; more of them go on with a finished training")
    seed: int = _setting(0, "of everything left to chance")

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name == "seed" else 1
            if value < least:
                raise ValueError(f"{option(name)} is {value}; it must be at least {least}")
        if self.pictures % ENCODED_AT_ONCE:
            right = f"it must be a multiple of {ENCODED_AT_ONCE}"
            raise ValueError(f"--pictures is {self.pictures}; {right}")


def option(name: str) -> str:
    """Return a setting's name on the command line."""
    return f"--{name.replace('_', '-')}"


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `file` when the block ends.

    If the block raises, `file` stays as it was.
    """
    part = file.with_name(f"part-{file.name}")
    yield part
    part.replace(file)


class Work:
    """A training's folder: its settings, and the time that it has taken so far.

    Raises:
        ValueError: if the folder holds a training with other settings; only the number of UNet
            steps may be higher.
    """

    def __init__(self, folder: Path, settings: Settings):
        self.folder = folder
        self.settings = settings
        self.seconds = 0.0
        self._file = folder / "work.json"
        self._since = time.monotonic()
        if self._file.exists():
            kept = json.loads(self._file.read_text())
            self._check(Settings(**kept["settings"]))
            self.seconds = kept["seconds"]
        folder.mkdir(parents=True, exist_ok=True)
        self.tick()

    def _check(self, begun: Settings) -> None:
        for name, was in asdict(begun).items():
            now = getattr(self.settings, name)
            if now == was or (name == "steps" and now > was):
                continue
            right = f"{was} or more" if name == "steps" else f"{was}"
            raise ValueError(
                f"{self.folder} holds a training with {option(name)} {was}, not {now}: "
                f"go on with {right}, or name another folder with --work"
            )

    def tick(self) -> None:
        """Record the time taken until now."""
        now = time.monotonic()
        self.seconds += now - self._since
        self._since = now
        record = {"settings": asdict(self.settings), "seconds": self.seconds}
        with whole(self._file) as part:
            part.write_text(json.dumps(record, indent=2) + "\n")


@dataclass
class Run:
    """The state of one network's training, and its curve: a point every few steps.

    The state is saved every `save_every` steps, and at each quarter of the training.
    """

    folder: Path
    save_every: int = 10**9
    on_save: Callable[[], object] = lambda: None
    curve: list[dict[str, float]] = field(default_factory=list)

    def save(self, state: Tree) -> None:
        """Write a tree of arrays, completely or not at all."""
        with whole(self._state_file) as part:
            np.savez(part, *[np.asarray(leaf) for leaf in jax.tree.leaves(state)])
        self.on_save()

    def restore(self, like: Tree) -> Tree:
        """Return the saved state in the structure of `like`, or `like` if none was saved.

        The curve is cut off at the state's `step`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._state_file.exists():
            return like
        leaves, structure = jax.tree.flatten(like)
        with np.load(self._state_file) as saved:
            arrays = [jnp.asarray(saved[f"arr_{i}"]) for i in range(len(leaves))]
        state = jax.tree.unflatten(structure, arrays)
        points = map(json.loads, self._curve_file.read_text().splitlines())
        self.curve = [point for point in points if point["step"] <= state["step"]]
        return state

    def log(self, **values: float) -> None:
        """Add a point to the curve, on disk and on the screen."""
        self.curve.append(values)
        with whole(self._curve_file) as part:
            part.write_text("".join(json.dumps(point) + "\n" for point in self.curve))
        print("  ".join(f"{key} {value:.5g}" for key, value in values.items()), flush=True)

    def plot(self, titles: Mapping[str, str]) -> None:
        """Plot the curve as curve.png, with a panel for each logged name in `titles`."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, panels = pyplot.subplots(1, len(titles), figsize=(5 * len(titles), 3.5))
        for panel, (name, title) in zip(np.atleast_1d(panels), titles.items(), strict=True):
            points = [(point["step"], point[name]) for point in self.curve if name in point]
            panel.plot(*zip(*points, strict=True), color="#4c6ef5")
            panel.set(title=title, xlabel="step")
            panel.grid(alpha=0.3)
        figure.tight_layout()
        figure.savefig(self.folder / "curve.png", dpi=110)
        pyplot.close(figure)

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.npz"

    @property
    def _curve_file(self) -> Path:
        return self.folder / "curve.jsonl"
