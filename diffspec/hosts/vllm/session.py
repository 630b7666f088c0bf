# SPDX-License-Identifier: Apache-2.0
"""DiffSpec on one vLLM V1 drafter: what is bound where, and what travels between the hooks."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.hosts.surface import HostError
from diffspec.hosts.vllm.draft_parts import build_parts, build_rope, check_parts
from diffspec.hosts.vllm.memory import build_cycle
from diffspec.hosts.vllm.query_tap import QueryTap
from diffspec.hosts.vllm.target_layer import find_scored_layer, group_of, read_key_pages
from diffspec.proposer.batch import IntArray, StepBatch
from diffspec.proposer.cycle import DraftingCycle
from diffspec.proposer.head import DraftHead
from diffspec.settings import DiffSpecSettings
from diffspec.telemetry import ChannelWriter

logger = logging.getLogger("vllm.diffspec")

#: Seconds between two reports of the numbers while requests run; every end of one is reported.
PUBLISH_S = 1.0

_ATTACHED = "_diffspec_session"
_BOUND = ("propose", "prepare_inputs", "prepare_next_token_ids_cpu", "load_model", "dummy_run")


class DiffSpecSession:
    """Everything DiffSpec keeps for one drafter, and the methods bound onto it.

    Args:
        drafter: vLLM's own ``EagleProposer``; stays what it is, with five instance attributes.
        runner: the V1 model runner that owns it.
        settings: validated settings.
        memory: bytes vLLM was given on this device.

    Raises:
        HostError: the drafter has a session already.
    """

    def __init__(
        self, drafter: Any, runner: Any, settings: DiffSpecSettings, *, memory: int
    ) -> None:
        if hasattr(drafter, _ATTACHED):
            raise HostError("DiffSpec is attached to this drafter already")
        self.drafter, self.runner, self.settings, self.memory = drafter, runner, settings, memory
        self.depth: int = drafter.speculative_config.num_speculative_tokens
        self._host = {name: getattr(drafter, name) for name in _BOUND}
        for name in _BOUND:
            setattr(drafter, name, getattr(self, name))
        setattr(drafter, _ATTACHED, self)
        self._cycle: DraftingCycle | None = None
        self._tap: QueryTap | None = None
        self._target_group = self._draft_group = 0
        self._sampled: list[list[int]] = []
        self._drafted: list[int] | None = None
        self._kept: Tensor | None = None
        self._target: Any = None
        # When the running step began and the last one ended, in seconds; 0 before the first.
        self._begun = self._ended = self._published = 0.0
        #: Where the numbers go; the worker puts the launch's own in its place.
        self.telemetry = ChannelWriter(None)
        self._lift_length_limit()

    @property
    def cycle(self) -> DraftingCycle:
        """The proposer; exists once the draft is loaded."""
        if self._cycle is None:
            raise HostError("the draft is not loaded yet")
        return self._cycle

    @property
    def tap(self) -> QueryTap:
        """The query tap; exists once the draft is loaded."""
        if self._tap is None:
            raise HostError("the draft is not loaded yet")
        return self._tap

    def detach(self) -> None:
        """Give the drafter back as it was (for tests)."""
        for name in _BOUND:
            delattr(self.drafter, name)
        delattr(self.drafter, _ATTACHED)
        if self._tap is not None:
            self._tap.remove()
        self.telemetry.close()

    # Hooks in the order the host calls them.

    def load_model(self, target_model: Any) -> None:
        """Let the host load the draft, then take its parts, check them, allocate, tap."""
        self._host["load_model"](target_model)
        drafter, config = self.drafter, self.drafter.vllm_config
        model, dtype = drafter.model, config.model_config.dtype
        head = DraftHead(build_parts(model))
        check_parts(model, head, dtype)
        name, layer = find_scored_layer(config, drafter._draft_attn_layer_names)
        self._scored = name
        max_num_seqs = config.scheduler_config.max_num_seqs
        with torch.inference_mode(False):
            self._cycle = build_cycle(
                self.settings,
                head,
                build_rope(model, self.settings.token_budget, dtype),
                depth=self.depth,
                memory=self.memory,
                max_num_seqs=max_num_seqs,
                max_model_len=drafter.max_model_len,
                scored_layer=layer,
                block_size=config.cache_config.block_size,
                feature_width=self._feature_width(),
                allowed_depths=self._captured_depths(),
                dtype=dtype,
                device=drafter.device,
            )
            self._tap = QueryTap(
                layer,
                max_requests=max_num_seqs,
                rows_per_request=self.depth + 1,
                heads=layer.num_heads,
                head_dim=layer.head_size,
                dtype=dtype,
                device=drafter.device,
            )
        buffers = {**self.cycle.nbytes, "query tap": self._tap.nbytes}
        slots = self.cycle.slots.count
        if slots < max_num_seqs:
            logger.warning(
                "DiffSpec: memory for %d drafting slots, --max-num-seqs is %d: with more requests "
                "at once the others go on without drafts; give the KV cache more memory, lower "
                "diffspec_token_budget or lower --max-num-seqs",
                slots,
                max_num_seqs,
            )
        logger.info(
            "DiffSpec: %d drafting slots; buffers %s, %.1f MiB in all; scoring by %s",
            slots,
            ", ".join(f"{what} {size / 2**20:.1f} MiB" for what, size in buffers.items()),
            sum(buffers.values()) / 2**20,
            name,
        )

    def dummy_run(self, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Stand in for the host's warm-up of a draft pass we never take: project as many rows.

        Before there are pages the host measures memory: it then sees the largest draft step too.
        """
        drafter, head = self.drafter, self.cycle.head
        features = torch.zeros(
            (num_tokens, self._feature_width()), dtype=drafter.dtype, device=drafter.device
        )
        ids = torch.zeros(num_tokens, dtype=torch.int64, device=drafter.device)
        projection = head.project(ids, head.parts.combine(features))
        if not self.cycle.bound:
            self.cycle.rehearse(projection)

    def bind_pages(self, kv_cache_config: Any) -> None:
        """The host has allocated its KV cache: take the draft's pages and read the target's.

        Raises:
            HostError: a page layout is not understood.
        """
        drafter = self.drafter
        layers = drafter.vllm_config.compilation_config.static_forward_context
        (draft_name,) = drafter._draft_attn_layer_names
        parts = self.cycle.head.parts
        try:
            canonical = CanonicalCache(
                layers[draft_name].kv_cache,
                block_size=drafter.block_size,
                heads=parts.kv_heads,
                head_dim=parts.head_dim,
            )
            if canonical.rows.dtype != drafter.vllm_config.model_config.dtype:
                raise ValueError(f"draft pages hold {canonical.rows.dtype}, not the model's type")
            self._draft_group = drafter.kv_cache_gid
            self._target_group = group_of(kv_cache_config, self._scored)
            block_size = self.runner.input_batch.block_table[self._target_group].block_size
            pages = read_key_pages(layers[self._scored], block_size)
            self.cycle.working_set.scorer.bind(pages)
        except ValueError as error:
            raise HostError(str(error)) from error
        self.cycle.bind(canonical)
        self._lift_length_limit()
        logger.info(
            "DiffSpec: draft keeps unrotated K and V in its %d own pages of %d tokens; target "
            "keys are read as %s pages; kernels: scoring by %s, attention by %s",
            canonical.num_blocks,
            canonical.block_size,
            pages.layout,
            self.cycle.working_set.scorer.kernels,
            self.cycle.working_set.working.kernels,
        )

    def sweep(self) -> None:
        """Measure, before serving, what verifying 1 to K + 1 rows takes without any context: a
        first hint for the depth policy, replaced by what served steps show."""
        if not self.settings.adaptive_profile:
            return
        took = {}
        for rows in range(1, self.depth + 2):
            for _ in range(3):  # the first run may compile something
                begin = time.perf_counter()
                hidden = self.runner._dummy_run(rows)[0]
                hidden[:1, :1].cpu()  # waits for the device; nothing is served yet
                took[rows] = time.perf_counter() - begin
                self.cycle.policy.seed(rows, took[rows])
        logger.info(
            "DiffSpec: without context, verifying 1 to %d rows takes %s ms; depth adapts to what "
            "served steps take",
            self.depth + 1,
            " / ".join(f"{1e3 * seconds:.1f}" for seconds in took.values()),
        )

    def before_step(self, scheduler_output: Any) -> None:
        """Forget requests that ended and distrust caches of requests that were preempted."""
        self._begun = time.perf_counter()
        if self._cycle is None:
            return
        if scheduler_output.finished_req_ids or scheduler_output.preempted_req_ids:
            # Their pages are free since this was scheduled, and this step may write to them.
            self._cycle.flush()
        for request_id in scheduler_output.finished_req_ids:
            self._cycle.finished(request_id)
        if scheduler_output.finished_req_ids or self._begun - self._published > PUBLISH_S:
            self._publish()
        for request_id in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self._cycle.slots.drop(request_id)

    def _publish(self) -> None:
        self._published = self._begun
        if not self.telemetry.open:
            return
        try:
            self.telemetry.write(self.cycle.numbers())
        except Exception as error:
            self.cycle.faults.record("reporting", error)

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
        begin, gap = time.perf_counter(), self._begun - self._ended
        count = common_attn_metadata.num_reqs
        try:
            if self._rest(target_hidden_states, next_token_ids, common_attn_metadata):
                self._ended = time.perf_counter()
                return [[] for _ in range(count)]
            batch = self._batch(
                target_token_ids, target_hidden_states, next_token_ids, common_attn_metadata
            )
        except Exception as error:
            self.cycle.lost(common_attn_metadata.slot_mapping, error)
            return [[] for _ in range(count)]
        drafts = self.cycle.run(batch)
        self._ended = time.perf_counter()
        verify = begin - self._begun
        # Scheduling takes less than verifying; what took longer was waiting for work.
        self.cycle.timed(
            verify=verify, propose=self._ended - begin, gap=gap if gap < verify else None
        )
        return drafts

    def _rest(self, features: Tensor, next_token_ids: Tensor, metadata: Any) -> bool:
        """Whether the step was one of those that only put their rows aside."""
        b, cycle = metadata.num_reqs, self.cycle
        if self._drafted is not None or metadata.num_actual_tokens != b or not all(self._sampled):
            return False
        if not cycle.rests(self.runner.input_batch.req_ids[:b]):
            return False
        if not cycle.rest(next_token_ids[:b], features[:b], metadata.slot_mapping[:b]):
            return False
        self.tap.saw(b)  # asked once per step
        return True

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
            query=self.tap.rows(
                last if self._kept is None else self._kept[last].long(),
                target.query_start_loc[1 : b + 1],
            ),
            draft_table=table,
            target_table=table if same else other.get_device_tensor(b),
        )

    def _feature_width(self) -> int:
        # Absent where a draft takes the target's last hidden state as it is.
        width = getattr(self.drafter.model.model, "fc_input_size", None)
        return int(width or self.drafter.vllm_config.model_config.get_hidden_size())

    def _captured_depths(self) -> tuple[int, ...] | None:
        """Where whole decode steps are captured graphs, there is one for depth K; depth 0 runs
        otherwise, as its own measured cost."""
        mode = self.drafter.vllm_config.compilation_config.cudagraph_mode
        if mode is None or not mode.has_full_cudagraphs():
            return None
        return (0, self.depth)

    def _lift_length_limit(self) -> None:
        # Past the draft's own length the host would silently send dummy drafts for the whole
        # batch; local positions make that limit void, and depth is clamped at max_model_len.
        self.runner.effective_drafter_max_model_len = self.runner.max_model_len + self.depth + 1


def _restore_lengths(metadata: Any) -> None:
    """Put back the lengths on the host that vLLM 0.28 leaves out of a batch smaller than the full
    graph it ran in (``CommonAttentionMetadata.unpadded``), from the field that it keeps; without
    asynchronous scheduling both hold the same exact numbers."""
    if metadata.seq_lens_cpu_upper_bound is None:
        metadata.seq_lens_cpu_upper_bound = metadata._seq_lens_cpu
