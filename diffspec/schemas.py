# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas shipped with this package, and what a document breaks in them, in words.

The files are Draft 2020-12. :func:`problems` reads them a little more strictly than a plain
validator would, so that a schema can say what the code that reads the document does:

* ``NaN`` and the infinities, which JSON does not have but Python reads, are no numbers; ``3.0`` is
  the integer 3, as JSON Schema and :mod:`diffspec.settings` have it;
* ``format`` is checked for ``pep440-version`` and ``pep440-range``;
* ``uniqueItemProperties`` (a list of names, known from ajv-keywords) asks that no two objects of an
  array have the same value there;
* ``errorMessage`` (known from ajv-errors and from editors) beside a keyword replaces that
  keyword's own message.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from packaging.specifiers import SpecifierSet
from packaging.version import Version

if TYPE_CHECKING:
    from importlib.abc import Traversable

#: The schemas there are, by the name :func:`load` takes.
NAMES = ("manifest-0.2", "diffspec", "evidence", "catalog")
MANIFEST = "vllm-hust-extension-v0.2.json"

_LONGEST_VALUE = 60


def load(name: str) -> dict[str, Any]:
    """The schema called ``name``, one of :data:`NAMES`; a fresh copy on each call.

    Raises ValueError for another name.
    """
    if name not in NAMES:
        raise ValueError(f"no schema {name!r}; there are {', '.join(NAMES)}")
    text = data_file("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def manifest() -> dict[str, Any]:
    """This extension's manifest, as the extension manager reads it."""
    found: dict[str, Any] = json.loads(data_file("manifest", MANIFEST).read_text(encoding="utf-8"))
    return found


def data_file(folder: str, name: str) -> Traversable:
    """A file of the repository folder ``manifest`` or ``schemas``, wherever it lies now.

    They are installed as packages called ``diffspec_<folder>``. An editable install has copies
    made when it was installed, so a checkout's own folder goes before them.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / folder).is_dir():
        return checkout / folder / name
    return importlib.resources.files(f"diffspec_{folder}") / name


def problems(name: str, document: object) -> list[str]:
    """What is wrong with ``document`` by the schema ``name``: one line each, JSON path first.

    ``document`` is what ``json.loads`` returned. Empty when all is well; of an alternative that
    fails (``anyOf``, ``oneOf``) only the nearest branch's own complaint is given.
    """
    found = []
    for error in _validator(name).iter_errors(document):
        deepest = best_match([error])
        found.append((tuple(map(str, deepest.absolute_path)), _line(deepest)))
    return list(dict.fromkeys(line for _, line in sorted(found)))


def _line(error: ValidationError) -> str:
    own = error.schema.get("errorMessage") if isinstance(error.schema, dict) else None
    whole = repr(error.instance)
    shown = whole if len(whole) <= _LONGEST_VALUE else whole[: _LONGEST_VALUE - 3] + "..."
    if isinstance(own, str):
        return f"{error.json_path} = {shown}: {own}"
    return f"{error.json_path}: {error.message.replace(whole, shown)}"


@functools.cache
def _validator(name: str) -> Any:
    checker = Draft202012Validator.TYPE_CHECKER.redefine("number", _is_number)
    strict = extend(
        Draft202012Validator,
        validators={"uniqueItemProperties": _unique_item_properties},
        type_checker=checker,
    )
    formats = FormatChecker(formats=())
    formats.checks("pep440-version", raises=ValueError)(_is_version)
    formats.checks("pep440-range", raises=ValueError)(_is_range)
    return strict(load(name), format_checker=formats)


def _is_number(_: object, value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_version(value: object) -> bool:
    return not isinstance(value, str) or bool(Version(value))


def _is_range(value: object) -> bool:
    # A range without a single bound would hold everything, which is never meant.
    return not isinstance(value, str) or len(SpecifierSet(value)) > 0


def _unique_item_properties(
    _: object, names: list[str], items: object, __: object
) -> Iterator[ValidationError]:
    if not isinstance(items, list):
        return
    for name in names:
        values = [item[name] for item in items if isinstance(item, dict) and name in item]
        for value in values:
            if values.count(value) > 1:
                yield ValidationError(f"{name} {value!r} is given {values.count(value)} times")
                break
