"""Options of the live comparison; without torch (`make test`) nothing here is collected.

make test-reference ARGS="--seed 7 --checkpoints 20"
"""

import importlib.util
import secrets

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
        default=secrets.randbelow(2**32),
        help="what checkpoints and prompts are drawn from; by default a new one every time",
    )
    parser.addoption("--checkpoints", type=int, default=5, help="how many to draw")


def pytest_report_header(config: pytest.Config) -> str:
    return f"drawn from --seed {config.getoption('--seed')}"
