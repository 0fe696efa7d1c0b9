"""Draw seeded pictures with the statistics of photos, to test a model without photos."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHAPES = 6
"""Number of filled shapes in a sample. Their edges stand for the edges of objects."""


def samples(count: int, height: int, width: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Draw pictures of noise behind filled ellipses and half-planes with other textures.

    The amplitude of the noise falls as 1/f, as in natural images (Field, "Relations between the
    statistics of natural images and the response properties of cortical cells", J. Opt. Soc. Am. A,
    1987). A trained network gives nearly the same output for every picture of white noise, but not
    for these pictures.

    Args:
        count: the number of pictures.
        height: the height of each picture in pixels, at least 1.
        width: the width of each picture in pixels, at least 1.
        seed: the seed; the same seed gives the same pictures.

    Returns:
        RGB, uint8 (count, height, width, 3).
    """
    rng = np.random.default_rng(seed)
    return np.stack([_sample(rng, height, width) for _ in range(count)])


def _sample(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[0:height, 0:width]
    y, x = (y + 0.5) / height, (x + 0.5) / width
    tints = np.stack([_pink(rng, height, width) for _ in range(3)], axis=2)
    picture = _texture(rng, tints)
    for _ in range(SHAPES):
        inside = _ellipse(rng, y, x) if rng.random() < 0.7 else _half_plane(rng, y, x)
        picture[inside] = _texture(rng, tints)[inside]
    pixels: NDArray[np.uint8] = np.rint(255 * picture.clip(0, 1)).astype(np.uint8)
    return pixels


def _texture(rng: np.random.Generator, tints: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a random colour with 1/f noise of random strength around it, (height, width, 3).

    The colour and the noise vary more in brightness than in tint, as in photos.
    """
    brightness = _pink(rng, *tints.shape[:2])[:, :, None]
    strength = rng.uniform(0.03, 0.2)
    colour = rng.uniform(0.1, 0.9) + rng.normal(0, 0.12, 3)
    texture: NDArray[np.float64] = colour + strength * (brightness + tints / 3)
    return texture


def _pink(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Return noise with amplitudes of 1/f, mean 0 and standard deviation 1, (height, width)."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(rng.standard_normal((height, width))) / frequency
    values = np.fft.irfft2(noise, s=(height, width))
    scaled: NDArray[np.float64] = values / max(float(values.std()), 1e-12)
    return scaled


def _ellipse(
    rng: np.random.Generator, y: NDArray[np.float64], x: NDArray[np.float64]
) -> NDArray[np.bool_]:
    row, column, angle = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0, np.pi)
    along, across = rng.uniform(0.06, 0.3, 2)
    u = (x - column) * np.cos(angle) + (y - row) * np.sin(angle)
    v = (y - row) * np.cos(angle) - (x - column) * np.sin(angle)
    inside: NDArray[np.bool_] = (u / along) ** 2 + (v / across) ** 2 < 1
    return inside


def _half_plane(
    rng: np.random.Generator, y: NDArray[np.float64], x: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return the mask of the pixels beyond a line at 0.2 to 0.5 of the picture's size from its
    centre, such as a floor or a wall."""
    angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 0.5)
    beyond: NDArray[np.bool_] = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) > distance
    return beyond
