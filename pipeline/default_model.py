"""The choice of a checkpoint where none is named."""

from pathlib import Path

# A small trained checkpoint that comes with the package.
BUNDLED = Path(__file__).parent / "miniature"
SDXL = "stabilityai/stable-diffusion-xl-base-1.0"
SDXL_REVISION = "462165984030d82259a11f4367a4eed129e94a7b"


def choose_model(model: str | None, revision: str | None) -> tuple[str, str | None]:
    """Return the model and revision to load.

    The default model is SDXL base 1.0 where there is an accelerator to run it on, and the bundled
    miniature elsewhere. The default revision of SDXL is the commit that this code was written
    against.

    Raises:
        DeviceError: if JAX finds no device.
    """
    from pipeline.platforms import platform_of  # imports JAX, which a front-end does without
    from pipeline.runtime.mesh import find_devices

    if model is None:
        model = SDXL if platform_of(find_devices()[0]).is_accelerator else str(BUNDLED)
    if model == SDXL and revision is None:
        revision = SDXL_REVISION
    return model, revision
