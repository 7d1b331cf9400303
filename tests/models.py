"""Facts about a model that draws nothing, for the tests of what only depends on them."""

from pipeline.facts import Facts

MODEL = Facts(
    name="org/model",
    revision=None,
    device="cpu",
    num_devices=1,
    height=256,
    width=256,
    images_per_request=4,
    num_inference_steps=25,
    family="Stable Diffusion XL",
    safety_checker=False,
    scheduler="euler",
    version="",
)
