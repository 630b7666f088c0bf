# SPDX-License-Identifier: Apache-2.0
"""The object a launch would give vLLM as ``--speculative-config``, with everything known of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffspec.doctor.findings import Finding, error, ok, warning
from diffspec.doctor.source import HostSource
from diffspec.hosts.unsupported import LaunchFacts
from diffspec.keys import normalise, show
from diffspec.settings import ConfigError, DiffSpecSettings, split_keys

_HOST_CLASS = ("vllm.config.speculative", "SpeculativeConfig")


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
        return any(
            normalise(key) == "draft_context_policy" and value == "diffspec"
            for key, value in self.ours.items()
        )

    @property
    def depth(self) -> int | None:
        """``num_speculative_tokens`` if it is a whole number above 0."""
        value = self.host.get("num_speculative_tokens")
        return value if type(value) is int and value > 0 else None

    @property
    def model(self) -> str | None:
        """The draft's path or hub name."""
        value = self.host.get("model")
        return value if isinstance(value, str) else None

    @property
    def max_model_len(self) -> int | None:
        """A length given for the draft, which counts as its trained window."""
        value = self.host.get("max_model_len")
        return value if type(value) is int else None

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
            draft_tensor_parallel_size=given.get("draft_tensor_parallel_size"),
            draft_kv_cache_dtype=given.get("kv_cache_dtype"),
        )
        names = LaunchFacts.__dataclass_fields__
        return {n: getattr(facts, n) for n in names if getattr(facts, n) is not None}


def judge(config: Speculative, window: int | None, source: HostSource | None) -> list[Finding]:
    """Keys and values; ``window`` is the draft's trained window in tokens, None if not known."""
    found = [*_host_keys(config), *_unknown(config, source)]
    settings, problems = _parse(config, window)
    if settings is None:
        fix = "see diffspec config explain"
        return found + [error("command.settings", problem, fix) for problem in problems]
    if not settings.active:
        text = 'draft_context_policy is not "diffspec": this launch is vLLM\'s own EAGLE-3'
        fix = 'add "draft_context_policy": "diffspec" to --speculative-config'
        return [*found, warning("command.policy", text, fix)]
    found.append(
        ok(
            "command.settings",
            f"budget {settings.token_budget}, chunks of {settings.chunk_size}, retrieval every "
            f"{settings.retrieval_interval} steps, depth {config.depth}",
        )
    )
    return found + [ok("command.note", note) for note in settings.notes]


def window_findings(
    window: int | None, served: int | None, config: Speculative | None
) -> list[Finding]:
    """The draft's trained window against the served length and the budget, in tokens."""
    if window is None:
        return [
            warning(
                "pair.window",
                "the draft's config.json has no max_position_embeddings: the length it was trained "
                "for is not known",
                "set diffspec_token_budget to that length",
            )
        ]
    config = config or Speculative({"draft_context_policy": "diffspec"}, {})
    settings, problems = _parse(config, window)
    # What is wrong whatever the window is a matter of the settings, not of the pair.
    own = set(_parse(config, None)[1])
    if short := [problem for problem in problems if problem not in own]:
        fix = "see diffspec config explain diffspec_token_budget"
        return [error("pair.window", problem, fix) for problem in short]
    reach = f"the draft was made for {window} positions"
    if settings is not None:
        reach += f" and attends to at most {settings.token_budget} tokens (diffspec_token_budget)"
    if served is None:
        return [ok("pair.window", reach)]
    if served > window:
        text = (
            f"{reach}; the server serves {served} (max_model_len): past {window} vLLM's own "
            "EAGLE-3 drafts nothing of use, DiffSpec renumbers the tokens it attends to"
        )
    else:
        text = f"{reach}; the server serves {served} (max_model_len)"
    return [ok("pair.window", text)]


def _parse(
    config: Speculative, window: int | None
) -> tuple[DiffSpecSettings | None, tuple[str, ...]]:
    try:
        settings = DiffSpecSettings.parse(
            config.ours, num_speculative_tokens=config.depth, trained_window=window
        )
    except ConfigError as failure:
        return None, failure.problems
    return settings, ()


def _host_keys(config: Speculative) -> list[Finding]:
    found = []
    if config.host.get("method") is None:
        # vLLM goes by the model's name, and takes anything else for a whole small model.
        guessed = "eagle3" in (config.model or "").lower()
        text = "method is missing: vLLM guesses it from the draft's name"
        fix = 'add "method": "eagle3" to --speculative-config'
        found.append((warning if guessed else error)("command.method", text, fix))
    if config.model is None:
        text = f"model = {show(config.host.get('model'))}: the draft's path or hub name is missing"
        found.append(error("command.model", text, 'add "model": "DRAFT" to --speculative-config'))
    if config.depth is None:
        given = show(config.host.get("num_speculative_tokens"))
        text = f"num_speculative_tokens = {given}: must be an integer, at least 1"
        found.append(error("command.depth", text, 'write "num_speculative_tokens": 3'))
    return found


def _unknown(config: Speculative, source: HostSource | None) -> list[Finding]:
    """Keys neither ours nor vLLM's, which vLLM refuses; its own are read from its source."""
    if source is None:
        return []
    try:
        made = getattr(source.import_module(_HOST_CLASS[0]), _HOST_CLASS[1])
        known = set(made.__annotations__)
    except (AttributeError, ModuleNotFoundError, SyntaxError):
        return []
    found = []
    for key in config.host:
        if key in known:
            continue
        near = difflib.get_close_matches(key, known, n=1)
        fix = f"write {near[0]}" if near else "remove it"
        text = f"{key}: neither DiffSpec nor the installed vLLM has such a key"
        found.append(error("command.unknown_key", text, fix))
    return found
