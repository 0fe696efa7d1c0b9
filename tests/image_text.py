"""Tiny image–text models of transformers with random weights, and a tokenizer of a few words."""

from __future__ import annotations

from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS: Final = (
    *("<pad>", "<eos>", "<unk>", "a", "cat", "dog", "photo", "of", "the"),
    *("remote", "control", "to", "drink", "from"),
)
LONGEST: Final = 16
TEXT: Final = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 16,
}
KINDS: Final = ("CLIP", "Siglip", "AltCLIP", "ChineseCLIP", "CLIPSeg", "MetaClip2")


def tokenizer() -> Any:
    """A tokenizer with a token for each of `WORDS`."""
    words = {word: index for index, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=LONGEST,
        model_input_names=["input_ids", "attention_mask"],
    )


def image_text_model(kind: str = "CLIP", *, text_layers: int = 2) -> Any:
    """A model of one of `KINDS`, with larger weights than at the start of a training, so that
    images differ."""
    torch.manual_seed(0)
    own: dict[str, dict[str, Any]] = {
        "Siglip": {},
        "AltCLIP": {"projection_dim": 16},
    }
    text = TEXT | {"num_hidden_layers": text_layers}
    if kind == "AltCLIP":  # its positions start behind the one of padding
        text |= {"project_dim": 16, "type_vocab_size": 1, "max_position_embeddings": 40}
    given = own.get(kind, {"projection_dim": 16})
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=dict(VISION), **given
    )
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def image_processor() -> Any:
    return transformers.CLIPImageProcessor(
        size={"height": 64, "width": 64}, do_center_crop=False, resample=3
    )
