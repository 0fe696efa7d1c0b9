"""The table of the methods that explain answers, with the function, the needs and the cost of each.

The functions need torch, so the table names them, and they are imported when a map is made.

A package may add methods of its own: each entry point of the group `gradcam.answer_methods` is an
`AnswerMethod`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from cam.extensions import added
from cam.methods import METHODS as OF_MAPS
from cam.methods.method import Function

GROUP: Final = "gradcam.answer_methods"
"""The group of entry points whose objects are further methods."""
Blocks = Literal[0, 1, "later", "all"]
"""A number of blocks of the language model: none, one, those from the middle one on, or all."""


@dataclass(frozen=True)
class AnswerMethod:
    """One way to make the maps of an answer's tokens. A map is float32 (h, w), at least 0, and
    covers the photo."""

    name: str
    summary: str
    """What its maps are, in one line, for users who choose a method."""
    function: Function
    """The function that makes the maps of a `VisionLanguageModel` and what it was `Asked`."""
    of: Literal["token", "answer", "word"] = "answer"
    """What the function makes maps of.

    - `token`: each token as it is said, from the passes that make the answer. The function takes
      model and question, and returns a function that takes the number of each next token and what
      was `Read` since the last one, and returns the token's map: see `cam.answers.token_maps`.
    - `answer`: all tokens, by passes of its own after the answer. The function takes model,
      question and the tokens' numbers, yields an `AnswerProgress` after each step, and returns the
      list of the tokens' maps: see `cam.answers.passes`.
    - `word`: one word, by passes of its own. The function also takes the slice of the word's tokens
      among those of the answer, and returns one map."""
    passes: int = 1
    """Number of passes that it takes of an answer, or of a word."""
    graded: Blocks = 0
    """Number of blocks whose states it keeps for gradients at a time; 0 if it needs none."""
    attended: Blocks = 0
    """Number of blocks whose attention it keeps at a time; 0 if it needs none."""
    depends_on: Literal["word", "place", "both"] = "both"
    """Whether a map depends on the word that is said, on the place in the answer where it is said,
    or on both. Two mentions of one word have nearly the same map if it depends on the word alone;
    a map that depends on the place alone is a baseline."""
    audited: bool = False
    """Whether an audit measures the method where none is named."""
    paper: str = ""
    """The paper that the formula is from, with the place in it; "" if that is not told."""


# What the methods of a family have in common, as in the table of methods of maps.
_read_off: Final = partial(AnswerMethod, of="token", depends_on="word", audited=True)
_in_passes: Final = partial(AnswerMethod, audited=True)
_baseline: Final = partial(AnswerMethod, attended=1, depends_on="place")

_BUILT_IN: Final = {
    method.name: method
    for method in (
        _read_off(
            "tam",
            "what the image tokens say, without what earlier words explain (token activation map)",
            "cam.answers.token_maps:TokenMaps",
            paper=(
                'Li et al., "Token Activation Map to Visually Explain Multimodal LLMs", ICCV 2025, '
                "sections 3.2 and 3.3"
            ),
        ),
        _read_off(
            "logits",
            "what the image tokens say: the token's logit there (logit lens)",
            "cam.answers.token_maps:logits",
            paper='nostalgebraist, "interpreting GPT: the logit lens", 2020',
        ),
        _in_passes(
            "gradcam",
            "hidden states of the image tokens, weighted by their mean gradient",
            "cam.answers.passes:gradcam",
            graded="later",
            paper=OF_MAPS["gradcam"].paper,
        ),
        _in_passes(
            "hirescam",
            "hidden states of the image tokens, times their gradient",
            "cam.answers.passes:hirescam",
            graded="later",
            paper=OF_MAPS["hirescam"].paper,
        ),
        _in_passes(
            "legrad",
            "how far more attention to an image token raises the token's logit, block by block",
            "cam.answers.passes:legrad",
            graded=1,
            attended=1,
            paper=OF_MAPS["legrad"].paper,
        ),
        _in_passes(
            "attnlrp",
            "the logit shared out backwards, through every block, by rules",
            "cam.answers.passes:attnlrp",
            graded="all",
            paper=OF_MAPS["attnlrp"].paper,
        ),
        _in_passes(
            "chefer",
            "attention times its gradient, through all blocks",
            "cam.answers.passes:chefer",
            graded="all",
            attended="all",
            paper=OF_MAPS["chefer"].paper,
        ),
        _baseline(
            "attention",
            "mean attention to the image tokens; a baseline, which knows no word",
            "cam.answers.passes:attention",
        ),
        _baseline(
            "rollout",
            "attention to the image tokens through all blocks; a baseline, which knows no word",
            "cam.answers.passes:rollout",
            paper=OF_MAPS["rollout"].paper,
        ),
        _in_passes(
            "occlusion",
            "how much less probable the token is without a part of the photo",
            "cam.answers.passes:occlusion",
            passes=65,
            paper=OF_MAPS["occlusion"].paper,
        ),
        AnswerMethod(
            "eagle",
            "the parts of the photo that are enough to say one `word`, and without which it fails",
            "cam.answers.passes:eagle",
            of="word",
            passes=470,
            paper='Chen et al., "Where MLLMs Attend and What They Rely On", CVPR 2026',
        ),
    )
}
METHODS: Final = _BUILT_IN | {
    method.name: method for method in added(GROUP, AnswerMethod, __name__, {*_BUILT_IN, "auto"})
}
"""Name → method, those of other packages last."""
ANSWER_METHODS: Final[dict[str, str]] = {name: each.summary for name, each in METHODS.items()}
"""Method → what its maps are, in one line."""
