"""Maps of an answer's tokens from one pass of a language model: token activation maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from cam.answers.image_tokens import on_photo
from cam.answers.vision_language import Asked, Read, VisionLanguageModel
from cam.drawing.placement import Float

KERNEL = 3
"""Side of the window of the rank Gaussian filter."""


class TokenMaps:
    """The token activation maps of an answer's tokens, from the hidden states of the passes that
    make the answer; if `plain`, relu(h_n · w_c) alone."""

    def __init__(self, model: VisionLanguageModel, asked: Asked, *, plain: bool = False) -> None:
        self._model, self._asked, self._plain = model, asked, plain
        self._heard: dict[int, tuple[Float, Float]] = {}
        """Token → its output embedding (D,), and its activation at the image tokens (N,)."""
        self._image: Float | None = None
        self._words: list[tuple[int, Float]] = []
        """The text before the next token: each token of the question with its last hidden state
        (D,), and each of the answer with the state that it was said from, as the authors' code
        does."""

    def __call__(self, token: int, read: Read) -> Float:
        """Return the map of the next token, float32 (h, w).

        Args:
            read: what was read since the last token: the question, then one token at a time.
        """
        asked = self._asked
        hidden = read.hidden
        if self._image is None:
            ids = asked.inputs["input_ids"][0]
            self._image = _numpy(hidden[asked.image])
            self._words = [
                (int(ids[place]), _numpy(hidden[place])) for place in asked.words.tolist()
            ]
        row, own = self._of(token)
        if not self._plain:
            others = [(word, state) for word, state in self._words if word != token]
            own = without_interference(
                own,
                [self._of(word)[1] for word, _ in others],
                [max(float(state @ row), 0.0) for _, state in others],
            )
            smooth = np.zeros_like(own)
            for tile in asked.tiles:
                smooth[tile.tokens] = rank_gaussian(own[tile.tokens])
            own = smooth
            self._words.append((token, _numpy(hidden[-1])))
        return on_photo(own, asked.tiles)

    def _of(self, token: int) -> tuple[Float, Float]:
        if token not in self._heard:
            assert self._image is not None  # the question has been read
            row = _numpy(self._model.head.weight[token])
            self._heard[token] = row, activation(self._image, row)
        return self._heard[token]


logits: Final = partial(TokenMaps, plain=True)
"""What the image tokens say: the logit of each token there."""


def _numpy(values: Tensor) -> Float:
    found: Float = values.detach().float().cpu().numpy()
    return found


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
