# SPDX-License-Identifier: Apache-2.0
"""The `vllm-hust-ext` command: its verbs, what they print and their exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from diffspec_manager_standin import compatibility, evidence, launch, plan
from diffspec_manager_standin.discovery import Bundle, Found, discover
from diffspec_manager_standin.state import State, load

PROGRAM = "vllm-hust-ext"


class _Manager:
    """State and discovery of one invocation."""

    def __init__(self) -> None:
        self.state: State = load()
        self.found: Found = discover()

    def show_list(self, args: argparse.Namespace) -> str:
        enabled = self.state.enabled
        bundles = [self.found.bundles[name] for name in sorted(self.found.bundles)]
        if args.json:
            broken = [
                {"bundle_id": name, "discovery_error": why, "valid": False}
                for name, why in sorted(self.found.errors.items())
            ]
            return _json([b.describe(b.id in enabled) for b in bundles] + broken)
        for name, why in sorted(self.found.errors.items()):
            print(f"{name} invalid {why}", file=sys.stderr)
        return "\n".join(
            f"{b.id} {b.manifest.document['extension_version']} "
            f"{'enabled' if b.id in enabled else 'disabled'}"
            for b in bundles
        )

    def inspect(self, args: argparse.Namespace) -> str:
        (bundle,) = self.found.require([args.id])
        return _json(bundle.describe(bundle.id in self.state.enabled))

    def configure(self, args: argparse.Namespace) -> str:
        (bundle,) = self.found.require([args.id])
        content = json.loads(args.file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("extension configuration file must contain an object")
        # Stored whole and unread: mistakes in it show at plan, env and run.
        self.state.entry(bundle.id).configuration = content
        self.state.save()
        return f"configured {bundle.id}"

    def check(self, args: argparse.Namespace) -> str:
        self.found.require([*self.state.enabled, args.id])
        (bundle,) = self.found.require([args.id])
        verdict = compatibility.judge(bundle, self.state.configuration(bundle.id))
        seen = evidence.effective(bundle, evidence.log_path(self.state.path))
        lines = [*verdict.evidence, "vLLM launch configuration can be rendered"]
        enabled = bundle.id in self.state.enabled
        return _json(
            {
                "bundle_id": bundle.id,
                "evidence": [*lines, seen] if seen and enabled else lines,
                "states": compatibility.states(
                    bundle, verdict, enabled=enabled, effective=seen is not None
                ),
            }
        )

    def enable(self, args: argparse.Namespace) -> str:
        self.found.require([*self.state.enabled, args.id])
        if self.found.bundles[args.id].manifest.descriptor_only:
            raise ValueError(f"extension {args.id!r} is descriptor-only and cannot be enabled")
        self.state.entry(args.id).enabled = True
        self.state.save()
        return f"enabled {args.id}"

    def disable(self, args: argparse.Namespace) -> str:
        # Wants every enabled extension installed, this one too: an extension that was uninstalled
        # while enabled can be neither disabled nor forgotten.
        self.found.require(self.state.enabled)
        self.state.entry(args.id).enabled = False
        self.state.save()
        return f"disabled {args.id}"

    def forget(self, args: argparse.Namespace) -> str:
        self.found.require(self.state.enabled)
        if args.id not in self.state.entries:
            raise ValueError(f"extension {args.id!r} has no stored state")
        if self.state.entries[args.id].enabled:
            raise ValueError(f"disable {args.id!r} before forgetting")
        del self.state.entries[args.id]
        self.state.save()
        return f"forgot {args.id}"

    def show_plan(self, args: argparse.Namespace) -> str:
        self.found.require([*self.state.enabled, args.id])
        (bundle,) = self.found.require([args.id])
        if bundle.manifest.descriptor_only:
            return _json({"actions": ["inspect_only"], "bundle_id": bundle.id})
        return _json(plan.build(bundle, self.state.configuration(bundle.id)).describe())

    def show_environment(self, _: argparse.Namespace) -> str:
        return _json(plan.environment_delta(self._plans()[1], self.state.enabled, os.environ))

    def run(self, args: argparse.Namespace) -> str | int:
        for bundle in self.found.require(self.state.enabled):
            verdict = compatibility.judge(bundle, self.state.configuration(bundle.id))
            compatibility.refuse_unless_launchable(bundle, verdict)
        bundles, plans = self._plans()
        typed = args.command[1:] if args.command[:1] == ["--"] else args.command
        command = plan.merge_command(typed or ["vllm"], plans)
        delta = plan.environment_delta(plans, self.state.enabled, os.environ)
        if args.dry_run:
            return _json(
                {"command": command, "environment": delta, "native_extension_manifests": {}}
            )
        log = self.state.path.with_name("runtime-evidence.jsonl")
        observer = launch.observer_variables(bundles, log, os.environ)
        return launch.run(command, {**os.environ, **delta, **observer}, args.grace)

    def _plans(self) -> tuple[list[Bundle], list[plan.Plan]]:
        bundles = self.found.require(self.state.enabled)
        plans = [plan.build(b, self.state.configuration(b.id)) for b in bundles]
        plan.refuse_conflicts(plans)
        return bundles, plans


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


class _Parser(argparse.ArgumentParser):
    """Every misuse is reported as two lines under the program's own name."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"usage: {PROGRAM} {{extension,run}} ...\n{PROGRAM}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="A stand-in for tests; see its README.")
    areas = parser.add_subparsers(required=True, metavar="{extension,run}")
    verbs = areas.add_parser("extension").add_subparsers(required=True)
    for name, handler in (
        ("inspect", _Manager.inspect),
        ("validate", _Manager.inspect),
        ("configure", _Manager.configure),
        ("check", _Manager.check),
        ("status", _Manager.check),
        ("enable", _Manager.enable),
        ("disable", _Manager.disable),
        ("forget", _Manager.forget),
        ("plan", _Manager.show_plan),
    ):
        verb = verbs.add_parser(name)
        verb.add_argument("id")
        verb.set_defaults(handler=handler)
        if name == "configure":
            verb.add_argument("--file", type=Path, required=True)
    listing = verbs.add_parser("list")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(handler=_Manager.show_list)
    verbs.add_parser("env").set_defaults(handler=_Manager.show_environment)
    run = areas.add_parser("run")
    run.add_argument("--dry-run", action="store_true")
    run.add_argument(
        "--shutdown-grace-seconds", dest="grace", type=float, default=launch.DEFAULT_GRACE_S
    )
    # Everything from the first word on belongs to the command, also what looks like our options.
    run.add_argument("command", nargs=argparse.REMAINDER)
    run.set_defaults(handler=_Manager.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        outcome: str | int = args.handler(_Manager(), args)
        if isinstance(outcome, int):
            return outcome
        if outcome:
            print(outcome, flush=True)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0
