"""The command `sdxl-jax`, which `pip` installs: `sdxl-jax draw` and `sdxl-jax serve`."""

import argparse
import sys
from importlib.util import find_spec


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="sdxl-jax",
        description="Draws pictures with Stable Diffusion, or serves a page that does.",
        epilog="`sdxl-jax draw --help` and `sdxl-jax serve --help` list the options.",
    )
    parser.add_argument("command", choices=("draw", "serve"), help="draw pictures into files, or"
        " serve the page and the APIs")  # fmt: skip
    parser.add_argument("options", nargs=argparse.REMAINDER, help="the command's own options")
    chosen = parser.parse_args(arguments)
    if chosen.command == "draw":
        from pipeline.__main__ import main as draw

        return draw(chosen.options, "sdxl-jax draw")
    if find_spec("gradio") is None:
        parser.error("serve needs more packages: pip install 'sdxl-jax[server]'")
    from app import main as serve

    try:
        serve(chosen.options)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
