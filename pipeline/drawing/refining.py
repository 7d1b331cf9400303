"""The refiner: a second model, whose stage draws the last steps of the base model's pictures."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.checkpoints.source import fetch_component
from pipeline.drawing.drawing import Stage
from pipeline.drawing.preparing import Drawer, StagePlan, make_stage
from pipeline.errors import InputError
from pipeline.families.family import Config, image_size
from pipeline.families.replacements import DENOISER, read_refiner
from pipeline.families.single_files import UNET_FILE
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.compiled import CompiledSampler
from pipeline.runtime.models import ModelStore
from pipeline.runtime.programs import check_rows
from pipeline.runtime.second_model import SecondModel, resized_second_model
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.tokenizer import Tokenizers


def find_refiner(
    source: str, base: Config, size: tuple[int, int], prefer_fp16: bool
) -> SecondModel:
    """Find the UNet of a refiner, and read its configuration.

    Args:
        source: a folder, an id on the Hub, or a single file, of a refiner or of its UNet.
        base: the base model's configuration.
        size: the height and width of the pictures.
        prefer_fp16: as in `fetch`.

    Raises:
        CheckpointError: if it is not there, not supported, or does not fit the base model.
        InputError: if it cannot draw pictures of this size.
    """
    unet = fetch_component(source, DENOISER, UNET_FILE, prefer_fp16)
    config = read_refiner(base, unet)
    _check_size(config, *size)
    return SecondModel(unet.name, config, unet)


def _check_size(config: Config, height: int, width: int) -> None:
    try:
        image_size(config, height, width)
    except InputError as error:
        raise InputError(f"the refiner cannot draw pictures of this size: {error}") from None


class Refiner:
    """A refiner beside a base model, compiled for the same sizes of pictures.

    Args:
        source: the refiner, as it was loaded.
        run: its programs of the first size.
        base: the base model's configuration.
        store: the models whose text encoders and VAE it uses.
        first: the base model's adapters. It has none of its own.

    Attributes:
        run: its programs of the first size.
        text_encoders: the names of those that it shares with the base model.
    """

    def __init__(
        self,
        source: SecondModel,
        run: CompiledSampler,
        base: Config,
        store: ModelStore,
        first: Adapters,
    ) -> None:
        self.run = run
        self._source = source
        self.text_encoders = tuple(source.config.text_encoders)
        places = [[*base.text_encoders].index(name) for name in self.text_encoders]
        self._encoders: Sequence[int] = places  # the places of its text encoders in the base model
        self._adapters = Adapters(run.parameters, run.mesh, (), [source.own], store, first)
        self._by_size = {(run.shapes.height, run.shapes.width): run}

    def check_size(self, height: int, width: int) -> None:
        """Raise InputError for a size of pictures that the refiner cannot draw."""
        _check_size(self._source.config, height, width)
        check_rows(self._source.config, self.run.mesh, height)

    def add_size(self, base: CompiledSampler) -> None:
        """Compile for the size of the base model's programs."""
        size = base.shapes.height, base.shapes.width
        self._by_size = {**self._by_size, size: resized_second_model(self.run, base, self._source)}

    def of_size(self, base: CompiledSampler) -> CompiledSampler:
        """Return the programs for the size of the base model's."""
        return self._by_size[base.shapes.height, base.shapes.width]

    def stage(self, plan: StagePlan, base: Drawer, embeddings: Embeddings) -> Stage:
        """Return the stage that goes on from the latents of the base model's.

        The base model lends its text encoders and its VAE. LoRAs change the base model alone. If
        the pictures start from others with masks, the refiner keeps the same parts of them.
        """
        request, origin = plan.request, plan.origin
        refiner_plan = replace(
            plan,
            request=replace(request, loras="", denoising_end=None),
            parts=plan.parts[1:],
            before=plan.before + plan.parts[1].skipped - plan.parts[0].skipped,
            origin=None if origin is None or origin.masks is None else origin,
        )
        tokenizers = Tokenizers(tuple(base.tokenizers.each[i] for i in self._encoders))
        run = self.of_size(base.run)
        drawer = Drawer(self._source.config, tokenizers, run, self._adapters, base.model)
        placement = Placement(embeddings.for_encoders(self._encoders))
        return make_stage(refiner_plan, drawer, placement)
