# SPDX-License-Identifier: Apache-2.0
"""The object a launch would give vLLM as ``--speculative-config``: keys, values, lengths."""

from __future__ import annotations

import difflib

from diffspec.configuration.speculative import Speculative
from diffspec.doctor.findings import Finding, error, ok, warning
from diffspec.hosts.source import HostSource
from diffspec.keys import show
from diffspec.settings import ConfigError, DiffSpecSettings

_HOST_CLASS = ("vllm.config.speculative", "SpeculativeConfig")


def judge(config: Speculative, window: int | None, source: HostSource | None) -> list[Finding]:
    """Keys and values; ``window`` is the draft's trained window in tokens, None if not known."""
    found = [*_host_keys(config), *unknown_keys(config, source, "command")]
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


def unknown_keys(config: Speculative, source: HostSource | None, area: str) -> list[Finding]:
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
        found.append(error(f"{area}.unknown_key", text, fix))
    return found
