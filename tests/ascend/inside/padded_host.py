# SPDX-License-Identifier: Apache-2.0
"""The simulated engine of the core's tests, its steps handed over as vLLM-Ascend's runner does.

What is vLLM-Ascend's own is real: the drafter's class and its preparing methods, the metadata, the
states of requests. Rows of rejected drafts are in every batch, and their features are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_input_batch import CachedRequestState
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer

from diffspec.compact_kv.canonical import SplitCanonicalCache
from diffspec.compact_kv.pages import KeyPages
from diffspec.hosts.ascend.query_tap import AscendQueryTap
from diffspec.hosts.ascend.session import AscendSession
from diffspec.proposer.batch import StepBatch
from diffspec.settings import DiffSpecSettings
from tests.unit import tiny_draft as tiny
from tests.unit.serving import CPU, TARGET_DIM, TARGET_HEADS, TARGET_KV, Host, Row, Shape

ON = {"draft_context_policy": "diffspec"}


def make_drafter(
    depth: int, *, hybrid: bool = False, mode: CUDAGraphMode = CUDAGraphMode.NONE, most: int = 8
) -> AscendEagleProposer:
    """A drafter of the real class that has what the methods used here read, and its runner."""
    drafter = object.__new__(AscendEagleProposer)
    speculative = SimpleNamespace(num_speculative_tokens=depth, disable_padded_drafter_batch=False)
    drafter.speculative_config = speculative
    drafter.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(is_hybrid=hybrid),
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
        speculative_config=speculative,
    )
    drafter.device, drafter.dtype = CPU, torch.float32
    drafter.arange = torch.arange(4096, dtype=torch.int32)
    drafter.backup_next_token_ids = CpuGpuBuffer(
        most, dtype=torch.int32, device=CPU, pin_memory=False
    )
    drafter.runner = SimpleNamespace(
        max_model_len=1000,
        input_batch=SimpleNamespace(req_ids=[], num_reqs=0, vocab_size=tiny.VOCAB),
        requests={},
        discard_request_indices=CpuGpuBuffer(most, dtype=torch.int64, device=CPU, pin_memory=False),
        actual_seq_lengths_q=[],
        attn_state=None,
        decode_token_per_req=1,
    )
    return drafter


def make_session(depth: int, **options: Any) -> AscendSession:
    """A session attached to :func:`make_drafter`'s drafter."""
    drafter = make_drafter(depth, **options)
    settings = DiffSpecSettings.parse(ON, num_speculative_tokens=depth)
    return AscendSession(drafter, drafter.runner, settings, memory=0)


class PaddedHost(Host):
    """A :class:`Host` whose cycle is only reached through an :class:`AscendSession`."""

    def __init__(self, shape: Shape, *, bnsd: bool = False, seed: int = 0, **options: Any) -> None:
        self.bnsd = bnsd
        self.session = make_session(shape.depth, **options)
        #: Keywords of the last call of ``_propose``, beside those that every call gets.
        self.other_keywords: dict[str, Any] = {}
        self.rejected: list[int] = []
        super().__init__(shape, seed=seed)

    def _build(self) -> None:
        super()._build()
        shape = self.shape

        def pages(heads: int, dim: int) -> Tensor:
            inner = (heads, shape.page) if self.bnsd else (shape.page, heads)
            return torch.full((shape.blocks, *inner, dim), torch.nan)

        self.pair = tuple(pages(tiny.KV_HEADS, tiny.DIM) for _ in range(2))
        self.canonical = SplitCanonicalCache(
            *self.pair, block_size=shape.page, heads=tiny.KV_HEADS, head_dim=tiny.DIM
        )
        self.draft_pages = self.pair[0]
        keys = pages(TARGET_KV, TARGET_DIM)
        numbers = torch.arange(keys[0].numel()).view(keys[0].shape)
        places = numbers.transpose(0, 1) if self.bnsd else numbers
        # As the simulation writes them: [blocks, heads, head_dim, tokens].
        self.target_pages = keys.permute(0, 1, 3, 2) if self.bnsd else keys.permute(0, 2, 3, 1)
        self.working_set.scorer.bind(KeyPages(keys, places.contiguous(), whole=True))
        self.cycle.bind(self.canonical)
        self.inner, self.session._cycle = self.cycle, self.cycle
        impl = SimpleNamespace(forward=lambda *_: None)
        self.session._tap = AscendQueryTap(
            SimpleNamespace(impl=impl), max_requests=shape.slots, rows_per_request=shape.depth + 1,
            heads=TARGET_HEADS, head_dim=TARGET_DIM, dtype=torch.float32, device=CPU,
        )  # fmt: skip
        self.session._target_group = 1
        self.attention = impl
        self.cycle = SimpleNamespace(  # type: ignore[assignment]
            run=self._hand_over,
            rests=lambda _: False,
            finished=self.inner.finished,
            slots=self.inner.slots,
        )

    def _batch(self, rows: Sequence[Row]) -> StepBatch:
        self.rows = rows
        return super()._batch(rows)

    def _hand_over(self, batch: StepBatch) -> list[list[int]]:
        """What the runner does between sampling and taking the drafts."""
        rows, depth = self.rows, self.shape.depth
        drafter, runner = self.session.drafter, self.session.runner
        self.rejected = [row.drafted - row.accepted for row in rows]
        tokens = [t for r, no in zip(rows, self.rejected, strict=True) for t in self._ids(r, no)]
        slots, features, queries = [], [], []
        for row, no in zip(rows, self.rejected, strict=True):
            count, nothing = row.length - row.start, torch.full((no, 1), torch.nan)
            slots += self._slots(row, row.start, row.length + no)
            kept = torch.from_numpy(
                np.stack([self.features(row.request, p) for p in range(row.start, row.length)])
            ).float()
            features.append(torch.cat((kept, nothing.expand(no, kept.shape[1]))))
            query = torch.full((count + no, TARGET_HEADS, TARGET_DIM), torch.nan)
            query[count - 1] = torch.from_numpy(row.query).float()
            queries.append(query)
        sizes = [len(part) for part in features]
        starts = torch.tensor(np.cumsum([0, *sizes]), dtype=torch.int32)
        lengths = torch.tensor(
            [row.length + no for row, no in zip(rows, self.rejected, strict=True)],
            dtype=torch.int32,
        )
        metadata = AscendCommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lengths,
            _seq_lens_cpu=lengths, seq_lens_cpu=lengths, num_reqs=len(rows),
            num_actual_tokens=len(tokens), max_query_len=max(sizes), max_seq_len=int(lengths.max()),
            block_table_tensor=batch.draft_table,
            # Longer than the step: what lies behind belongs to no step.
            slot_mapping=torch.tensor([*slots, 0, 0, 0], dtype=torch.int32),
        )  # fmt: skip
        self.attention.forward(None, torch.cat(queries), None, None, None, metadata)

        # Bookkeeping.
        drafts = any(row.drafted for row in rows)
        sampled = torch.full((len(rows), depth + 1 if drafts else 1), -1)
        going_on = []
        for i, row in enumerate(rows):
            said = row.request.text[row.length - row.accepted : row.length + 1]
            if not row.drafting:
                going_on.append(i)
                said = [tiny.VOCAB - 1]  # a token that means nothing
            sampled[i, : len(said)] = torch.tensor(said)
        discard = runner.discard_request_indices
        discard.np[: len(going_on)] = going_on
        discard.copy_to_gpu(len(going_on))
        self._note(rows)
        next_ids, counts = drafter.prepare_next_token_ids_padded(
            sampled, runner.requests, runner.input_batch, discard.gpu, len(going_on)
        )
        to_sample, rejected = None, None
        rows_of = torch.arange(len(tokens))
        if drafts:
            metadata, rows_of, to_sample, rejected = drafter.prepare_inputs_padded(
                metadata,
                SpecDecodeMetadata.make_dummy([[3] * r.drafted for r in rows], CPU),
                counts,
            )
        runner.input_batch.block_table = [
            None, SimpleNamespace(get_device_tensor=lambda b: batch.target_table[:b])
        ]  # fmt: skip
        return drafter._propose(
            target_token_ids=torch.tensor(tokens, dtype=torch.int32)[rows_of],
            target_positions=rows_of,
            target_hidden_states=torch.cat(features)[rows_of],
            next_token_ids=next_ids,
            token_indices_to_sample=to_sample,
            common_attn_metadata=metadata,
            num_rejected_tokens_gpu=rejected,
            **self.other_keywords,
        )

    def _note(self, rows: Sequence[Row]) -> None:
        """What the host knows of its requests after sampling."""
        batch, requests = self.session.runner.input_batch, self.session.runner.requests
        batch.req_ids, batch.num_reqs = [row.request.name for row in rows], len(rows)
        known = [row.request.known for row in rows]
        batch.num_tokens_no_spec = np.array(known)
        batch.token_ids_cpu = np.zeros((len(rows), max(known)), dtype=np.int32)
        for i, row in enumerate(rows):
            request = row.request
            batch.token_ids_cpu[i, : request.known] = request.text[: request.known]
            requests[request.name] = CachedRequestState(
                req_id=request.name, prompt_token_ids=request.text[: request.known], mm_features=[],
                sampling_params=None, generator=None, block_ids=(request.blocks,),
                num_computed_tokens=row.start, output_token_ids=[],
            )  # fmt: skip

    def _ids(self, row: Row, rejected: int) -> list[int]:
        """Input tokens of a row's part of the step; a rejected draft is some token."""
        return [*row.request.text[row.start : row.length], *[3] * rejected]

    def _slots(self, row: Row, first: int, last: int) -> list[int]:
        blocks, page = row.request.blocks, self.shape.page
        return [blocks[p // page] * page + p % page for p in range(first, last)]
