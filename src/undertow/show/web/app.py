"""The routes of the dashboard. Every one of them only reads."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from undertow.errors import SettingError, UndertowError, UnknownNameError, UnreadableRunError
from undertow.explain.pages import page_of
from undertow.schema import QUANTITIES
from undertow.show.page import STATIC
from undertow.show.web.guard import LOOPBACK, Guard
from undertow.show.web.library import Library, OpenRun
from undertow.show.web.live import Streams
from undertow.store.names import known_name
from undertow.views import page_documents
from undertow.views.density import STREAMS, density_of
from undertow.views.line_points import line_of_layer, line_of_scalar
from undertow.views.page_documents import weights
from undertow.views.run_divergence import divergence
from undertow.views.scale import scale_of, usual_of
from undertow.views.tiles import COLUMNS, DEEPEST, STATISTICS, tile_of

_MOST_COLUMNS = 4096
_FARTHEST = 1 << 53  # steps: what a browser's numbers hold
_COMPRESS_FROM = 4096


def build_app(root: Path, token: str, hosts: tuple[str, ...] = LOOPBACK) -> Guard:
    """The application for the runs below `root`, behind its guard. Starlette runs plain functions in threads."""
    library, streams = Library(root), Streams()

    def runs(request: Request) -> Response:
        return _json({"root": str(root), "runs": [one.document() for one in library.runs()]})

    def runs_diverge(request: Request) -> Response:
        with library.reading_two(_text(request, "run"), _text(request, "other")) as (first, second):
            return _json(divergence(first.run, second.run))

    async def live(request: Request) -> Response:
        identity = _text(request, "run")

        def look() -> dict[str, Any]:
            with library.reading(identity) as opened:
                return page_documents.progress(opened.run)

        return streams.follow(request, look)

    def about_a_run(answer: Callable[[OpenRun, Request], Any]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            with library.reading(_text(request, "run")) as opened:
                found = answer(opened, request)
            return found if isinstance(found, Response) else _json(found)

        return endpoint

    endpoints: dict[str, Callable[[Request], Any]] = {
        "runs": runs,
        "divergence": runs_diverge,
        "colours": lambda request: _json(page_documents.colours()),
        "explain": lambda request: _json(page_of(_text(request, "code"))),
        "live": live,
    }
    endpoints |= {name: about_a_run(answer) for name, answer in _ABOUT_A_RUN.items()}
    routes = [
        Route("/", _index),
        *(Route(f"/api/{name}", endpoint) for name, endpoint in endpoints.items()),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    compress = Middleware(GZipMiddleware, minimum_size=_COMPRESS_FROM, compresslevel=1)
    app = Starlette(
        routes=routes,
        middleware=[compress],
        exception_handlers={UndertowError: _trouble, FileNotFoundError: _gone, Exception: _mistake},
    )
    return Guard(app, token, hosts)


def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _scale(opened: OpenRun, request: Request) -> Any:
    # A page asks before it knows what the run has: a scale of nothing is no mistake.
    return scale_of(opened.run.reader, _quantity(request, [*QUANTITIES, *opened.run.quantities]))


def _usual(opened: OpenRun, request: Request) -> list[float]:
    return usual_of(opened.run.reader, _quantity(request, opened.run.quantities)).tolist()


def _tile(opened: OpenRun, request: Request) -> Response:
    level = _number(request, "level", 0, DEEPEST)
    index = _number(request, "index", 0, (_FARTHEST >> level) // COLUMNS)
    statistic = known_name(request.query_params.get("statistic", STATISTICS[0]), STATISTICS, "statistic")
    tile = tile_of(opened.run.reader, _quantity(request, opened.run.quantities), level, index, statistic)
    # Sent as it is: noise does not get shorter, and the way is short.
    headers = {"undertow-last-step": str(tile.last_step), "content-encoding": "identity"}
    return Response(tile.codes.astype("<u2").tobytes(), media_type="application/octet-stream", headers=headers)


def _scalar(opened: OpenRun, request: Request) -> dict[str, Any]:
    first, last, columns = _span(request)
    values, steps = opened.run.scalars(_text(request, "name")), opened.run.steps
    inside = slice(*steps.searchsorted([first, last + 1]))
    return page_documents.line(line_of_scalar(steps[inside], values[inside], columns))


def _line(opened: OpenRun, request: Request) -> dict[str, Any]:
    quantity = _quantity(request, opened.run.quantities)
    window = opened.run.reader.window(quantity, *_span(request), [_layer(opened, request)])
    return page_documents.line(line_of_layer(window))


def _density(opened: OpenRun, request: Request) -> dict[str, Any]:
    stream = known_name(_text(request, "stream"), STREAMS, "kind of values")
    return page_documents.density(density_of(opened.run.reader, stream, _layer(opened, request), *_span(request)))


_ABOUT_A_RUN: dict[str, Callable[[OpenRun, Request], Any]] = {
    "run": lambda opened, request: page_documents.described(_text(request, "run"), opened.run),
    "times": lambda opened, request: page_documents.times(opened.run),
    "diagnosis": lambda opened, request: page_documents.diagnosis(opened.run, opened.judged()),
    "flow": lambda opened, request: page_documents.flow(opened.run, opened.judged()),
    "weights": lambda opened, request: weights(opened.run, opened.judged()),
    "scale": _scale,
    "usual": _usual,
    "tile": _tile,
    "scalar": _scalar,
    "line": _line,
    "density": _density,
}


def _json(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def _problem(status: int, code: str | None, problem: str, way_out: str) -> Response:
    return _json({"code": code, "problem": problem, "way_out": way_out}, status)


async def _trouble(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, UndertowError)
    status = 404 if isinstance(problem, UnknownNameError) else 422 if isinstance(problem, UnreadableRunError) else 400
    return _problem(status, problem.code, problem.message, problem.way_out)


async def _gone(request: Request, problem: Exception) -> Response:
    """A run was deleted while it was read."""
    return _problem(404, None, "a file of this run is no longer there", "Look at the list of runs")


async def _mistake(request: Request, problem: Exception) -> Response:
    """One of ours. The page says so and goes on; what `serve` prints has the rest."""
    said = f"Internal error of Undertow: {type(problem).__name__}: {str(problem)[:300]}"
    return _problem(500, None, said, "The other pages may still work; `undertow serve` printed more")


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise SettingError(f"the request lacks {name!r}")
    return value


def _number(request: Request, name: str, least: int, most: int) -> int:
    text = _text(request, name)
    try:
        value = int(text)
    except ValueError:
        raise SettingError(f"{name} is {text[:40]!r}", way_out="It must be a whole number") from None
    if not least <= value <= most:
        raise SettingError(f"{name} is {value}", way_out=f"It must be from {least} to {most}")
    return value


def _span(request: Request) -> tuple[int, int, int]:
    first, last = (_number(request, name, 0, _FARTHEST) for name in ("first", "last"))
    return first, last, _number(request, "columns", 1, _MOST_COLUMNS)


def _layer(opened: OpenRun, request: Request) -> int:
    reader = opened.run.reader
    return reader.layer_id(_number(request, "layer", 0, len(reader.layers) - 1))


def _quantity(request: Request, known: Sequence[str]) -> str:
    return known_name(_text(request, "quantity"), known, "quantity")
