"""Preparation of a control's picture: preprocessors, and the fit of their maps."""

from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import Cancelled, InputError
from pipeline.images import preparing
from pipeline.images.inputs import Picture
from pipeline.images.preparing import PREPROCESSORS, Preprocessor
from pipeline.text.controls import UNION_TYPES, Control

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (64, 96, 3), np.uint8)
GREYS = np.arange(64, dtype=np.uint8).repeat(96).reshape(64, 96, 1).repeat(3, axis=2) * np.uint8(4)


def detected(name: str, image: np.ndarray, resolution: int = 64, *values: Any) -> np.ndarray:
    first, second, *_ = *values, None, None
    return preparing.detected(PREPROCESSORS[name], image, resolution, (first, second))


def prepared(
    image: Any, height: int = 64, width: int = 96, mask: Any = None, **settings: Any
) -> np.ndarray:
    options: dict[str, Any] = {
        name: settings.pop(name) for name in ("masked", "cancelled") if name in settings
    }
    return preparing.prepared(Control("net", **settings), image, height, width, mask, **options)


def step(height: int, rows: int = 64, columns: int = 96) -> np.ndarray:
    """Return a picture whose right half is brighter by a height, in blue alone."""
    image = np.full((rows, columns, 3), 20, np.uint8)
    image[:, columns // 2 :, 2] += np.uint8(height)
    return image


def smoothed(values: np.ndarray, sigma: float, sigmas: int) -> np.ndarray:
    """Return values `[H, W]` under a Gaussian filter of so many sigmas, as OpenCV cuts it off."""
    radius = round(2 * sigmas * sigma + 1) // 2
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    for axis in (0, 1):
        padded = np.pad(
            values, [(radius, radius) if i == axis else (0, 0) for i in (0, 1)], "reflect"
        )
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(weights), axis)
        values = windows @ weights
    return values


# --- preprocessors ---


@pytest.mark.parametrize(
    ("height", "thresholds", "has_edge"),
    [
        (49, (), False),  # 4 * 49 is less than 200
        (51, (), True),
        (51, (100, 210), False),
        (24, (50, 90), True),
        (24, (97, 98), False),
    ],
)
def test_canny(height: int, thresholds: tuple[float, ...], has_edge: bool) -> None:
    edges = detected("canny", step(height), 64, *thresholds)
    assert edges.shape == (64, 96, 3)
    columns = np.flatnonzero((edges == 255).all(axis=(0, 2)))
    assert columns.tolist() in ([47], [48]) if has_edge else not edges.any()


def test_invert_and_threshold() -> None:
    np.testing.assert_array_equal(detected("invert", NOISE), 255 - NOISE)
    for value, values in ((127, ()), (30, (30,))):
        is_light = (NOISE[..., 0] > value) & (NOISE[..., 1] > value) & (NOISE[..., 2] > value)
        expected = 255 * is_light[..., None].repeat(3, axis=2)
        np.testing.assert_array_equal(detected("threshold", NOISE, 64, *values), expected)


@pytest.mark.parametrize("threshold", [None, 7])
def test_xdog(threshold: float | None) -> None:
    image = np.full((64, 64, 3), (250, 240, 255), np.uint8)
    image[20:24, 8:50] = 40, 60, 90
    planes = np.moveaxis(image, 2, 0) * 1.0
    difference = np.min(
        [smoothed(plane, 5.0, 4) - smoothed(plane, 0.5, 4) for plane in planes], axis=0
    )
    edges = np.ceil(difference.clip(0, 255) - 1e-3)
    expected = 255 * (2 * edges % 256 > (threshold or 32))
    edge_map = detected("scribble_xdog", image, 64, threshold)
    assert 0 < expected.mean() < 128
    np.testing.assert_array_equal(edge_map, expected[..., None].repeat(3, axis=2))


def test_steep_edges_of_xdog_wrap() -> None:
    dot = np.full((64, 64, 3), 255, np.uint8)
    dot[32, 32] = 0  # where the difference is 255 * 0.62, twice which is 316, 60 in uint8
    assert detected("scribble_xdog", dot)[32, 32, 0] == 255
    assert detected("scribble_xdog", dot, 64, 64)[32, 32, 0] == 0


@pytest.mark.parametrize(("sigma", "values"), [(9.0, ()), (1.5, (1.5,))])
def test_blur(sigma: float, values: tuple[float, ...]) -> None:
    blurred = detected("blur_gaussian", NOISE, 64, *values)
    planes = [smoothed(plane * 1.0, sigma, 3) for plane in np.moveaxis(NOISE, 2, 0)]
    assert np.abs(blurred - np.stack(planes, axis=2)).max() < 2  # OpenCV rounds in between


@pytest.mark.parametrize(
    ("rate", "shape"), [(1.0, (64, 96)), (1.09, (64, 96)), (2.0, (32, 48)), (3.0, (21, 32))]
)
def test_tile_resample(rate: float, shape: tuple[int, int]) -> None:
    tile = detected("tile_resample", NOISE, 512, rate)
    assert tile.shape == (*shape, 3)
    if rate == 2:
        means = NOISE.reshape(32, 2, 48, 2, 3).mean(axis=(1, 3))
        assert np.abs(tile - means).max() <= 0.5
    elif rate < 2:
        np.testing.assert_array_equal(tile, NOISE)


@pytest.mark.parametrize(
    ("name", "colour", "gamma", "value"),
    [
        ("recolor_luminance", (255, 0, 0), 1.0, 82),  # L of blue: 32.3 %
        ("recolor_luminance", (0, 0, 255), 1.0, 136),  # L of red: 53.2 %
        ("recolor_luminance", (255, 255, 255), 0.5, 255),
        ("recolor_intensity", (10, 200, 30), 1.0, 200),
        ("recolor_intensity", (64, 0, 0), 0.5, 127),
    ],
)
def test_recolor(name: str, colour: tuple[int, ...], gamma: float, value: int) -> None:
    image = np.full((4, 6, 3), colour, np.uint8)
    grey = detected(name, image, 64, gamma)
    assert grey.shape == (4, 6, 3)
    assert np.abs(grey.astype(int) - value).max() <= 1


def test_every_preprocessor_is_described() -> None:
    assert [*PREPROCESSORS] == [p.name for p in PREPROCESSORS.values()]
    for preprocessor in PREPROCESSORS.values():
        assert preprocessor.type in ("", *UNION_TYPES)
        assert len(preprocessor.sliders) <= 2
        for slider in preprocessor.sliders:
            assert slider.minimum <= slider.default <= slider.maximum
        for image in (NOISE, NOISE[:, :10]):
            values = preparing.detected(preprocessor, image, 40)
            assert (values.dtype, values.ndim, values.shape[2]) == (np.uint8, 3, 3)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("inpaint_global_harmonious", "inpaint"),
        ("invert (from white bg & black line)", "invert"),
        *((name, name) for name in PREPROCESSORS),
    ],
)
def test_names_and_labels(name: str, canonical: str) -> None:
    assert preparing.find_preprocessor(name) is PREPROCESSORS[canonical]


# --- resolution ---


@pytest.mark.parametrize(
    ("size", "target", "resize_mode", "resolution"),
    [
        ((400, 600), (1024, 1024), "crop", 1024),
        ((400, 600), (1024, 1024), "stretch", 1024),
        ((400, 600), (1024, 1024), "fill", 683),
        ((1200, 800), (768, 512), "crop", 512),
        ((300, 100), (512, 512), "crop", 512),
        ((300, 100), (512, 512), "fill", 171),
    ],
)
def test_pixel_perfect(
    size: tuple[int, int], target: tuple[int, int], resize_mode: str, resolution: int
) -> None:
    assert preparing.pixel_perfect(*size, *target, resize_mode) == resolution


def test_larger_maps_are_interpolated_and_smaller_ones_averaged() -> None:
    as_read = Preprocessor("read", lambda image, _a, _b: image, reads="resized")
    half = preparing.detected(as_read, NOISE, 32)
    assert np.abs(half - NOISE.reshape(32, 2, 48, 2, 3).mean(axis=(1, 3))).max() <= 0.5
    edge = np.full((8, 12, 3), 100, np.uint8)
    edge[:, 6:] = 200
    large = preparing.detected(as_read, edge, 32)
    assert large.shape == (32, 48, 3)
    assert (large.min(), large.max()) == (89, 211)  # a cubic filter overshoots


def test_pictures_are_padded_to_blocks() -> None:
    shapes = []

    def read(image: np.ndarray, _a: float, _b: float) -> np.ndarray:
        shapes.append(image.shape)
        return image

    padded = Preprocessor("read", read, reads="padded")
    values = preparing.detected(padded, NOISE, 70)
    assert (shapes, values.shape) == ([(128, 128, 3)], (70, 105, 3))


def test_a_large_resolution_stays_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "MAX_PIXELS", 2**13)
    values = detected("threshold", NOISE[:16], 2048)
    assert values.shape == (37, 222, 3)


# --- the fit ---


def marked(rows: int, columns: int) -> np.ndarray:
    """Return a picture of many colours, whose edges are grey and whose middle is red."""
    image = RNG.integers(90, 110, (rows, columns, 3)).astype(np.uint8)
    image[rows // 4 : -rows // 4, columns // 4 : -columns // 4] = 255, 0, 0
    return image


@pytest.mark.parametrize(
    ("size", "target", "resize_mode", "red"),
    [  # the red part's rows and columns
        ((64, 96), (64, 96), "crop", (16, 48, 24, 72)),
        ((64, 96), (128, 192), "stretch", (32, 96, 48, 144)),
        ((64, 96), (64, 64), "crop", (16, 48, 8, 56)),
        ((96, 64), (64, 64), "crop", (8, 56, 16, 48)),
        ((64, 96), (64, 64), "stretch", (16, 48, 16, 48)),
        ((64, 128), (64, 64), "fill", (24, 40, 16, 48)),
        ((128, 64), (64, 64), "fill", (16, 48, 24, 40)),
    ],
)
def test_resize_modes(
    size: tuple[int, int], target: tuple[int, int], resize_mode: str, red: tuple[int, ...]
) -> None:
    values = preparing.fitted_map(marked(*size), *target, resize_mode)
    assert values.shape == (*target, 3)
    top, bottom, left, right = red
    is_red = (values[..., 0] > 180) & (values[..., 1] < 60)
    expected = np.zeros(target, bool)
    expected[top:bottom, left:right] = True
    assert (is_red != expected).mean() < 0.03
    assert is_red[(top + bottom) // 2, [left - 3, left + 2]].tolist() == [False, True]


def test_borders_have_the_median_of_the_edges() -> None:
    image = np.full((8, 16, 3), 10, np.uint8)
    image[0] = image[-1] = 200, 100, 50
    values = preparing.fitted_map(np.dstack([image, image[..., 0] * 0]), 16, 16, "fill")
    assert values[0, 0].tolist() == values[-1, 5].tolist() == [200, 100, 50, 255]
    np.testing.assert_array_equal(values[4:12, :, :3], image)
    assert not values[4:12, :, 3].any()


@pytest.mark.parametrize("size", [(40, 60), (150, 200)])
def test_few_colours_stay_few(size: tuple[int, int]) -> None:
    segments = np.array([(0, 0, 0), (120, 10, 3), (9, 200, 7)], np.uint8)[
        RNG.integers(3, size=(64, 96))
    ]
    values = preparing.fitted_map(segments, *size, "stretch")
    colours = {tuple(colour) for colour in values.reshape(-1, 3).tolist()}
    assert colours == {tuple(colour) for colour in segments.reshape(-1, 3).tolist()}


@pytest.mark.parametrize("colours", [2, 3, 199, 200])
def test_nearest_pixels_are_for_3_to_199_colours(colours: int) -> None:
    values = np.zeros((20, 30, 3), np.uint8)
    values[..., 1] = 60
    values.reshape(-1, 3)[:colours, 0] = np.arange(colours)
    old = {tuple(colour) for colour in values.reshape(-1, 3).tolist()}
    assert len(old) == colours
    new = preparing.fitted_map(np.repeat(values, 2, axis=1)[::-1], 31, 47, "stretch")
    is_subset = {tuple(colour) for colour in new.reshape(-1, 3).tolist()} <= old
    assert is_subset or colours in (2, 200)


def test_black_and_white_stay_so_and_thick_lines_thick() -> None:
    blob = np.zeros((64, 64, 3), np.uint8)
    blob[10:40, 20:50] = 255
    for side in (32, 48, 101):
        values = preparing.fitted_map(blob, side, side, "stretch")
        assert np.unique(values).tolist() == [0, 255]
        assert abs(values.mean() / blob.mean() - 1) < 0.1


@pytest.mark.parametrize("side", [40, 64, 131, 200])
def test_thin_lines_stay_a_pixel_wide(side: int) -> None:
    lines = np.zeros((64, 64, 3), np.uint8)
    lines[20] = 255
    lines[:, 45] = 255
    values = preparing.fitted_map(lines, side, side, "stretch")
    assert np.unique(values).tolist() == [0, 255]
    middle = round(10 * side / 64)
    assert np.count_nonzero(values[:, middle, 0]) == np.count_nonzero(values[middle, :, 0]) == 1


def test_lines_become_thin() -> None:
    thick = np.zeros((40, 40), np.uint8)
    thick[10:17, 4:36] = 255
    thin = preparing._thinned(thick, without_spurs=False)
    assert (thin[:, 12:28] > 0).sum(axis=0).tolist() == [1] * 16
    assert not thin[thick == 0].any()


# --- controls ---


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (Image.new("RGB", (96, 64), (255, 0, 51)), (1, 0, 0.2)),
        (Image.new("L", (96, 64), 51), (0.2, 0.2, 0.2)),
        (Image.new("RGBA", (96, 64), (255, 0, 0, 0)), (1, 1, 1)),
        (np.full((64, 96, 3), 0.2, np.float32), (0.2, 0.2, 0.2)),
    ],
)
def test_pictures_of_any_kind(image: Picture, colour: tuple[float, ...]) -> None:
    hint = prepared(image)
    assert (hint.shape, hint.dtype) == ((64, 96, 3), np.float32)
    np.testing.assert_allclose(hint, np.broadcast_to(colour, hint.shape), atol=1e-6)


@pytest.mark.parametrize("name", PREPROCESSORS)
@pytest.mark.parametrize("resize_mode", ["crop", "stretch", "fill"])
def test_hints_have_the_pictures_size(name: str, resize_mode: str) -> None:
    for image in (Image.fromarray(NOISE), Image.fromarray(NOISE[:, :20])):
        hint = prepared(image, 48, 72, preprocessor=name, resize_mode=resize_mode)
        assert (hint.shape, hint.dtype) == ((48, 72, 3), np.float32)
        assert -1 <= hint.min() <= hint.max() <= 1


def test_a_control_is_pixel_perfect_unless_it_has_a_resolution() -> None:
    image = Image.fromarray(step(60))
    for resolution, in_map in ((0, 128), (64, 64)):
        hint = prepared(image, 128, 192, preprocessor="canny", resolution=resolution)
        edges = detected("canny", step(60), in_map)
        expected = preparing.fitted_map(edges, 128, 192, "crop") / np.float32(255)
        np.testing.assert_array_equal(hint, expected)


@pytest.mark.parametrize("name", ["inpaint_only", "inpaint"])
@pytest.mark.parametrize(("options", "value"), [({}, -1), ({"masked": 0.0}, 0)])
def test_masked_parts_are_hidden(name: str, options: dict[str, Any], value: float) -> None:
    mask = np.zeros((64, 96), np.float32)
    mask[10:20, 30:50] = 1
    image = Image.fromarray(NOISE)
    hint = prepared(image, mask=mask, preprocessor=name, **options)
    assert (hint[10:20, 30:50] == value).all()
    np.testing.assert_array_equal(hint[mask == 0], NOISE[mask == 0] / np.float32(255))
    assert (prepared(image, preprocessor=name, **options) >= 0).all()
    assert (prepared(image, mask=mask) >= 0).all()  # for other networks nothing is hidden


def test_transparent_parts_and_borders_are_hidden_too() -> None:
    alpha = Image.new("L", (96, 64), 255)
    alpha.paste(0, (30, 10, 50, 20))
    image = Image.fromarray(NOISE)
    image.putalpha(alpha)
    hint = prepared(image, 128, 96, preprocessor="inpaint_only", resize_mode="fill")
    is_hidden = np.ones((128, 96), bool)
    is_hidden[32:96] = np.asarray(alpha) == 0
    np.testing.assert_array_equal((hint == -1).all(axis=2), is_hidden)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preprocessor": "depth"}, "preprocessor is 'depth'; expected one of 'none', 'canny', "),
        (
            {"preprocessor": "canny", "threshold_a": 300.0},
            "threshold_a of 'canny' is 300; expected a number from 1 to 255, its Low Threshold",
        ),
        ({"preprocessor": "blur_gaussian", "threshold_a": 0.0}, "from 0.01 to 64, its Sigma"),
    ],
)
def test_what_cannot_be_prepared(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared(Image.fromarray(NOISE), **settings)


def test_long_pictures_are_refused() -> None:
    prepared(Image.new("RGB", (80, 10)))
    with pytest.raises(
        InputError, match=r"the picture to follow is 81x10; expected .* at most 8 times"
    ):
        prepared(Image.new("RGB", (81, 10)))


def test_preparation_can_be_cancelled() -> None:
    cancelled = Event()
    prepared(NOISE / np.float32(255), cancelled=cancelled)
    cancelled.set()
    with pytest.raises(Cancelled):
        prepared(NOISE / np.float32(255), cancelled=cancelled)


# --- the operator's own ---


def test_an_operators_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "PREPROCESSORS", {**PREPROCESSORS})
    preparing.add_preprocessors(["depth=tests.preprocessors:red"])
    image, control = Image.fromarray(NOISE), Control("net", preprocessor="depth")
    hint = preparing.prepared(control, image, 64, 96)
    np.testing.assert_array_equal(hint, NOISE[..., :1].repeat(3, axis=2) / np.float32(255))
    half = preparing.detected(
        preparing.load_preprocessor("x=tests.preprocessors:unchanged"), NOISE, 32
    )
    assert half.shape == (32, 48, 3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "too_deep",
            r"'depth' returned float32 of shape \[64, 96, 3\]; expected \[H, W, 3\] uint8",
        ),
        ("failing", "the preprocessor 'depth' failed"),
    ],
)
def test_what_an_operators_function_may_not_do(function: str, message: str) -> None:
    own = preparing.load_preprocessor(f"depth=tests.preprocessors:{function}")
    with pytest.raises(InputError, match=message) as raised:
        preparing.detected(own, NOISE, 64)
    assert "no memory" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tests.preprocessors:red", "no preprocessor such as depth=my_module:function"),
        ("=tests.preprocessors:red", "no preprocessor such as"),
        ("depth=tests.preprocessors:blue", "--preprocessors: .* cannot be used: AttributeError"),
        ("depth=tests.nothing:red", "cannot be used: ModuleNotFoundError"),
        ("depth=tests.preprocessors:NO_FUNCTION", "7 is not a function"),
    ],
)
def test_functions_that_cannot_be_imported(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        preparing.load_preprocessor(text)
