"""The commands of `hasfl`. A wrong input ends in one sentence on standard error and exit code 2."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer
import typer.core

from hasfl import __version__
from hasfl.cli.clock import clock
from hasfl.cli.compare import compare
from hasfl.cli.data import data
from hasfl.cli.doctor import doctor
from hasfl.cli.export import export
from hasfl.cli.keys import keys
from hasfl.cli.plan import plan
from hasfl.cli.profile import profile
from hasfl.cli.report import report
from hasfl.cli.reproduce import reproduce
from hasfl.cli.runs import runs, show
from hasfl.cli.serve import serve
from hasfl.cli.submit import status, submit
from hasfl.cli.train import train
from hasfl.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_WRONG_USAGE, HasflError

typer.core.HAS_RICH = False  # typer 0.20 with rich shows "\\[default: …]", although help is plain text

app = typer.Typer(
    name="hasfl",
    help="Split federated learning on fleets of unequal devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

# Optional packages that commands need, each with the extra that installs it.
EXTRAS = dict.fromkeys(
    ("torch", "matplotlib", "sklearn", "safetensors", "tomli_w"), "hasfl[train]"
) | dict.fromkeys(("flwr", "grpc", "cryptography", "httpx"), "hasfl[deploy]")


@contextmanager
def sigterm_like_control_c() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with an exit code of its own.

    Ctrl-C does not reach a job in the background.
    """
    heard = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except SystemExit as stop:
        if heard and stop.code == EXIT_INTERRUPTED:
            sys.exit(EXIT_TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@sigterm_like_control_c()
def main() -> NoReturn:
    """Run the command line; an error becomes one sentence on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # letters that the terminal's encoding lacks become "?"
    try:
        code = app(standalone_mode=False, prog_name="hasfl")
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # the parser returns this code after Ctrl-C
            _fail("interrupted", EXIT_INTERRUPTED)
    except HasflError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _fail(f"this command needs {package}: pip install '{EXTRAS[package]}'", EXIT_WRONG_USAGE)
    except BrokenPipeError:  # the reader of the output closed it, as in `hasfl … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(f"cannot write: {error.strerror or error}", 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # only the parser's own errors have this method
            raise
        _fail_to_parse(type(error).__name__, error.format_message())
    sys.exit(code)


def _fail_to_parse(kind: str, message: str) -> NoReturn:
    """Print the parser's error in one line. If a command is missing, print the help with its lines."""
    if kind == "NoArgsIsHelpError":
        typer.echo(message, err=True)
        sys.exit(EXIT_WRONG_USAGE)
    _fail(message, EXIT_WRONG_USAGE)


def _fail(sentence: str, code: int) -> NoReturn:
    """Print an error in one line, even if a name or a user's exception in it has several, and exit."""
    sys.stderr.write(f"hasfl: {' '.join(sentence.splitlines())}\n")
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hasfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for verb in (
    profile,
    plan,
    data,
    train,
    compare,
    reproduce,
    runs,
    show,
    report,
    clock,
    export,
    doctor,
    keys,
    submit,
    status,
):
    app.command()(verb)
app.add_typer(serve, name="serve")
