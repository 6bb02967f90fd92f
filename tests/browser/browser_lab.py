"""A private JupyterLab in headless Chromium: its server, its pages, and waiting for both.

Nothing here sleeps for a fixed time. Whether a kernel is connected and idle is asked of
JupyterLab's own objects, because the page shows "idle" a second too early, and "Run All" then
runs the first cell only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import nbformat

import vqkit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page

Wait = Callable[..., None]

PATIENCE_S = 60.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("jupyterlab", "playwright", "axe_playwright_python")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


def missing() -> str | None:
    """Why there can be no browser tests here; None where nothing is missing."""
    packages = [name for name in PACKAGES if find_spec(name) is None]
    if packages:
        return f"without {', '.join(packages)}: pip install -e '.[browser]'"
    if chromium() is None:
        return "without Chromium: apt-get install chromium"
    return None


def chromium() -> str | None:
    """The system's own Chromium; none is downloaded."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@dataclass(frozen=True)
class Lab:
    """A JupyterLab server on the loopback; `root` is the folder it shows."""

    url: str
    token: str
    root: Path

    def call(self, method: str, path: str) -> Any:
        """Asks the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            body = reply.read()
        return json.loads(body) if body else None

    def end_kernels(self) -> None:
        """Ends every kernel, so that none is at work while the next test looks."""
        for kernel in self.call("GET", "/api/kernels"):
            self.call("DELETE", f"/api/kernels/{kernel['id']}")


@contextmanager
def serving(folder: Path) -> Iterator[Lab]:
    """A JupyterLab that reads nothing of the user's configuration and writes below `folder`."""
    root, home, token = folder / "root", folder / "home", token_hex(16)
    root.mkdir(parents=True)
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    kinds = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
    folders = {f"JUPYTER_{kind}".replace("R_LAB", "RLAB"): str(home / kind) for kind in kinds}
    folders["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    env = {
        **os.environ,
        **folders,
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_TOKEN": token,
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": str(Path(vqkit.__file__).parent.parent),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={root}"),
        *("--expose-app-in-browser", "--LabApp.news_url=", "--LabApp.extension_manager=readonly"),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            command, env=env, cwd=root, stdout=log, stderr=log, start_new_session=True
        )
    try:
        lab = Lab(_url_of(server, home), token, root)
        yield lab
        lab.end_kernels()
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _url_of(server: subprocess.Popen[bytes], home: Path) -> str:
    """Where the server listens: it chose a free port and wrote it down."""

    def written() -> str | None:
        assert server.poll() is None, (home / "log").read_text(encoding="utf-8")[-3000:]
        for path in (home / "RUNTIME_DIR").glob("jpserver-*.json"):
            text = path.read_text(encoding="utf-8")
            return str(json.loads(text)["url"]).rstrip("/") if text else None
        return None

    return str(until(written))


@contextmanager
def browsing() -> Iterator[BrowserContext]:
    """A Chromium without a window. Its pages share a cache: JupyterLab is large."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield browser.new_context()
        finally:
            browser.close()


class Notebook:
    """A notebook in a page of its own. Its cells are counted from 0, all of them code."""

    def __init__(
        self,
        browser: BrowserContext,
        lab: Lab,
        path: Path,
        cells: Sequence[str],
        *,
        width: int = 1280,
        height: int = 1000,
    ) -> None:
        made = [nbformat.v4.new_code_cell(cell) for cell in cells]
        spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": spec}), path)
        self.path, self.folder, self._lab = path, path.parent, lab
        self.page: Page = browser.new_page()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.open()

    def close(self) -> None:
        """Closes the page; the kernel goes on."""
        self.page.close()

    def open(self) -> None:
        """Opens the page, or loads it anew, and waits for the kernel."""
        name = self.path.relative_to(self._lab.root).as_posix()
        self.page.goto(f"{self._lab.url}/doc/tree/{name}?reset&token={self._lab.token}")
        self.when("() => window.jupyterapp?.shell?.currentWidget?.content?.widgets?.length > 0")
        self.page.evaluate("() => { window.vq = { ended: {}, begun: 0 } }")
        self.when_idle()

    # -- waiting -------------------------------------------------------------------------------

    def when(self, predicate: str, arg: Any = None, patience_s: float = PATIENCE_S) -> None:
        """Waits until the page says so. `predicate` must be synchronous: a promise is true."""
        self.page.wait_for_function(predicate, arg=arg, timeout=patience_s * 1000)

    def when_idle(self) -> None:
        """Waits until the kernel is really connected, and idle."""
        self.when(
            """() => {
                const context = window.jupyterapp.shell.currentWidget.context.sessionContext;
                const kernel = context.session?.kernel;
                return !!(context.isReady && kernel?.connectionStatus === 'connected'
                          && kernel.status === 'idle');
            }"""
        )

    # -- doing -----------------------------------------------------------------------------------

    def command(self, name: str, **arguments: Any) -> Wait:
        """Gives JupyterLab a command; returns a function that waits for its end."""
        begun = self.page.evaluate(
            """([name, arguments_]) => {
                const vq = window.vq, begun = ++vq.begun;
                const end = () => { vq.ended[begun] = true };
                window.jupyterapp.commands.execute(name, arguments_).then(end, end);
                return begun;
            }""",
            [name, arguments],
        )
        return partial(self.when, "(begun) => !!window.vq.ended[begun]", begun)

    def begin(self, *cells: int) -> Wait:
        """Runs these cells, or all; returns a function that waits for their end."""
        if not cells:
            return self.command("notebook:run-all-cells")
        self.page.evaluate(
            """([first, last]) => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = first;
                notebook.deselectAll();
                if (last > first) notebook.extendContiguousSelectionTo(last);
            }""",
            [cells[0], cells[-1]],
        )
        return self.command("notebook:run-cell")

    def run(self, *cells: int, patience_s: float = PATIENCE_S) -> None:
        """Runs these cells, or all, waits for their end, and wants no error."""
        self.begin(*cells)(patience_s=patience_s)
        for cell in cells or range(len(self.prompts())):
            raised = self.output(cell).locator('[data-mime-type="application/vnd.jupyter.stderr"]')
            assert not raised.count(), raised.all_inner_texts()

    def interrupt(self) -> None:
        """Interrupts the kernel, as the menu does."""
        self.command("kernelmenu:interrupt")

    def restart(self) -> None:
        """Restarts the kernel, as the menu does, and waits for the new one."""
        end = self.command("kernelmenu:restart")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        end()
        self.when_idle()

    def end_kernel(self) -> None:
        """Ends the kernel for good: what is opened next has a new one."""
        self._lab.end_kernels()

    def theme(self, name: str) -> None:
        """Shows the page in another theme, "Light" or "Dark"."""
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")()
        is_light = str(name == "Light").lower()
        self.when("(is_light) => document.body.dataset.jpThemeLight === is_light", is_light)

    # -- looking -----------------------------------------------------------------------------------

    def output(self, cell: int) -> Locator:
        """What stands below a cell."""
        return self.page.locator(".jp-CodeCell").nth(cell).locator(".jp-Cell-outputWrapper")

    def shown(self, cell: int) -> Locator:
        """The last thing that a cell shows, without what stands left of it."""
        return self.output(cell).locator(".jp-OutputArea-output").last

    def text(self, cell: int) -> str:
        """What stands below a cell, as a person reads it."""
        return self.output(cell).inner_text().strip()

    def prompts(self) -> list[str]:
        """What stands before the cells: "[1]:" of one that has run, "[*]:" while it does."""
        return self.page.locator(".jp-CodeCell .jp-InputArea-prompt").all_inner_texts()


class Board:
    """The dashboard of a page, as a person sees it."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.root: Locator = notebook.page.locator(".vq-dash:visible")

    @property
    def headline(self) -> str:
        return self.root.locator(".vq-headline").inner_text()

    @property
    def state(self) -> str:
        return self.root.locator(".vq-chip").inner_text()

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=re.compile(name))

    def shows(self, text: str) -> None:
        """Waits until it says so, somewhere."""
        self.root.get_by_text(text).first.wait_for()

    def is_alone(self) -> bool:
        """True if there is one, and its copy for the saved notebook is not seen."""
        return (
            self.root.count() == 1 and self.notebook.page.locator(".vq-copy:visible").count() == 0
        )


def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Waits for it to be true and returns what it gave."""
    end_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"waited {patience_s:g} s in vain"
        time.sleep(0.01)
    return found
