"""The slots that pictures are drawn in: the host's side of the state on the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pipeline.runtime.controls import ControlStart, Guided, SlotControls
from pipeline.runtime.work import Work, no_work
from pipeline.schedulers.table import Kept, State

if TYPE_CHECKING:
    from jax import Array

    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.sampler import Context, Deep, Embeds


@dataclass(frozen=True)
class ImageStart:
    """The pictures that n pictures start from.

    Attributes:
        images: `[n, H, W, 3]` float32 in 0..1.
        masks: `[n, h, w, 1]` float32, 1 where a picture is redrawn and 0 where it is kept.
        hidden: `images` with their masked parts in grey, for networks that take a mask; or None.
        coefficients: those of the pictures' latents and of the noise in the first latents.
    """

    images: np.ndarray
    masks: np.ndarray
    hidden: np.ndarray | None
    coefficients: tuple[float, float]


@dataclass(frozen=True)
class Start:
    """All that the n pictures of a request start from.

    Attributes:
        input_ids: for each text encoder `[V, 2, n, C * L]` int32, the negative prompts first. V is
            the number of texts between which the prompts change during the run, at most
            `MAX_TEXTS`.
        weights: how much each token counts, likewise float32.
        chunks: `[V, 2, n]` int32, the number of chunks of each prompt, at most C.
        zeroed: `[V, 2, n]` bool; see `Architecture.encode`.
        clip_skip: `[V, 2, n]` int32; see `Architecture.encode`.
        texts: `[n]`, how many of the V texts each picture has.
        vectors: each text encoder's `[MAX_VECTORS, D]` float32, for ids below 0; None if there are
            none.
        guidance_scale: for networks that take it as an input.
        init_noise_sigma: the standard deviation of the first latents.
        seeds: `[n]` uint32.
        variations: the variations to apply in order: seeds `[n]` uint32, and the strength.
        noise: `[n, h, w, C]` float32 standard normal noise in place of the seeds'; or None.
        origin: the pictures to start from; None starts from noise alone.
        controls: what they follow.
    """

    input_ids: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...]
    chunks: np.ndarray
    zeroed: np.ndarray
    clip_skip: np.ndarray
    texts: np.ndarray
    vectors: Sequence[np.ndarray] | None
    guidance_scale: float
    init_noise_sigma: float
    seeds: np.ndarray
    variations: Sequence[tuple[np.ndarray, float]]
    noise: np.ndarray | None
    origin: ImageStart | None = None
    controls: Sequence[ControlStart] = ()


@dataclass(frozen=True)
class Entry:
    """A picture that enters a slot.

    Attributes:
        start: all that it starts from, with others.
        row: its place among these.
        latents: `[h, w, C]` float32, those that another model has drawn so far, to go on from; None
            begins with noise.
    """

    start: Start
    row: int
    latents: np.ndarray | None = None


Entries = Mapping[int, Entry]  # by slot


class Slots:
    """B slots of one size of pictures, each empty or with a picture.

    Nothing here waits for the devices: `enter` and `advance` queue their work.

    Args:
        run: the programs of this size.

    Attributes:
        state: the state of all slots after the evaluations that are queued.
        kept: what the pictures in all slots keep of those that they start from; see `Kept`.
        deep: the deep features of all slots' pictures; None without step caching.
        texts: the embeddings of the texts between which prompts change during a run; more than one
            only while a picture in a slot has several.
        controls: what the pictures in all slots follow; None without controls.
        taken: the slots with a picture.
    """

    def __init__(self, run: CompiledSampler):
        self.run = run
        self.context: Context = run.blank_context()
        self.state: State = run.blank_state
        self.kept: Kept = run.nothing_kept
        self.deep: Deep = run.blank_deep()
        self.texts: list[Embeds] = []
        self.controls = SlotControls(run) if run.target.controls else None
        self.taken: set[int] = set()
        self._changing: set[int] = set()  # the slots with a picture of several texts
        self._count = run.shapes.images
        self._per_device = self._count // run.mesh.shape["images"]

    def free(self, count: int) -> list[int]:
        """Return at most `count` empty slots in order, spread evenly over the devices."""
        load = [0] * (self._count // self._per_device)
        for slot in self.taken:
            load[slot // self._per_device] += 1
        chosen_slots: list[int] = []
        empty_slots = [slot for slot in range(self._count) if slot not in self.taken]
        while empty_slots and len(chosen_slots) < count:
            slot = min(empty_slots, key=lambda slot: load[slot // self._per_device])
            load[slot // self._per_device] += 1
            empty_slots.remove(slot)
            chosen_slots.append(slot)
        return sorted(chosen_slots)

    def enter(self, entries: Entries) -> None:
        """Let pictures enter empty slots. Equal prompts are encoded once."""
        for group in _grouped(entries, lambda entry: id(entry.start.vectors)):
            self._encode(group)
        self.switch(entries, dict.fromkeys(entries, (0, 0)))
        for group in _grouped(entries, lambda entry: (id(entry.start), entry.latents is None)):
            self._begin(group)
            if self.controls is not None:
                self.controls.enter(group)
        self.taken.update(entries)

    def _begin(self, entries: Entries) -> None:
        """Write the first latents of pictures of one start."""
        run, new_slots = self.run, slot_mask(self._count, entries)
        first = next(iter(entries.values()))
        start, parts = first.start, run.nothing_kept
        latents = None
        if start.origin is not None:
            latents, parts = self._from_pictures(start, start.origin, entries)
        if first.latents is not None:
            latents = run.put_columns(self._placed(entries, lambda entry: entry.latents))
        if latents is None:
            latents = self._noise(start, start.init_noise_sigma, entries)
        self.state, self.kept = run.enter(self.state, self.kept, latents, parts, new_slots)

    def _from_pictures(
        self, start: Start, origin: ImageStart, entries: Entries
    ) -> tuple[Array, Kept]:
        """Return the latents `[B, h, w, C]` of pictures with noise, and the parts to keep."""
        run, new_slots, pair = self.run, slot_mask(self._count, entries), origin.coefficients
        noise = self._noise(start, 1.0, entries)
        images, masks = (self._rows(entries, array) for array in (origin.images, origin.masks))
        x0, latents = run.encode_image(images, noise, pair, new_slots)
        if origin.hidden is not None:
            x0, _ = run.encode_image(self._rows(entries, origin.hidden), noise, pair, new_slots)
        return latents, Kept(x0, noise, run.put_columns(masks))

    def _noise(self, start: Start, sigma: float, entries: Entries) -> Array:
        """Return the noise `[B, h, w, C]` of deviation `sigma` that pictures start from."""
        run = self.run
        if start.noise is not None:
            return run.put_columns(self._rows(entries, start.noise) * np.float32(sigma))
        latents = run.initial_latents(self._rows(entries, start.seeds), sigma)
        for seeds, strength in start.variations:
            other_noise = run.initial_latents(self._rows(entries, seeds), sigma)
            latents = run.vary(latents, other_noise, strength)
        return latents

    def _encode(self, entries: Entries) -> None:
        """Encode all texts of new pictures whose prompts name the same embeddings."""
        vectors = next(iter(entries.values())).start.vectors
        for text in range(max(entry.start.texts[entry.row] for entry in entries.values())):
            having = {
                slot: entry
                for slot, entry in entries.items()
                if text < entry.start.texts[entry.row]
            }
            if text == len(self.texts):
                self.texts.append(self.run.blank_embeds())
            if text:
                self._changing.update(having)
            self.texts[text] = self.run.encode(
                self.texts[text],
                slot_mask(self._count, having),
                self._tokens(having, text, lambda start: start.input_ids),
                self._prompts(having, text, lambda start: start.zeroed),
                vectors,
                self._tokens(having, text, lambda start: start.weights),
                self._prompts(having, text, lambda start: start.chunks),
                self._prompts(having, text, lambda start: start.clip_skip),
            )

    def _tokens(
        self, entries: Entries, text: int, field: Callable[[Start], tuple[np.ndarray, ...]]
    ) -> list[np.ndarray]:
        """Return the same as `_prompts` for each text encoder."""
        return [
            self._prompts(entries, text, lambda start, i=i: field(start)[i])
            for i in range(len(field(next(iter(entries.values())).start)))
        ]

    def _prompts(
        self, entries: Entries, text: int, field: Callable[[Start], np.ndarray]
    ) -> np.ndarray:
        """Return what a field of the starts says of a text of the prompts, `[2, B, ...]`."""
        return self._placed(entries, lambda entry: field(entry.start)[text, :, entry.row], axis=1)

    def switch(self, entries: Entries, texts: Mapping[int, tuple[int, int]]) -> None:
        """Let prompts of pictures in slots have other texts in the evaluations that follow.

        `texts` has the numbers of the negative prompt's text and of the prompt's, by slot.
        """
        text_numbers = np.zeros((2, self._count), np.int32)
        chunks = np.ones((2, self._count), np.int32)
        guidance = np.zeros(self._count, np.float32)
        for slot, entry in entries.items():
            start = entry.start
            text_numbers[:, slot] = texts[slot]
            chunks[:, slot] = start.chunks[texts[slot], (0, 1), entry.row]
            # Subtracted before it is rounded: the network multiplies the difference by 1000.
            guidance[slot] = start.guidance_scale - 1
        new_slots = slot_mask(self._count, entries)
        self.context = self.run.condition(
            self.context, new_slots, self.texts, text_numbers, guidance, chunks
        )

    def _rows(self, entries: Entries, values: np.ndarray) -> np.ndarray:
        """Return the rows `[B, ...]` of pictures among the values of their start."""
        return self._placed(entries, lambda entry: values[entry.row])

    def _placed(
        self, entries: Entries, value: Callable[[Entry], np.ndarray | None], axis: int = 0
    ) -> np.ndarray:
        """Return pictures' values in their slots along an axis, and zeros in the others."""
        values = {slot: np.asarray(value(entry)) for slot, entry in entries.items()}
        first = next(iter(values.values()))
        batch = np.zeros((*first.shape[:axis], self._count, *first.shape[axis:]), first.dtype)
        for slot, row in values.items():
            batch[(slice(None),) * axis + (slot,)] = row
        return batch

    def leave(self, slot: int) -> None:
        """Make a slot empty. The latents of its picture are in the states before."""
        self.taken.remove(slot)
        self._changing.discard(slot)
        if not self._changing:
            del self.texts[1:]

    def advance(
        self,
        rows: Mapping[int, Work[np.ndarray]],
        guided: Mapping[int, Guided] = MappingProxyType({}),
    ) -> tuple[State, State]:
        """Queue one evaluation of some slots' pictures; return the states before and after it.

        `rows` has a row of the work of each picture, and `guided` those that follow others, by
        slot.
        """
        work = no_work(self._count)
        for slot, row in rows.items():
            work.numbers[slot], work.integers[slot] = row
        before, residuals = self.state, None
        if self.controls is not None:
            residuals = self.controls.advance(guided, work, before.latents, self.texts)
        self.state, self.deep = self.run.step(
            before, self.context, work, self.kept, self.deep, residuals
        )
        return before, self.state


def _grouped(entries: Entries, key: Callable[[Entry], object]) -> list[dict[int, Entry]]:
    """Return entries in groups of one key."""
    groups: dict[object, dict[int, Entry]] = {}
    for slot, entry in entries.items():
        groups.setdefault(key(entry), {})[slot] = entry
    return [*groups.values()]


def slot_mask(count: int, slots: Iterable[int]) -> np.ndarray:
    """Return `[count]` bool, True for these slots."""
    mask = np.zeros(count, bool)
    mask[[*slots]] = True
    return mask
