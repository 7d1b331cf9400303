"""Build hook: put everything that is installed into one package, `sdxl_jax`.

The checkout has `pipeline`, `serving`, `ui` and the programs at its top level. Installed like that,
they would collide with modules of other projects. So the wheel has `sdxl_jax.pipeline` and so on,
and this hook rewrites the imports in its copies. `pyproject.toml` names the folders and files.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def rewrite(name: str, source: str, modules: Collection[str]) -> str:
    """Return a program that imports our modules from `sdxl_jax`.

    Args:
        name: the program's name in errors.
        source: the program's text.
        modules: the top-level names of our modules in the checkout.

    Raises:
        ValueError: if the result still names one of them. `from pipeline.x import y` is rewritten.
            `import pipeline.x` and a text with the name of a module cannot be.
    """
    lines = source.split("\n")
    for node in _named(ast.parse(source), modules):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = re.sub(r"^(\s*from\s+)", r"\1sdxl_jax.", line)
    source = "\n".join(lines)
    for node in _named(ast.parse(source), modules):
        raise ValueError(
            f"{name}, line {node.lineno}: a module of ours by a name that cannot be rewritten;"
            " use `from ... import`, or `__package__` in a text"
        )
    return source


def _named(tree: ast.Module, modules: Collection[str]) -> Iterator[ast.stmt | ast.expr]:
    """Yield the imports of our modules, and the texts other than docstrings that name them."""
    either = "|".join(modules)
    imported = re.compile(rf"(?:{either})(?:\.|$)")
    in_text = re.compile(rf"(?<![\w./])(?:{either})\.(?!py\b)[A-Za-z_]|-m (?:{either})\b")
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names) if any(imported.match(alias.name) for alias in names):
                yield node
            case ast.ImportFrom(str(module), level=0) if imported.match(module):
                yield node
            case ast.Constant(str(text)) if id(node) not in docstrings and in_text.search(text):
                yield node


class OnePackage(BuildHookInterface):
    """Hook of the wheel, in which rewritten copies take the place of the programs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the copies into a temporary folder, and tell the builder where they are."""
        if version == "editable":
            raise ValueError("no editable installation is possible; run programs in the checkout")
        files = self.build_config.builder.recurse_included_files()
        programs = {
            file.relative_path: Path(file.path).read_text("utf-8")
            for file in files
            if file.path.endswith(".py")
        }
        modules = {re.split(r"\W", name)[0] for name in programs}
        copies = {name: rewrite(name, text, modules) for name, text in programs.items()}
        copies["__init__.py"] = '"""Stable Diffusion XL on JAX: see `sdxl_jax.pipeline`."""\n'
        self._folder = TemporaryDirectory()
        for name, text in copies.items():
            copy = Path(self._folder.name, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(text.encode())
            build_data["force_include"][str(copy)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copies."""
        self._folder.cleanup()
