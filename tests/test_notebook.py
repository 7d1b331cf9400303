"""The notebook for free TPUs, with stand-ins for what a cloud provides, and its server."""

import base64
import io
import os
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from PIL import Image

from examples import notebook
from tests import compiling

ROOT = Path(__file__).parents[1]
HOST = "7860-m-s-kkb-us-east1.us-east1-0.prod.colab.dev"
COMMANDS = {
    # The last argument is the folder of the clone.
    "git": 'echo git "$@"; for last; do :; done; cp -a $CLONE "$last"',
    # The devices of this machine's CPU take the place of a TPU's.
    "uv": """echo uv "$@"
if [ $1 = venv ]; then
  for last; do :; done
  mkdir -p "$last/bin"
  printf '#!/bin/sh\\nJAX_PLATFORMS=cpu exec {python} "$@"\\n' > "$last/bin/python"
  chmod +x "$last/bin/python"
fi""".replace("{python}", sys.executable),
}
COLAB = f"""
import urllib.request

def serve_kernel_port_as_iframe(port, height):
    request = urllib.request.Request(f"http://127.0.0.1:{{port}}/", headers={{"Host": "{HOST}"}})
    with urllib.request.urlopen(request) as answer:
        print(answer.status, answer.headers["Content-Security-Policy"])
"""
FORM = """
form = server.form()
*fields, button, state, picture = form.children
values = {field.description: field for field in fields}
values["Prompt"].value = "a small green circle on a white background"
values["Seed"].value, values["Start from"].value = "3", "pictures/7.png"
values["LoRA"].value = "dusk"
seen = []
picture.observe(lambda change: seen.append(change["new"]), "value")
button.click()
print(len(seen) > 1, state.value)
values["Start from"].value = "gone.png"
button.click()
print(state.value)
"""


def clone(folder: Path) -> None:
    """Make what `git clone` makes, with links; the guide is a notebook of one cell."""
    (folder / "examples").mkdir(parents=True)
    for file in [*ROOT.iterdir(), *(ROOT / "examples").iterdir()]:
        if file.name != "examples" and not file.name.startswith("."):
            (folder / file.relative_to(ROOT)).symlink_to(file)
    guide = folder / "examples/jax_guide.ipynb"
    guide.unlink()
    source = 'import jax\nfrom PIL import Image\nImage.new("RGB", (jax.device_count(), 1))'
    cells = [nbformat.v4.new_code_cell(source)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), guide)


@pytest.mark.slow  # compiles
def test_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook draws on eight devices, with the bundled miniature."""
    (tmp_path / "google/colab").mkdir(parents=True)
    (tmp_path / "google/colab/output.py").write_text(COLAB)
    for name, script in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    clone(tmp_path / "clone")
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "CLONE": str(tmp_path / "clone"),
        "COLAB_RELEASE_TAG": "release",
        "JAX_NUM_CPU_DEVICES": "8",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    book = nbformat.read(ROOT / "examples/tpu.ipynb", as_version=4)
    for name in ("PAGE", "GUIDE"):
        book.cells[1].source = book.cells[1].source.replace(f"{name} = False", f"{name} = True")
    place = [cell.source for cell in book.cells].index("server.form()")
    book.cells.insert(place + 1, nbformat.v4.new_code_cell(FORM))
    try:
        with compiling.quickly():
            nbclient.NotebookClient(book, timeout=300).execute()
    finally:
        notebook.Server(sys.executable, "cpu").stop()

    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    text = "".join(output.text for output in outputs if "text" in output)
    for part in (
        "Colab draws on the TPU.",
        "uv pip install --quiet",
        "requirements-tpu.txt",
        "True pictures/3.png, pictures/4.png, pictures/5.png, pictures/6.png",
        "No such file or directory: 'gone.png'",
        "200 default-src 'self';",
        "frame-ancestors 'self' https://colab.research.google.com https://*.googleusercontent.com",
    ):
        assert part in text
    files = [
        base64.b64decode(data)
        for output in outputs
        for kind, data in output.get("data", {}).items()
        if kind.startswith("image/")
    ]
    assert [Image.open(io.BytesIO(file)).size for file in files] == [*[(1024, 1024)] * 2, (8, 1)]
    assert {Image.open(f"pictures/{seed}.png").size for seed in (3, 6, 7, 10)} == {(256, 256)}


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("COLAB_RELEASE_TAG", "Colab draws on the TPU."),
        ("KAGGLE_KERNEL_RUN_TYPE", "Kaggle draws on the TPU."),
        ("OTHER", "This machine draws on the CPU."),
    ],
)
def test_the_services_are_recognised(
    variable: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, "set")
    cells = nbformat.read(ROOT / "examples/tpu.ipynb", as_version=4).cells
    exec(next(cell.source for cell in cells if "SERVICES" in cell.source), {})
    assert capsys.readouterr().out.strip() == message


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a program in place of Python, which a test writes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "python"


def server(python: Path, script: str) -> notebook.Server:
    python.write_text(f"#!/bin/bash\n{script}\n")
    python.chmod(0o755)
    return notebook.Server(python, "tpu")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("ABORTED: The TPU is already in use by process with pid 5.", "Another program holds the"),
        ("app.py: JAX finds no device to run on ('tpu,cpu')", "There is no TPU. In Colab, choose"),
        ("app.py: --port: what else", "app.py: --port: what else"),
    ],
)
def test_a_failed_start_says_what_to_do(python: Path, said: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        server(python, f'echo "{said}"; exit 2').start()


def test_a_start_shows_the_log_and_the_newest_progress(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = r"Loading\n\n\rBytes: | 1B\x1b[A\rFetching:  5%%|# | 1/9\x1b[A\rFetching: 10%%|# | 2/9\n"
    with pytest.raises(RuntimeError):
        server(python, f"printf '{bars}'; exit 2").start()
    shown = capsys.readouterr().out
    assert [part.strip() for part in shown.split("\r")] == ["", "Loading", "Fetching: 10%|# | 2/9"]


def test_a_start_stops_the_server_of_an_earlier_session(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new server sees the devices that it was told to, and none of the notebook's packages."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    Path("readyz").touch()
    script = (
        'echo "$JAX_PLATFORMS,$SCHEDULER,$PYTHONPATH,"\n'
        f"exec -a app.py {sys.executable} -m http.server $5 --directory {python.parent}"
    )
    server(python, script).start()
    first = int(notebook.PID.read_text())
    second = server(python, script)
    second.start(SCHEDULER="heun")
    try:
        assert notebook.LOG.read_text().split()[0] == "tpu,cpu,heun,,"
        assert b"app.py" not in command_of(first)
        assert b"app.py" in command_of(int(notebook.PID.read_text()))
    finally:
        second.stop()
    assert b"app.py" not in command_of(int(notebook.PID.read_text()))


def command_of(pid: int) -> bytes:
    file = Path(f"/proc/{pid}/cmdline")
    return file.read_bytes() if file.exists() else b""
