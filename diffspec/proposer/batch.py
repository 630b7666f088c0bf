# SPDX-License-Identifier: Apache-2.0
"""What one cycle is given: the step just verified, in the words of no particular host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffspec.adaptive_depth.policy import IntArray as IntArray

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]


def on_device(values: IntArray, device: torch.device) -> Tensor:
    """``values`` on ``device``, where it can be without waiting for what is queued there.

    The array may be changed at once, but on the CPU, where the result shares its memory. CUDA has
    copied pageable memory aside when such a call returns; other devices do not promise that.
    """
    return torch.from_numpy(values).to(device, non_blocking=device.type == "cuda")


@dataclass(frozen=True, slots=True)
class StepBatch:
    """``b`` requests with ``n`` verified rows in all (rejected rows already removed).

    Attributes:
        request_ids: ``[b]``, in row order.
        token_ids: ``[n]``, the token after each row's position.
        features: ``[n, aux · target_hidden]``, auxiliary target features.
        slots: ``[n]`` int64, host slot of each row in the draft layer's pages.
        row_starts: ``[b + 1]``, first row of each request.
        lengths: ``[b]``, context length: position of the request's last row plus one.
        drafting: ``[b]``, whether the request sampled a token (False: prefill goes on).
        drafted: ``[b]``, drafts scheduled in this step, 0 where none.
        accepted: ``[b]``, how many of them were accepted.
        sampled: ``[b]``, the first token the target sampled in this step; -1 where it did not.
        newest: ``[b]``, the last token it sampled, past all accepted drafts; -1 where it did not.
        query: ``[b, query_heads, head_dim]``, the target's query at each request's last row.
        draft_table: ``[b, pages]``, the draft layer's block table.
        target_table: ``[b, pages]``, the scored target layer's block table.
    """

    request_ids: Sequence[str]
    token_ids: Tensor
    features: Tensor
    slots: Tensor
    row_starts: IntArray
    lengths: IntArray
    drafting: BoolArray
    drafted: IntArray
    accepted: IntArray
    sampled: IntArray
    newest: IntArray
    query: Tensor
    draft_table: Tensor
    target_table: Tensor
