"""Options of the live comparison; without torch (`make test`) nothing here is collected.

make test-reference ARGS="--seed 7 --checkpoints 20"
"""

import importlib.util
import re
import secrets
from typing import Any

import pytest

# Matches the number or the kind of a drawn checkpoint in the name of a test.
DRAWN = re.compile(r"^.*test_(?:reference|single_file)\.py::\w+\[(\w+)")

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=int,
        help="what checkpoints and prompts are drawn from; by default a new one every time",
    )
    parser.addoption("--checkpoints", type=int, default=3, help="how many to draw")


def pytest_configure(config: pytest.Config) -> None:
    """Choose one seed for all processes; the report's header shows it."""
    given = getattr(config, "workerinput", {}).get("seed", config.option.seed)
    config.option.seed = secrets.randbelow(2**32) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed to a worker process that xdist starts."""
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all tests of one checkpoint in one process; xdist 3.8 loses groups with pytest 9.2.

    Other tests share the pipelines of their file.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByCheckpoint(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            drawn = DRAWN.match(nodeid)
            return drawn[1] if drawn else nodeid.partition("::")[0]

    return ByCheckpoint(config, log)


@pytest.fixture(scope="session", autouse=True)
def _prepared() -> None:
    """Silence torch's libraries, and let each process use one thread."""
    from tests.reference.torch_reference import prepare_for_tiny

    prepare_for_tiny()


def pytest_report_header(config: pytest.Config) -> str:
    return f"drawn from --seed {config.getoption('--seed')}"
