"""The bundled model's VAE, which pictures to draw from go through."""

import jax
import jax.numpy as jnp
import numpy as np

from pipeline import BUNDLED
from pipeline.families import latent_unet, read_config
from pipeline.models.vae import VAE
from tools.agreement import load_module
from tools.miniature.drawing import draw
from tools.miniature.scenes import random_scene

PICTURES = 3
LEAST_DB = 30


def test_pictures_survive_the_way_through_the_vae() -> None:
    networks = {"vae": load_module(VAE, read_config(BUNDLED).networks["vae"], BUNDLED / "vae")}
    rng = np.random.default_rng(24)
    pictures = [draw(random_scene(rng), rng) for _ in range(PICTURES)]
    images = np.array(pictures, np.float32) / 255

    @jax.jit
    def there_and_back(image: jax.Array) -> jax.Array:
        return latent_unet.decode(networks, latent_unet.encode_image(networks, image))

    decoded = np.concatenate([there_and_back(jnp.asarray(image[None])) for image in images])
    assert -10 * np.log10(np.mean((decoded - images) ** 2)) >= LEAST_DB
