# SPDX-License-Identifier: Apache-2.0
"""The object given to vLLM as ``--speculative-config``, taken apart without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffspec.hosts.launch import LaunchFacts
from diffspec.keys import asks_for_diffspec, normalise, split_keys, whole


@dataclass(frozen=True)
class Speculative:
    """The object, split: ``ours`` as written, ``host`` with underscores."""

    ours: Mapping[str, Any]
    host: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Speculative:
        """Split an object as the plugin does."""
        ours, host = split_keys(config)
        return cls(ours, {normalise(key): value for key, value in host.items()})

    @property
    def active(self) -> bool:
        """Whether it asks for DiffSpec."""
        return asks_for_diffspec(self.ours)

    @property
    def depth(self) -> int | None:
        """``num_speculative_tokens`` if it is a whole number above 0."""
        value = whole(self.host.get("num_speculative_tokens"))
        return value if value is not None and value > 0 else None

    @property
    def model(self) -> str | None:
        """The draft's path or hub name."""
        value = self.host.get("model")
        return value if isinstance(value, str) else None

    @property
    def revision(self) -> str | None:
        """The draft's branch, tag or commit, where its name is a hub name."""
        value = self.host.get("revision")
        return value if isinstance(value, str) else None

    @property
    def max_model_len(self) -> int | None:
        """A length given for the draft, which counts as its trained window."""
        return whole(self.host.get("max_model_len"))

    def facts(self) -> dict[str, Any]:
        """What it says for the list of refusals, by the names of :class:`LaunchFacts`."""
        given = self.host
        facts = LaunchFacts(
            method=given.get("method"),
            per_batch_depths=given.get("num_speculative_tokens_per_batch_size"),
            draft_sample_method=given.get("draft_sample_method"),
            rejection_sample_method=given.get("rejection_sample_method"),
            heterogeneous_vocab=given.get("use_heterogeneous_vocab") is True,
            parallel_drafting=given.get("parallel_drafting") is True,
            padded_batches=given.get("disable_padded_drafter_batch") is False,
            unpadded_batches=given.get("disable_padded_drafter_batch") is True,
            draft_tensor_parallel_size=given.get("draft_tensor_parallel_size"),
            draft_kv_cache_dtype=given.get("kv_cache_dtype"),
        )
        names = LaunchFacts.__dataclass_fields__
        return {n: getattr(facts, n) for n in names if getattr(facts, n) is not None}
