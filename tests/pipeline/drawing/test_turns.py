"""Drawings whose pictures begin one after the other, on the real engine over empty slots."""

from pipeline.drawing.drawing import Drawing, Picture
from pipeline.request import GenerateRequest
from tests.fake_pipeline import FakePipeline


def prepared(pipe: FakePipeline, images: int, steps: int = 4) -> Drawing:
    request = GenerateRequest("a red star", num_inference_steps=steps, seed=7)
    return pipe.prepare(request, images=images)


def finished(pipe: FakePipeline) -> list[Picture]:
    """Advance until the engine has nothing to do; return the finished pictures."""
    found: list[Picture] = []
    while pipe.is_busy:
        found += [picture for progress in pipe.advance() for picture in progress.finished]
    return found


def test_pictures_begin_as_they_are_told():
    pipe = FakePipeline(slots=4)
    drawing = prepared(pipe, images=3)
    pipe.begin(drawing, 1)
    assert [picture.index for picture in finished(pipe)] == [0]
    assert drawing.is_paused
    assert not drawing.is_over
    pipe.begin(drawing)
    assert not drawing.is_paused
    assert [picture.index for picture in finished(pipe)] == [1, 2]
    assert drawing.is_over
    assert drawing.result().seeds == [7, 8, 9]


def test_pictures_of_a_drawing_can_begin_while_others_are_drawn():
    pipe = FakePipeline(slots=2)
    drawing = prepared(pipe, images=2)
    pipe.begin(drawing, 1)
    pipe.advance()
    pipe.begin(drawing, 5)  # no more than it has
    assert [picture.index for picture in finished(pipe)] == [0, 1]
    assert pipe.evaluated == (5, 8)


def test_a_slot_is_vacated_before_the_last_evaluation_is_queued():
    pipe = FakePipeline(slots=2)
    drawing = prepared(pipe, images=2)
    pipe.begin(drawing)
    vacated = []
    while drawing.done < drawing.total:
        pipe.advance()
        vacated.append(drawing.vacated)
    assert vacated == [0, 0, 2, 2, 2, 2]
    finished(pipe)
    assert sorted(drawing.pictures) == [0, 1]


def test_a_picture_of_one_evaluation_vacates_its_slot_at_once():
    pipe = FakePipeline(slots=2)
    drawing = prepared(pipe, images=1, steps=1)
    pipe.begin(drawing)
    pipe.advance()
    assert drawing.vacated == 1
