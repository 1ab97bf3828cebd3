"""`kaskade serve` for the tests that speak to a gateway."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A chat of one small model: its answer ends at the first space.
CHAT = """
name = "chat"
task = "generation"
plan = { single = "pico" }
slo = { p95 = "2s" }

[[variants]]
name = "pico"
dir = "pico"

[generation]
max_tokens = 64
stop = [" "]
"""

TEMPLATE = "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}\n{% endif %}{% for message in messages[-3:] %}{{ message['role'] | upper }}:\n{{ message['content'][-60:] }}\n{% endfor %}ASSISTANT:\n"


class Served:
    """`kaskade serve` of an app, until `stop`."""

    def __init__(self, app, *options):
        command = [os.environ["KASKADE_BIN"], "serve", "--app", str(ROOT / app), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.address = None
        for line in self.process.stderr:
            found = re.search(r"gateway at https?://([\d.:]+):", line)
            self.address = found.group(1) if found else self.address
            if "send a request" in line:
                return
        raise SystemExit(f"{app} is not served")

    def stop(self):
        self.process.terminate()
        rest = self.process.stderr.read()
        self.process.stderr.close()
        if self.process.wait() != 0:
            raise SystemExit(f"the program failed: {rest}")


class Chat(Served):
    """A language model with a chat template; the weights are those of examples/shakespeare."""

    def __init__(self, app=CHAT):
        self.folder = Path(tempfile.mkdtemp())
        shutil.copytree(ROOT / "examples/shakespeare/weights/shakespeare-pico", self.folder / "pico")
        (self.folder / "pico/chat_template.jinja").write_text(TEMPLATE)
        (self.folder / "app.toml").write_text(app)
        super().__init__(self.folder / "app.toml")

    def stop(self):
        super().stop()
        shutil.rmtree(self.folder)
