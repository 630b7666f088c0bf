# SPDX-License-Identifier: Apache-2.0
"""The `diffspec` command. A command's own modules are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffspec import __version__
from diffspec.cli.config import app as config_app
from diffspec.cli.doctor import doctor
from diffspec.cli.evidence import app as evidence_app
from diffspec.cli.qualify.entry import qualify
from diffspec.cli.surface import app as surface_app

app = typer.Typer(
    name="diffspec",
    help="Differential speculative decoding for long sequences, as a vLLM plugin.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


app.command()(doctor)
app.command()(qualify)
app.add_typer(config_app)
app.add_typer(evidence_app)
app.add_typer(surface_app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffspec {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Differential speculative decoding for long sequences, as a vLLM plugin."""


@app.command()
def demo(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer prompts and arms; under four minutes on two cores."),
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="UTF-8 text to continue, instead of ours."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="For models, logs, results and demo.png.")
    ] = Path("build/demo"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON instead of tables.")
    ] = False,
) -> None:
    """Serve the same requests target-only, with stock EAGLE-3 and with DiffSpec, on this CPU."""
    try:
        from diffspec.cli.demo import demo as run
    except ModuleNotFoundError as error:
        typer.echo(
            f"diffspec demo needs {error.name}: pip install 'vllm-diffspec[demo]' beside vLLM",
            err=True,
        )
        raise typer.Exit(1) from None
    raise typer.Exit(run(quick=quick, text=text, out=out, as_json=as_json))


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
