"""Has Chromium compile shaders, headless and on SwiftShader; the page posts what it finds to a server."""

from __future__ import annotations

import dataclasses
import http.server
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping

TIMEOUT_S = 120
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--no-first-run",
    "--disable-extensions",
    "--remote-debugging-port=0",  # keeps a headless browser open
)
_PAGE = """<!doctype html><script>
async function check(device, source, entryPoint) {
  device.pushErrorScope('validation');
  const module = device.createShaderModule({code: source});
  const messages = (await module.getCompilationInfo()).messages;
  const errors = messages.filter(m => m.type == 'error').map(m => `${m.lineNum}: ${m.message}`);
  try {
    await device.createComputePipelineAsync({layout: 'auto', compute: {module, entryPoint}});
  } catch (error) { errors.push(String(error)); }
  const scoped = await device.popErrorScope();
  if (scoped && !errors.length) errors.push(scoped.message);
  return errors.join('; ');
}
async function run() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return {unavailable: 'Chromium finds no adapter'};
  const requiredLimits = {};
  for (const name in adapter.limits) requiredLimits[name] = adapter.limits[name];
  const device = await adapter.requestDevice({requiredLimits});
  const shaders = await (await fetch('/shaders')).json();
  const found = {};
  for (const name in shaders) found[name] = await check(device, ...shaders[name]);
  return {found};
}
run().catch(error => ({failed: String(error)})).then(
  result => fetch('/result', {method: 'POST', body: JSON.stringify(result)}));
</script>"""


@dataclasses.dataclass(frozen=True)
class Shader:
    source: str
    entry_point: str = "main"


class ChromiumUnavailableError(Exception):
    """There is no Chromium, or no adapter in it."""


def refused(shaders: Mapping[str, Shader]) -> dict[str, str]:
    """What Chromium says of the shaders that it refuses, by name.

    Raises:
        ChromiumUnavailableError
    """
    browser = shutil.which("chromium")
    if browser is None:
        raise ChromiumUnavailableError("needs chromium")
    results: queue.Queue[dict[str, object]] = queue.Queue()
    body = json.dumps({name: [shader.source, shader.entry_point] for name, shader in shaders.items()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(body.encode(), results))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            url = f"http://127.0.0.1:{server.server_port}/"
            process = subprocess.Popen(
                [browser, *_FLAGS, f"--user-data-dir={profile}", url],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                answer = results.get(timeout=TIMEOUT_S)
            finally:
                process.terminate()
                process.wait()
    finally:
        server.shutdown()
        server.server_close()
    if "unavailable" in answer:
        raise ChromiumUnavailableError(answer["unavailable"])
    found = answer.get("found")
    assert isinstance(found, dict), answer
    assert found.keys() == shaders.keys()
    return {name: text for name, text in found.items() if text}


def _handler(
    shaders: bytes, results: queue.Queue[dict[str, object]]
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"
            self._answer(
                _PAGE.encode() if is_page else shaders, "text/html" if is_page else "application/json"
            )

        def do_POST(self) -> None:
            results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"", "text/plain")

        def _answer(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    return Handler
