"""Options of the live comparison; without torch (`make test`) nothing here is collected.

make test-reference ARGS="--seed 7 --checkpoints 20"
"""

import importlib.util
import re
import secrets
from typing import Any

import jax
import pytest

# The number of a drawn checkpoint in the name of a test about it.
DRAWN = re.compile(r"^.*test_reference\.py::\w+\[(\d+).*$")

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
    given = getattr(config, "workerinput", {}).get("seed", config.option.seed)
    config.option.seed = secrets.randbelow(2**32) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist asks what to tell a process that it starts."""
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keeps in one process what is about one checkpoint; xdist 3.8 loses groups with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByCheckpoint(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return DRAWN.sub(r"\1", nodeid)

    return ByCheckpoint(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    return f"drawn from --seed {config.getoption('--seed')}"
