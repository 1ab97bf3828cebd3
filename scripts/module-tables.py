"""Finds modules that the table of their parent's documentation does not name, and imports against the order of a table.

    python3 scripts/module-tables.py

Prints them, and exits with 1 if there are any. Files without a table do not count, nor do modules of tests. The order counts in a crate
whose documentation says that a folder never imports one below it.
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


ORDERED = "never imports one below it in this table"


def imported(text):
    """Returns the modules at the root of the crate that a file imports, without its tests."""
    code = re.sub(r"//.*", "", text.split("#[cfg(test)]\nmod tests")[0])
    names = set(re.findall(r"\bcrate::(\w+)", code))
    for block in re.findall(r"\buse crate::\{(.*?)\};", code, re.DOTALL):
        while "{" in block:
            block = re.sub(r"\{[^{}]*\}", "", block)
        names |= {part.strip().split("::")[0] for part in block.split(",")}
    return names


def upwards(root):
    """Yields the files of a crate that import a module below their own row, with that module."""
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in root.read_text(encoding="utf-8").splitlines() if line.startswith("//! |")]
    place = {name: number for number, row in enumerate(rows) for name in row}
    for file in sorted(root.parent.rglob("*.rs")):
        own = file.relative_to(root.parent).parts[0].removesuffix(".rs")
        if own in place and "tests" not in file.relative_to(root.parent).with_suffix("").parts:
            for name in sorted(imported(file.read_text(encoding="utf-8"))):
                if place.get(name, -1) > place[own]:
                    yield file, name


found = False
for root in Path().glob("*/src/lib.rs"):
    if ORDERED in root.read_text(encoding="utf-8"):
        for file, name in upwards(root):
            print(f"{file}: imports `{name}`, which is below it in the table of {root}")
            found = True
for file in subprocess.check_output(["git", "ls-files", "*.rs"], text=True).splitlines():
    for name in missing(Path(file).read_text(encoding="utf-8")) if Path(file).exists() else []:
        print(f"{file}: the table does not name `{name}`")
        found = True
sys.exit(found)
