"""Collect the attention matrices of a transformer, from any library, with their gradients.

    with attending() as matrices:
        logits = model(image)
    matrices                                 # a tensor (1, heads, N, N) for each layer, in order

Attention multiplies weights, the output of a softmax, with values and sums over the axis on which
the weights sum to 1. Transformers call torch's scaled-dot-product attention, torch's multi-head
attention, or a softmax and a product. Within the block, each such call of this thread is computed
step by step, so that the matrix exists as a tensor through which the gradient flows. Gradients are
off until the first attention runs: the graph starts there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from cam.counts import counted
from cam.errors import MethodUnsuited

SOFTMAXES: Final = frozenset(
    {torch.softmax, Tensor.softmax, functional.softmax, torch.special.softmax}
)
PRODUCTS: Final = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum}
)
NEEDED: Final = "it needs attention between all patches"
HIDDEN: Final = -1e4
"""Highest attention score that counts as masked: a score at or below it hides a token."""
ROUNDING: Final = 0.02
"""Largest deviation from 1 of the sum of a row of weights: the rounding of bfloat16."""

Take = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A function of an attention matrix (1, heads, N, N), of the values (…, N, d) that it mixes, and of
the scores whose softmax is the matrix. The scores are None if they are not asked for or not known.
It returns the matrix with which the forward pass continues."""


Aside = list[tuple[Tensor, MethodUnsuited]]
"""Outputs of unsuited attentions, each with the reason why it is unsuited."""


Pair = tuple[Tensor, Tensor]
"""The queries and keys (1, heads, N, d) of an attention."""


class PooledByAttention(MethodUnsuited):
    """An attention pools the tokens: its queries are others than its keys, which are all tokens."""


@contextmanager
def attending(
    aside: Aside | None = None,
    last: list[Pair | None] | None = None,
    before: list[Tensor | None] | None = None,
) -> Iterator[list[Tensor]]:
    """Yield a list to which a forward pass of one image in the block appends every attention
    matrix, (1, heads, N, N). The grad mode is restored on exit.

    Args:
        aside: list to which the pass appends the unsuited attentions behind the first suited one,
            instead of raising an error: the model may have a head that its logits do not use.
        last: list that the pass leaves with the queries and keys of the last attention, or None
            where it is a softmax and a product, which do not show them.
        before: list to which the pass appends, for every matrix, the scores whose softmax it is,
            (1, heads, N, N), or None if it is not the softmax of known scores.

    Raises:
        MethodUnsuited: in the forward pass, at the first attention that does not join the same N
            tokens of one image as the attentions before it, that hides tokens by a mask, or that
            does not depend on the attention before it.
    """
    matrices: list[Tensor] = []

    def note(matrix: Tensor, values: Tensor, scores: Tensor | None) -> Tensor:
        if matrices and not depends(values, matrices[-1]):
            raise MethodUnsuited(
                f"{NEEDED}, one after another: this model has attentions side by side"
            )
        torch.set_grad_enabled(True)
        if not matrix.requires_grad:
            matrix = matrix.detach().requires_grad_()
        matrices.append(matrix)
        if before is not None:
            before.append(scores)
        return matrix

    attention = _Attention(note, aside, last, scored=before is not None)
    with torch.inference_mode(False), torch.set_grad_enabled(False), attention:
        yield matrices


@contextmanager
def pooling(tokens: int) -> Iterator[list[Tensor]]:
    """Yield a list to which the pass of a head in the block, for one image, appends the matrix
    (1, heads, queries, tokens) of each attention that pools the tokens. The grad mode is restored
    on exit.

    Raises:
        MethodUnsuited: in the pass, at an attention of another kind.
    """
    matrices: list[Tensor] = []

    def note(matrix: Tensor, values: Tensor, scores: Tensor | None) -> Tensor:
        torch.set_grad_enabled(True)
        matrices.append(matrix.detach().requires_grad_())
        return matrices[-1]

    with torch.inference_mode(False), torch.no_grad(), _Attention(note, pooled=tokens):
        yield matrices


def token_count(model: nn.Module, image: Tensor) -> int:
    """Return how many tokens the first attention of a model in eval mode joins, for images like
    `image`, (1, C, H, W).

    The function changes one patch of a noise image. If the rows of the attention's values are
    tokens, the change affects few rows, and all numbers in each. If the rows are channels, the
    change affects all rows, and few numbers in each.

    Raises:
        MethodUnsuited: if there is no attention, or if it does not join the tokens of one image.
    """
    noise = torch.randn((2, *image.shape), generator=torch.Generator().manual_seed(0)).to(image)
    before, after = noise[0], noise[0].clone()
    patch = [slice(side // 4, -(-side // 2)) for side in image.shape[-2:]]
    after[..., patch[0], patch[1]] = noise[1][..., patch[0], patch[1]]
    values, changed = _first_values(model, before), _first_values(model, after)
    tokens, width = values.shape[-2:]
    if changed.shape == values.shape:
        moved = (changed - values).abs().float()
        rows, columns = (_spread(moved.sum_to_size(size)) for size in ((tokens, 1), (width,)))
        if rows >= columns and (columns < 0.5 or tokens == width):
            raise MethodUnsuited(f"{NEEDED}: this model's attention joins channels, not patches")
    return int(tokens)


def _first_values(model: nn.Module, image: Tensor) -> Tensor:
    """Return the values (…, N, d) that the first attention mixes for an image (1, C, H, W). The
    forward pass stops there."""
    matrices: list[Tensor] = []

    def stop(matrix: Tensor, values: Tensor, scores: Tensor | None) -> Tensor:
        matrices.append(values)
        raise _Found

    with (
        torch.inference_mode(False),
        torch.no_grad(),
        suppress(_Found),
        _Attention(stop),
    ):
        model(image)
    if not matrices:
        raise MethodUnsuited("it needs a transformer: this model has no softmax self-attention")
    return matrices[0]


class _Found(Exception):
    """The forward pass has reached its first attention."""


class _Attention(TorchFunctionMode):
    def __init__(
        self,
        take: Take,
        aside: Aside | None = None,
        last: list[Pair | None] | None = None,
        pooled: int | None = None,
        *,
        scored: bool = False,
    ) -> None:
        super().__init__()
        self._take = take
        self._aside = aside
        self._last = last
        self._scored = scored
        self._pools = pooled is not None
        """Whether attentions are taken that pool the tokens, and not those between the tokens."""
        self._tokens = pooled
        self._weights: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Attention weights → whether a mask hides tokens. The keys are the outputs of softmaxes,
        and tensors computed from them with the same last two sizes, in either order."""
        self._scores: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Attention weights → the scores whose softmax they are, or were computed from; empty if
        nobody asks for scores."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return self._computed(func, args, kwargs)
        except MethodUnsuited as error:
            if self._aside is None:
                raise
            output = func(*args, **kwargs)
            mixed = output[0] if isinstance(output, tuple) else output
            if not mixed.requires_grad:  # then nothing tells whether the score depends on it
                raise
            self._aside.append((mixed, error))
            return output

    def _computed(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what the function returns; an attention is computed step by step.

        Raises:
            MethodUnsuited: if it is an unsuited attention.
        """
        if func is functional.scaled_dot_product_attention:
            return self._scaled_dot_product(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        weights = [value for value in given if value in self._weights]
        if weights and func in PRODUCTS and len(given) == 2:
            equation = args[0] if func is torch.einsum else "...ij,...jk->...ik"
            return self._product(equation, given[0], given[1])
        output = func(*args, **kwargs)
        if isinstance(output, Tensor) and output.ndim > 2:
            if func in SOFTMAXES:
                self._weights[output] = _hides(given[0])
                if self._scored:
                    self._scores[output] = given[0].detach()
            for weight in weights:
                if sorted(output.shape[-2:]) == sorted(weight.shape[-2:]):
                    self._weights[output] = self._weights[weight]
                    if self._scored:
                        self._scores[output] = self._scores[weight]
        return output

    def _product(self, equation: str, left: Tensor, right: Tensor) -> Tensor:
        """Compute the product of two tensors, one of which holds attention weights."""
        terms, _, result = equation.replace(" ", "").partition("->")
        first, _, second = terms.partition(",")
        if left not in self._weights:
            first, second, left, right = second, first, right, left
        summed = [axis for axis in first if axis in second and axis not in f"{result}."]
        if len(summed) == 1 and result:
            # Axes are counted from the end, because a term may begin with an ellipsis.
            at, there = (term.index(summed[0]) - len(term) for term in (first, second))
            if at >= -2 and there >= -right.ndim:
                values = right.movedim(there, -2)
                matrix = self._mixing(
                    left.movedim(at, -1),
                    values,
                    hides=self._weights[left],
                    scores=self._scores[left] if self._scored else None,
                )
                return torch.einsum(f"{first},{second}->{result}", matrix.movedim(-1, at), right)
        raise MethodUnsuited(f"{NEEDED}: this model's attention is the product {equation!r}")

    def _mixing(
        self,
        matrix: Tensor,
        values: Tensor,
        *,
        hides: bool,
        scores: Tensor | None = None,
        pair: Pair | None = None,
    ) -> Tensor:
        """Return the matrix (…, queries, keys) with which to continue. It holds the same numbers.

        Raises:
            MethodUnsuited: if the matrix is not an attention between all tokens of one image.
        """
        if matrix.ndim == 3 and len(matrix) == 1:  # one head
            heads = values.unsqueeze(-3)
            if pair is not None:
                pair = (pair[0][:, None], pair[1][:, None])
            return self._mixing(matrix[:, None], heads, hides=hides, scores=scores, pair=pair)[:, 0]
        queries, keys = matrix.shape[-2:]
        why = None
        pools = queries != keys == self._tokens
        if queries != keys and not (pools and self._pools):
            why = (
                f"has {queries} queries and {counted(keys, 'key')}, which are pooled or of another "
                "sequence"
            )
            if queries == 1:
                why = (
                    f"has one query for {keys} keys: a class token or a pooling that attends alone"
                )
        elif matrix.ndim == 3:
            why = "has its windows or its heads in the batch axis"
        elif matrix.ndim != 4 or len(matrix) != 1:
            why = "joins tokens within windows or blocks"
        elif self._tokens not in (None, keys):
            why = f"joins {counted(self._tokens, 'token')} in one layer and {keys} in another"
        elif not _sums_to_one(matrix):
            why = "is changed after its softmax: its rows no longer sum to 1"
        elif hides:
            why = "hides tokens from each other by a mask"
        elif self._pools and not pools:
            why = "does not pool the tokens as they leave a layer, but joins them once more"
        if why:
            kind = PooledByAttention if pools else MethodUnsuited
            raise kind(f"{NEEDED}: this model's attention {why}")
        self._tokens = keys
        if self._last is not None:
            self._last[:] = [pair]
        return self._take(matrix, values, None if scores is None else _behind(matrix, scores))

    def _scaled_dot_product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if enable_gqa:  # each group of heads shares a key and a value
            group = query.shape[-3] // key.shape[-3]
            key, value = (heads.repeat_interleave(group, -3) for heads in (key, value))
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query * factor @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:  # a bias (of relative positions) is added before softmax
            scores = scores + attn_mask
        kept = scores.detach() if self._scored else None
        matrix = self._mixing(
            scores.softmax(-1), value, hides=_hides(scores), scores=kept, pair=(query, key)
        )
        return matrix @ value

    def _multi_head(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim_to_check: int,
        num_heads: int,
        in_proj_weight: Tensor | None,
        in_proj_bias: Tensor | None,
        bias_k: Tensor | None,
        bias_v: Tensor | None,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: Tensor,
        out_proj_bias: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        masked = options.get("key_padding_mask") is not None or options.get("attn_mask") is not None
        added = bias_k is not None or bias_v is not None or add_zero_attn
        itself = query is key and key is value
        pooled = key is value and len(query) != len(key)
        if masked or added or not (itself or pooled) or query.ndim != 3:
            why = "has masks, added keys or queries, keys and values of different tensors"
            raise MethodUnsuited(f"{NEEDED}: this model's attention {why}")
        if in_proj_weight is None:  # keys of another width than the queries
            projections = [options[f"{name}_proj_weight"] for name in "qkv"]
        else:
            projections = list(in_proj_weight.chunk(3))
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = (
            functional.linear(given, weight, bias)
            .view(*given.shape[:2], num_heads, -1)
            .permute(1, 2, 0, 3)  # (batch, heads, tokens, width of a head)
            for given, weight, bias in zip((query, key, value), projections, biases, strict=True)
        )
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
        kept = scores.detach() if self._scored else None
        matrix = self._mixing(scores.softmax(-1), v, hides=False, scores=kept, pair=(q, k))
        mixed = (matrix @ v).permute(2, 0, 1, 3).flatten(2)
        weights = None
        if options.get("need_weights", True):
            weights = matrix.mean(1) if options.get("average_attn_weights", True) else matrix
        return functional.linear(mixed, out_proj_weight, out_proj_bias), weights


def depends(values: Tensor, matrix: Tensor) -> bool:
    """Return whether values were computed from a matrix or another tensor, by their graph."""
    if not values.requires_grad:
        return False
    (path,) = torch.autograd.grad(
        values, matrix, torch.ones_like(values), retain_graph=True, allow_unused=True
    )
    return path is not None


def _hides(scores: Tensor) -> bool:
    """Return whether a mask hides a token in the scores that go into a softmax."""
    return bool((scores.detach() <= HIDDEN).any())


def _behind(matrix: Tensor, scores: Tensor) -> Tensor | None:
    """Return the scores in the order of the matrix (1, heads, N, N) that is their softmax, or None
    if it is not a softmax of them: it was changed afterwards."""
    if scores.numel() != matrix.numel():
        return None
    for turned in (scores, scores.mT):
        ordered = turned.reshape(matrix.shape)
        softmax = ordered.float().softmax(-1)
        if torch.allclose(softmax, matrix.detach().float(), rtol=ROUNDING, atol=1e-6):
            return ordered
    return None


def _sums_to_one(matrix: Tensor) -> bool:
    """Return whether each row of the matrix sums to 1, up to rounding."""
    return bool(((matrix.detach().float().sum(-1) - 1).abs() < ROUNDING).all())


def _spread(changes: Tensor) -> float:
    """Return the share of places over which a change is spread: 1 if all change equally."""
    return float(changes.sum() ** 2 / (changes**2).sum() / changes.numel())
