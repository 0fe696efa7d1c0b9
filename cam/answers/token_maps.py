"""Maps of an answer's tokens from one pass of a language model: token activation maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from cam.drawing.placement import Float

KERNEL = 3
"""Side of the window of the rank Gaussian filter."""


def activation(image: Float, row: Float) -> Float:
    """Return how strongly each image token says a word: relu(h_n · w_c).

    Args:
        image: last hidden states of the image tokens, float32 (N, D).
        row: the output embedding of the token c, float32 (D,).

    Returns:
        float32 (N,): the "plain logits" that token activation maps start from.
    """
    said: Float = np.maximum(image @ row, 0)
    return said


def without_interference(own: Float, earlier: Sequence[Float], weights: Sequence[float]) -> Float:
    """Return a token's activation without what it owes to the tokens before it (Li et al., "Token
    Activation Map to Visually Explain Multimodal LLMs", ICCV 2025, section 3.2: estimated causal
    inference),

        relu(A − s · I),   I = Σ_k r_k A_k / Σ_k r_k,   s = argmin_s |A − s · I|² = ⟨A, I⟩ / ⟨I, I⟩.

    Args:
        own: A, the token's activation at the image tokens, float32 (N,), at least 0.
        earlier: A_k, the activations of the words before it.
        weights: r_k, how strongly each of these words says the token: relu(h_k · w_c), with the
            state h_k of a word of the question, or the state that a word of the answer was said
            from.

    Returns:
        float32 (N,).
    """
    total = float(sum(weights))
    if total <= 0:
        return own
    interference = np.tensordot(np.asarray(weights, np.float32) / total, np.stack(earlier), 1)
    power = float(interference @ interference)
    if power == 0:
        return own
    rest: Float = np.maximum(own - float(own @ interference) / power * interference, 0)
    return rest


def rank_gaussian(values: Float, size: int = KERNEL) -> Float:
    """Smooth a map (h, w) by the rank Gaussian filter (Li et al., ICCV 2025, section 3.3).

    The values of each window (`size` × `size`, reflected at the edges) are sorted and averaged with
    Gaussian weights of their ranks, centred on the median. The standard deviation, in ranks, is the
    window's coefficient of variation: an even window is averaged little, a noisy one much. A window
    whose mean is 0 becomes 0. A side shorter than 2 cannot be reflected, so its edge is repeated.
    """
    pad = size // 2
    mode = "reflect" if min(values.shape) > pad else "edge"
    padded = np.pad(values.astype(np.float64), pad, mode=mode)  # type: ignore[call-overload]
    windows = np.sort(sliding_window_view(padded, (size, size)).reshape(*values.shape, -1))
    mean = windows.mean(-1)
    spread = windows.std(-1) / np.where(mean > 0, mean, 1)
    ranks = np.arange(size**2) - size**2 // 2
    # A window of equal values has a spread of 0, and each of its values is their mean.
    width = np.maximum(spread, 1e-6)[..., None]
    kernel = np.exp(-(ranks**2) / (2 * width**2))
    smooth = (windows * kernel).sum(-1) / kernel.sum(-1)
    return np.where(mean > 0, smooth, 0).astype(np.float32)
