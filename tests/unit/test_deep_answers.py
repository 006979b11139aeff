"""An endpoint that answers with lists in lists: one sentence, not the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

SCRIPT = """
import sys
from vgame.errors import EndpointError
from vgame.game.chain import Chain
try:
    Chain(sys.argv[1])
except EndpointError as error:
    print(error)
"""


class Deep(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"[" * 10**6
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_lists_in_lists() -> None:
    with HTTPServer(("127.0.0.1", 0), Deep) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        run = subprocess.run([sys.executable, "-c", SCRIPT, url], capture_output=True, text=True, timeout=120)
        server.shutdown()
    assert run.returncode == 0 and "answers what cannot be read" in run.stdout, (run.returncode, run.stdout)
