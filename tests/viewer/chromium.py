"""A real Chromium that displays pages."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 60.0
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Look:
    """Page in Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page and wait until it shows its run."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.until("document.documentElement.dataset.episodes !== undefined")

    def go(self, hash_: str, until: str) -> None:
        """Follow one of the page's own addresses."""
        self.js(f"location.hash = {json.dumps(hash_)}")
        self.until(until)

    def js(self, expression: str) -> Any:
        """Return the value of an expression."""
        return self.driver.execute_script(f"return ({expression})")

    def until(self, expression: str) -> None:
        """Wait for an expression to be true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.js(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true on\n{self.js('document.body.innerText')[:2000]}")
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the matching elements."""
        texts: list[str] = self.js(
            f"[...document.querySelectorAll({json.dumps(selector)})].filter((one) => !one.hidden)"
            ".map((one) => one.textContent)"
        )
        return texts

    def keys(self, *keys: str) -> None:
        """Press keys, as a person would."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()

    def click(self, selector: str) -> None:
        """Click the matching element."""
        self.driver.find_element("css selector", selector).click()

    def complaints(self) -> list[str]:
        """Return the browser console's messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def chromium(*switches: str) -> Iterator[Look]:
    """Provide a separate Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for switch in (*SWITCHES, "--window-size=1400,900", f"--user-data-dir={profile}", *switches):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_page_load_timeout(PATIENCE_S)
            driver.set_script_timeout(PATIENCE_S)
            yield Look(driver)
        finally:
            driver.quit()
