"""Examples, and the cards in the place of the first pictures."""

import re
from random import Random

import pytest

from ui.page import beginning
from ui.samples.examples import examples_for, surprise
from ui.samples.model_kind import Kind

WRONG_ARTICLE = re.compile(r"\b(a [aeiou]|an [^aeiou])")


@pytest.mark.parametrize("kind", Kind)
def test_surprises_have_the_right_article(kind: Kind):
    found = {surprise(kind, Random(seed)) for seed in range(500)}
    assert [prompt for prompt in found if WRONG_ARTICLE.search(prompt)] == []
    if kind is Kind.MINIATURE:
        assert any(" an orange " in prompt for prompt in found)


@pytest.mark.parametrize("kind", Kind)
def test_four_cards_and_pictures_only_where_the_model_drew_them(kind: Kind):
    html = str(beginning.cards(kind).value)
    assert re.findall(r'data-example="([^"]+)"', html) == list(examples_for(kind))
    assert html.count("<span>") == 4
    assert html.count("<img") == (4 if kind is Kind.MINIATURE else 0)
