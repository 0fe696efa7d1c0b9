"""Tiny image–text models of transformers and open_clip with random weights, and a tokenizer of a
few words."""

from __future__ import annotations

from typing import Any, Final

import open_clip
import torch
import transformers
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer
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
    return _larger(getattr(transformers, f"{kind}Model")(config))


OPEN_CLIP: Final[dict[str, dict[str, Any]]] = {
    "CLIP": {},
    "CLIP-mean": {"vision_cfg": {"pool_type": "avg", "final_ln_after_pool": True}},
    "ResNet": {"vision_cfg": {"layers": [1, 1, 1, 1], "width": 16, "head_width": 64}},
    "SigLIP": {
        "vision_cfg": {
            "timm_model_name": "tiny_siglip",
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "custom_text": True,
        "init_logit_bias": -2,
    },
    "CoCa": {
        "vision_cfg": {"attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True},
        "text_cfg": {"embed_cls": True, "output_tokens": True, "context_length": LONGEST - 1},
        "multimodal_cfg": {"context_length": LONGEST, "width": 32, "heads": 4, "layers": 2},
        "custom_text": True,
    },
}
"""Name → what its configuration has beside that of a small ViT."""


def tiny_siglip(pretrained: bool = False, **given: Any) -> Any:
    """An image encoder with a head that pools by attention, under a name of timm."""
    given = {name: given[name] for name in ("num_classes", "global_pool")}
    return VisionTransformer(
        **given, img_size=64, patch_size=16, embed_dim=32, depth=3, num_heads=4, class_token=False
    )


register_model(tiny_siglip)


def open_clip_config(kind: str) -> dict[str, Any]:
    """The configuration of one of `OPEN_CLIP`."""
    own = OPEN_CLIP[kind]
    vision = {"image_size": 64, "layers": 3, "width": 32, "head_width": 8, "patch_size": 16}
    text = {"context_length": LONGEST, "width": 32, "heads": 4, "layers": 2}
    return {
        "embed_dim": 32,
        **own,
        "vision_cfg": vision | own.get("vision_cfg", {}),
        "text_cfg": text | own.get("text_cfg", {}),
    }


def open_clip_model(kind: str) -> tuple[Any, Any]:
    """A model of one of `OPEN_CLIP`, and its tokenizer."""
    torch.manual_seed(0)
    config = open_clip_config(kind)
    custom = open_clip.CoCa if kind == "CoCa" else open_clip.CustomTextCLIP
    model = (custom if config.pop("custom_text", False) else open_clip.CLIP)(**config)
    tokenizer = open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"])
    # With larger weights, each token of a CoCa would hold all of the image.
    return model.eval() if kind == "CoCa" else _larger(model), tokenizer


def _larger(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def image_processor() -> Any:
    return transformers.CLIPImageProcessor(
        size={"height": 64, "width": 64}, do_center_crop=False, resample=3
    )
