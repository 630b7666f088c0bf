# SPDX-License-Identifier: Apache-2.0
"""A vLLM command line, read as vLLM's own parser reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffspec.doctor.arguments import SPECULATIVE, Command, CommandError, begin, changes, parse
from diffspec.doctor.command import unwrap

SERVER = ["python", "-m", "vllm.entrypoints.openai.api_server"]


def options(*words: str) -> Command:
    return parse(["vllm", "serve", "M", *words])


def test_spellings_of_an_option() -> None:
    command = options("-tp", "4", "--max_model_len=8k", "--no-async-scheduling", "-dp", "2")
    assert command.model == "M"
    assert command.integer("--tensor-parallel-size") == 4
    assert command.integer("--max-model-len") == 8000
    assert command.integer("--data-parallel-size") == 2
    assert command.switch("--async-scheduling") is False
    assert command.switch("--enforce-eager") is None
    assert options("--max-model-len", "8K").integer("--max-model-len") == 8192
    assert options("--enforce-eager", "--no-enforce-eager").switch("--enforce-eager") is False
    assert options("-tp", "2", "-tp", "4").integer("--tensor-parallel-size") == 4
    assert options("--specul", "{}").object(SPECULATIVE) == {}
    assert options("--tensor-parallel", "4").integer("--tensor-parallel-size") == 4
    assert options("--spec", "4").text("--spec-tokens") is None
    sizes = options("--cudagraph-capture-sizes", "1", "2", "--enforce-eager")
    assert sizes.integers("--cudagraph-capture-sizes") == (1, 2)
    assert sizes.switch("--enforce-eager") is True


def test_a_switch_does_not_take_the_word_after_it() -> None:
    command = parse(["vllm", "serve", "--enforce-eager", "M", "--dtype", "auto"])
    assert command.model == "M"
    assert command.switch("--enforce-eager") is True


def test_dotted_options_make_one_object_that_wins() -> None:
    command = options(SPECULATIVE, '{"model": "x"}', f"{SPECULATIVE}.method", "eagle3")
    assert command.object(SPECULATIVE) == {"method": "eagle3"}
    command = options("-cc.pass_config.fuse", "true", "-cc.level=3")
    assert command.object("--compilation-config") == {"pass_config": {"fuse": True}, "level": 3}


@pytest.mark.parametrize(
    "start",
    [
        SERVER,
        ["python3.11", *SERVER[1:]],
        ["/usr/bin/python3", "-u", "-X", "dev", *SERVER[1:]],
        ["python", "-um", SERVER[2]],
    ],
)
def test_the_module_form(start: list[str]) -> None:
    assert parse([*start, "--model", "M", "-tp", "2"]).model == "M"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "nothing: not `vllm serve MODEL`"),
        (["vllm", "bench", "serve"], "vllm bench serve: not `vllm serve MODEL`"),
        (["python", "-m", "http.server"], "python -m http.server is not a vLLM server"),
    ],
)
def test_commands_that_start_no_server(words: list[str], part: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(words)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        ([], {}),
        (["A=1", "B=x=y"], {"A": "1", "B": "x=y"}),
        (["nohup", "env", "-u", "A", "--unset=B", "C=3"], {"A": None, "B": None, "C": "3"}),
        (["sudo", "-u", "root"], {}),
        (["numactl", "--cpunodebind=0"], {}),
    ],
)
def test_what_stands_before_a_command(before: list[str], changed: dict[str, str | None]) -> None:
    for command in (["vllm", "serve", "D=4"], [*SERVER, "D=4"], ["/b/vllm-hust-ext", "run"]):
        assert begin([*before, *command]) == len(before)
        assert changes(before) == changed


@pytest.mark.parametrize("words", [[], ["vllm"], ["vllm", "bench"], ["python", "serve.py"]])
def test_words_that_begin_no_server(words: list[str]) -> None:
    assert begin(words) is None


def test_a_config_file_comes_before_what_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "tensor-parallel-size: 4\nmax_model_len: 2k\nenforce-eager: true\nenable-lora: false\n"
        "speculative-config:\n  method: eagle3\n  model: D\n"
    )
    command = options("--config", str(file), "--max-model-len", "4k")
    assert command.integer("--tensor-parallel-size") == 4
    assert command.integer("--max-model-len") == 4000
    assert command.switch("--enforce-eager") is True
    assert command.switch("--enable-lora") is False
    assert command.object(SPECULATIVE) == {"method": "eagle3", "model": "D"}


@pytest.mark.parametrize(
    ("words", "inner"),
    [
        (["vllm-hust-ext", "run", "--", "vllm", "serve"], ("vllm", "serve")),
        (["vllm-hust-ext", "run", "--dry-run", "vllm"], ("vllm",)),
        (["A=1", "/bin/vllm-hust-ext", "run", "--shutdown-grace-seconds", "3", "x"], ("x",)),
    ],
)
def test_the_managers_run_is_taken_off(words: list[str], inner: tuple[str, ...]) -> None:
    taken = unwrap(words)
    assert (taken.words, taken.findings) == (inner, ())
    assert taken.manager in words


def test_who_sets_what() -> None:
    words = ["env", "A=1", "vllm-hust-ext", "run", "--", "env", "-u", "A", "B=2", "vllm", "serve"]
    taken = unwrap(words)
    assert (taken.environment, taken.inside) == ({"A": "1"}, {"A": None, "B": "2"})
    assert taken.words == ("env", "-u", "A", "B=2", "vllm", "serve")
    direct = unwrap(["A=1", "vllm", "serve", "M"])
    assert (direct.manager, direct.environment, direct.inside) == (None, {"A": "1"}, {})


# -- vLLM's own parser as the oracle --

JSON = '{"method": "eagle3", "model": "a"}'
LINES = [
    [SPECULATIVE, JSON],
    ["-sc", JSON, "--speculative_config", '{"model": "b"}'],
    ["--speculative_config", '{"model": "b"}', "-sc", JSON],
    [f"{SPECULATIVE}=" + JSON, "-tp=2"],
    ["--speculative-c", JSON],
    [SPECULATIVE, JSON, f"{SPECULATIVE}.num_speculative_tokens", "3"],
    [f"{SPECULATIVE}.method=eagle3", f"{SPECULATIVE}.draft-context-policy", "diffspec"],
    ["--speculative_config.model", "m", f"{SPECULATIVE}.max_model_len", "2k"],
    ["-sc.model", "m", f"{SPECULATIVE}.model", "n"],
    [f"{SPECULATIVE}.a.b", "1", f"{SPECULATIVE}.a.c", "true", f"{SPECULATIVE}.a.d", "text"],
    ["-tp", "4", "--tensor-parallel-size", "2", "--max-model-len", "16k"],
    ["--max_model_len", "16K", "--no-enable-prefix-caching", "--async-scheduling"],
    ["--async-scheduling", "--no-async-scheduling", "--enable-prefix-caching"],
    ["--spec-method", "eagle3", "--spec-tokens", "3", "--kv_cache_dtype", "fp8"],
    ["--tensor-parallel", "4", "--max-model", "2k", "--no-async"],
    ["--speculative.model", "m", "--cudagraph-capture", "1", "2", "4", "-tp", "2"],
]


@pytest.fixture(scope="module")
def host_parser() -> Any:
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return EngineArgs.add_cli_args(FlexibleArgumentParser())


def agree(host_parser: Any, words: list[str]) -> None:
    theirs, ours = host_parser.parse_args(words), options(*words)
    assert ours.object(SPECULATIVE) == theirs.speculative_config
    assert (ours.integer("--tensor-parallel-size") or 1) == theirs.tensor_parallel_size
    assert ours.integer("--max-model-len") == theirs.max_model_len
    assert ours.switch("--async-scheduling") == theirs.async_scheduling
    assert ours.switch("--enable-prefix-caching") == theirs.enable_prefix_caching
    assert ours.text("--spec-method") == theirs.spec_method
    assert ours.integer("--spec-tokens") == theirs.spec_tokens
    assert (ours.text("--kv-cache-dtype") or "auto") == theirs.kv_cache_dtype
    captured = tuple(theirs.cudagraph_capture_sizes or ())
    assert ours.integers("--cudagraph-capture-sizes") == captured


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_vllm_reads_the_same(host_parser: Any, words: list[str]) -> None:
    agree(host_parser, words)


def test_no_option_of_vllm_is_taken_for_another(host_parser: Any) -> None:
    names = [name for name in host_parser._option_string_actions if name.startswith("--")]
    assert len(names) > 100
    assert [options(name).options[0].name for name in names] == names


@pytest.mark.parametrize("words", LINES[:6], ids=" ".join)
def test_vllm_reads_the_same_after_a_config_file(
    host_parser: Any, tmp_path: Path, words: list[str]
) -> None:
    file = tmp_path / "serve.yaml"
    content = {
        "speculative-config": {"method": "ngram"},
        "tensor-parallel-size": 8,
        "max_model_len": 4096,
        "async-scheduling": False,
        "enable_prefix_caching": True,
    }
    file.write_text(json.dumps(content))
    agree(host_parser, ["--config", str(file), *words])
