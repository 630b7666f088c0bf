# SPDX-License-Identifier: Apache-2.0
"""DiffSpec on vLLM-Ascend's EAGLE drafter: how a padded step comes to the drafting cycle."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from diffspec.compact_kv.canonical import CanonicalCache
from diffspec.compact_kv.pages import KeyPages
from diffspec.hosts.ascend.padded import count_sampled, held_rows
from diffspec.hosts.ascend.pages import draft_pages, read_key_pages
from diffspec.hosts.ascend.query_tap import AscendQueryTap
from diffspec.hosts.launch import LaunchFacts
from diffspec.hosts.surface import HostError
from diffspec.hosts.unsupported import refusals
from diffspec.hosts.vllm.attached import AttachedSession
from diffspec.hosts.vllm.draft_parts import Rotate
from diffspec.hosts.vllm.query_tap import QueryTap
from diffspec.proposer.batch import IntArray, StepBatch, on_device


class AscendSession(AttachedSession):
    """The session on an ``AscendEagleProposer``.

    The host calls its drafter after it has taken note of what was sampled, with padded batches;
    without asynchronous scheduling the drafts go back as one list per request.
    """

    BOUND: ClassVar[tuple[str, ...]] = (
        "_propose",
        "prepare_next_token_ids_padded",
        "prepare_inputs_padded",
        "load_model",
        "dummy_run",
    )
    tap_class: ClassVar[type[QueryTap]] = AscendQueryTap

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.drafter.vllm_config
        #: Whether the target carries recurrent state from step to step.
        self.recurrent = bool(config.model_config.is_hybrid)
        self._sampled: Tensor | None = None
        self._discarded: IntArray = np.zeros(0, dtype=np.int64)
        self._drafted: list[int] | None = None

    # What differs once.

    def load_model(self, target_model: Any) -> None:
        """See :meth:`AttachedSession.load_model`.

        Raises:
            HostError: the launch has graphs of steps that are no pure decode steps, or unpadded
                batches.
        """
        config = self.drafter.vllm_config
        mode = config.compilation_config.cudagraph_mode
        if mode is not None and mode.mixed_mode().has_full_cudagraphs():
            raise HostError(
                f"cudagraph_mode {mode.name} captures steps of any shape as a whole; with DiffSpec "
                "use FULL_DECODE_ONLY, PIECEWISE or NONE"
            )
        if config.speculative_config.disable_padded_drafter_batch:
            raise HostError("disable_padded_drafter_batch: on Ascend DiffSpec reads padded batches")
        super().load_model(target_model)

    def require_readable(self, layer: Any) -> None:
        """Refuse any attention but the plain one: quantised caches, context parallelism and older
        devices have classes of their own.

        Raises:
            HostError: naming the class.
        """
        from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

        if type(layer.impl) is not AscendAttentionBackendImpl:
            facts = LaunchFacts(platform="npu", attention_class=type(layer.impl).__qualname__)
            raise HostError(*refusals(facts, ("load",)))

    def page_tokens(self, layer: Any) -> int:
        """The host cuts its blocks into pages its attention can read, and numbers those."""
        block = super().page_tokens(layer)
        sizes = layer.attn_backend.get_supported_kernel_block_sizes()
        return next((int(size) for size in sizes if block % size == 0), block)

    def draft_pages(self, kv_cache: Any, **sizes: int) -> CanonicalCache:
        """See :func:`diffspec.hosts.ascend.pages.draft_pages`."""
        return draft_pages(kv_cache, **sizes)

    def target_pages(self, layer: Any, block_size: int) -> KeyPages:
        """See :func:`diffspec.hosts.ascend.pages.read_key_pages`."""
        return read_key_pages(layer, block_size)

    def rotation(self) -> Rotate:
        """By vLLM's own arithmetic in plain torch: vLLM-Ascend's kernels keep state between calls
        in some releases, and fuse what is a table and a product."""
        return _static_rotation

    def least_depth(self) -> int:
        """1 on recurrent targets: after a step that accepted drafts, a step without any starts
        from the wrong one of the saved states."""
        return int(self.recurrent)

    def allowed_depths(self) -> tuple[int, ...] | None:
        """See :meth:`AttachedSession.allowed_depths`; none is 0 where a draft is due."""
        depths = super().allowed_depths()
        return (self.depth,) if depths is not None and self.recurrent else depths

    def sweep(self) -> None:
        """Nothing: the runner's dummy run is another one in each release, and a step of a few rows
        without a graph is not what will serve. Costs are learned from served steps alone."""

    # Hooks in the order the host calls them.

    def prepare_next_token_ids_padded(
        self,
        sampled_token_ids: Tensor,
        requests: Any,
        gpu_input_batch: Any,
        discard_request_indices: Tensor,
        num_discarded_requests: int,
    ) -> tuple[Tensor, Tensor]:
        """Note what was sampled, and for whom it means nothing because prefill goes on."""
        self._sampled, self._drafted = sampled_token_ids, None
        known = self.runner.discard_request_indices.np[:num_discarded_requests]
        self._discarded = known.astype(np.int64)
        result: tuple[Tensor, Tensor] = self._host["prepare_next_token_ids_padded"](
            sampled_token_ids,
            requests,
            gpu_input_batch,
            discard_request_indices,
            num_discarded_requests,
        )
        return result

    def prepare_inputs_padded(
        self, common_attn_metadata: Any, spec_decode_metadata: Any, valid_sampled_tokens_count: Any
    ) -> Any:
        """Note what was drafted."""
        self._drafted = list(spec_decode_metadata.num_draft_tokens)
        return self._host["prepare_inputs_padded"](
            common_attn_metadata, spec_decode_metadata, valid_sampled_tokens_count
        )

    def _propose(
        self,
        *,
        target_token_ids: Tensor,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        common_attn_metadata: Any,
        **others: Any,
    ) -> list[list[int]]:
        """Draft for the whole batch; never raises. ``others`` is what the host's own drafting
        needs: positions, graph descriptors, sampling and scheduling data."""
        metadata = common_attn_metadata
        count = self.runner.input_batch.num_reqs

        def build() -> StepBatch | None:
            if self._rest(count, target_hidden_states, next_token_ids, metadata):
                return None
            return self._batch(
                count, target_token_ids, target_hidden_states, next_token_ids, metadata
            )

        # Past the step's own rows lies what earlier steps left.
        slots = metadata.slot_mapping[: metadata.num_actual_tokens]
        drafts = self._run(count, slots, build)
        return self._with_least(drafts) if self.recurrent else drafts

    def _rest(self, b: int, features: Tensor, next_token_ids: Tensor, metadata: Any) -> bool:
        """Whether the step was one of those that only put their rows aside."""
        if self._drafted is not None or metadata.num_actual_tokens != b or self._discarded.size:
            return False
        return self._put_aside(b, features, next_token_ids, metadata)

    def _batch(
        self, b: int, token_ids: Tensor, features: Tensor, next_token_ids: Tensor, metadata: Any
    ) -> StepBatch:
        if not self.tap.saw(metadata.num_actual_tokens):
            raise HostError(f"{self._scored} ran without our tap: its last queries are unknown")
        if self._sampled is None:
            raise HostError("nothing is known of what was sampled")
        batch, device = self.runner.input_batch, token_ids.device
        starts: IntArray = metadata.query_start_loc_cpu[: b + 1].numpy().astype(np.int64)
        n = int(starts[-1])
        # The host has waited for these to take note of them: the device is idle.
        tokens: IntArray = self._sampled[:b].cpu().numpy().astype(np.int64)
        sampled = count_sampled(tokens, self._discarded, batch.vocab_size)
        drafted = np.array(self._drafted if self._drafted is not None else [0] * b, dtype=np.int64)
        held = held_rows(starts, _lengths(metadata)[:b], drafted[:b], sampled)

        shifted, slots = token_ids[:n].long().roll(-1), metadata.slot_mapping[:n].long()
        features = features[:n]
        if held.rows is not None:
            rows = on_device(held.rows, device)
            shifted, slots, features = shifted[rows], slots[rows], features[rows]
        shifted[on_device(held.row_starts[1:] - 1, device)] = self._next(
            next_token_ids[:b].long(), held.lengths
        )
        table = metadata.block_table_tensor[:b]
        other = batch.block_table[self._target_group]
        same = self._target_group == self._draft_group
        return StepBatch(
            request_ids=batch.req_ids[:b],
            token_ids=shifted,
            features=features,
            slots=slots,
            row_starts=held.row_starts,
            lengths=held.lengths,
            drafting=sampled > 0,
            drafted=drafted[:b],
            accepted=np.maximum(sampled - 1, 0),
            sampled=np.where(sampled > 0, tokens[:, 0], -1),
            newest=np.where(sampled > 0, tokens[np.arange(b), np.maximum(sampled - 1, 0)], -1),
            query=self.tap.rows(on_device(held.last, device), on_device(starts[1:], device)),
            draft_table=table,
            target_table=table if same else other.get_device_tensor(b),
        )

    def _next(self, tokens: Tensor, lengths: IntArray) -> Tensor:
        """The token ``[b]`` after each request's last row. Where prefill goes on the host gives the
        last one of the prompt instead, so what the prompt has there is looked up."""
        if not self._discarded.size:
            return tokens
        ids, requests = self.runner.input_batch.req_ids, self.runner.requests
        border = [requests[ids[i]].get_token_id(int(lengths[i])) for i in self._discarded]
        at = on_device(self._discarded, tokens.device)
        return tokens.index_copy(0, at, on_device(np.array(border, dtype=np.int64), tokens.device))

    def _with_least(self, drafts: list[list[int]]) -> list[list[int]]:
        """Drafts for recurrent targets: the last token once more where there is nothing better,
        as often as a captured graph wants it."""
        batch = self.runner.input_batch
        times = self.depth if self.allowed_depths() is not None else 1
        goes_on = set(self._discarded.tolist())
        for i, draft in enumerate(drafts):
            if not draft and i not in goes_on:
                last = int(batch.token_ids_cpu[i, batch.num_tokens_no_spec[i] - 1])
                drafts[i] = [last] * times
        return drafts


def _static_rotation(rotary: Any, positions: Tensor, k: Tensor) -> Tensor:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    rotated: Tensor = RotaryEmbedding.forward_static(
        positions,
        k.clone(),
        None,
        rotary.head_size,
        rotary.rotary_dim,
        rotary.cos_sin_cache.to(k.dtype),
        rotary.is_neox_style,
    )[0]
    return rotated


def _lengths(metadata: Any) -> IntArray:
    """Context lengths on the host; exact without asynchronous scheduling, under whichever name
    this release of the host filled in."""
    for name in ("_seq_lens_cpu", "seq_lens_cpu", "seq_lens_cpu_upper_bound"):
        lengths = getattr(metadata, name, None)
        if isinstance(lengths, torch.Tensor):
            known: IntArray = lengths.numpy().astype(np.int64)
            return known
    raise HostError("the batch brings no context lengths on the host")
