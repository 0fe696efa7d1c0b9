"""Networks of tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

from tests.zoo.parts import Net, order, scored


class Tokens(nn.Module):
    """Patches of 8 pixels, other tokens among them, and a head on the mean of all. The patches lie
    row by row, column by column (`turned`), or in no order (`shuffled`)."""

    def __init__(
        self, *, extra: int = 0, at: str = "front", turned: bool = False, shuffled: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.other = nn.Parameter(torch.randn(1, extra, 16))
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 5)
        self.at, self.turned, self.shuffled = at, turned, shuffled

    def forward(self, x: Tensor) -> Tensor:
        grid = self.embed(x)
        tokens = (grid.transpose(2, 3) if self.turned else grid).flatten(2).transpose(1, 2)
        if self.shuffled:
            tokens = tokens[:, order(tokens.shape[1])]
        count = {"front": 0, "middle": tokens.shape[1] // 2, "behind": tokens.shape[1]}[self.at]
        other = self.other.expand(len(x), -1, -1)
        tokens = torch.cat([tokens[:, :count], other, tokens[:, count:]], 1)
        out: Tensor = self.head(self.block(tokens).mean(1))
        return out


def vit() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64
    )
    nn.init.normal_(model.get_parameter("heads.head.weight"), std=0.1)
    return model


def of_tokens(mixed: Callable[..., Tensor], **parts: nn.Module) -> Net:
    """`embed` makes patches of the image, a function of their tokens (B, N, C) and of the other
    parts makes tokens of these, and `head` reads the mean of those."""

    def forward(x: Tensor, embed: nn.Module, head: nn.Module, **parts: nn.Module) -> Any:
        tokens = embed(x).flatten(2).transpose(1, 2)
        return head(mixed(tokens, **parts).mean(1))

    return Net(forward, **parts)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attending(attend: Attend, order: Callable[[Tensor], Tensor] = lambda tokens: tokens) -> Net:
    """Two layers over 4 × 4 patches of 16 × 16 pixels, with 16 dimensions in each of two heads: as
    many as there are tokens, so that shapes do not tell one from the other. `attend` takes q, k
    and v, (1, 2, 16, 16), and returns what replaces v; `order` is the tokens' of the patches."""

    def mixed(tokens: Tensor, blocks: nn.ModuleList) -> Tensor:
        tokens = order(tokens)
        for block in blocks:
            q, k, v = block(tokens).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
            tokens = tokens + attend(q, k, v).transpose(1, 2).flatten(2)
        return tokens

    torch.manual_seed(5)
    return of_tokens(
        mixed,
        embed=nn.Conv2d(3, 32, 4, 4),
        blocks=nn.ModuleList(nn.Linear(32, 96) for _ in range(2)),
        head=nn.Linear(32, 3),
    ).eval()


def sharing_positions() -> Net:
    """Two blocks share a convolution of the tokens, as CoaT's do."""

    def forward(
        x: Tensor, patches: nn.Module, positions: nn.Module, norms: nn.ModuleList, head: nn.Module
    ) -> Any:
        x = patches(x)
        for norm in norms:
            values = norm(x.flatten(2).mT).mT.reshape(x.shape)
            x = x + values * positions(values)
        return head(x.mean((2, 3)))

    return Net(
        forward,
        patches=nn.Conv2d(3, 8, 4, 4),
        positions=nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        norms=nn.ModuleList(nn.LayerNorm(8) for _ in range(2)),
        head=nn.Linear(8, 3),
    ).eval()


def mixing(attention: Tensor, weights: tuple[float, ...] = (1.0,)) -> Net:
    """A block whose attention A_h, (heads, N, N), is given: tokens ← Σ_h w_h A_h tokens (no skip,
    so that numbers stay few)."""

    def mixed(tokens: Tensor, inner: nn.Module, logits: Tensor, weights: Tensor) -> Any:
        matrix = logits.expand(len(tokens), -1, -1, -1).softmax(-1)
        return inner((weights * (matrix @ tokens[:, None])).sum(1))

    return Net(
        mixed,
        inner=nn.Identity(),
        logits=nn.Parameter(attention.expand(len(weights), -1, -1).log()),
        weights=torch.tensor(weights)[:, None, None],
    )


def of_four(*blocks: nn.Module, mean: bool = False) -> Net:
    """2 × 2 pixels are four tokens of one number; blocks; the head reads token 0 or the mean:
    y = 2 × what it reads, and -y."""

    def score(x: Tensor, embed: nn.Module, blocks: nn.Module) -> Any:
        tokens = blocks(embed(x[:, 0].flatten(1)[..., None]))[..., 0]
        return 2 * (tokens.mean(1) if mean else tokens[:, 0])

    return scored(score, other=-1, embed=nn.Identity(), blocks=nn.Sequential(*blocks))


Attention = Callable[..., Tensor]
"""Of tokens (B, N, 6) and the layers q, k, v and out; returns what is added to the tokens."""


def softmax_attention(x: Tensor, q: nn.Module, k: nn.Module, v: nn.Module, out: nn.Module) -> Any:
    weights = (q(x) @ k(x).transpose(-2, -1) / 6**0.5).softmax(-1)
    return out(weights @ v(x))


def one_block(
    attention: Attention = softmax_attention, *, bias: bool = True, **more: nn.Module
) -> Net:
    """An image of 8 × 8 pixels as four patches, one block of a transformer, and three classes.

    Args:
        more: parts that the attention needs beside the layers.
    """

    def mixed(x: Tensor, **parts: nn.Module) -> Any:
        first, second, up, down = (parts.pop(name) for name in ("first", "second", "up", "down"))
        x = x + attention(first(x), **parts)
        return x + down(nn.functional.gelu(up(second(x))))

    return of_tokens(
        mixed,
        embed=nn.Conv2d(3, 6, 4, 4, bias=bias),
        **{name: nn.LayerNorm(6, bias=bias) for name in ("first", "second")},
        **{name: nn.Linear(6, 6, bias=bias) for name in ("q", "k", "v", "out")},
        up=nn.Linear(6, 9, bias=bias),
        down=nn.Linear(9, 6, bias=bias),
        head=nn.Linear(6, 3, bias=bias),
        **more,
    )


def of_timm() -> nn.Module:
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", depth=3, img_size=64)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    return model


def of_timm_distilled() -> nn.Module:
    model: nn.Module = timm.create_model("deit_tiny_distilled_patch16_224", depth=3, img_size=64)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    return model


def of_timm_pooled() -> nn.Module:
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", depth=3, img_size=64, class_token=False, global_pool="avg"
    )
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    return model


def of_hugging_face() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=64,
        num_labels=7,
    )
    model: nn.Module = ViTForImageClassification(config)
    nn.init.normal_(model.get_parameter("classifier.weight"), std=0.5)
    return model


def strided() -> Net:
    """Tokens of which every second, row and column, is kept, behind convolutions whose padding
    puts each token's middle at the edge of its patch, as LeViT has it. Then each token sees all."""

    def forward(
        x: Tensor, stem: nn.Module, kept: nn.Module, mixed: nn.Module, head: nn.Module
    ) -> Any:
        tokens = stem(x).permute(0, 2, 3, 1)[:, ::2, ::2].flatten(1, 2)
        return head(mixed(kept(tokens).mT).mT.mean(1))

    channels = (3, 8, 8, 16, 16)
    return Net(
        forward,
        stem=nn.Sequential(
            *(nn.Conv2d(*each, 3, stride=2, padding=1) for each in pairwise(channels))
        ),
        kept=nn.Linear(16, 16),
        mixed=nn.Linear(49, 49),
        head=nn.Linear(16, 5),
    )


def windowed(side: int, attention: str, *, plain: bool, seed: int) -> Net:
    """Tokens of 8 × 8 pixels that lie window by window, or row by row, with norms as after
    training.

    Args:
        side: rows and columns of the windows.
        attention: of the tokens to each other: `none`, `window` or `all`.
    """

    def forward(x: Tensor, norms: nn.ModuleList, **parts: nn.Module) -> Any:
        cells = parts["embed"](x)
        batch, width, rows, columns = cells.shape
        tokens = cells.flatten(2).transpose(1, 2)
        if not plain:
            windows = cells.reshape(batch, width, rows // side, side, columns // side, side)
            tokens = windows.permute(0, 2, 4, 3, 5, 1).reshape(batch, rows * columns, width)
        first, second, third = norms
        tokens = first(tokens)
        if attention != "none":
            count = rows * columns if attention == "all" else side**2
            groups = tokens.reshape(-1, count, width)
            tokens = tokens + parts["attend"](groups, groups, groups)[0].reshape(tokens.shape)
        tokens = second(tokens)
        return parts["head"](third(tokens + parts["mix"](tokens).relu()).mean(1))

    torch.manual_seed(seed)
    model = Net(
        forward,
        embed=nn.Conv2d(3, 32, 8, 8),
        norms=nn.ModuleList(nn.LayerNorm(32) for _ in range(3)),
        attend=nn.MultiheadAttention(32, 4, batch_first=True),
        mix=nn.Linear(32, 32),
        head=nn.Linear(32, 5),
    )
    for norm in model.norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.2)
    return model
