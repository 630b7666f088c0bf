# SPDX-License-Identifier: Apache-2.0
"""DiffSpec's settings: parsed once from ``--speculative-config``, then immutable.

Pure Python: importing this module loads neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from diffspec.keys import BY_ATTRIBUTE, BY_KEY, KEYS, ConfigError, KeySpec, nearest_key
from diffspec.keys import normalise as _normalise
from diffspec.keys import show as _show
from diffspec.keys import split_keys as split_keys

__all__ = ["KEYS", "ConfigError", "DiffSpecSettings", "KeySpec", "minimum_budget", "split_keys"]

_SINK_CHUNKS = 1
_LEAST_WINDOW_CHUNKS = 4


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class DiffSpecSettings:
    """The ten keys as validated values; build one with :meth:`parse` or :meth:`from_payload`.

    Token counts are in tokens, depths in drafted tokens, intervals in verification steps.
    ``notes`` are sentences for the operator: defaults that were adjusted, keys without effect.
    """

    policy: str
    verification_mode: str
    chunk_size: int
    token_budget: int
    retrieval_interval: int
    max_tree_nodes: int
    tree_threshold: float
    adaptive_profile: bool
    long_context_threshold: int
    long_context_depth: int
    notes: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether the policy turns DiffSpec on."""
        return self.policy == "diffspec"

    @classmethod
    def parse(
        cls,
        ours: Mapping[str, Any],
        *,
        num_speculative_tokens: int | None,
        trained_window: int | None = None,
    ) -> DiffSpecSettings:
        """Validate the DiffSpec part of a speculative-config object (see :func:`split_keys`).

        ``num_speculative_tokens`` is K; None means not known yet, and rules that involve it are
        then checked for K = 1, which no later value can loosen. ``trained_window`` is the longest
        context in tokens the draft was trained for; None skips that bound. A value the user gave
        is never changed; a default that does not fit is, with a note.

        Raises:
            ConfigError: with every problem found.
        """
        given, problems = _read(ours)
        values = {spec.attribute: spec.default for spec in KEYS} | given
        broken = {_normalise(key) for key in ours} - {BY_ATTRIBUTE[a].key for a in given}
        notes: list[str] = []

        if values["verification_mode"] == "tree":
            problems.append(
                'diffspec_verification_mode = "tree": not available yet; use auto or linear'
            )
        _fit_depth(values, given, num_speculative_tokens, problems, notes)
        budget_keys = ("chunk_size", "token_budget", "retrieval_interval")
        if not any(BY_ATTRIBUTE[a].key in broken for a in budget_keys):
            _fit_budget(values, given, num_speculative_tokens or 1, trained_window, problems, notes)
        if problems:
            raise ConfigError(*problems)
        notes += _notes_on_inert_keys(values, given)
        return cls(**values, notes=tuple(notes))

    def to_payload(self) -> dict[str, Any]:
        """The settings as plain JSON-able data, for transport inside the host's config object."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"notes": list(self.notes)}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> DiffSpecSettings:
        """The exact inverse of :meth:`to_payload`.

        Raises:
            ConfigError: if keys are missing or added or a value is out of range, which happens
                when processes or nodes of one launch run different versions of this package.
        """
        names = {f.name for f in fields(cls)}
        problems = [f"settings payload: {n} is missing" for n in sorted(names - set(payload))]
        problems += [f"settings payload: {n} is unknown" for n in sorted(set(payload) - names)]
        problems += [
            f"settings payload: {spec.attribute} = {_show(payload[spec.attribute])}: {spec.allowed}"
            for spec in KEYS
            if spec.attribute in payload and not spec.accepts(payload[spec.attribute])
        ]
        lines = payload.get("notes")
        if "notes" in payload and not (
            isinstance(lines, list) and all(isinstance(line, str) for line in lines)
        ):
            problems.append(f"settings payload: notes = {_show(lines)}: must be a list of strings")
        if problems:
            raise ConfigError(*problems, "install the same vllm-diffspec in every process")
        values = {spec.attribute: spec.convert(payload[spec.attribute]) for spec in KEYS}
        return cls(**values, notes=tuple(payload["notes"]))

    def window_chunks(self) -> int:
        """Chunks of the newest tokens that are always kept: a quarter of the budget, at least 4."""
        return _window_chunks(self.token_budget, self.chunk_size)

    def reserve_tokens(self, depth: int) -> int:
        """Tokens kept free for growth between two retrievals, rounded up to whole chunks.

        Each of ``retrieval_interval`` steps can accept ``depth`` tokens and adds one of its own.
        """
        return _reserve_tokens(self.chunk_size, self.retrieval_interval, depth)

    def pick_chunks(self, depth: int) -> int:
        """Chunks left for retrieval once sink, window, growth reserve and drafting took theirs.

        At least 1 for settings parsed with this ``depth``: with 0 the draft would see the sink
        and the window alone and retrieval could never bring anything in. Drafting ``depth`` tokens
        needs ``depth - 1`` rows of its own, because the first draft step's row is in the context.
        """
        return _pick_chunks(self.token_budget, self.chunk_size, self.retrieval_interval, depth)

    def successor_chunks(self, depth: int) -> int:
        """Chunks after a picked one that a reader can reach before the next retrieval."""
        return _ceil_div(self.retrieval_interval * (depth + 1) + depth, self.chunk_size)


def _window_chunks(budget: int, chunk: int) -> int:
    return max(_LEAST_WINDOW_CHUNKS, budget // 4 // chunk)


def _reserve_tokens(chunk: int, interval: int, depth: int) -> int:
    return _ceil_div(interval * (depth + 1), chunk) * chunk


def _pick_chunks(budget: int, chunk: int, interval: int, depth: int) -> int:
    free = budget - (depth - 1) - _reserve_tokens(chunk, interval, depth)
    return free // chunk - _SINK_CHUNKS - _window_chunks(budget, chunk)


def minimum_budget(chunk: int, interval: int, depth: int) -> int:
    """The smallest budget (tokens, a multiple of ``chunk``) that leaves retrieval one chunk.

    Larger than sink + window + reserve + depth, which alone would leave retrieval nothing.
    """
    lowest = BY_ATTRIBUTE["token_budget"].minimum
    assert isinstance(lowest, int)
    # The window is at least a quarter of the budget less one chunk, sink and retrieval take two:
    # no budget below four thirds of the rest and one chunk can do.
    rest = _reserve_tokens(chunk, interval, depth) + depth - 1
    budget = max(_ceil_div(lowest, chunk), 4 * (rest + chunk) // (3 * chunk)) * chunk
    while _pick_chunks(budget, chunk, interval, depth) < 1:
        budget += chunk
    return budget


def _read(ours: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Check each key by itself; returns (attribute -> value for good ones, problems)."""
    given: dict[str, Any] = {}
    problems: list[str] = []
    seen: dict[str, str] = {}
    for key, value in ours.items():
        spec = BY_KEY.get(_normalise(key))
        if spec is None:
            near = nearest_key(key)
            known = f"did you mean {near}?" if near else "known keys: " + ", ".join(BY_KEY)
            problems.append(f"{key} = {_show(value)}: unknown key; {known}")
        elif spec.key in seen:
            problems.append(
                f"{key} = {_show(value)}: the same key as {seen[spec.key]}; give it once"
            )
        elif not spec.accepts(value):
            problems.append(f"{key} = {_show(value)}: must be {spec.allowed}")
        else:
            given[spec.attribute] = spec.convert(value)
        if spec is not None:
            seen.setdefault(spec.key, key)
    return given, problems


def _fit_depth(
    values: dict[str, Any],
    given: Mapping[str, Any],
    depth: int | None,
    problems: list[str],
    notes: list[str],
) -> None:
    if depth is None or values["long_context_depth"] <= depth:
        return
    if "long_context_depth" in given:
        problems.append(
            f"diffspec_long_context_depth = {values['long_context_depth']}: must be at most "
            f"num_speculative_tokens ({depth})"
        )
        return
    notes.append(
        f"diffspec_long_context_depth defaults to {depth}, not {values['long_context_depth']}: "
        f"num_speculative_tokens is {depth}"
    )
    values["long_context_depth"] = depth


def _fit_budget(
    values: dict[str, Any],
    given: Mapping[str, Any],
    depth: int,
    trained_window: int | None,
    problems: list[str],
    notes: list[str],
) -> None:
    chunk, interval, budget = (
        values["chunk_size"],
        values["retrieval_interval"],
        values["token_budget"],
    )
    least = minimum_budget(chunk, interval, depth)
    limit = BY_ATTRIBUTE["token_budget"].maximum
    assert isinstance(limit, int)
    cap = limit if trained_window is None else min(limit, trained_window)
    most = cap // chunk * chunk
    because = (
        f"with diffspec_chunk_size {chunk}, diffspec_retrieval_interval {interval} and "
        f"num_speculative_tokens {depth}"
    )
    if least > most:
        window = f"; the draft's trained window is {trained_window}" if trained_window else ""
        problems.append(
            f"diffspec_token_budget = {budget}{'' if 'token_budget' in given else ' (default)'}: "
            f"no budget fits: at least {least} is needed {because}, at most {most} is possible"
            f"{window}. {_advice(interval, depth, cap)}"
        )
        return
    if "token_budget" not in given:
        values["token_budget"] = min(max(budget, least), most)
        if values["token_budget"] > budget:
            notes.append(
                f"diffspec_token_budget defaults to {least}, not {budget}: the least {because}"
            )
        elif values["token_budget"] < budget:
            notes.append(
                f"diffspec_token_budget defaults to {most}, not {budget}: the draft's trained "
                f"window is {trained_window}"
            )
        return
    wanted = []
    if budget % chunk:
        wanted.append(f"a multiple of diffspec_chunk_size ({chunk})")
    if budget < least:
        wanted.append(f"at least {least} {because} (sink, window, growth and one retrieved chunk)")
    if budget > cap:
        wanted.append(f"at most {most}: the draft's trained window is {trained_window}")
    if wanted:
        problems.append(f"diffspec_token_budget = {budget}: must be " + "; and ".join(wanted))


def _advice(interval: int, depth: int, cap: int) -> str:
    """Name the largest chunk size that would fit under ``cap``, shortening the interval last."""
    for tried in (interval, 4, 1):
        for chunk in (512, 256, 128, 64, 32, 16):
            if tried <= interval and minimum_budget(chunk, tried, depth) <= cap // chunk * chunk:
                extra = "" if tried == interval else f" and diffspec_retrieval_interval to {tried}"
                return f"Set diffspec_chunk_size to {chunk}{extra}"
    return "No chunk size fits; leave draft_context_policy out or use another draft"


def _notes_on_inert_keys(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    def named(*attributes: str) -> str:
        return ", ".join(BY_ATTRIBUTE[a].key for a in attributes if a in given)

    if values["policy"] != "diffspec":
        others = named(*(a for a in given if a != "policy"))
        return [f"no effect while draft_context_policy is full: {others}"] if others else []
    notes = []
    if tree := named("max_tree_nodes", "tree_threshold"):
        notes.append(f"no effect, verification is linear: {tree}")
    cautious = named("long_context_threshold", "long_context_depth")
    if cautious and not values["adaptive_profile"]:
        notes.append(f"no effect, diffspec_adaptive_profile is false: {cautious}")
    return notes
