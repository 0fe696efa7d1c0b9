"""Zero-shot classifiers: the classes of an image–text model are prompts.

from cam import PromptClassifier, explain

model = PromptClassifier(clip, tokenizer, ["a cat", "a remote control"])
explain(model, images, target="a cat")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal
from unicodedata import category

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cam.counts import counted
from cam.encoders import Tokens, library_of
from cam.errors import InvalidPrompt, ModelError
from cam.likeness import TextTarget

EMBEDDING: Final = "embedding"
"""Name of the submodule whose output is the image's embedding."""
TOLERANCE: Final = 1e-3
"""Largest difference of a logit from the model's own, relative to the largest one."""
CHUNK: Final = 64
"""Number of texts in one pass of the text encoder."""
MAX_WORDS: Final = 32
"""Largest number of words whose importance is told."""
MAX_PROMPTS: Final = 4096


class PromptClassifier(nn.Module):
    """A classifier whose classes are prompts, made of an image–text model (a dual encoder).

    The logit of prompt p for an image x is the model's own,

        z_p = s · cos(f(x), g(p)) + b,

    with the image encoder f, the text encoder g, and the model's scale s and bias b (CLIP: Radford
    et al. 2021, section 2.3, with b = 0; SigLIP: Zhai et al. 2023, section 3.2). With several
    templates, g(p) is the mean of the unit embeddings of the filled-in templates (Radford et al.
    2021, section 3.1.4). The text encoder runs once, when the classifier is made.

    The output is (B, P) for images (B, 3, H, W). `labels` are the prompts.
    """

    def __init__(
        self,
        encoders: nn.Module,
        tokenizer: Any,
        prompts: Sequence[str],
        templates: Sequence[str] = ("{}",),
    ) -> None:
        """Encode the prompts.

        Args:
            encoders: an image–text model of transformers, such as a CLIPModel or SiglipModel, or of
                open_clip, such as a CLIP or CustomTextCLIP.
            tokenizer: its tokenizer.
            prompts: the classes, in words; different ones.
            templates: texts with `{}` in place of a prompt, such as "a photo of a {}.".

        Raises:
            ModelError: if the model has no such encoders, or computes its logits in another way.
            InvalidPrompt: if a prompt or template cannot be used (see `encode`), or if the model
                compares prompts and there is only one.
        """
        super().__init__()
        self._library = library_of(encoders, tokenizer)
        self.encoders: Any = encoders
        self.embedding = nn.Identity()
        self.labels = checked_prompts(prompts)
        self.templates = checked_templates(templates)
        # In the order in which image–text models state them.
        scale = getattr(encoders, "logit_scale", None)
        temperature = getattr(encoders, "temperature", None)
        if isinstance(scale, Tensor):
            self.scale = float(scale.detach().exp())
        elif isinstance(temperature, Tensor | float):
            self.scale = 1 / float(torch.as_tensor(temperature).detach())
        else:
            raise ModelError(
                f"a {type(encoders).__name__} has neither logit_scale nor temperature, which turn "
                "similarities into logits"
            )
        bias = getattr(encoders, "logit_bias", None)
        self.bias = 0.0 if bias is None else float(torch.as_tensor(bias).detach())
        self.activation: Literal["softmax", "sigmoid"] = "softmax" if bias is None else "sigmoid"
        self.weight: Tensor
        self.register_buffer("weight", torch.cat([self.encode(text) for text in self.labels]))
        if self.activation == "softmax" and len(self.labels) == 1:
            raise InvalidPrompt(
                f"the probability of {self.labels[0][:80]!r} alone is always 1; name a second "
                "prompt to compare it with, such as 'a photo'"
            )

    def forward(self, images: Tensor) -> Tensor:
        embedding = self.embedding(self._library.images(self.encoders, images))
        logits: Tensor = normalize(embedding, dim=-1) @ self.weight.T + self.bias
        return logits

    @torch.no_grad()
    def encode(self, prompt: str) -> Tensor:
        """Return s · g(p), (1, D), on the model's device.

        Raises:
            InvalidPrompt: if the prompt has no words that the tokenizer knows, has control
                characters, or is longer than what the text encoder reads.
        """
        (prompt,) = checked_prompts([prompt])
        texts = filled(self.templates, prompt)
        unit = torch.cat(
            [self._embedded(texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK)]
        )
        scaled: Tensor = self.scale * normalize(unit.mean(0, keepdim=True), dim=-1)
        return scaled

    def _embedded(self, texts: list[str]) -> Tensor:
        """Return the unit embeddings of texts, (T, D)."""
        device = next(self.encoders.parameters()).device
        tokens = self._tokens(texts)
        given = {name: values.to(device) for name, values in tokens.items()}
        return normalize(self._library.texts(self.encoders, given), dim=-1)

    def _tokens(self, texts: list[str]) -> Tokens:
        """Return the tokens of texts, as many for each as the text encoder reads."""
        for text in texts:
            tokens, known = self._library.counted(text)
            if tokens > self.longest:
                raise InvalidPrompt(
                    f"the prompt {text[:80]!r}… has {tokens} tokens; the text encoder reads at "
                    f"most {self.longest}"
                )
            if not known:
                raise InvalidPrompt(f"the model's tokenizer knows no word of {text[:80]!r}")
        return self._library.tokens(self.encoders, texts)

    @property
    def longest(self) -> int:
        """Number of tokens that the text encoder reads."""
        return self._library.longest(self.encoders)

    def text_target(
        self, text: str, minus: str | None = None, *, against: bool = False, words: bool = False
    ) -> TextTarget:
        """Return the target that explains what in an image fits a text, which need not be one of
        the prompts.

        Args:
            minus: another text, for a contrast.
            against: whether to explain the evidence against it.
            words: whether the explanation has the importance of each word of the text, for one
                more text each.

        Raises:
            InvalidPrompt: see `encode`; if the text would be contrasted with itself; or if it has
                too few or too many words to tell their importance.
        """
        parts, without = left_out(text) if words else ((), [])
        rows = [self.encode(one) for one in (*checked_texts(text, minus), *without)]
        weights = torch.cat(rows).float().cpu().numpy()
        return TextTarget(text, EMBEDDING, weights, "cosine", self.bias, minus, against, parts)

    @torch.no_grad()
    def check(self, image: Tensor) -> None:
        """Compare the logits with the model's own, for an image (1, 3, H, W) and one prompt.

        Raises:
            ModelError: if they differ, because the model computes its logits in another way.
        """
        text = filled(self.templates, self.labels[0])[0]
        given = {name: values.to(image.device) for name, values in self._tokens([text]).items()}
        theirs = self._library.own_logit(self.encoders, image, given)
        embedding = self._library.images(self.encoders, image)
        unit = normalize(embedding, dim=-1)
        ours = float(self.scale * (unit * self._embedded([text])).sum() + self.bias)
        if not abs(ours - theirs) <= TOLERANCE * max(abs(theirs), self.scale):
            raise ModelError(
                f"the {type(self.encoders).__name__} computes other logits ({theirs:.4g}) than its "
                f"scale times the cosine of its embeddings ({ours:.4g}), so prompts cannot be its "
                "classes"
            )


def left_out(text: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the words of a text, and the text without each of them.

    Raises:
        InvalidPrompt: if there are fewer than two words, or too many.
    """
    words = tuple(text.split())
    if not 2 <= len(words) <= MAX_WORDS:
        raise InvalidPrompt(
            f"{text[:80]!r} has {counted(len(words), 'word')}; the importance of words "
            f"needs 2 to {MAX_WORDS}"
        )
    return words, [" ".join((*words[:turn], *words[turn + 1 :])) for turn in range(len(words))]


def checked_prompts(prompts: Sequence[str]) -> tuple[str, ...]:
    """Return the prompts without spaces at their ends.

    Raises:
        InvalidPrompt: if there are none or too many, or if one is empty, has control characters or
            appears twice.
    """
    if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidPrompt("the prompts are not a list of texts")
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise InvalidPrompt(f"there are {len(prompts)} prompts; there may be 1 to {MAX_PROMPTS}")
    texts = tuple(prompt.strip() for prompt in prompts)
    for text in texts:
        if not text:
            raise InvalidPrompt("a prompt is empty; it is what to look for, such as 'a cat'")
        if has_control_characters(text):
            raise InvalidPrompt(f"the prompt {text[:80]!r} has control characters")
    if len(set(texts)) < len(texts):
        twice = next(text for text, times in Counter(texts).items() if times > 1)
        raise InvalidPrompt(f"the prompt {twice[:80]!r} is there twice")
    return texts


def has_control_characters(text: str, allowed: str = "") -> bool:
    """Return whether a text has control characters or halves of characters (Unicode's categories Cc
    and Cs) but those that are allowed. Spaces of any width and the joiners of letters, which
    `str.isprintable` refuses, are text."""
    return any(category(one) in ("Cc", "Cs") and one not in allowed for one in text)


def checked_texts(text: str, minus: str | None) -> tuple[str, ...]:
    """Return the text of a target, and the other text of a contrast, as `checked_prompts` does.

    Raises:
        InvalidPrompt: also if the text would be contrasted with itself.
    """
    if minus is not None and text.strip() == minus.strip():
        raise InvalidPrompt(f"{text[:80]!r} cannot be contrasted with itself")
    return checked_prompts([text] if minus is None else [text, minus])


def filled(templates: Sequence[str], prompt: str) -> list[str]:
    """Return the templates with the prompt in place of `{}`."""
    return [template.replace("{}", prompt) for template in templates]


def checked_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Return the templates.

    Raises:
        InvalidPrompt: if there are none, or if one has not one `{}`.
    """
    if isinstance(templates, str) or not templates:
        raise InvalidPrompt("the templates are not a list of texts")
    for template in templates:
        if template.count("{}") != 1:
            raise InvalidPrompt(
                f"the template {template[:80]!r} has not one {{}}, where a prompt is put"
            )
    return tuple(templates)
