"""Run the networks through which pictures in slots follow others: the host's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.runtime.work import Work
from pipeline.text.controls import UNION_TYPES

if TYPE_CHECKING:
    from jax import Array

    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.control_networks import ControlNetwork
    from pipeline.runtime.controlling import Residuals
    from pipeline.runtime.sampler import Embeds
    from pipeline.runtime.slots import Entry


@dataclass(frozen=True)
class ControlStart:
    """The pictures that a request's n pictures follow through one network.

    Attributes:
        network: the network.
        images: the pictures to follow, `[n, H, W, 3]` float32; several for a network of the union
            kind that follows more than one.
        kinds: for each of these its row of `UNION_TYPES`; 0 for other networks.
        weights: for each of these how much it counts beside the others.
        scales: `[evaluations, 2, R]` float32, how much each of R residuals counts in each half of
            guidance; zeros where the network is off.
    """

    network: ControlNetwork
    images: Sequence[np.ndarray]
    kinds: Sequence[int]
    weights: Sequence[float]
    scales: np.ndarray

    @property
    def types(self) -> np.ndarray:
        """`[T]` float32, 1 for each of `UNION_TYPES` that it follows."""
        return np.isin(np.arange(len(UNION_TYPES)), self.kinds).astype(np.float32)


class Guided(NamedTuple):
    """A picture in a slot that follows others, in its next evaluation.

    `texts` are the numbers of the texts of the negative prompt and of the prompt.
    """

    entry: Entry
    evaluation: int
    texts: tuple[int, int]

    @property
    def active(self) -> dict[int, ControlStart]:
        """The networks that run in this evaluation, by their places in the request."""
        controls = enumerate(self.entry.start.controls)
        return {
            place: control for place, control in controls if control.scales[self.evaluation].any()
        }


@dataclass
class SlotControls:
    """The hints and the residuals of the pictures in B slots that follow others.

    Attributes:
        run: the programs of the slots' size.
        residuals: the residuals of all slots' pictures.
        hints: those of the first network that each picture follows, of the second, and so on.
    """

    run: CompiledSampler
    residuals: Residuals = field(init=False)
    hints: list[Array] = field(default_factory=list)
    _guided: set[int] = field(default_factory=set)  # the slots whose residuals are not zeros

    def __post_init__(self) -> None:
        self.residuals = self.run.blank_residuals()

    def enter(self, entries: Mapping[int, Entry]) -> None:
        """Read the pictures that new pictures of one start follow."""
        for place, control in enumerate(next(iter(entries.values())).start.controls):
            if place == len(self.hints):
                self.hints.append(self.run.blank_hints())
            for i in range(len(control.images)):
                self._read(entries, place, control, i)

    def _read(
        self, entries: Mapping[int, Entry], place: int, control: ControlStart, i: int
    ) -> None:
        """Read one of the pictures that new ones follow through a network.

        Its hint is added to those of the pictures before it.
        """
        shapes, is_new = self.run.shapes, self._mask(entries)
        images = np.zeros((shapes.images, shapes.height, shapes.width, 3), np.float32)
        for slot, entry in entries.items():
            images[slot] = control.images[i][entry.row]
        self.hints[place] = self.run.hint(
            control.network,
            self.hints[place],
            images,
            np.full(shapes.images, control.kinds[i], np.int32),
            np.full(shapes.images, control.weights[i], np.float32),
            is_new & (i > 0),
            is_new,
        )

    def advance(
        self,
        guided: Mapping[int, Guided],
        work: Work[np.ndarray],
        latents: Array,
        texts: Sequence[Embeds],
    ) -> Residuals:
        """Queue the networks that pictures follow in the next evaluation; return the residuals.

        Args:
            guided: the pictures that follow others, by slot.
            work: the work of all slots.
            latents: the latents of all slots before the evaluation, `[B, h, w, C]`.
            texts: the embeddings of the prompts' texts.
        """
        # The shallow part of the denoiser takes the residuals of the evaluation before.
        shallow = {*np.flatnonzero(work.column("shallow")).tolist()}
        active = {slot: picture.active for slot, picture in guided.items() if slot not in shallow}
        followers = {slot for slot, controls in active.items() if controls}
        if idle := self._guided - shallow - followers:
            self.residuals = self.run.clear(self.residuals, self._mask(idle))
            self._guided -= idle
        written: set[int] = set()
        for place, hints in enumerate(self.hints):
            following = {
                slot: controls[place] for slot, controls in active.items() if place in controls
            }
            for network in dict.fromkeys(control.network for control in following.values()):
                slots = {slot: x for slot, x in following.items() if x.network is network}
                prompts = self._prompts(guided, slots)
                scales = np.zeros((2, len(work.integers), len(self.residuals)), np.float32)
                for slot, control in slots.items():
                    scales[:, slot] = control.scales[guided[slot].evaluation]
                flags = self._mask(written.intersection(slots)), self._mask(slots)
                self.residuals = self.run.control(
                    network, self.residuals, latents, work, (texts, *prompts), hints, scales, flags
                )
                written.update(slots)
        self._guided |= written
        return self.residuals

    def _prompts(
        self, guided: Mapping[int, Guided], slots: Mapping[int, ControlStart]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of texts and of chunks, `[2, B]`, and the types, `[B, T]`."""
        count = self.run.shapes.images
        numbers, chunks = np.zeros((2, count), np.int32), np.ones((2, count), np.int32)
        types = np.zeros((count, len(UNION_TYPES)), np.float32)
        for slot, control in slots.items():
            entry, _, texts = guided[slot]
            numbers[:, slot] = texts
            chunks[:, slot] = entry.start.chunks[texts, (0, 1), entry.row]
            types[slot] = control.types
        return numbers, chunks, types

    def _mask(self, slots: Iterable[int]) -> np.ndarray:
        return np.isin(np.arange(self.run.shapes.images), [*slots])
