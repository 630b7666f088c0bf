# SPDX-License-Identifier: Apache-2.0
"""A copy of the target's last queries, taken where its last full-attention layer runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TAPPED = "_diffspec_tap"


class QueryTap:
    """Copies query rows of one attention layer into a buffer allocated once.

    Steps with few rows (decoding) are copied whole; in a step with a prefill each request's last
    ``rows_per_request`` rows are, which is where the last accepted row always is.

    Args:
        layer: the host's attention layer; its ``impl.forward`` is wrapped on the instance, which
            is reached at run time even when the surrounding model is compiled, because attention
            is an opaque custom operation there.
        max_requests: most requests in one step.
        rows_per_request: K + 1.

    Raises:
        RuntimeError: the layer is tapped already.
    """

    def __init__(
        self,
        layer: Any,
        *,
        max_requests: int,
        rows_per_request: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layer, self.impl = layer, layer.impl
        if hasattr(self.impl, _TAPPED):
            raise RuntimeError("this attention layer is tapped already")
        self.rows_per_request = rows_per_request
        self.buffer = torch.zeros(
            (max_requests * rows_per_request, heads, head_dim), dtype=dtype, device=device
        )
        self._back = torch.arange(-rows_per_request, 0, device=device)
        self._starts: Tensor | None = None
        #: Forward passes seen with attention metadata, so that silence can be told from idleness.
        self.calls = 0
        self._forward = self.impl.forward
        self.impl.forward = self._tapped_forward
        setattr(self.impl, _TAPPED, self)

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""
        return self.buffer.nbytes

    def remove(self) -> None:
        """Restore the layer."""
        del self.impl.forward
        delattr(self.impl, _TAPPED)

    def rows(self, last: Tensor) -> Tensor:
        """The queries ``[b, heads, head_dim]`` at rows ``last`` ``[b]`` (int64) of the step's
        batch, each among its request's last ``rows_per_request`` rows."""
        if self._starts is None:
            return self.buffer[last]
        ends = self._starts[1 : last.shape[0] + 1]
        mine = torch.arange(last.shape[0], device=last.device) * self.rows_per_request
        return self.buffer[mine + self.rows_per_request + last - ends]

    def _tapped_forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Any,
        attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if attn_metadata is not None:  # None while the host warms up
            self._copy(query, attn_metadata)
        return self._forward(layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs)

    def _copy(self, query: Tensor, attn_metadata: Any) -> None:
        self.calls += 1
        n = attn_metadata.num_actual_tokens
        query = query[:n].view(n, *self.buffer.shape[1:])
        if n <= self.buffer.shape[0]:
            self._starts = None
            self.buffer[:n].copy_(query)
            return
        self._starts = attn_metadata.query_start_loc.long()
        ends = self._starts[1:]
        rows = torch.maximum(ends.unsqueeze(-1) + self._back, self._starts[:-1].unsqueeze(-1))
        rows = rows.flatten().clamp_(max=n - 1)  # starts padded for captured graphs point past it
        torch.index_select(query, 0, rows, out=self.buffer[: rows.shape[0]])
