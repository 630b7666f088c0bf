# SPDX-License-Identifier: Apache-2.0
"""A model folder without its weights: ``config.json`` and the headers of its safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffspec.configuration.document import read
from diffspec.settings import ConfigError

#: Where configurations of models with more than text keep the language model's part.
_NESTED = ("text_config", "language_config", "llm_config")
_D2T = "d2t"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its file's header declares it; ``dtype`` in safetensors' own words (BF16)."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """What could be read of a model folder.

    ``text`` is the language model's configuration: the whole one, or its nested part over it.
    ``tensors`` is None where no header could be read, for which ``unread`` says why.
    ``target_ids`` are the least and the largest of (draft id + d2t[draft id]) and how many differ.
    """

    path: Path
    config: Mapping[str, Any]
    text: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    unread: str = ""
    target_ids: tuple[int, int, int] | None = None
    files: tuple[str, ...] = field(default=())

    def architecture(self) -> str | None:
        """The first declared class name, or None."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    def whole(self, key: str) -> int | None:
        """An integer of the language model's configuration; None if it is none."""
        value = self.text.get(key)
        return value if type(value) is int else None

    def dtype(self) -> str | None:
        """The type the configuration says the weights have, without ``torch.``; else the file's."""
        for part in (self.config, self.text):
            for key in ("dtype", "torch_dtype"):
                if isinstance(value := part.get(key), str):
                    return value.removeprefix("torch.")
        kinds = {t.dtype for t in (self.tensors or {}).values()} & set(_FLOATS)
        return _FLOATS[kinds.pop()] if len(kinds) == 1 else None


_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def load(folder: Path, *, headers: bool = True) -> Checkpoint:
    """Read a model folder; ``headers`` says whether to look into its safetensors files.

    Raises:
        ConfigError: no folder, no ``config.json``, or not a JSON object.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder}: the folder has no config.json")
    config = read(path)
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    text = _text_part(config)
    if not headers:
        return Checkpoint(folder, config, text)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = [p.name for p in sorted(folder.glob("*.bin"))]
        why = f"only {', '.join(others)}" if others else "no weights"
        return Checkpoint(folder, config, text, unread=f"{folder} has {why}, no safetensors file")
    try:
        tensors, target_ids = _headers(files)
    except ModuleNotFoundError as error:
        return Checkpoint(folder, config, text, unread=f"{error.name} is not installed")
    except Exception as error:  # the library raises its own type for a broken file
        return Checkpoint(folder, config, text, unread=f"{folder}: {error}")
    names = tuple(p.name for p in files)
    return Checkpoint(folder, config, text, tensors, target_ids=target_ids, files=names)


def locate(model: str, environ: Mapping[str, str]) -> Path | None:
    """The folder of a model: a path, or the local cache's copy of a hub name; never downloads."""
    path = Path(model)
    try:
        if path.is_dir():
            return path
    except OSError:  # a name too long to be one
        return None
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        return None
    hub = environ.get("HF_HUB_CACHE")
    home = environ.get("HF_HOME", str(Path(environ.get("HOME", "~")) / ".cache" / "huggingface"))
    cache = Path(hub) if hub else Path(home).expanduser() / "hub"
    place = cache / f"models--{model.replace('/', '--')}"
    try:
        revision = (place / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = place / "snapshots" / revision
    return snapshot if (snapshot / "config.json").is_file() else None


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(inner := config.get("transformer_layer_config"), Mapping):
        return {**config, **inner}  # a draft in the format of the speculators library
    thinker = config.get("thinker_config")
    holder = thinker if isinstance(thinker, Mapping) else config
    for key in _NESTED:
        if isinstance(nested := holder.get(key), Mapping):
            return {**config, **nested}
    return dict(config)


def _headers(files: list[Path]) -> tuple[dict[str, Tensor], tuple[int, int, int] | None]:
    from safetensors import safe_open

    tensors: dict[str, Tensor] = {}
    target_ids = None
    for file in files:
        with safe_open(str(file), framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                part = opened.get_slice(name)
                tensors[name] = Tensor(tuple(part.get_shape()), str(part.get_dtype()))
                if name.rpartition(".")[2] == _D2T and len(tensors[name].shape) == 1:
                    # One small table of integers; everything else stays on the disk.
                    ids = opened.get_tensor(name)
                    ids = ids + range(len(ids))
                    if len(ids):
                        target_ids = (int(ids.min()), int(ids.max()), len(set(ids.tolist())))
    return tensors, target_ids
