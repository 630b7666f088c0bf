# SPDX-License-Identifier: Apache-2.0
"""The worker of a DiffSpec launch on Ascend. Never run on an NPU yet.

The order of calls is the GPU worker's: the draft is loaded, memory is measured with a dummy run,
the KV cache is allocated, graphs are captured with the query tap inside.
"""

from __future__ import annotations

from vllm_ascend.worker.worker import NPUWorker

from diffspec.compact_kv.kernels import bring_attention
from diffspec.hosts.ascend.fused_attention import OPERATION, FusedAttention
from diffspec.hosts.ascend.session import AscendSession
from diffspec.hosts.vllm.attached import AttachedSession
from diffspec.hosts.vllm.worker import AttachesDiffSpec, attach


class DiffSpecNPUWorker(AttachesDiffSpec, NPUWorker):  # type: ignore[misc]
    """vLLM-Ascend's worker with DiffSpec attached to its drafter."""

    def memory_given(self) -> int:
        """Bytes of the KV cache if its size was given, else of everything."""
        return int(self.cache_config.kv_cache_memory_bytes or self.requested_memory)

    def attach(self) -> AttachedSession:
        """Attach to the drafter, and offer the device's own attention operation."""
        # Here, because the package's modules import one another and want this one's order.
        from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer

        bring_attention(self.device.type, OPERATION, FusedAttention)
        return attach(
            self,
            memory=self.memory_given(),
            drafter_class=AscendEagleProposer,
            session_class=AscendSession,
        )
