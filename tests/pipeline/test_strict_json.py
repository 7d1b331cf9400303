"""Names in JSON objects are not repeated."""

import pytest

from pipeline.strict_json import unique_names


def test_a_repeated_name_among_many_is_found() -> None:
    pairs = [(f"n{number % 200_000}", number) for number in range(200_001)]
    with pytest.raises(ValueError, match="it has 'n0' twice"):
        unique_names(pairs)


def test_a_long_name_does_not_make_a_long_message() -> None:
    with pytest.raises(ValueError, match="twice") as caught:
        unique_names([("a" * 10**6, 1), ("a" * 10**6, 2)])
    assert len(str(caught.value)) < 100
