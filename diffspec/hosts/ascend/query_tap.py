# SPDX-License-Identifier: Apache-2.0
"""The query tap inside ACL graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffspec.hosts.vllm.query_tap import QueryTap


class AscendQueryTap(QueryTap):
    """Inside a captured graph, one copy into the tap's own buffer and nothing else.

    vLLM-Ascend sends a step's row starts to the device in a tensor of its own each time, so a
    graph must not read them. It need not: graphs are captured for decode steps of K + 1 rows per
    request (:meth:`AscendSession.load_model` refuses others), and rows in the order of such a batch
    lie in the buffer just where those of any other batch are put.
    """

    def _copy(self, query: Tensor, attn_metadata: Any) -> None:
        if not torch.npu.is_current_stream_capturing():  # type: ignore[attr-defined]
            # A request that only pads the batch, past all others, needs no place.
            self.calls += 1
            most = self._source.shape[0] + 1
            self._store(
                query[: attn_metadata.num_actual_tokens], attn_metadata.query_start_loc[:most]
            )
            return
        n = min(attn_metadata.num_actual_tokens, self.buffer.shape[0])
        self.calls += 1
        self._captured_rows = max(self._captured_rows, n)
        self.buffer[:n].copy_(query[:n].view(n, *self.buffer.shape[1:]))
