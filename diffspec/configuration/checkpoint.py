# SPDX-License-Identifier: Apache-2.0
"""A model folder without its weights: ``config.json`` and the headers of its safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffspec.keys import whole
from diffspec.settings import ConfigError

#: Where configurations of models with more than text keep the language model's part.
_NESTED = ("text_config", "language_config", "llm_config")
_INDEX = "model.safetensors.index.json"
_D2T = "d2t"
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its file's header declares it; ``dtype`` in safetensors' own words (BF16)."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """What could be read of a model folder.

    ``text`` is the language model's configuration: the whole one, or its nested part over it.
    ``tensors`` is None where no header was read, for which ``unread`` says why. ``broken`` says
    what is wrong with the files, if anything is. ``target_ids`` are the least and the largest of
    (draft id + d2t[draft id]) and how many differ.
    """

    path: Path
    config: Mapping[str, Any]
    text: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    unread: str = ""
    broken: str = ""
    target_ids: tuple[int, int, int] | None = None

    def architecture(self) -> str | None:
        """The first declared class name, or None."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    def whole(self, key: str) -> int | None:
        """An integer of the language model's configuration; None if it is none."""
        return whole(self.text.get(key))

    def dtype(self) -> str | None:
        """The type the configuration says the weights have, without ``torch.``; else the file's."""
        for part in (self.config, self.text):
            for key in ("dtype", "torch_dtype"):
                if isinstance(value := part.get(key), str):
                    return value.removeprefix("torch.")
        kinds = {t.dtype for t in (self.tensors or {}).values()} & set(_FLOATS)
        return _FLOATS[kinds.pop()] if len(kinds) == 1 else None

    def quantisation(self) -> str | None:
        """The method by which the weights are quantised, as the configuration says."""
        for part in (self.config, self.text):
            for key in ("quantization_config", "compression_config"):
                if isinstance(value := part.get(key), Mapping):
                    return str(value.get("quant_method") or value.get("format") or key)
        return None


def read_config(folder: Path) -> Checkpoint:
    """Read a model folder's ``config.json`` alone, as leniently as the host does.

    Raises:
        ConfigError: no folder, no ``config.json``, or not a JSON object.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder}: the folder has no config.json")
    config = _json(path)
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    # ModelOpt up to 0.29 keeps the quantisation in a file of its own.
    beside = folder / "hf_quant_config.json"
    if config.get("quantization_config") is None and beside.is_file():
        config["quantization_config"] = {"quant_method": "modelopt"}
    return Checkpoint(folder, config, _text_part(config))


def load(folder: Path) -> Checkpoint:
    """Read a model folder's ``config.json`` and the headers of its safetensors files.

    Raises:
        ConfigError: see :func:`read_config`.
    """
    model = read_config(folder)
    try:
        files, missing = _files(folder)
    except ConfigError as error:
        return replace(model, broken="; ".join(error.problems))
    except OSError as error:  # a name too long to be one
        return replace(model, broken=f"{folder / _INDEX}: {error.strerror}")
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        text = f"{folder} lacks {len(missing)} of the files that {_INDEX} names ({shown})"
        return replace(model, broken=text)
    if not files:
        others = [p.name for p in sorted(folder.glob("*.bin"))]
        why = f"only {', '.join(others)}" if others else "no weights"
        return replace(model, unread=f"{folder} has {why}, no safetensors file")
    try:
        tensors, target_ids = _headers(files)
    except ModuleNotFoundError as error:
        return replace(model, unread=f"{error.name} is not installed")
    except Exception as error:  # the library raises its own type for a broken file
        return replace(model, broken=f"{folder}: {error}")
    return replace(model, tensors=tensors, target_ids=target_ids)


def _json(path: Path) -> Any:
    """What a file holds, by Python's own reader: Infinity and repeated keys are in real files."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(inner := config.get("transformer_layer_config"), Mapping):
        return {**config, **inner}  # a draft in the format of the speculators library
    thinker = config.get("thinker_config")
    holder = thinker if isinstance(thinker, Mapping) else config
    for key in _NESTED:
        if isinstance(nested := holder.get(key), Mapping):
            return {**config, **nested}
    return dict(config)


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """The safetensors files, and names of those that the index has and the folder has not."""
    if not (folder / _INDEX).is_file():
        return sorted(folder.glob("*.safetensors")), []
    index = _json(folder / _INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    named = places.values() if isinstance(places, dict) else ()
    names = sorted({name for name in named if isinstance(name, str)})
    return [folder / n for n in names], [n for n in names if not (folder / n).is_file()]


def _headers(files: Iterable[Path]) -> tuple[dict[str, Tensor], tuple[int, int, int] | None]:
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
