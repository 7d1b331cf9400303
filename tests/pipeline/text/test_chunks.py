"""Long prompts are divided into chunks as AUTOMATIC1111 divides them."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.tokenizer import Break, Run, arrange

COMMA = 99


def divided(*runs: Run | Break, room: int = 75, most: int = 3) -> list[list[int]]:
    chunks, count = arrange(runs, room, most, COMMA)
    assert count == sum(map(len, chunks))
    return [[token for token, _ in chunk] for chunk in chunks]


def words(count: int, first: int = 0) -> list[int]:
    return [1000 + first + i for i in range(count)]


def test_a_short_prompt_is_one_chunk() -> None:
    assert divided() == [[]]
    assert divided(Run(words(75))) == [words(75)]


def test_a_long_prompt_fills_its_chunks() -> None:
    assert divided(Run(words(160))) == [words(75), words(75, 75), words(10, 150)]


def test_a_word_that_is_cut_moves_with_those_after_the_comma() -> None:
    before, after = [*words(60), COMMA], words(30, 60)
    assert divided(Run([*before, *after])) == [before, after]
    # The comma is too far away, or the chunk ends with it.
    assert divided(Run([*words(54), COMMA, *words(30)]))[0] == [*words(54), COMMA, *words(20)]
    assert divided(Run([*words(74), COMMA, *words(3)])) == [[*words(74), COMMA], words(3)]
    assert divided(Run([*words(60), COMMA, *words(14), COMMA])) == [
        [*words(60), COMMA, *words(14)],
        [COMMA],
    ]


def test_the_last_chunk_is_filled() -> None:
    tokens = [*words(60), COMMA, *words(30, 60)]
    assert divided(Run(tokens), most=1) == [tokens[:75]]
    assert divided(Run(words(400)), most=3)[2] == words(75, 150)


def test_breaks() -> None:
    first, second = Run(words(2)), Run(words(3))
    assert divided(first, Break(), second) == [words(2), words(3)]
    assert divided(Break(), first) == [[], words(2)]
    assert divided(first, Break(), second, most=1) == [[*words(2), *words(3)]]


def test_an_embedding_stays_together() -> None:
    embedding = Run([-1, -2, -3], is_whole=True)
    assert divided(Run(words(73)), embedding) == [words(73), [-1, -2, -3]]
    assert divided(Run(words(73)), embedding, most=1) == [[*words(73), -1, -2]]


def test_weights_go_with_their_tokens() -> None:
    chunks, _ = arrange([Run([1, 2]), Run([3], 1.5), Break(), Run([4], 0.5)], 75, 3, None)
    assert chunks == [[(1, 1.0), (2, 1.0), (3, 1.5)], [(4, 0.5)]]


@given(
    st.lists(
        st.lists(st.sampled_from([1, 2, COMMA]), max_size=12).map(Run)
        | st.lists(st.just(-1), min_size=1, max_size=9).map(lambda ids: Run(ids, is_whole=True))
        | st.just(Break())
    ),
    st.integers(1, 10),
    st.integers(1, 4),
)
def test_all_tokens_stay_in_order(runs: list[Run | Break], room: int, most: int) -> None:
    chunks = divided(*runs, room=room, most=most)
    assert len(chunks) <= most
    assert all(len(chunk) <= room for chunk in chunks)
    found = [token for chunk in chunks for token in chunk]
    given = [token for run in runs if isinstance(run, Run) for token in run.ids]
    assert found == given[: len(found)]
    if len(found) < len(given):
        assert len(chunks) == most
        assert len(chunks[-1]) == room
