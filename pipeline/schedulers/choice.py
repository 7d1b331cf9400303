"""The schedulers that a model can be drawn with, and the choice of one for a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.errors import CheckpointError, InputError
from pipeline.schedulers.config import (
    ALIGNED,
    DEFAULT_SIGMAS,
    SCHEDULERS,
    SIGMA_KEYS,
    Flow,
    SchedulerConfig,
    largest_offset,
    read_scheduler,
)


@dataclass(frozen=True)
class Schedulers:
    """The schedulers of a checkpoint.

    Attributes:
        own: the checkpoint's own, or the one that replaces it.
        configs: the configuration of each scheduler that fits the checkpoint, by name.
        refused: the reason why each of the others does not fit it, by name.
        aligned_sigmas: the sigmas that were optimised for the model's family; None if there are
            none.
    """

    own: SchedulerConfig
    configs: Mapping[str, SchedulerConfig]
    refused: Mapping[str, str] = field(default_factory=dict)
    aligned_sigmas: tuple[float, ...] | None = None

    @property
    def sigma_schedules(self) -> tuple[str, ...]:
        """The sigma schedules that a request can ask for."""
        if isinstance(self.own.training, Flow):
            return (DEFAULT_SIGMAS,)
        aligned = () if self.aligned_sigmas is None else (ALIGNED,)
        return DEFAULT_SIGMAS, *SIGMA_KEYS.values(), *aligned

    def choose(
        self,
        scheduler: str = "",
        sigma_schedule: str = "",
        timestep_spacing: str = "",
        timesteps: Sequence[int] = (),
        eta: float | None = None,
    ) -> SchedulerConfig:
        """Return the configuration of a request's scheduler.

        Args:
            scheduler: a key of `SCHEDULERS`; "" for the model's own.
            sigma_schedule: "default", a value of `SIGMA_KEYS`, or "align-your-steps"; "" for the
                scheduler's own.
            timestep_spacing: one of `SPACINGS`; "" for the scheduler's own.
            timesteps: the timesteps, falling; empty for spaced ones.
            eta: the share of noise in DDIM and TCD; None for the scheduler's own.

        Raises:
            InputError: if the model cannot be drawn with it; the message names the argument.
        """
        if scheduler in self.refused:
            raise InputError(
                f"scheduler {scheduler!r} does not fit this model: {self.refused[scheduler]}"
            )
        config = self.configs[scheduler] if scheduler else self.own
        if isinstance(config.training, Flow):
            _check_unspaced(sigma_schedule, timestep_spacing, timesteps)
            return config
        if sigma_schedule == ALIGNED and self.aligned_sigmas is None:
            raise InputError(
                f"sigma_schedule is {ALIGNED!r}, which this model's family has no table for;"
                f" expected one of {', '.join(map(repr, self.sigma_schedules))}"
            )
        changes: dict[str, Any] = {
            "sigma_schedule": sigma_schedule or (DEFAULT_SIGMAS if timesteps else None),
            "timestep_spacing": timestep_spacing or None,
            "timesteps": tuple(timesteps) or None,
            "eta": eta,
            "aligned_sigmas": self.aligned_sigmas if sigma_schedule == ALIGNED else None,
        }
        settings = {name: value for name, value in changes.items() if value is not None}
        return _checked(replace(config, **settings))


def _check_unspaced(sigma_schedule: str, timestep_spacing: str, timesteps: Sequence[int]) -> None:
    """Refuse settings that a run of flow matching has no use for."""
    settings = {
        "sigma_schedule": sigma_schedule not in ("", DEFAULT_SIGMAS),
        "timestep_spacing": timestep_spacing,
        "timesteps": timesteps,
    }
    for name in (name for name, value in settings.items() if value):
        raise InputError(f"{name} cannot be used with a flow-matching model; leave it out")


def _checked(config: SchedulerConfig) -> SchedulerConfig:
    """Return the configuration; refuse timesteps that the model was never trained for."""
    trained, room = config.num_train_timesteps, largest_offset(config)
    if config.timesteps and config.timesteps[0] >= trained:
        raise InputError(
            f"timesteps begin with {config.timesteps[0]}; expected at most {trained - 1}"
        )
    if not config.timesteps and room is not None and config.steps_offset > room:
        raise InputError(
            f"timestep_spacing is 'leading', which goes past the {trained} timesteps of this model;"
            " expected 'trailing' or 'linspace'"
        )
    return config


def read_schedulers(
    path: Path,
    class_name: str,
    choice: str | None = None,
    forced: Mapping[str, Any] = MappingProxyType({}),
    aligned_sigmas: tuple[float, ...] | None = None,
) -> Schedulers:
    """Read `scheduler_config.json` for each scheduler.

    Args:
        path, class_name, choice, forced: see `read_scheduler`.
        aligned_sigmas: see `Schedulers`.

    Raises:
        CheckpointError: if a setting of the checkpoint's own or of the chosen scheduler is not
            supported; the message names file, key and value.
    """
    default = read_scheduler(path, class_name, choice, forced)
    configs, reasons = {}, {}
    for name in SCHEDULERS:
        try:
            configs[name] = read_scheduler(path, class_name, name, forced)
        except CheckpointError as error:
            # Requests are told the reason, and the server's folders are none of their business.
            reasons[name] = str(error).removeprefix(f"{path}: ")
    return Schedulers(default, {**configs, default.name: default}, reasons, aligned_sigmas)
