"""Tiny vision–language models of transformers with random weights, and their processors."""

from __future__ import annotations

from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS: Final = (
    *("<pad>", "<eos>", "<unk>", "<image>", "<bos>", "question", "answer", ":", "?"),
    *("a", "the", "what", "is", "in", "picture", "cat", "dog", "red", "blue", "on"),
    *("<|vision_start|>", "<|vision_end|>", "<video>", "<fake>", "<global-img>", "<end>"),
    *("<start_of_image>", "<end_of_image>", "<break>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<fake_token_around_image>",
)
SPECIAL: Final = [word for word in WORDS if word.startswith("<")]
TEXT: Final = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 4,
}
VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
}
TEMPLATE: Final = (
    "<bos>{% for message in messages %}question : "
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE {% else %}{{ part.text }} {% endif %}"
    "{% endfor %}{% endfor %}answer :"
)
FAMILIES: Final = (
    *("llava", "llava-crop", "llava-next", "llava-onevision", "qwen2-vl", "qwen2.5-vl"),
    *("qwen3-vl", "internvl", "paligemma", "smolvlm", "idefics3", "gemma3"),
    *("gemma4", "gemma4-large", "glm4v", "mistral3"),
)


def tokenizer(image: str = "<image>", **named: Any) -> Any:
    """A tokenizer with a token for each of `WORDS`."""
    words = {word: index for index, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        bos_token="<bos>",
        additional_special_tokens=[word for word in SPECIAL if word != "<unk>"],
        model_input_names=["input_ids", "attention_mask"],
        extra_special_tokens={"image_token": image, **named},
    )


def _template(image: str) -> str:
    return TEMPLATE.replace("IMAGE", image)


def number(word: str) -> int:
    return WORDS.index(word)


def family(name: str) -> tuple[Any, Any]:
    """A model of a family, with larger weights than at the start of a training, and its
    processor."""
    torch.manual_seed(0)
    t = transformers
    siglip = dict(VISION, vision_use_head=False)
    image = number("<image>")
    if name.startswith("llava"):
        kinds = {"llava": "Llava", "llava-crop": "Llava", "llava-next": "LlavaNext"}
        kind = kinds.get(name, "LlavaOnevision")
        pinpoints = [[64, 128], [128, 64], [128, 128], [64, 192], [192, 64]]
        given: dict[str, Any] = {} if kind == "Llava" else {"image_grid_pinpoints": pinpoints}
        config = getattr(t, f"{kind}Config")(
            vision_config=t.SiglipVisionConfig(**siglip),
            text_config=t.Qwen2Config(**TEXT),
            image_token_index=image,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            **given,
        )
        model = getattr(t, f"{kind}ForConditionalGeneration")(config)
        size: dict[str, Any] = {"size": {"height": 64, "width": 64}}
        if name == "llava-crop":
            images = t.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size=64)
        elif kind == "Llava":
            images = t.SiglipImageProcessor(**size)
        elif kind == "LlavaNext":
            images = t.LlavaNextImageProcessor(
                size={"shortest_edge": 64}, crop_size=64, image_grid_pinpoints=pinpoints
            )
        else:
            images = t.LlavaOnevisionImageProcessor(**size, image_grid_pinpoints=pinpoints)
        words = tokenizer(video_token="<video>")
        own: dict[str, Any] = {"vision_feature_select_strategy": "full"}
        if kind == "LlavaOnevision":
            own |= {"num_image_tokens": 64, "video_processor": t.LlavaOnevisionVideoProcessor()}
        else:
            own["patch_size"] = 8
        processor = getattr(t, f"{kind}Processor")(
            images, tokenizer=words, chat_template=_template("<image>"), **own
        )
    elif name.startswith("qwen"):
        kind = {"qwen2-vl": "Qwen2VL", "qwen2.5-vl": "Qwen2_5_VL", "qwen3-vl": "Qwen3VL"}[name]
        rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
        vision: dict[str, Any] = {"depth": 2, "patch_size": 8, "spatial_merge_size": 2}
        if kind == "Qwen2VL":
            vision |= {"embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2}
        else:
            vision |= {"hidden_size": 32, "out_hidden_size": 32, "num_heads": 4}
            vision |= {"intermediate_size": 64}
        if kind == "Qwen2_5_VL":
            vision |= {"window_size": 32, "fullatt_block_indexes": [1]}
        if kind == "Qwen3VL":
            vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        text = dict(TEXT, rope_parameters=rope)
        if kind == "Qwen3VL":
            text["head_dim"] = 8
        config = getattr(t, f"{kind}Config")(
            text_config=text,
            vision_config=vision,
            image_token_id=image,
            video_token_id=number("<video>"),
            vision_start_token_id=number("<|vision_start|>"),
            vision_end_token_id=number("<|vision_end|>"),
        )
        model = getattr(t, f"{kind}ForConditionalGeneration")(config)
        images = t.Qwen2VLImageProcessor(patch_size=8, min_pixels=16**2, max_pixels=192**2)
        videos = t.Qwen2VLVideoProcessor(patch_size=8)
        words = tokenizer(video_token="<video>", vision_bos_token="<|vision_start|>")
        if kind == "Qwen3VL":
            words = tokenizer(
                video_token="<video>",
                vision_start_token="<|vision_start|>",
                vision_end_token="<|vision_end|>",
                vision_bos_token="<|vision_start|>",
                vision_eos_token="<|vision_end|>",
            )
            videos = t.Qwen3VLVideoProcessor(patch_size=8)
        processor = getattr(t, f"{kind}Processor")(
            images,
            words,
            videos,
            chat_template=_template("<|vision_start|><image><|vision_end|>"),
        )
    elif name == "internvl":
        config = t.InternVLConfig(
            vision_config=dict(VISION, image_size=[64, 64], patch_size=[8, 8]),
            text_config=t.Qwen2Config(**TEXT),
            image_token_id=image,
            image_seq_length=16,
        )
        model = t.InternVLForConditionalGeneration(config)
        images = t.GotOcr2ImageProcessor(
            size={"height": 64, "width": 64}, crop_to_patches=True, max_patches=6
        )
        words = tokenizer(
            start_image_token="<start_of_image>",
            end_image_token="<end_of_image>",
            video_token="<video>",
            context_image_token="<image>",
        )
        processor = t.InternVLProcessor(
            images,
            words,
            t.InternVLVideoProcessor(),
            image_seq_length=16,
            chat_template=_template("<image>"),
        )
    elif name == "paligemma":
        config = t.PaliGemmaConfig(
            vision_config=t.SiglipVisionConfig(**siglip),
            text_config=t.GemmaConfig(**dict(TEXT, head_dim=8)),
            image_token_index=image,
            projection_dim=32,
            hidden_size=32,
        )
        model = t.PaliGemmaForConditionalGeneration(config)
        images = t.SiglipImageProcessor(size={"height": 64, "width": 64})
        images.image_seq_length = 64
        processor = t.PaliGemmaProcessor(images, tokenizer())
    elif name in ("smolvlm", "idefics3"):
        kind = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[name]
        config = getattr(t, f"{kind}Config")(
            vision_config=dict(VISION),
            text_config=t.LlamaConfig(**TEXT),
            image_token_id=image,
            scale_factor=2,
        )
        model = getattr(t, f"{kind}ForConditionalGeneration")(config)
        images = getattr(t, f"{kind}ImageProcessor")(
            size={"longest_edge": 192}, max_image_size={"longest_edge": 64}
        )
        words = tokenizer(
            fake_image_token="<fake>",
            global_image_token="<global-img>",
            end_of_utterance_token="<end>",
        )
        own = {"video_processor": t.SmolVLMVideoProcessor()} if name == "smolvlm" else {}
        processor = getattr(t, f"{kind}Processor")(
            images, words, image_seq_len=16, chat_template=_template("<image>"), **own
        )
    elif name == "gemma3":
        text = dict(TEXT, head_dim=8, sliding_window=512)
        config = t.Gemma3Config(
            vision_config=t.SiglipVisionConfig(**siglip),
            text_config=t.Gemma3TextConfig(**text),
            image_token_index=image,
            mm_tokens_per_image=16,
            boi_token_index=number("<start_of_image>"),
            eoi_token_index=number("<end_of_image>"),
        )
        model = t.Gemma3ForConditionalGeneration(config)
        images = t.Gemma3ImageProcessor(size={"height": 64, "width": 64})
        words = tokenizer(boi_token="<start_of_image>", eoi_token="<end_of_image>")
        processor = t.Gemma3Processor(
            images, words, image_seq_length=16, chat_template=_template("<start_of_image>")
        )
    elif name.startswith("gemma4"):
        # The small ones have embeddings of tokens for each block, and last blocks that read the
        # keys and values of others; the large ones have heads of two sizes.
        types = ["sliding_attention", "sliding_attention", "full_attention", "full_attention"]
        text = dict(TEXT, head_dim=8, global_head_dim=16, num_hidden_layers=4, layer_types=types)
        text |= {"final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision"}
        text |= {"vocab_size_per_layer_input": len(WORDS), "hidden_size_per_layer_input": 0}
        if name == "gemma4":
            text |= {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8}
        else:
            text |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
        small: dict[str, Any] = {key: value for key, value in VISION.items() if key != "image_size"}
        small |= {"num_key_value_heads": 4, "head_dim": 8, "pooling_kernel_size": 2}
        config = t.Gemma4Config(
            text_config=t.Gemma4TextConfig(**text),
            vision_config=t.Gemma4VisionConfig(**small, position_embedding_size=64),
            image_token_id=image,
            boi_token_id=number("<start_of_image>"),
            eoi_token_id=number("<end_of_image>"),
            video_token_id=number("<video>"),
            audio_token_id=number("<fake>"),
        )
        model = t.Gemma4ForConditionalGeneration(config)
        pooled: dict[str, Any] = {"patch_size": 8, "pooling_kernel_size": 2}
        words = tokenizer(
            boi_token="<start_of_image>",
            eoi_token="<end_of_image>",
            audio_token="<fake>",
            boa_token="<break>",
            eoa_token="<end>",
        )
        processor = t.Gemma4Processor(
            t.Gemma4AudioFeatureExtractor(),
            t.Gemma4ImageProcessor(**pooled, max_soft_tokens=70),
            words,
            t.Gemma4VideoProcessor(**pooled),
            chat_template=_template("<image>"),
        )
    elif name == "glm4v":
        rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
        config = t.Glm4vConfig(
            text_config=dict(TEXT, rope_parameters=rope | {"partial_rotary_factor": 1.0}),
            vision_config=t.Glm4vVisionConfig(
                **{key: VISION[key] for key in ("hidden_size", "intermediate_size", "image_size")},
                out_hidden_size=32,
                depth=2,
                num_heads=4,
                patch_size=8,
                spatial_merge_size=2,
            ),
            image_token_id=image,
            video_token_id=number("<video>"),
            image_start_token_id=number("<|vision_start|>"),
            image_end_token_id=number("<|vision_end|>"),
            video_start_token_id=number("<fake>"),
            video_end_token_id=number("<end>"),
        )
        model = t.Glm4vForConditionalGeneration(config)
        sizes = {"shortest_edge": 16**2, "longest_edge": 2 * 192**2}
        processor = t.Glm4vProcessor(
            t.Glm4vImageProcessor(patch_size=8, size=sizes),
            tokenizer(video_token="<video>"),
            t.Glm4vVideoProcessor(patch_size=8),
            chat_template=_template("<|vision_start|><image><|vision_end|>"),
        )
    elif name == "mistral3":
        pixtral = {key: value for key, value in VISION.items() if key != "image_size"}
        config = t.Mistral3Config(
            text_config=t.MistralConfig(**TEXT, head_dim=8, sliding_window=None),
            vision_config=t.PixtralVisionConfig(**pixtral, image_size=128, head_dim=8),
            image_token_index=image,
            spatial_merge_size=2,
        )
        model = t.Mistral3ForConditionalGeneration(config)
        patch = {"height": 8, "width": 8}
        processor = t.PixtralProcessor(
            t.PixtralImageProcessor(size={"longest_edge": 128}, patch_size=patch),
            tokenizer(),
            patch_size=8,
            spatial_merge_size=2,
            image_token="<image>",
            image_break_token="<break>",
            image_end_token="<end_of_image>",
            chat_template=_template("<image>"),
        )
    else:
        raise ValueError(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("mm_input_projection_weight"):  # Gemma 3 leaves it at zeros
                parameter.normal_(std=0.1)
            if parameter.ndim > 1:  # images of a chaotic encoder have no places
                parameter.mul_(1.5 if "vision" in path or "visual" in path else 3)
    return model.eval(), processor
