"""Drives the dashboard in a headless Chromium: it renders, updates under load, its playground answers, and the console has no error.

    python3 gateway/tests/dashboard.py [http://127.0.0.1:8080/] [--screenshot docs/assets/dashboard.png] [--wait 30]
    python3 gateway/tests/dashboard.py http://127.0.0.1:8080/ --frames 20

The second one measures the frames per second of the page, for example beside `http_cost dashboard 1000 8 60`, which prints its address.
Needs a Chromium (`--browser`) and the package `websockets`. Without an address it serves the digits and sends them requests itself.
"""

import argparse
import base64
import contextlib
import json
import re
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from served import Served
from websockets.sync.client import connect

# What an image of the digits could be: the playground sends tensors as JSON.
TENSORS = json.dumps([{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": [0.5] * 64}])


class Page:
    """A page of a browser, by the DevTools protocol."""

    def __init__(self, socket):
        self.socket, self.number, self.errors = socket, 0, []

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            self.note(answer)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        if event.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(params["args"])
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"])

    def value(self, session, expression):
        answer = self.call("Runtime.evaluate", session, expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def until(self, session, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.value(session, expression):
                return
            time.sleep(0.2)
        raise SystemExit(f"never true: {expression}; the page says {self.value(session, 'document.body.innerText')[:2000]}")


# Frames of a page for some seconds, and the tasks that kept it from drawing for over 50 ms (the Long Tasks API).
FRAMES = """new Promise(resolve => {
  const times = [], tasks = [];
  new PerformanceObserver(list => tasks.push(...list.getEntries().map(task => task.duration))).observe({type: 'longtask'});
  const draw = now => {
    times.push(now);
    if (now - times[0] < SECONDS * 1000) return requestAnimationFrame(draw);
    const gaps = times.slice(1).map((time, index) => time - times[index]).sort((a, b) => a - b);
    resolve({
      per_s: gaps.length / (now - times[0]) * 1000, late: gaps.filter(gap => gap > 25).length, longest_ms: gaps.at(-1),
      frames: gaps.length, long_tasks_ms: tasks,
    });
  };
  requestAnimationFrame(draw);
})"""


@contextlib.contextmanager
def loaded_digits():
    """The address of served digits, which get some requests a second."""
    served, ended = Served("examples/digits/app.toml"), threading.Event()
    address = f"http://{served.address}/"
    body = json.dumps({"inputs": json.loads(TENSORS)}).encode()

    def ask():
        while not ended.wait(0.05):
            request = urllib.request.Request(address + "v2/models/digits/infer", body, {"content-type": "application/json"})
            # A busy machine may be late: the dashboard is what is tested.
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()

    load = threading.Thread(target=ask)
    load.start()
    try:
        yield address
    finally:
        ended.set()
        load.join()
        served.stop()


def tiles(page, session):
    """Looks at the facts, the wiring and the playground of the digits."""
    fact = "(name => { const d = [...$('now').children].find(d => d.firstChild.innerText === name); return d && d.lastChild.innerText; })"
    page.until(session, f"{fact}('p50 at the ingresses').endsWith('s') && {fact}('p50 through this gateway').endsWith('s')")
    # The plan of the digits states no accuracy, and its variants have no price.
    page.until(session, f"!{fact}('money per request') && !{fact}('planned accuracy') && {fact}('epoch') === '1'")
    # A latency of ten seconds ago is none of now.
    old = "{ ...all, history: all.history.map(p => ({ ...p, p50_s: null, p99_s: null })) }"
    page.until(session, f"(show({old}), {fact}('p50 through this gateway') === '-')")
    older = f"({{ ...{old}, history: [{{ ...all.history[0], p50_s: 9 }}, ...Array(9).fill({{ ...all.history[0], p50_s: null }})] }})"
    page.until(session, f"(show({older}), {fact}('p50 through this gateway') === '-')")
    page.until(session, "/^\\d+ replicas?: .*; 1 ingress$/.test($('counts').innerText)")
    page.until(session, "$('mode').value === 'image' && $('iname').value === 'image' && $('ishape').value === '1, 8, 8'")
    # The data of a large tensor took the page's memory, or an error that kept it from following the app.
    large = "[{ name: $('app').value, inputs: [{ name: 'x', datatype: 'FP32', shape: [65536, 65536] }] }]"
    suggested = f"(before => {{ served = {large}; suggest(); const said = $('words').value; served = before; suggest(); return said; }})(served)"
    page.until(session, f"{suggested}.endsWith('\"data\":[]}}]')")
    wide = "(n => { const s = [...Array(n).keys()].map(i => ({ name: 's' + i, variant: 'v' + i })); $('wiring').replaceChildren(wiring({ stages: s, edges: [] }, {})); const box = $('wiring').parentElement; return box.scrollWidth <= box.clientWidth; })(4)"
    page.until(session, wide)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", help="the dashboard [default: that of the digits, served for the test]")
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--screenshot", type=Path)
    parser.add_argument("--wait", type=float, default=0, help="seconds before the screenshot, for a longer history")
    parser.add_argument("--frames", type=float, help="measure the frames for so many seconds, and nothing else")
    arguments = parser.parse_args()
    with loaded_digits() if arguments.address is None else contextlib.nullcontext(arguments.address) as address:
        drive(address, arguments)


def drive(address, arguments):
    """Opens the dashboard at an address and looks at it."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder.name}"]
    browser = subprocess.Popen([arguments.browser, *flags, "about:blank"], stderr=subprocess.PIPE, text=True)
    try:
        found = next(filter(None, (re.search(r"ws://\S+", line) for line in browser.stderr)))
        with connect(found.group(0), max_size=None) as socket:
            page = Page(socket)
            target = page.call("Target.createTarget", url="about:blank", newWindow=True, width=1280, height=1500)["targetId"]
            session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                page.call(f"{domain}.enable", session)
            page.call("Page.navigate", session, url=address)
            if arguments.frames:
                return frames(page, session, arguments.frames)
            page.until(session, "document.querySelectorAll('#wiring rect').length > 0")
            page.until(session, "Number(document.body.dataset.updates || 0) >= 3")
            # Updates say what has changed: the page must still know the rest.
            page.until(session, "all.history.length > 3 && all.replicas.rows.length > 0")
            page.until(session, "$('now').innerText.includes('p99 through this gateway')")
            if arguments.address is None:
                tiles(page, session)
            if arguments.address is None:
                page.until(session, "all.snapshot.ingresses.answered_per_s > 1")
            page.value(session, "$('list').open = true")
            page.until(session, "document.querySelectorAll('#replicas tbody tr').length > 0")
            page.value(session, "$('list').open = false")
            page.value(session, f"$('mode').value = 'tensors'; $('words').value = {json.dumps(TENSORS)}; $('play').requestSubmit();")
            page.until(session, "document.querySelector('#answer ol.way li') !== null")
            print("the playground says", page.value(session, "$('answer').innerText.slice(0, 120)"))
            time.sleep(arguments.wait)
            if arguments.screenshot:
                page.value(session, "$('words').value = $('words').value.slice(0, 200);")
                shot = page.call("Page.captureScreenshot", session, format="png")
                arguments.screenshot.write_bytes(base64.b64decode(shot["data"]))
            updates = page.value(session, "document.body.dataset.updates")
            if page.errors:
                raise SystemExit(f"the console has errors: {page.errors}")
            print(f"{updates} updates, no error on the console")
    finally:
        browser.kill()


def frames(page, session, seconds):
    """Prints the frames per second, with the list of replicas closed and open."""
    page.until(session, "Number(document.body.dataset.updates || 0) >= 3")
    for shown in ("closed", "open"):
        page.value(session, f"$('list').open = {json.dumps(shown == 'open')}")
        updates = int(page.value(session, "document.body.dataset.updates"))
        found = page.value(session, FRAMES.replace("SECONDS", str(seconds)))
        updates = int(page.value(session, "document.body.dataset.updates")) - updates
        replicas = page.value(session, "all.replicas.rows.length")
        print(json.dumps({"name": "frames", "list": shown, "replicas": replicas, "updates": updates, **found}))


if __name__ == "__main__":
    main()
