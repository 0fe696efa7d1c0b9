"""Methods that follow a transformer's attention from layer to layer.

A_l is the attention matrix of layer l, (heads, N, N): a row holds the weights with which one token
reads each of the N tokens. The maps lie on the grid of patches; class, distillation and register
tokens are removed at the end. The model may read its class token or the mean of its patches from
the last layer; the gradient shows which. `r` therefore puts equal weights on those rows of the last
matrix on which the score depends.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn

from cam.counts import counted
from cam.errors import MethodUnsuited, NoGradientPath
from cam.hooks.grids import Grid
from cam.hooks.inference import evaluating
from cam.hooks.replay import Replay
from cam.methods.attention_hooks import (
    Aside,
    Pair,
    PooledByAttention,
    attending,
    depends,
    pooling,
    token_count,
)
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.outputs.outputs import forward, total, watching
from cam.outputs.reading import AUTO, Reading
from cam.positions.locate import token_grid
from cam.progress import Progress

Scores = tuple[Tensor, ...]


def rollout(subject: Subject) -> Steps:
    """R = Π_l norm(I + mean_heads A_l), norm scaling rows to a sum of 1; map = r R.

    Abnar & Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, section 3. The
    method does not depend on the class: the map is the same for all targets.
    """
    grid, matrices, scores = _attended(subject)
    relevance = torch.eye(matrices[0].shape[-1], device=matrices[0].device)
    for matrix in matrices:
        mixed = matrix.detach()[0].float().mean(0)
        mixed = mixed + torch.eye(len(mixed), device=mixed.device)
        relevance = mixed / mixed.sum(-1, keepdim=True) @ relevance
    # One score, not the sum of all: the gradient of the sum may be zero.
    row = _read(matrices[-1], scores[0]) @ relevance
    yield Progress(1, 1)
    return Attribution(_on_patches(grid, row.expand(len(subject.targets), -1)), grid=grid)


def chefer(subject: Subject) -> Steps:
    """R ← R + Ā_l R from R = I on, Ā_l = mean_heads relu(∂y/∂A_l ⊙ A_l); map = r R, I left out.

    Chefer, Gur & Wolf, "Generic Attention-model Explainability", ICCV 2021, equations 5 and 6,
    the rules for self-attention.
    """
    grid, matrices, scores = _attended(subject)
    rows = []
    for turn, score in enumerate(scores):
        gradients = _gradients(score, matrices)
        relevance = torch.eye(matrices[0].shape[-1], device=matrices[0].device)
        for matrix, gradient in zip(matrices, gradients, strict=True):
            weighted = (gradient * matrix.detach())[0].float().relu().mean(0)
            relevance = relevance + weighted @ relevance
        relevance = relevance - torch.eye(len(relevance), device=relevance.device)
        rows.append(_read(matrices[-1], score) @ relevance)
        yield Progress(turn + 1, len(scores))
    return Attribution(_on_patches(grid, torch.stack(rows)), grid=grid)


def agcam(subject: Subject) -> Steps:
    """map = Σ_l Σ_heads r (relu(∂y/∂A_l) ⊙ sigmoid(S_l)), S_l the scores whose softmax is A_l.

    Leem & Seo, "Attention Guided CAM: Visual Explanations of Vision Transformer Guided by
    Self-Attention", AAAI 2024, equations 2 and 7. The paper takes the row of the class token, which
    is r where the model reads that token alone.

    Raises:
        MethodUnsuited: if the attention matrices are not a softmax of scores that are known.
    """
    before: list[Tensor | None] = []
    grid, matrices, scores = _attended(subject, before=before)
    gates = [gate.float().sigmoid()[0] for gate in _known(before)]
    rows = []
    for turn, score in enumerate(scores):
        read = _read(matrices[-1], score)
        row = torch.zeros_like(read)
        for gate, gradient in zip(gates, _gradients(score, matrices), strict=True):
            row += (read @ (gradient[0].float().relu() * gate)).sum(0)
        rows.append(row)
        yield Progress(turn + 1, len(scores))
    return Attribution(_on_patches(grid, torch.stack(rows)), grid=grid)


def legrad(subject: Subject) -> Steps:
    """map = mean_l mean_heads mean_rows relu(∂y_l/∂A_l), y_l the score that the model's head gives
    the tokens as they leave layer l. Where an attention of the head pools the tokens, as SigLIP's
    does, A_l is its matrix for these tokens, (heads, queries, N).

    Bousselham et al., "LeGrad", ICCV 2025, equations 4 to 8; a pooling head as in their package.
    """
    if subject.reads_earlier:
        raise MethodUnsuited("legrad needs a target made of the model's output, not of a layer's")
    pools: list[Tensor] = []
    grid, matrices, left = _by_block(
        subject.model, subject.image, lambda image: (total(subject.outputs(image)),), pools
    )
    replay = Replay(subject.model, list(left)[-1], subject.image)
    tokens = matrices[0].shape[-1]
    layers = []  # of each layer the rows of the targets, (targets, N)
    with torch.inference_mode(False), torch.enable_grad():
        if pools:
            for some in left.values():
                with pooling(tokens) as matrices:
                    scores = subject.scores_of(subject.replayed_outputs(replay, some.detach()))
                layers.append(_raising(scores[0], matrices))
        else:
            scores = torch.cat(  # (layers, targets)
                [
                    subject.scores_of(subject.replayed_outputs(replay, some))
                    for some in torch.split(torch.cat([*left.values()]), subject.chunk)
                ]
            )
            layers = [_raising(row, [matrix]) for row, matrix in zip(scores, matrices, strict=True)]
    yield Progress(1, 1)
    return Attribution(_on_patches(grid, torch.stack(layers).mean(0)), grid=grid)


def _raising(scores: Tensor, matrices: list[Tensor]) -> Tensor:
    """Return mean_heads mean_rows relu(∂y/∂A), summed over the matrices, for each of the scores
    (targets,): float32 (targets, N)."""
    rows = []
    for score in scores:
        raising = [gradient[0].float().relu() for gradient in _gradients(score, matrices)]
        rows.append(torch.stack([each.mean((0, 1)) for each in raising]).sum(0))
    return torch.stack(rows)


def gradeclip(subject: Subject) -> Steps:
    """map = relu(Σ_c w_c λ_i v_ic), w = ∂y/∂o, o the output of the last attention at the class
    token, λ_i = the cosine of the class token's query and the key of patch i, scaled to 0 … 1 over
    the patches. o, q, k and v are those of all heads, one after the other.

    As o = Σ_i A_i v_i in each head, Σ_c w_c v_ic is Σ_heads ∂y/∂A_i.

    Zhao et al., "Gradient-based Visual Explanation for Transformer-based CLIP", ICML 2024: the
    channel weights, and the loosened attention in place of the softmax.
    """
    last: list[Pair | None] = []
    grid, matrices, scores = _attended(subject, last)
    maps = []
    for turn, score in enumerate(scores):
        token = _class_token(grid, matrices[-1], score)
        gradient = _gradients(score, matrices[-1:])[0][0, :, token].float().sum(0)
        likeness = _on_patches(grid, _cosines(last, token)[None])[0]
        least, most = likeness.aminmax()
        loosened = ((likeness - least) / (most - least)).nan_to_num(1.0)  # of one patch
        maps.append(loosened * _on_patches(grid, gradient[None])[0])
        yield Progress(turn + 1, len(scores))
    return Attribution(torch.stack(maps), grid=grid)


def _class_token(grid: Grid, last: Tensor, score: Tensor) -> int:
    """Return the token whose row of the last matrix is the only one on which the score depends; any
    one where it depends on none.

    Raises:
        MethodUnsuited: if there are several, or if it is a patch.
    """
    read = _read(last, score)
    token, count = int(read.argmax()), int(read.count_nonzero())
    alone = torch.zeros_like(read).index_fill_(0, read.argmax(), 1)
    if count > 1 or (count and bool(_on_patches(grid, alone[None]).any())):
        what = "a patch" if count == 1 else f"{count} tokens"
        raise MethodUnsuited(
            f"it needs a class token: this model's scores read {what} of the last attention"
        )
    return token


def _cosines(last: list[Pair | None], token: int) -> Tensor:
    """Return the cosines of a token's query and all keys of the last attention, float32 (N,).

    Raises:
        MethodUnsuited: if the attention does not show them.
    """
    (pair,) = last
    if pair is None:
        raise MethodUnsuited(
            "it needs the queries and keys of the last attention: this model's is a softmax and a "
            "product, which do not show them"
        )
    query, keys = (each.detach()[0].float().transpose(0, 1).flatten(1) for each in pair)
    return nn.functional.cosine_similarity(query[token][None], keys)


def attention_problems(model: nn.Module, image: Tensor, reading: Reading = AUTO) -> dict[str, str]:
    """Return which of rollout, chefer, agcam, legrad and gradeclip a model does not support on
    images of the shape of `image`, (1, C, H, W): method name → the reason, as half a sentence."""

    def scores(image: Tensor) -> Scores:
        return (total(forward(model, image, reading)),)

    problems = {}
    last: list[Pair | None] = []
    before: list[Tensor | None] = []
    try:
        grid, matrices, (score,) = attended(model, image, scores, last=last, before=before)
    except MethodUnsuited as error:
        problems = dict.fromkeys(("rollout", "chefer", "agcam", "gradeclip"), str(error))
    else:
        try:
            _known(before)
        except MethodUnsuited as error:
            problems["agcam"] = str(error)
        try:
            _cosines(last, _class_token(grid, matrices[-1], score))
        except (MethodUnsuited, NoGradientPath) as error:
            problems["gradeclip"] = str(error)
    try:
        _by_block(model, image, scores, [])
    except MethodUnsuited as error:
        problems["legrad"] = str(error)
    return problems


def unsuited(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit a method that follows attention: see `Method.unsuited`."""
    return trial.once(attention_problems).get(name)


def attended(
    model: nn.Module,
    image: Tensor,
    run: Callable[[Tensor], Scores],
    pools: list[Tensor] | None = None,
    last: list[Pair | None] | None = None,
    before: list[Tensor | None] | None = None,
) -> tuple[Grid, list[Tensor], Scores]:
    """Record the attention matrices of one forward pass.

    Args:
        image: (1, C, H, W).
        run: makes the forward pass of the image, and returns the scores that are explained.
        pools: list to which outputs of attentions are added that pool the tokens and on which a
            score depends, instead of raising an error.
        last: see `attending`.
        before: see `attending`.

    Returns:
        The grid on which the N tokens of the attention lie, the matrices (1, heads, N, N) in
        execution order, and the result of `run`.

    Raises:
        MethodUnsuited: if the tokens lie on no grid, and as `token_count` and `attending` raise it
            for attentions on which a score depends.
    """
    with evaluating(model):
        tokens = token_count(model, image)
        aside: Aside = []
        with attending(aside, last, before) as matrices:
            scores = run(image)
            read = [it for it in aside if any(depends(score, it[0]) for score in scores)]
            for mixed, error in read:
                if pools is None or any(type(why) is not PooledByAttention for _, why in read):
                    raise error
                pools.append(mixed)
    grid = token_grid(model, image, tokens)
    if grid is None:
        raise MethodUnsuited(
            "it needs tokens that lie on the photo row by row: those of this model's attention, "
            f"{tokens}, do not"
        )
    return grid, matrices, scores


def _attended(
    subject: Subject,
    last: list[Pair | None] | None = None,
    before: list[Tensor | None] | None = None,
) -> tuple[Grid, list[Tensor], tuple[Tensor, ...]]:
    """Return the grid, the matrices (1, heads, N, N) of a pass, and each target's score, with a
    graph. For `last` and `before` see `attending`."""

    def scores(image: Tensor) -> Scores:
        # The scores are separated here, where gradients are on. Afterwards the caller's grad mode
        # is back, in which they may get no graph.
        return subject.scores_of(subject.outputs(image))[0].unbind()

    return attended(subject.model, subject.image, scores, last=last, before=before)


def _known(before: list[Tensor | None]) -> list[Tensor]:
    """Return the scores whose softmaxes are the attention matrices, (1, heads, N, N).

    Raises:
        MethodUnsuited: if those of a matrix are not known.
    """
    known = [scores for scores in before if scores is not None]
    if len(known) < len(before):
        raise MethodUnsuited(
            "it needs attention that is the softmax of its scores: this model changes it afterwards"
        )
    return known


def _by_block(
    model: nn.Module, image: Tensor, run: Callable[[Tensor], Scores], pools: list[Tensor]
) -> tuple[Grid, list[Tensor], dict[str, Tensor]]:
    """Return the grid, the matrices, and the tokens (1, …) that each block returns, by its name.
    For `pools` see `attended`.

    Raises:
        MethodUnsuited: if the model's attention is unsuited, if there is not one attention in each
            block, or if a block does not return its tokens.
    """
    left: dict[str, Tensor] = {}
    lists = lists_of_blocks(model)

    def leaving(image: Tensor) -> Scores:
        with watching(model, chain(*lists)) as seen:
            scores = run(image)
        left.update(seen)
        return scores

    grid, matrices, _ = attended(model, image, leaving, pools)
    tokens = matrices[0].shape[-1]
    # The blocks of a text encoder did not run.
    blocks = next((names for names in lists if any(name in left for name in names)), [])
    sequences = {
        name: left[name]
        for name in blocks
        if name in left and len(left[name]) == 1 and left[name][0, ..., 0].numel() == tokens
    }
    if not len(matrices) == len(blocks) == len(sequences):
        raise MethodUnsuited(
            "it needs a transformer of blocks with one attention each: this model has "
            f"{counted(len(matrices), 'attention')} and "
            f"{counted(len(sequences), 'block that returns its', 'blocks that return their')} "
            "tokens"
        )
    return grid, matrices, sequences


def _gradients(score: Tensor, matrices: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the score at the matrices: 0 at a matrix on which it does not depend.

    Raises:
        NoGradientPath: if the score depends on none of the matrices.
    """
    if not score.requires_grad:
        raise NoGradientPath("the target does not depend on any attention")
    gradients = torch.autograd.grad(score, matrices, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise NoGradientPath("the target does not depend on the last attention")
    return [
        torch.zeros_like(matrix) if gradient is None else gradient
        for matrix, gradient in zip(matrices, gradients, strict=True)
    ]


def _read(last: Tensor, score: Tensor) -> Tensor:
    """Return r, float32 (N,): equal weights on the rows of the last matrix on which the score
    depends, 0 on the others."""
    gradient = _gradients(score, [last])[0]
    rows = gradient[0].float().abs().amax((0, 2))
    read = (rows > 1e-6 * rows.max()).float()
    return read / read.sum().clamp(min=1)


def _on_patches(grid: Grid, rows: Tensor) -> Tensor:
    """Place values (targets, N) on the grid of patches: return (targets, h, w)."""
    return grid.apply(rows.detach()[..., None])[:, 0]


def lists_of_blocks(model: nn.Module) -> list[list[str]]:
    """Return the names of what may be a transformer's blocks: of each list of modules of one class
    that all have children; the longest list first."""
    lists = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            children = list(module.named_children())
            kinds = {type(child) for _, child in children}
            deep = all(any(True for _ in child.children()) for _, child in children)
            if len(kinds) == 1 and deep:
                lists.append([f"{name}.{child}" if name else child for child, _ in children])
    return sorted(lists, key=len, reverse=True)
