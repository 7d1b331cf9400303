"""The memory that a model needs, as a text: `python -m pipeline --plan`.

Parameters and what the slots hold are known from their shapes. The compiler tells what programs
take, for the devices of this machine.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence

import jax

from pipeline.checkpoints.source import fetch
from pipeline.default_model import choose_model
from pipeline.drawing.refining import find_refiner, models_of
from pipeline.families import FamilyReader
from pipeline.families.family import Config, image_size
from pipeline.families.reader import fetch_tiny_vae
from pipeline.platforms import network_dtype, worth_a_copy, worth_bfloat16
from pipeline.request import MAX_IMAGES, check_count
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.executables import ExecutableCache, compile_all, measured_bytes
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.memory import gigabytes
from pipeline.runtime.mesh import cores_as_devices, find_devices
from pipeline.runtime.programs import Shapes, Target, check_rows, weights
from pipeline.runtime.room import Room, Size


def print_plan(options: Namespace) -> None:
    """Print what a model needs on this machine, whose weights need not be there.

    With a cache, programs that are not in it are compiled, unless parameters and slots alone need
    too much.

    Args:
        options: the options of the command line.

    Raises:
        DeviceError: if the model does not fit; the plan is printed all the same.
        InputError: if the devices cannot share pictures of these sizes.
    """
    check_count("images_per_request", options.images_per_request, 1, MAX_IMAGES)
    cores_as_devices(options.images_per_request)
    model, revision = choose_model(options.model_id, options.revision)
    tiny_vae = fetch_tiny_vae(options.tiny_vae)
    reader = FamilyReader(None, options.safety_checker, tiny_vae=tiny_vae)
    checkpoint = fetch(model, revision, reader, weights=False)
    requested_sizes = options.sizes or [(options.height, options.width)]
    sizes = list(dict.fromkeys(image_size(checkpoint.config, *size) for size in requested_sizes))
    room = _room(checkpoint.config, sizes, options)
    try:
        room.check(sizes)
        if room.cache is not None:
            _compile(room, sizes)
            room.check(sizes)
    finally:
        print(checkpoint.model, "", *_lines(room, sizes), sep="\n")


def _room(config: Config, sizes: Sequence[Size], options: Namespace) -> Room:
    """Return the memory of a device, with a model for these sizes of pictures."""
    devices, quantization = find_devices(), options.quantization
    cache = None if options.cache_dir is None else ExecutableCache(options.cache_dir)
    dtype = network_dtype(options.dtype, devices)
    networks = trace_networks(config, dtype, cache, quantization)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(weights(networks)))
    if options.dtype is None and worth_bfloat16(devices[0], parameters):
        dtype = network_dtype("bfloat16", devices)
        networks = trace_networks(config, dtype, cache, quantization)
    used = worth_a_copy(devices, parameters)
    mesh = make_mesh(used, options.images_per_request, options.devices_per_picture)
    for height, _ in sizes:
        check_rows(config, mesh, height)
    shapes = Shapes(options.images_per_request, *sizes[0], options.prompt_chunks)
    target = Target(config, dtype, mesh, shapes, options.step_cache, quantization)
    refiner = None
    if options.refiner_id:
        refiner = find_refiner(options.refiner_id, config, sizes[0], prefer_fp16=True)
    return Room(models_of(target, networks, refiner, cache), cache)


def _compile(room: Room, sizes: Sequence[Size]) -> None:
    """Compile the programs of which nothing is known."""
    for size in sizes:
        for model in room.models:
            target, names = model.target.resized(*size), room.unknown(model, size)
            executables = compile_all(names, target, model.networks, room.cache)
            room.note(target, measured_bytes(executables))


def _lines(room: Room, sizes: Sequence[Size]) -> Iterator[str]:
    needs, target = room.needs(sizes), room.models[0].target
    kind, devices = target.mesh.devices.flat[0].device_kind, target.mesh.size
    yield f"{kind}: {target.shapes.images} pictures on {devices} of them, {target.dtype}"
    for model in room.models:
        for network, parameter_bytes in model.parameters.items():
            yield _row(f"  {model.name} {network}".replace("   ", "  "), parameter_bytes)
    yield f"  parameters {gigabytes(needs.parameters)}, slots {gigabytes(needs.slots)}"
    if needs.programs:
        yield f"{'  program':34}{'code':>13}{'temporaries':>13}"
    for name, program in needs.programs.items():
        yield _row(f"  {name}", *program)
    if any(room.unknown(model, size) for model in room.models for size in sizes):
        yield "  programs are not counted; --cache-dir compiles them into a folder"
    else:
        code, largest = gigabytes(needs.code), gigabytes(needs.temporaries)
        yield f"  all code {code}, largest temporaries {largest}"
    verdict = "is not known"
    if room.memory is not None:
        free_bytes = room.memory - needs.total
        verdict = f"{gigabytes(room.memory)}: {'fits' if free_bytes >= 0 else 'does not fit'}"
    unit = "of this machine" if kind == "cpu" else "of one device"
    yield f"  sum {gigabytes(needs.total)}, memory {unit} {verdict}"


def _row(title: str, *sizes: int) -> str:
    return f"{title:34}" + "".join(f"{gigabytes(size):>13}" for size in sizes)
