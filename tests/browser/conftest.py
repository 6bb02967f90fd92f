"""A JupyterLab, a Chromium and notebooks for the tests in here; skipped where there are none.

With VQKIT_REQUIRE_BROWSER set they fail instead. Pictures go to the folder VQKIT_SHOTS names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_lab import Lab, Notebook, browsing, missing, serving

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Of the module, not of the session: other tests are not to share their time with it."""
    if (why := missing()) is not None:
        if os.environ.get("VQKIT_REQUIRE_BROWSER"):
            pytest.fail(f"browser tests are required here, but this machine is {why}")
        pytest.skip(why)
    with serving(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="module")
def browser(lab: Lab) -> Iterator[BrowserContext]:
    """Of the module: while it is open, Playwright's event loop runs in this thread."""
    with browsing() as browser:
        yield browser


@pytest.fixture
def open_notebook(
    lab: Lab, browser: BrowserContext, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Notebook]]:
    """``open_notebook(cells)``: a notebook in a folder of its test's own, open in a page."""
    opened: list[Notebook] = []

    def open_notebook(cells: Sequence[str], **size: int) -> Notebook:
        path = lab.root / request.node.name / f"notebook{len(opened) + 1}.ipynb"
        opened.append(Notebook(browser, lab, path, cells, **size))
        return opened[-1]

    yield open_notebook
    if getattr(request.node, "has_failed", False):
        for number, notebook in enumerate(opened, 1):
            shot = shots_folder(lab) / f"failed-{request.node.name}-{number}.png"
            notebook.page.screenshot(path=shot)
            print(f"picture: {shot}; faults on the page: {notebook.errors}")  # noqa: T201
    for notebook in opened:
        notebook.close()
    lab.end_kernels()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.has_failed = report.failed  # type: ignore[attr-defined]
    return report


def shots_folder(lab: Lab) -> Path:
    folder = Path(os.environ.get("VQKIT_SHOTS", lab.root.parent / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def shoot(lab: Lab) -> Callable[[Any, str], Path]:
    """``shoot(what, name)``: a picture of a page or a part of it, kept."""

    def shoot(what: Any, name: str) -> Path:
        path = shots_folder(lab) / f"{name}.png"
        what.screenshot(path=path)
        return path

    return shoot
