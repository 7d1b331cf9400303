"""A server of this project for the cells of a notebook, such as `examples/tpu.ipynb`.

The server runs in an environment of its own, because the notebook's may have another JAX. The cells
draw by its API. They need the standard library, Pillow, IPython and ipywidgets.
"""

import base64
import io
import json
import math
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.display import HTML, DisplayHandle, display
from IPython.display import Image as Shown
from PIL import Image, ImageOps

from examples.comfyui import client

ROOT = Path(__file__).parents[1]
LOG, PID, PICTURES = Path("server.log"), Path("server.pid"), Path("pictures")
SIDE = 512  # of a picture in a grid, in pixels
STOP_WITHIN_S = 20.0
# The environment's own packages count, not those that a notebook's variables name.
UNSET = ("PYTHONPATH", "TPU_LIBRARY_PATH")
# Where Colab shows a server in a frame, and the pages that the frame is in.
COLAB_PAGE = {
    "ALLOWED_HOSTS": "*.colab.dev,*.googleusercontent.com",
    "CORS_ORIGINS": "https://colab.research.google.com,https://*.googleusercontent.com",
}
# Advice for a start that fails, by a part of its log.
ADVICE = {
    "already in use": "Another program holds the TPU, and only one can. Restart the notebook's"
    " session, and run no cell that imports JAX.",
    "JAX finds no device": "There is no TPU. In Colab, choose one under Runtime > Change runtime"
    " type; on Kaggle, under Settings > Accelerator.",
}

# Shows the state of a request, and its unfinished or finished pictures.
Show = Callable[[str, bytes | None], object]


class Server:
    """A server on this machine, which other machines cannot reach.

    Args:
        python: the Python of its environment.
        platform: "tpu", or "cpu" to draw with the miniature.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(self, python: str | Path, platform: str) -> None:
        self.port = 0
        self._python = Path(python).absolute()  # a link to Python is not followed
        self._environment = {k: v for k, v in os.environ.items() if k not in UNSET}
        # With "tpu" first, JAX fails without a TPU. By itself it would draw on the CPU.
        self._environment |= {
            "JAX_PLATFORMS": ",".join(dict.fromkeys([platform, "cpu"])),
            "CACHE_DIR": f"{ROOT}-cache",
            "STOP_WITHIN": "5",
            "TQDM_POSITION": "-1",  # the Hub's client then shows progress in a file too
        }

    def start(self, **settings: str) -> None:
        """Start the server, and show its log until it is ready; a former one is stopped before.

        Args:
            settings: variables of docs/settings.md.

        Raises:
            RuntimeError: if it ends instead; the message says why.
        """
        self.stop()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        with LOG.open("w") as log:
            process = subprocess.Popen(
                [self._python, "app.py", "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=ROOT,
                env=self._environment | settings,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupted cell does not interrupt it
            )
        PID.write_text(str(process.pid))
        text = ""
        with LOG.open(newline="", errors="replace") as log:
            while not self._is_ready():
                ended = process.poll() is not None
                text += (news := log.read())
                print(_lines(news), end="", flush=True)
                if ended:
                    raise RuntimeError(f"The server did not start. {_advice(text)}")
                time.sleep(0.1)
            print(_lines(log.read()), end="")

    def stop(self) -> None:
        """Stop the server, also that of an earlier session, so that the TPU is free."""
        began = time.monotonic()
        with suppress(OSError, ValueError):  # there is none
            pid = int(PID.read_text())
            while b"app.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                late = time.monotonic() - began > STOP_WITHIN_S
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                time.sleep(0.2)

    def _is_ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz"):
            return True
        return False

    def model(self) -> dict[str, Any]:
        """Return the description of the model that draws."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/model") as answer:
            return json.load(answer)

    def draw(
        self,
        prompt: str,
        image: Image.Image | str | Path | None = None,
        show: Show | None = None,
        **settings: Any,
    ) -> list[Image.Image]:
        """Draw pictures, and show them below the cell; their files are in the folder `pictures`.

        Args:
            prompt: what to draw.
            image: a picture to start from, or the path of one.
            show: shows the pictures elsewhere.
            settings: other parameters of docs/api.md.

        Raises:
            RuntimeError: if the server cannot draw; the message says why.
        """
        show = show or _below()
        body = {"prompt": prompt, "previews": True, **settings}
        if image is not None:
            file = _png(image) if isinstance(image, Image.Image) else Path(image).read_bytes()
            body["image"] = base64.b64encode(file).decode()
        PICTURES.mkdir(exist_ok=True)
        seeds: dict[int, int] = {}

        def on_event(name: str, fields: dict[str, Any]) -> None:
            match name:
                case "queued":
                    show(f"waiting, at place {fields['position']}", None)
                case "step":
                    show(f"step {fields['done']} of {fields['total']}", None)
                case "preview":
                    show("", grid([base64.b64decode(file) for file in fields["jpegs"]]))
                case "image":
                    seeds[fields["index"]] = fields["seed"]

        files = client.draw(f"http://127.0.0.1:{self.port}", body, "", on_event)
        paths = [PICTURES / f"{seeds[index]}.png" for index in sorted(seeds)]
        for path, file in zip(paths, files, strict=True):
            path.write_bytes(file)
        show(", ".join(map(str, paths)), grid(files))
        return [Image.open(io.BytesIO(file)) for file in files]

    def form(self) -> widgets.VBox:
        """Return a form that draws, with previews."""
        model, wide = self.model(), {"layout": widgets.Layout(width="95%")}
        loras = [("none", ""), *((lora["name"], lora["name"]) for lora in model["loras"])]
        steps = {"min": 1, "max": model["max_inference_steps"]}
        fields = {
            "prompt": widgets.Textarea(description="Prompt", **wide),
            "negative_prompt": widgets.Text(description="Without", **wide),
            "num_inference_steps": widgets.IntSlider(
                model["num_inference_steps"], description="Steps", **steps
            ),
            "guidance_scale": widgets.FloatSlider(
                model["guidance_scale"], min=0, max=20, description="Guidance"
            ),
            "seed": widgets.Text(description="Seed", placeholder="random"),
            "lora": widgets.Dropdown(description="LoRA", options=loras),
            "weight": widgets.FloatSlider(1, min=-4, max=4, description="Weight"),
            "image": widgets.Text(
                description="Start from", placeholder="a file, such as pictures/7.png"
            ),
            "strength": widgets.FloatSlider(0.8, min=0.01, max=1, description="Strength"),
        }
        button = widgets.Button(description="Draw", button_style="primary")
        state, picture = (
            widgets.Label(),
            widgets.Image(format="jpeg", layout=widgets.Layout(display="none")),
        )

        def show(text: str, file: bytes | None) -> None:
            state.value = text or state.value
            if file is not None:
                picture.value, picture.layout.display = file, ""

        def press(_: widgets.Button) -> None:
            button.disabled = True
            try:
                self.draw(show=show, **_asked({name: x.value for name, x in fields.items()}))
            except (RuntimeError, OSError, ValueError) as error:
                state.value = str(error)
            except KeyboardInterrupt:
                state.value = "stopped"
            finally:
                button.disabled = False

        button.on_click(press)
        return widgets.VBox([*fields.values(), button, state, picture])

    def execute(self, notebook: str) -> None:
        """Stop the server, run another notebook in its environment, and show its pictures.

        The environment needs `ipykernel` and `nbclient`.

        Args:
            notebook: its path in the repository.

        Raises:
            RuntimeError: if a cell fails; the message is that of the cell.
        """
        self.stop()
        copy = Path(Path(notebook).name).absolute()
        command = ["-m", "jupyter", "execute", "--timeout=-1", f"--output={copy}"]
        done = subprocess.run(
            [self._python, *command, ROOT / notebook],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{notebook} failed. {_advice(done.stderr)}")
        for cell in json.loads(copy.read_text())["cells"]:
            for output in cell.get("outputs", ()):
                if file := output.get("data", {}).get("image/png"):
                    display(Shown(base64.b64decode(file)))


def grid(files: Sequence[bytes]) -> bytes:
    """Return a JPEG file with the pictures of some files in rows and columns."""
    columns = math.ceil(math.sqrt(len(files)))
    pictures = [ImageOps.contain(Image.open(io.BytesIO(file)), (SIDE, SIDE)) for file in files]
    width, height = pictures[0].size
    whole = Image.new("RGB", (columns * width, math.ceil(len(files) / columns) * height), "white")
    for number, picture in enumerate(pictures):
        whole.paste(picture, (number % columns * width, number // columns * height))
    file = io.BytesIO()
    whole.save(file, "JPEG", quality=90)
    return file.getvalue()


def _below() -> Show:
    """Return a function that shows pictures below the cell that runs."""
    state, picture = DisplayHandle(), DisplayHandle()
    for place in (state, picture):
        place.display(HTML(""))

    def show(text: str, file: bytes | None) -> None:
        if text:
            state.update(HTML(text))
        if file is not None:
            picture.update(Shown(file))

    return show


def _asked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request from the values of the form."""
    lora, weight = values.pop("lora"), values.pop("weight")
    seed, image, strength = values.pop("seed"), values.pop("image"), values.pop("strength")
    if seed:
        values["seed"] = int(seed)
    if lora:
        values["loras"] = {lora: weight}
    if image:
        values |= {"image": image, "strength": strength}
    return values


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _lines(log: str) -> str:
    """Return the lines of a log, and the newest of its progress bars in a line that is replaced.

    Bars move the cursor up, which notebooks cannot.
    """
    parts = [part.strip() for part in re.split(r"\r|\n|\x1b\[A", log) if part.strip()]
    lines = [f"\r{part:<90}\n" for part in parts if "|" not in part]
    bars = [f"\r{part:<90}" for part in parts if "|" in part]
    return "".join([*lines, *bars[-1:]])


def _advice(log: str) -> str:
    """Return what to do about a failure, or else the last line of its log."""
    fitting = (advice for part, advice in ADVICE.items() if part in log)
    return next(fitting, (log.strip().splitlines() or ["Its log is empty."])[-1])
