# SPDX-License-Identifier: Apache-2.0
"""A copy of the target's last queries, taken where its last full-attention layer runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TAPPED = "_diffspec_tap"


class QueryTap:
    """Copies query rows of one attention layer into a buffer allocated once.

    Of each request the last ``rows_per_request`` rows are kept, which is where the last accepted
    row always is. Every step is stored the same way, found through the step's own row starts on
    the device. So a CUDA graph that holds the attention layer holds the copy too: when it is
    replayed, no Python runs, and the rows still land where :meth:`rows` looks for them. On a CPU
    there are no graphs, and a step that fits the buffer is copied as it is.

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
        self._after = torch.arange(1, max_requests + 1, device=device) * rows_per_request
        self._source = torch.zeros(
            (max_requests, rows_per_request), dtype=torch.int64, device=device
        )
        #: Forward passes entered with attention metadata; a replayed graph enters none.
        self.calls = 0
        self._calls_asked = 0
        self._captured_rows = 0
        self._as_it_is = False
        # Views of the buffer's first rows, by their number and the query's dimensions: to make one
        # costs a CPU as much as the copy.
        self._first: dict[tuple[int, int], Tensor] = {}
        self._forward = self.impl.forward
        self.impl.forward = self._tapped_forward
        setattr(self.impl, _TAPPED, self)

    @property
    def nbytes(self) -> int:
        """Bytes held for good."""
        held = (self.buffer, self._back, self._after, self._source)
        return sum(tensor.nbytes for tensor in held)

    def remove(self) -> None:
        """Restore the layer."""
        del self.impl.forward
        delattr(self.impl, _TAPPED)

    def saw(self, rows: int) -> bool:
        """Whether the queries of the step that just ran, of ``rows`` rows, went through here.

        Asked once per step. A step no larger than the largest captured graph may have been a
        replay, which is not noticed here, so for such a step the answer is always yes.
        """
        entered, self._calls_asked = self.calls != self._calls_asked, self.calls
        return entered or rows <= self._captured_rows

    def rows(self, last: Tensor, ends: Tensor) -> Tensor:
        """The queries ``[b, heads, head_dim]`` at rows ``last`` ``[b]`` (int64) of the step's
        batch, each among its request's last ``rows_per_request`` rows; ``ends`` ``[b]`` (any
        integer type) is the row after each request's last one in that same batch."""
        if self._as_it_is:
            return self.buffer[last]
        return self.buffer[self._after[: last.shape[0]] + last - ends]

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
        # May be captured: sizes come from Python and shapes, addresses are those of static
        # buffers (the host's row starts are one), and nothing waits for the device.
        n, starts = attn_metadata.num_actual_tokens, attn_metadata.query_start_loc
        self.calls += 1
        if _in_capture(query):
            self._captured_rows = max(self._captured_rows, n)
        self._as_it_is = query.is_cpu and not self._captured_rows and n <= self.buffer.shape[0]
        if not self._as_it_is:
            self._store(query[:n], starts)
            return
        if (rows := self._first.get((n, query.dim()))) is None:
            rows = self.buffer[:n].view(n, *query.shape[1:])
            self._first[n, query.dim()] = rows
        rows.copy_(query if query.shape[0] == n else query[:n])

    def _store(self, query: Tensor, starts: Tensor) -> None:
        n, source = query.shape[0], self._source[: starts.shape[0] - 1]
        torch.add(starts[1:].unsqueeze(-1), self._back, out=source)
        torch.maximum(source, starts[:-1].unsqueeze(-1), out=source)
        # Requests that only pad a graph start past the last row.
        source.clamp_(max=n - 1)
        rows = source.view(-1)
        torch.index_select(
            query.view(n, *self.buffer.shape[1:]), 0, rows, out=self.buffer[: rows.shape[0]]
        )


def _in_capture(tensor: Tensor) -> bool:
    # The question itself raises in a build without CUDA.
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
