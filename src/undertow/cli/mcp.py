"""`undertow mcp`: a Model Context Protocol server over standard input and output."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from undertow import __version__
from undertow.cli.agent_tools import TOOLS, heatmap
from undertow.errors import SettingError, UndertowError

if TYPE_CHECKING:
    from mcp.server import MCPServer

_INSTRUCTIONS = (
    "Undertow records what gradients, weights, updates and activations do in a PyTorch training and says what is "
    "wrong. Start with diagnose; explain says what a code means; series, layers and heatmap show the numbers behind it."
)


def server() -> "MCPServer[Any]":
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver import Image
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise SettingError(
            "the package mcp (2 or newer) is not installed", way_out="pip install 'undertow[mcp]'"
        ) from None

    def picture(run: str = "latest", quantity: str = "gradient_norm", layers: list[str] = []) -> Image:  # noqa: B006
        return Image(data=heatmap(run, quantity, layers), format="png")

    def answering(tool: Callable[..., Any]) -> Callable[..., Any]:
        """Errors that teach reach the agent; the text of any other one would not."""

        @wraps(tool)
        def answer(**arguments: Any) -> Any:
            try:
                return tool(**arguments)
            except UndertowError as problem:
                raise ToolError(str(problem)) from None

        return answer

    made: MCPServer[Any] = MCPServer("undertow", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    reads_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in TOOLS:
        shown = answering(picture if tool is heatmap else tool)
        made.add_tool(shown, name=tool.__name__, description=tool.__doc__, annotations=reads_only)
    return made


@click.command(
    help="Serve runs to a coding agent by the Model Context Protocol, over standard input and output: list runs, "
    "diagnose, explain, read numbers, draw a heatmap, compare, examine a checkpoint. Read-only. Needs undertow[mcp].",
    epilog='Example:  {"mcpServers": {"undertow": {"command": "undertow", "args": ["mcp"]}}}',
)
def command() -> None:
    server().run("stdio")
