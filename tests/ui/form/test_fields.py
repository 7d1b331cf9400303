from pipeline.request import SETTINGS, VALUES
from pipeline.setting_kinds import Number
from ui.form.fields import FIELDS, highest


def test_every_setting_has_a_field():
    assert sorted(FIELDS) == sorted(setting.name for setting in VALUES)


def test_sliders_end_at_the_limit_or_below():
    for name in FIELDS:
        setting = SETTINGS[name]
        if isinstance(setting, Number):
            assert setting.low < highest(setting) <= setting.high
    guidance = SETTINGS["guidance_scale"]
    assert isinstance(guidance, Number)
    assert highest(guidance) == 20


def test_shares_are_shown_in_per_cent():
    shares = [SETTINGS[name] for name, field in FIELDS.items() if field.in_per_cent]
    assert shares
    for setting in shares:
        assert isinstance(setting, Number)
        assert (setting.low, setting.high) == (0, 1)
