"""Headless Chromium shared by all environments of a process, with one tab per environment."""

import atexit
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from threading import RLock
from typing import Any, ClassVar

from gym_trl.errors import ConfigError

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Run background tabs at full speed.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)
_CHROMIUM, _DRIVER = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)
_LIMIT = 30
"""Maximum seconds of a browser command."""
_LOADED = "return document.readyState === 'complete' && location.href !== 'about:blank';"
# Script of a watchdog that cleans up after a killed process, whose end of the pipe closes when it dies.
_WATCH = """
import shutil, sys, psutil
sys.stdin.read()
try:
    driver = psutil.Process(int(sys.argv[1]))
    for process in [driver, *driver.children(recursive=True)]:
        process.kill()
except psutil.Error:
    pass
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class Tab:
    """Tab of the process's browser, which starts with the first tab and ends with the last one.

    ::

        tab = Tab()
        with tab as driver:  # selenium's, with this tab in front; other threads wait
            driver.get("about:blank")
        tab.close()

    Open tabs and the browser end with the interpreter, even if it is killed.

    Raises:
        ConfigError: Chromium or chromedriver is not on the path.
    """

    _lock: ClassVar[Any] = RLock()
    _driver: ClassVar[Any] = None
    _home: ClassVar[str] = ""
    _profile: ClassVar[str] = ""
    _watch: ClassVar[Any] = None
    _open: ClassVar[set["Tab"]] = set()

    def __init__(self) -> None:
        with Tab._lock:
            try:
                Tab._new()
            except Exception:  # the browser is gone, which can raise various exceptions
                if Tab._driver is None:
                    raise
                Tab._end()
                Tab._new()
            self._of = Tab._driver
            self._handle = self._of.current_window_handle
            Tab._open.add(self)

    def __enter__(self) -> Any:
        """Lock the browser until the end of the ``with`` block, and return its driver with this tab in front."""
        Tab._lock.acquire()
        try:
            self._of.switch_to.window(self._handle)
        except BaseException:
            Tab._lock.release()
            raise
        return self._of

    def __exit__(self, *raised: object) -> None:
        Tab._lock.release()

    def load(self, url: str) -> None:
        """Show a page, and wait until all of it is loaded.

        Raises:
            TimeoutException: It is not loaded within 30 seconds; Selenium's.
        """
        from selenium.webdriver.support.wait import WebDriverWait

        with self as driver:
            driver.get(url)
            # chromedriver can return early: it takes the end of the new tab's empty page for the end of this one.
            WebDriverWait(driver, _LIMIT, 0.02).until(lambda driver: driver.execute_script(_LOADED))

    def close(self) -> None:
        """Close the tab, and the browser if it was the last one."""
        with Tab._lock:
            if self not in Tab._open:
                return
            Tab._open.discard(self)
            if not Tab._open:
                Tab._end()
            else:
                with suppress(Exception), self as driver:  # the browser may be gone
                    driver.close()

    @classmethod
    def _new(cls) -> None:
        if cls._driver is None:
            cls._start()
        cls._driver.switch_to.window(cls._home)  # the current tab may be closed, from which no tab can be opened
        cls._driver.switch_to.new_window("tab")
        # Focus events must fire in this tab even if another one is in front.
        cls._driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})

    @classmethod
    def _start(cls) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location, service = _program(_CHROMIUM), Service(_program(_DRIVER))
        options.unhandled_prompt_behavior = "dismiss"
        cls._profile = tempfile.mkdtemp(prefix="gym-trl-browser-")
        for flag in (*_FLAGS, f"--user-data-dir={cls._profile}"):
            options.add_argument(flag)
        try:
            cls._driver = webdriver.Chrome(options=options, service=service)
        except BaseException:
            shutil.rmtree(cls._profile, ignore_errors=True)
            raise
        cls._watch = subprocess.Popen(  # noqa: S603 -- this interpreter, and names of our own
            [sys.executable, "-c", _WATCH, str(cls._driver.service.process.pid), cls._profile],
            stdin=subprocess.PIPE,
            start_new_session=True,  # it must not receive Ctrl-C
        )
        cls._home = cls._driver.current_window_handle
        atexit.register(cls._end)
        cls._driver.set_page_load_timeout(_LIMIT)
        cls._driver.set_script_timeout(_LIMIT)
        cls._driver.command_executor.client_config.timeout = 2 * _LIMIT

    @classmethod
    def _end(cls) -> None:
        import psutil

        driver, cls._driver = cls._driver, None
        cls._open.clear()
        if driver is None:
            return
        tree: list[Any] = []
        with suppress(psutil.Error):
            top = psutil.Process(driver.service.process.pid)
            tree = [top, *top.children(recursive=True)]
        with suppress(Exception):  # processes that remain are killed below
            driver.quit()
        for process in psutil.wait_procs(tree, timeout=3)[1]:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(tree, timeout=3)
        cls._watch.kill()
        cls._watch.communicate()
        shutil.rmtree(cls._profile, ignore_errors=True)


def _program(names: tuple[str, ...]) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise ConfigError(f"there is no {names[0]} on the path: apt-get install chromium chromium-driver")
