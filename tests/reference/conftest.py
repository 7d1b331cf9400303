"""Options of the live comparison; without torch (`make test`) nothing here is collected.

make test-reference ARGS="--seed 7 --checkpoints 20"
"""

import importlib.util
import secrets
from typing import Any

import jax
import pytest

collect_ignore_glob = ["*"]
if importlib.util.find_spec("torch"):
    collect_ignore_glob = []
    jax.config.update("jax_disable_most_optimizations", False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=int,
        help="what checkpoints and prompts are drawn from; by default a new one every time",
    )
    parser.addoption("--checkpoints", type=int, default=3, help="how many to draw")


def pytest_configure(config: pytest.Config) -> None:
    """One seed for all processes, as the heading says."""
    given = getattr(config, "workerinput", {"seed": config.option.seed})["seed"]
    config.option.seed = secrets.randbelow(2**32) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist asks what to tell a process that it starts."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"drawn from --seed {config.getoption('--seed')}"
