"""The explorer in a real JupyterLab, in a headless Chromium. Needs chromium and chromedriver."""

import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from qe import ROOT, TERMINAL

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PATIENCE = 1000  # milliseconds from the slider to the picture, on a busy machine
# Moves the first slider ten times, each when the picture of the time before is there.
TIMED = """
const done = arguments[0], times = []
const image = document.querySelector('.jp-OutputArea img.widget-image')
const handle = document.querySelector('.jp-OutputArea .noUi-handle')
let start = 0
const move = () => {
  start = performance.now()
  handle.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))
}
image.addEventListener('load', () => {
  times.push(Math.round(performance.now() - start))
  times.length < 10 ? setTimeout(move, 100) : done(times)
})
move()
"""
# Brings the explorer's cell into sight.
EXPLORER = """
const notebook = jupyterapp.shell.currentWidget.content
notebook.activeCellIndex = 4
notebook.scrollToItem(4, 'start')
"""
PICTURE = ".jp-OutputArea img.widget-image"
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1300,1500",
)  # fmt: skip


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab on this folder, which does not ask about news."""
    settings = folder / ".settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", "--allow-root",
         "--ip=127.0.0.1", "--expose-app-in-browser", f"--ServerApp.root_dir={folder}",
         "--IdentityProvider.token=qe"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={k: v for k, v in os.environ.items() if k != TERMINAL}
        | {"JUPYTER_CONFIG_DIR": str(folder / ".config"),
           "JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings")},
    )  # fmt: skip
    try:
        assert process.stderr
        for line in process.stderr:
            if match := re.search(r"http://127\.0\.0\.1:\d+/", line):
                yield match[0]
                break
        else:
            pytest.fail("JupyterLab did not start")
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for word in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(word)
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def see_it_move(folder: Path, screenshot: Path) -> None:
    """Open the notebook, run all cells, move two sliders, press a button; keep a screenshot."""
    shutil.copy(ROOT / "notebooks" / "explore_ensemble.ipynb", folder)
    with lab(folder) as address, browser(folder / ".browser") as page:
        wait = WebDriverWait(page, 90, ignored_exceptions=[NoSuchElementException])
        page.get(f"{address}lab/tree/explore_ensemble.ipynb?token=qe")
        ready = (
            "return window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
            " === 'idle'"
        )
        wait.until(lambda _: page.execute_script(ready))
        page.execute_script("jupyterapp.commands.execute('runmenu:run-all')")

        def shown() -> str:
            found = page.find_elements(By.CSS_SELECTOR, PICTURE)
            return found[0].get_attribute("src") or "" if found else ""

        last = "return jupyterapp.shell.currentWidget.content.widgets.at(-1).model.executionCount"
        wait.until(lambda _: page.execute_script(last))
        page.execute_script(EXPLORER)  # Lab draws only cells in sight
        wait.until(lambda _: shown())
        seen = [shown()]

        def changed() -> None:
            wait.until(lambda _: shown() not in ("", seen[-1]))
            seen.append(shown())

        handles = page.find_elements(By.CSS_SELECTOR, ".jp-OutputArea .noUi-handle")
        step, lam = handles[0], handles[1]
        step.send_keys(Keys.PAGE_UP)
        changed()
        for _ in range(3):
            lam.send_keys(Keys.PAGE_UP)
            changed()
        buttons = page.find_elements(By.CSS_SELECTOR, ".jp-OutputArea button.jupyter-button")
        buttons[-1].click()
        changed()
        assert len(set(seen)) == len(seen) == 6
        times = page.execute_async_script(TIMED)
        print(f"From the slider to the picture: {sorted(times)} ms")
        assert statistics.median(times) < PATIENCE
        for title in ("step: ", "lambda: ", "T: ", "rho: ", "head: ", "go to step "):
            assert page.find_elements(By.CSS_SELECTOR, f".jp-OutputArea [title^='{title}']"), title
        outputs = page.execute_script(
            "return jupyterapp.shell.currentWidget.content.widgets.flatMap("
            "c => c.model.outputs?.toJSON() ?? []).map(o => o.output_type)"
        )
        assert "error" not in outputs and outputs.count("display_data") >= 2
        page.find_element(By.CSS_SELECTOR, ".jp-OutputArea .widget-vbox").screenshot(
            str(screenshot)
        )
        assert not page.find_element(By.CSS_SELECTOR, ".qe-still").is_displayed()

        # Opened again, with another kernel: the last picture, and no complaint.
        for promise in (
            "commands.execute('docmanager:save')",
            "serviceManager.sessions.shutdownAll()",
        ):
            page.execute_async_script(f"jupyterapp.{promise}.then(arguments[0])")
        page.get("about:blank")
        page.get(f"{address}lab/tree/explore_ensemble.ipynb?token=qe&reset")
        wait.until(lambda _: page.execute_script(ready))
        page.execute_script(EXPLORER)
        wait.until(lambda _: page.find_element(By.CSS_SELECTOR, ".qe-still img").is_displayed())
        wait.until(lambda _: "model not found" in page.page_source)
        assert "model not found" not in page.find_element(By.TAG_NAME, "body").text
        page.save_screenshot(str(screenshot.with_stem("reopened")))


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed")
def test_the_explorer_in_jupyterlab(tmp_path):
    see_it_move(tmp_path, tmp_path / "explorer.png")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        see_it_move(Path(place), Path(sys.argv[1]).resolve())
