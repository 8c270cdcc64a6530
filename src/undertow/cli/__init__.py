"""The command line: one file per command, loaded only when it is called."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence

import click

from undertow import __version__
from undertow.cli.output import say
from undertow.errors import UndertowError, UnreadableRunError

# By purpose: name → what it does. The module `undertow.cli.NAME` holds the click command `command`.
GROUPS = {
    "Watch a training": {
        "run": "Run a training script unchanged, and watch it.",
        "demo": "Train a small broken model live and diagnose it.",
    },
    "See what is wrong": {
        "report": "What is wrong in a run, where, why, and what to change.",
        "serve": "The dashboard, in a browser.",
        "play": "A heatmap of every layer in the terminal, live or replayed.",
        "runs": "List runs with their status.",
        "explain": "What a code such as GRD001 means, and what to do.",
    },
    "Compare and export": {
        "compare": "Where two runs first diverge, and what differs.",
        "weights": "Examine a checkpoint: weight health, and drift from another one.",
        "export": "Numbers and pictures: csv, json, parquet, png, gif, mp4, html.",
    },
    "Automate": {
        "check": "Fail CI when a run is unhealthy.",
        "mcp": "Serve runs to a coding agent (Model Context Protocol).",
        "doctor": "Check that this machine is ready.",
    },
}
COMMANDS = {name: what for commands in GROUPS.values() for name, what in commands.items()}
EXAMPLES = """\b
Examples:
  undertow run train.py --epochs 3     then: undertow report latest
  undertow serve                       all runs, live in the browser
  undertow weights model.safetensors   no model class needed"""
INTERRUPTED = 130
BROKEN_PIPE = 141
INTERNAL_ERROR = 70


class ClosedPipeError(Exception):
    """Whoever read our output has gone. (Click would turn the error of the system into exit code 1.)"""


class LazyGroup(click.Group):
    """Lists all commands without importing any."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ClosedPipeError from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {cmd_name!r}. {hint}")
        return importlib.import_module(f"undertow.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
    invoke_without_command=True,
)
@click.version_option(__version__, "-V", "--version", prog_name="undertow")
@click.pass_context
def group(context: click.Context) -> None:
    """Undertow watches a PyTorch training and says what is wrong, where, since when, why, and what to change."""
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the return value is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets another one, not an exception.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    try:
        result = group.main(
            args=None if arguments is None else list(arguments), prog_name="undertow", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as problem:
        return _refuse(problem)
    except UndertowError as problem:
        return fail(problem)
    except MemoryError:
        return fail(
            UnreadableRunError("what is asked for takes more memory than there is", way_out="Ask for less of it")
        )
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (BrokenPipeError, ClosedPipeError):
        # Python would complain once more when it flushes the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as problem:
        if os.environ.get("UNDERTOW_DEBUG"):
            raise
        say(
            f"undertow: internal error: {type(problem).__name__}: {problem}. "
            "This is a fault of Undertow; UNDERTOW_DEBUG=1 shows where.",
            err=True,
        )
        return INTERNAL_ERROR
    if callable(result):
        return _hand_over(result)
    return result if isinstance(result, int) else 0


def _hand_over(work: Callable[[], object]) -> int:
    """Run what a command left for last: a user's script, whose own exceptions must reach the interpreter."""
    try:
        work()
    except UndertowError as problem:
        return fail(problem)
    return 0


def _refuse(problem: click.ClickException) -> int:
    """One line for a command line that cannot be understood."""
    message = " ".join(problem.format_message().split())
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    path = context.command_path if context is not None else "undertow"
    message += "" if message.endswith((".", "?", "!")) else "."
    say(f"undertow: error UT001: {message} Try: {path} --help", err=True)
    return problem.exit_code


def fail(problem: UndertowError) -> int:
    """One line on stderr: code, what, way out."""
    message = " ".join(str(problem).split())
    say(f"undertow: error {problem.code}: {message}{'' if message.endswith('.') else '.'}", err=True)
    return problem.exit_code
