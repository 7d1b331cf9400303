"""The order in which pictures enter, on simulated devices with a simulated clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drawing.scheduler import PASSED_OVER_S, Rules, Scheduler

SLOTS = 4
PICTURE_S, MODEL_S, LORAS_S = 2.0, 1.5, 2.0  # about those of SDXL on four chips
MODELS, LORA_SETS = ("base", "pony", "photo"), ("", "style")
GROUPS = [(model, loras) for model in MODELS for loras in LORA_SETS]


@dataclass(eq=False)
class Wanted:
    """A client's request."""

    client: int
    group: tuple[str, str]
    since: float
    left: int = 1  # pictures that have not entered
    evaluations: int = 25
    entered: list[float] = field(default_factory=list)


class Simulation:
    """Devices that draw four pictures at a time, and need a while to change model or LoRAs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.drawn: list[Wanted] = []
        self.read: set[tuple[str, str]] = set()
        self._ends: list[float] = []  # of the pictures in slots
        self._ready_at = 0.0
        self._group: tuple[str, str] = GROUPS[0]
        self.scheduler: Scheduler[Wanted] = Scheduler(
            Rules(
                pictures=lambda each: each.left,
                evaluations=lambda each: each.evaluations,
                since=lambda each: each.since,
                group=lambda each: each.group,
                enter=self._enter,
                has_room=lambda: len(self._ends) < SLOTS,
                read_ahead=lambda each: self.read.add(each.group),
            ),
            GROUPS[0],
            lambda: self.now,
        )

    def ask(self, *requests: Wanted) -> None:
        for each in requests:
            self.scheduler.push(str(each.client), str(each.client), each)

    def _enter(self, wanted: Wanted) -> bool:
        if len(self._ends) == SLOTS or (self._ends and not self.scheduler.suits(wanted)):
            return False
        if wanted.group != self._group:
            changed_model = wanted.group[0] != self._group[0]
            self._ready_at = self.now + (MODEL_S if changed_model else LORAS_S)
            self._group = wanted.group
        begins = max(self.now, self._ready_at)
        wanted.entered.append(begins)
        seconds = PICTURE_S * wanted.evaluations / 25
        heappush(self._ends, begins + seconds)
        self.drawn.append(wanted)
        return True

    def enter(self) -> None:
        while wanted := self.scheduler.next():
            wanted.left -= 1

    def step(self) -> None:
        """Let all enter that can, and go on to the end of the next picture."""
        self.enter()
        self.now = heappop(self._ends)
        self.enter()


def run_clients(groups: Sequence[Sequence[tuple[str, str]]], seconds: float) -> Simulation:
    """Let each client ask for four pictures of its next group, as soon as the others entered."""
    simulation = Simulation()
    turns = [0] * len(groups)
    waiting = dict.fromkeys(range(len(groups)), None)
    while simulation.now < seconds:
        for client in list(waiting):
            group = groups[client][turns[client] % len(groups[client])]
            turns[client] += 1
            simulation.ask(Wanted(client, group, simulation.now, left=4))
        before = len(simulation.drawn)
        simulation.step()
        whole = (each for each in simulation.drawn[before:] if not each.left)
        waiting = dict.fromkeys(each.client for each in whole)
    return simulation


def longest_wait(simulation: Simulation) -> float:
    return max(each.entered[-1] - each.since for each in simulation.drawn if each.entered)


@pytest.mark.lasting
def test_three_models_and_two_lora_sets_starve_nobody_and_cost_little():
    """Each of eight clients asks in runs, and six groups are wanted all the time."""
    runs = [
        [GROUPS[(client + run) % 6] for run in range(6) for _ in range(20)] for client in range(8)
    ]
    simulation = run_clients(runs, 2400)
    one = run_clients([[GROUPS[0]]] * 8, 2400)
    assert len(simulation.drawn) >= 0.85 * len(one.drawn)
    # Others may each have the devices for `PASSED_OVER_S`, the pictures in slots, and a change.
    assert longest_wait(simulation) <= 6 * (PASSED_OVER_S + PICTURE_S + LORAS_S) + PICTURE_S
    assert simulation.read == {*GROUPS}


@pytest.mark.lasting
def test_a_run_that_all_share_changes_the_model_rarely():
    one = run_clients([[GROUPS[0]]] * 8, 1200)
    shared = run_clients([[group for group in GROUPS for _ in range(20)]] * 8, 1200)
    assert len(shared.drawn) >= 0.97 * len(one.drawn)
    assert longest_wait(shared) <= longest_wait(one) + MODEL_S + PICTURE_S


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(GROUPS)), min_size=1, max_size=40))
def test_every_picture_enters(asked: list[tuple[int, tuple[str, str]]]):
    simulation = Simulation()
    simulation.ask(*(Wanted(client, group, 0.0) for client, group in asked))
    while simulation.scheduler:
        simulation.step()
    assert len(simulation.drawn) == len(asked)


@pytest.mark.parametrize("pictures", [1, 4])
def test_senders_are_charged_by_evaluations(pictures: int):
    simulation = Simulation()
    for _ in range(400 // pictures):
        simulation.ask(
            Wanted(0, GROUPS[0], 0.0, left=pictures, evaluations=100),
            Wanted(1, GROUPS[0], 0.0, left=pictures, evaluations=25),
        )
    while len(simulation.drawn) < 300:
        simulation.step()
    shares = [sum(each.client == client for each in simulation.drawn) for client in (0, 1)]
    assert shares[0] * 100 == pytest.approx(shares[1] * 25, rel=0.05)
