"""The dashboard as a process: where it listens, and the address that it prints."""

import socket
from pathlib import Path

import uvicorn

from undertow.errors import SettingError
from undertow.show.web.allocation import give_back_large_arrays
from undertow.show.web.app import build_app
from undertow.show.web.guard import LOOPBACK, new_token
from undertow.show.web.patience import LONGEST_HEAD, PatientProtocol

PORT = 7007
_TRIES = 20  # ports that are tried one after another when none was asked for
_CONNECTIONS = 128
_EVERYWHERE = ("0.0.0.0", "::")


class Dashboard:
    """Listens from the moment it is made, so that its address is true before it is printed."""

    def __init__(self, root: Path, host: str, port: int | None, hosts: tuple[str, ...] = ()) -> None:
        self.token = new_token()
        self._socket = _listen(host, port)
        everywhere = host in _EVERYWHERE
        self._host = socket.gethostname() if everywhere else host
        self._app = build_app(root, self.token, (*LOOPBACK, host, *(_own_names() if everywhere else ()), *hosts))

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def address(self, page: str = "") -> str:
        """To copy by hand: good as long as the dashboard runs."""
        return f"{self._base()}?token={self.token}{page}"

    def address_for_once(self, page: str = "") -> str:
        """For a browser's command line, which every user of the machine can read: worthless once it was opened."""
        return f"{self._base()}?code={self._app.new_code()}{page}"

    def _base(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/"

    def serve(self) -> None:
        """Until interrupted."""
        give_back_large_arrays()
        config = uvicorn.Config(
            self._app,
            http=PatientProtocol,
            h11_max_incomplete_event_size=LONGEST_HEAD,
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=1,
            lifespan="off",
            ws="none",
        )
        uvicorn.Server(config).run(sockets=[self._socket])


def _own_names() -> set[str]:
    """What others may call this machine; further names are for `--allow-host`."""
    name = socket.gethostname()
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    except OSError:
        addresses = set[str]()
    return {name, *addresses}


def _listen(host: str, port: int | None) -> socket.socket:
    wanted = [port] if port is not None else [*range(PORT, PORT + _TRIES), 0]
    problem: OSError | None = None
    for one in wanted:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, one))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            problem = error if isinstance(error, OSError) else OSError(str(error))
            continue
        return listener
    raise SettingError(
        f"cannot listen on {host}, port {port if port is not None else PORT}: {problem}",
        way_out="Give another --port, or none to have a free one chosen",
    )
