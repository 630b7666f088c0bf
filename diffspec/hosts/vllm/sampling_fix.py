# SPDX-License-Identifier: Apache-2.0
"""A correct stand-in for one function of vLLM's CPU rejection sampler.

In the CPU build of vLLM 0.28 ``expand_batch_to_tokens`` writes into a converted copy of its
output whenever the input is not int64, so per-token temperatures are left uninitialised and
requests with temperature above 0 emit wrong tokens under *any* speculative method.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("vllm.diffspec")

#: Host versions whose CPU build needs the replacement.
AFFECTED = ("0.28.",)


def expand_batch_to_tokens(
    x: Tensor,
    cu_num_tokens: Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> Tensor:
    """Repeat each request's value for each of its tokens.

    Args:
        x: ``[b]``.
        cu_num_tokens: ``[b]`` integer, cumulative tokens, each request's own included.
        num_tokens: tokens in all, the last of ``cu_num_tokens``.
        replace_from, replace_to: values equal to the first become the second.

    Returns:
        ``[num_tokens]`` of x's dtype.
    """
    x = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    counts = torch.diff(cu_num_tokens.long(), prepend=cu_num_tokens.new_zeros(1).long())
    return x.repeat_interleave(counts, output_size=num_tokens)


def install(version: str, device_type: str, module: Any) -> bool:
    """Replace the function in vLLM's ``rejection_sampler`` module where it is known broken.

    Returns:
        Whether this build needs the replacement (it is never installed twice).
    """
    if device_type != "cpu" or not version.startswith(AFFECTED):
        return False
    if module.expand_batch_to_tokens is not expand_batch_to_tokens:
        module.expand_batch_to_tokens = expand_batch_to_tokens
        logger.info(
            "DiffSpec: replaced rejection_sampler.expand_batch_to_tokens, which is wrong in the "
            "CPU build of vLLM %s for temperature > 0",
            version,
        )
    return True
