"""The counter of the tokens of JSON bodies, beside a count of the values themselves."""

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.generator import RequestError
from serving.http.json_tokens import MOST_TOKENS, JsonTokens, encoded

TEXTS = st.text('a"\\,[{é\n', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXTS, part, max_size=4),
    max_leaves=8,
)


def count(value: Any) -> int:
    """Return the least number of tokens of a value: its strings, commas, lists and objects."""
    if isinstance(value, dict):
        inner = sum(1 + count(each) for each in value.values())
        return 1 + max(0, len(value) - 1) + inner
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(count, value))
    return int(isinstance(value, str))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, st.lists(st.integers(1, 5), min_size=1), st.booleans())
def test_tokens_are_counted_in_pieces_of_any_size(value: Any, sizes: list[int], ascii_only: bool):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    tokens, whole = JsonTokens(), JsonTokens()
    whole.add(body)
    while body:
        for size in sizes:
            tokens.add(body[:size])
            body = body[size:]
    assert tokens.count == whole.count >= count(value)


@pytest.mark.parametrize("unit", [b"[],", b'"a":"b",', b'""', b'"\\"",', b"1,"])
def test_too_many_tokens(unit: bytes):
    with pytest.raises(RequestError, match=f"more than {MOST_TOKENS} values and commas"):
        JsonTokens().add(unit * (MOST_TOKENS + 1))


def test_a_file_has_no_tokens():
    tokens = JsonTokens()
    tokens.add(base64.b64encode(bytes(range(256)) * 1000))
    assert tokens.count == 0


def test_only_utf_8_is_json():
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        with pytest.raises(RequestError, match="not JSON in UTF-8"):
            JsonTokens().add("[1]".encode(encoding))


def test_lone_surrogates_are_replaced():
    assert json.loads(encoded(["\ud800", "é"])) == ["?", "é"]
