# SPDX-License-Identifier: Apache-2.0
"""The Ascend session's way of reading padded batches, under vLLM's own CPU runner.

vLLM hands over padded batches too, if it is let: by the same methods, which take a mask where
vLLM-Ascend takes indices, and call ``propose``. Everything else about the CPU host stays as it is.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from diffspec.hosts.ascend.session import AscendSession
from diffspec.hosts.vllm import routing, worker
from diffspec.hosts.vllm.attached import AttachedSession
from diffspec.hosts.vllm.query_tap import QueryTap
from diffspec.testbed.offline import OfflineEngine
from tests.engine.scenarios import Prompts, _diffspec, _run

#: How many rows of rejected drafts, and chunks of prompts that go on, the batches had.
_SEEN = {"rejected": 0, "going_on": 0}


class PaddedSession(AscendSession):
    """Batches as on Ascend, pages and layers as on a CPU."""

    BOUND: ClassVar[tuple[str, ...]] = (
        "propose",
        "prepare_next_token_ids_padded",
        "prepare_inputs_padded",
        "load_model",
        "dummy_run",
    )
    tap_class: ClassVar[type[QueryTap]] = QueryTap
    load_model = AttachedSession.load_model
    require_readable = AttachedSession.require_readable
    page_tokens = AttachedSession.page_tokens
    draft_pages = AttachedSession.draft_pages
    target_pages = AttachedSession.target_pages

    def prepare_next_token_ids_padded(  # type: ignore[override]
        self, sampled: Tensor, requests: Any, batch: Any, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        self._sampled, self._drafted = sampled, None
        going_on = mask[: batch.num_reqs].nonzero().flatten()
        self._discarded = going_on.numpy().astype(np.int64)
        _SEEN["going_on"] += len(going_on)
        result: tuple[Tensor, Tensor] = self._host["prepare_next_token_ids_padded"](
            sampled, requests, batch, mask
        )
        return result

    def propose(self, num_speculative_tokens: int, **given: Any) -> list[list[int]]:
        rejected = given["num_rejected_tokens_gpu"]
        _SEEN["rejected"] += 0 if rejected is None else int(rejected.sum())
        return self._propose(**given)


def padded(pair: str, prompts: Prompts, tokens: int, k: int, keys: Any, **engine: Any) -> Any:
    """All prompts at once: with the draft as it is, and with every third of its tokens wrong."""
    routing.PADDED = frozenset({"cpu"})
    worker.refusals = lambda *_: []  # type: ignore[assignment]  # padded batches, on a CPU
    attach = worker.attach
    worker.AttachesDiffSpec.attach = lambda self: attach(  # type: ignore[method-assign]
        self, memory=self.memory_given(), session_class=PaddedSession
    )
    llm = OfflineEngine(f"{pair}/target", speculative=_diffspec(pair, k, **keys), **engine)
    right = _run(llm, prompts, tokens)
    head, calls = llm.session.cycle.head, 0
    best = head.best_tokens

    def sometimes_wrong(hidden: Tensor, *more: Any) -> Tensor:
        nonlocal calls
        calls += 1
        ids = best(hidden, *more)
        return torch.where(ids > 3, ids - 1, ids + 1) if calls % 3 == 0 else ids

    head.best_tokens = sometimes_wrong
    return {
        "session": type(llm.session).__name__,
        "right": right,
        "wrong": _run(llm, prompts, tokens),
        "faults": llm.session.cycle.faults.total,
        **_SEEN,
    }
