"""The encoders of an image–text model and their tokenizer, called in one way whichever library they
are from: transformers or open_clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from cam.errors import ModelError

Tokens = Mapping[str, Tensor]


class Library(Protocol):
    """How the models of a library are called. `model` is always the image–text model."""

    def images(self, model: Any, images: Tensor) -> Tensor:
        """Return the embeddings (B, D) of images (B, 3, H, W)."""

    def texts(self, model: Any, tokens: Tokens) -> Tensor:
        """Return the embeddings (T, D) of the tokens of texts."""

    def own_logit(self, model: Any, image: Tensor, tokens: Tokens) -> float:
        """Return the model's own logit of an image (1, 3, H, W) and the tokens of one text."""

    def longest(self, model: Any) -> int:
        """Return the number of tokens that the text encoder reads."""

    def counted(self, text: str) -> tuple[int, bool]:
        """Return the number of tokens of a text, and whether the tokenizer knows a word of it."""

    def tokens(self, model: Any, texts: list[str]) -> Tokens:
        """Return the tokens of texts, padded as in the model's training: to `longest`."""


def library_of(model: nn.Module, tokenizer: Any) -> Library:
    """Return how an image–text model is called.

    Raises:
        ModelError: if the model has no two encoders, or if the tokenizer is of another library.
    """
    if hasattr(model, "get_image_features") and hasattr(model, "get_text_features"):
        return _Transformers(tokenizer)
    if not (hasattr(model, "encode_image") and hasattr(model, "encode_text")):
        raise ModelError(
            f"a {type(model).__name__} is not an image–text model: it has neither "
            "get_image_features and get_text_features (transformers) nor encode_image and "
            "encode_text (open_clip)"
        )
    if not hasattr(tokenizer, "context_length") or not hasattr(tokenizer, "clean_fn"):
        raise ModelError(
            f"a {type(tokenizer).__name__} is not a tokenizer of open_clip; "
            "open_clip.get_tokenizer makes that of a model"
        )
    return _OpenClip(tokenizer)


@dataclass(frozen=True)
class _Transformers:
    tokenizer: Any

    def images(self, model: Any, images: Tensor) -> Tensor:
        return _features(model.get_image_features(pixel_values=images))

    def texts(self, model: Any, tokens: Tokens) -> Tensor:
        return _features(model.get_text_features(**tokens))

    def own_logit(self, model: Any, image: Tensor, tokens: Tokens) -> float:
        return float(model(pixel_values=image, **tokens).logits_per_image)

    def longest(self, model: Any) -> int:
        most = model.config.text_config.max_position_embeddings
        return int(min(most, self.tokenizer.model_max_length))

    def counted(self, text: str) -> tuple[int, bool]:
        return counted_by(self.tokenizer, self.tokenizer(text)["input_ids"])

    def tokens(self, model: Any, texts: list[str]) -> Tokens:
        tokens: Tokens = self.tokenizer(
            texts, padding="max_length", max_length=self.longest(model), return_tensors="pt"
        )
        return tokens


@dataclass(frozen=True)
class _OpenClip:
    tokenizer: Any
    """A SimpleTokenizer, which knows every byte, or an HFTokenizer around one of transformers. Both
    cut off what is too long without a word."""

    def images(self, model: Any, images: Tensor) -> Tensor:
        embeddings: Tensor = model.encode_image(images, normalize=False)
        return embeddings

    def texts(self, model: Any, tokens: Tokens) -> Tensor:
        embeddings: Tensor = model.encode_text(tokens["text"], normalize=False)
        return embeddings

    def own_logit(self, model: Any, image: Tensor, tokens: Tokens) -> float:
        if hasattr(model, "get_logits"):
            return float(model.get_logits(image, tokens["text"])[0])
        said = model(image, tokens["text"])  # a CoCa's
        cosine = said["image_features"] @ said["text_features"].T
        return float(said["logit_scale"] * cosine + said.get("logit_bias", 0))

    def longest(self, model: Any) -> int:
        return int(self.tokenizer.context_length)

    def counted(self, text: str) -> tuple[int, bool]:
        inner = getattr(self.tokenizer, "tokenizer", None)
        if inner is None:
            words = self.tokenizer.encode(text)
            return len(words) + 2, bool(words)  # between the tokens of start and end
        text = self.tokenizer.clean_fn(text)
        if self.tokenizer.tokenizer_mode == "clips":  # start, end and class token are added later
            tokens, known = counted_by(inner, inner(text, add_special_tokens=False)["input_ids"])
            return tokens + 3, known
        return counted_by(inner, inner(text)["input_ids"])

    def tokens(self, model: Any, texts: list[str]) -> Tokens:
        return {"text": self.tokenizer(texts)}


def counted_by(tokenizer: Any, tokens: list[int]) -> tuple[int, bool]:
    """Return the number of tokens, and whether one is a word that a tokenizer of transformers
    knows."""
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    return len(tokens), not set(tokens) - special <= {unknown}


def _features(found: Any) -> Tensor:
    """Return the embeddings (B, D): the output of an encoder up to transformers 4, and a part of it
    since."""
    features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return features
