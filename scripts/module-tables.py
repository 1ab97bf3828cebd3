"""Finds modules that the table of their parent's documentation does not name.

    python3 scripts/module-tables.py

Prints them, and exits with 1 if there are any. Files without a table do not count, nor do modules of tests.
"""

import re
import subprocess
import sys
from pathlib import Path

MODULE = re.compile(r"^(?:pub(?:\([^)]*\))? )?mod (\w+);")


def missing(text):
    lines = text.splitlines()
    table = "\n".join(line for line in lines if line.startswith("//!"))
    if not re.search(r"^//! \| modules? \|", table, re.MULTILINE):
        return []
    attributes, names = "", []
    for line in lines:
        if line.startswith("#["):
            attributes += line
            continue
        if (module := MODULE.match(line)) and "test" not in attributes + module[1]:
            names.append(module[1])
        attributes = ""
    return [name for name in names if not re.search(rf"[`:]{name}\b", table)]


found = False
for file in subprocess.check_output(["git", "ls-files", "*.rs"], text=True).splitlines():
    for name in missing(Path(file).read_text(encoding="utf-8")) if Path(file).exists() else []:
        print(f"{file}: the table does not name `{name}`")
        found = True
sys.exit(found)
