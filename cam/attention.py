"""The attention matrices of a transformer, with their gradients, whatever library wrote it.

    with attending() as matrices:
        logits = model(images)
    matrices                                 # a tensor (B, heads, N, N) for each layer, in order

Transformers call torch's scaled-dot-product attention, torch's multi-head attention or a softmax
over a square of tokens. In this thread each such call is computed step by step instead, so that the
matrix exists and lies on the way of the gradient. Until the first of them gradients are off: the
graph starts there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from cam.errors import MethodUnsuited

SOFTMAXES: Final = frozenset({torch.softmax, Tensor.softmax, functional.softmax})


@contextmanager
def attending() -> Iterator[list[Tensor]]:
    """A list that forward passes in the block add every attention matrix to; the grad mode is put
    back on leaving.

    Raises:
        MethodUnsuited: in the forward pass, for torch's multi-head attention with masks or between
            two sequences.
    """
    mode = _Attention()
    with torch.inference_mode(False), torch.set_grad_enabled(False), mode:
        yield mode.matrices


class _Attention(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.matrices: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            return self._scaled_dot_product(*args, **(kwargs or {}))
        if func is functional.multi_head_attention_forward:
            return self._multi_head(*args, **(kwargs or {}))
        output = func(*args, **(kwargs or {}))
        if func in SOFTMAXES and output.ndim == 4 and output.shape[-1] == output.shape[-2] > 1:
            return self._note(output)
        return output

    def _note(self, matrix: Tensor) -> Tensor:
        torch.set_grad_enabled(True)
        if not matrix.requires_grad:
            matrix = matrix.detach().requires_grad_()
        self.matrices.append(matrix)
        return matrix

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
        if attn_mask is not None or is_causal or enable_gqa or query.shape[:-1] != key.shape[:-1]:
            return functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=attn_mask,
                dropout_p=dropout_p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        if query.ndim == 3:  # one head
            of_it = query[:, None], key[:, None], value[:, None]
            return self._scaled_dot_product(*of_it, scale=scale)[:, 0]
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        return self._note((query * factor @ key.transpose(-2, -1)).softmax(-1)) @ value

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
        plain = in_proj_weight is not None and bias_k is None and bias_v is None
        masked = options.get("key_padding_mask") is not None or options.get("attn_mask") is not None
        itself = query is key and key is value
        if not plain or masked or add_zero_attn or not itself or query.ndim != 3:
            raise MethodUnsuited("its attention has masks or joins two sequences")
        assert in_proj_weight is not None
        tokens, batch, width = query.shape
        joined = functional.linear(query, in_proj_weight, in_proj_bias)
        q, k, v = joined.view(tokens, batch, 3, num_heads, width // num_heads).permute(
            2, 1, 3, 0, 4
        )
        mixed = self._scaled_dot_product(q, k, v).permute(2, 0, 1, 3).reshape(tokens, batch, width)
        return functional.linear(mixed, out_proj_weight, out_proj_bias), None
