# SPDX-License-Identifier: Apache-2.0
"""DiffSpec on vLLM's own V1 drafter: how a verified step comes to the drafting cycle."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm.attached import AttachedSession
from diffspec.proposer.batch import IntArray, StepBatch


class DiffSpecSession(AttachedSession):
    """The session on an ``EagleProposer`` that gets batches without rejected rows."""

    BOUND: ClassVar[tuple[str, ...]] = (
        "propose",
        "prepare_inputs",
        "prepare_next_token_ids_cpu",
        "load_model",
        "dummy_run",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sampled: list[list[int]] = []
        self._drafted: list[int] | None = None
        self._kept: Tensor | None = None
        self._target: Any = None

    def prepare_next_token_ids_cpu(
        self, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Note what was sampled; empty for a request whose prefill goes on."""
        self._sampled = sampled_token_ids
        self._drafted = self._kept = self._target = None
        result: Tensor = self._host["prepare_next_token_ids_cpu"](
            sampled_token_ids, *args, **kwargs
        )
        return result

    def prepare_inputs(
        self,
        common_attn_metadata: Any,
        sampled_token_ids: list[list[int]],
        num_draft_tokens: list[int],
    ) -> tuple[Any, Tensor]:
        """Note what was drafted and which rows of the target's batch survived."""
        _restore_lengths(common_attn_metadata)  # the host's own method wants them too
        metadata, kept = self._host["prepare_inputs"](
            common_attn_metadata, sampled_token_ids, num_draft_tokens
        )
        self._drafted, self._kept, self._target = num_draft_tokens, kept, common_attn_metadata
        return metadata, kept

    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: Tensor,
        target_positions: Tensor,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        token_indices_to_sample: Tensor | None,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: Tensor | None = None,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for the whole batch; never raises."""

        def build() -> StepBatch | None:
            if self._rest(target_hidden_states, next_token_ids, common_attn_metadata):
                return None
            return self._batch(
                target_token_ids, target_hidden_states, next_token_ids, common_attn_metadata
            )

        return self._run(common_attn_metadata.num_reqs, common_attn_metadata.slot_mapping, build)

    def _rest(self, features: Tensor, next_token_ids: Tensor, metadata: Any) -> bool:
        """Whether the step was one of those that only put their rows aside."""
        b = metadata.num_reqs
        if self._drafted is not None or metadata.num_actual_tokens != b or not all(self._sampled):
            return False
        return self._put_aside(b, features, next_token_ids, metadata)

    def _batch(
        self, token_ids: Tensor, features: Tensor, next_token_ids: Tensor, metadata: Any
    ) -> StepBatch:
        # The batch as the target ran it; without drafts in it nothing was taken out since.
        target = metadata if self._target is None else self._target
        _restore_lengths(metadata)
        if not self.tap.saw(target.num_actual_tokens):
            raise HostError(f"{self._scored} ran without our tap: its last queries are unknown")
        b = metadata.num_reqs
        starts: IntArray = metadata.query_start_loc_cpu[: b + 1].numpy().astype(np.int64)
        n = int(starts[-1])
        last = metadata.query_start_loc[1 : b + 1].long() - 1
        shifted = token_ids[:n].long().roll(-1)
        shifted[last] = next_token_ids[:b].long()
        lengths: IntArray = metadata.seq_lens_cpu_upper_bound[:b].numpy().astype(np.int64)
        sampled = np.fromiter(map(len, self._sampled), dtype=np.int64, count=b)
        drafted = np.array(self._drafted if self._drafted is not None else [0] * b, dtype=np.int64)
        table = metadata.block_table_tensor[:b]
        other = self.runner.input_batch.block_table[self._target_group]
        same = self._target_group == self._draft_group
        return StepBatch(
            request_ids=self.runner.input_batch.req_ids[:b],
            token_ids=shifted,
            features=features[:n],
            slots=metadata.slot_mapping[:n].long(),
            row_starts=starts,
            lengths=lengths,
            drafting=sampled > 0,
            drafted=drafted,
            accepted=np.maximum(sampled - 1, 0),
            sampled=np.array([ids[0] if ids else -1 for ids in self._sampled[:b]], dtype=np.int64),
            newest=np.array([ids[-1] if ids else -1 for ids in self._sampled[:b]], dtype=np.int64),
            query=self.tap.rows(
                last if self._kept is None else self._kept[last].long(),
                target.query_start_loc[1 : b + 1],
            ),
            draft_table=table,
            target_table=table if same else other.get_device_tensor(b),
        )


def _restore_lengths(metadata: Any) -> None:
    """Put back the lengths on the host that vLLM 0.28 leaves out of a batch smaller than the full
    graph it ran in (``CommonAttentionMetadata.unpadded``), from the field that it keeps; without
    asynchronous scheduling both hold the same exact numbers."""
    if metadata.seq_lens_cpu_upper_bound is None:
        metadata.seq_lens_cpu_upper_bound = metadata._seq_lens_cpu
