"""Finds files that import each other in a circle.

    python3 scripts/import-circles.py [--all]

A circle must lie in one folder and have at most three files, and there may be at most MAX_CIRCLES of them. The script prints those
that are not, or all with `--all`, and exits with 1 if there are any, or too many. Lower MAX_CIRCLES when a circle is removed. It reads `use` declarations and paths in code as text: an import of a name that a module only hands on
(`pub use`) counts as an import of the file that has it. Modules of tests do not count.
"""

import os
import re
import sys

LARGEST = 3
# Most of them are a parent module and a child that implements methods or a trait of the parent.
MAX_CIRCLES = 40
USE = re.compile(r"(?m)^\s*(#\[cfg\([^\]]*\btest\b[^\]]*\)\]\s*)?(?:(pub)(?:\([^)]*\))? )?use\s+([^;]+);")
MODULE = re.compile(r"((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([^)]*\))? )?mod (\w+);")
PATH_IN_CODE = re.compile(r"(?<!in )\b((?:crate|super)(?:::\w+)+)")
INLINE_TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{.*", re.DOTALL)


def code_of(file):
    """The text of a file without comments and without the tests at its end."""
    with open(file, encoding="utf-8") as opened:
        text = re.sub(r"//[^\n]*", "", opened.read())
    return INLINE_TESTS.sub("", text)


def expanded(path):
    """The single paths of `a::{b, c::{d, e}}`."""
    if "{" not in path:
        return [path.strip()]
    start = path.index("{")
    if "}" not in path:
        return []
    parts, depth, part = [], 0, ""
    for letter in path[start + 1 : path.rindex("}")]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [path[:start].strip() + one for part in [*parts, part] if part.strip() for one in expanded(part.strip())]


class Crate:
    """The modules of a crate, by their paths, with what they import."""

    def __init__(self, root):
        self.files = {}
        self._find((), root, os.path.dirname(root))
        self.code = {module: code_of(file) for module, file in self.files.items()}
        self.uses = {module: self._uses(code) for module, code in self.code.items()}
        self.body = {module: USE.sub("", code) for module, code in self.code.items()}
        self.imports = {module: self._imports(module) for module in self.files}

    def _find(self, module, file, folder):
        self.files[module] = file
        for attributes, name in MODULE.findall(code_of(file)):
            named = re.search(r'path\s*=\s*"([^"]+)"', attributes)
            if "cfg(test)" in attributes:
                continue
            if named:
                places = [os.path.normpath(os.path.join(os.path.dirname(file), named.group(1)))]
            else:
                places = [os.path.join(folder, name + ".rs"), os.path.join(folder, name, "mod.rs")]
            for place in filter(os.path.exists, places):
                self._find((*module, name), place, os.path.join(os.path.dirname(place) if named else folder, name))
                break

    @staticmethod
    def _uses(code):
        """Pairs of a path, and whether it is handed on."""
        found = []
        for in_tests, public, path in USE.findall(code):
            if not in_tests:
                found += [(one, bool(public)) for one in expanded(re.sub(r"\s+", " ", path))]
        return found

    def _absolute(self, module, path):
        """The module at which a path begins, and the rest of it; None for another crate."""
        names = re.sub(r" as \w+$", "", path).split("::")
        if names[0] == "crate":
            return (), names[1:]
        if names[0] == "self":
            return module, names[1:]
        if (*module, names[0]) in self.files:
            return module, names
        if names[0] != "super":
            return None
        while names and names[0] == "super":
            module, names = module[:-1], names[1:]
        return module, names

    def _owner(self, module, names, depth=0):
        """The module that has what a path names; follows what modules hand on."""
        while names and (*module, names[0]) in self.files:
            module, names = (*module, names[0]), names[1:]
        if not names or depth > 6:
            return module
        for path, _ in self.uses[module]:
            renamed = re.search(r" as (\w+)$", path)
            last = renamed.group(1) if renamed else path.split("::")[-1]
            begun = self._absolute(module, path.removesuffix("::*"))
            if begun and last == names[0]:
                return self._owner(begun[0], begun[1] + names[1:], depth + 1)
            if begun and last == "*":
                owner = self._owner(begun[0], begun[1] + names[:1], depth + 1)
                if re.search(rf"\b(struct|enum|trait|fn|const|static|type|mod)\s+{names[0]}\b", self.code[owner]):
                    return owner
        return module

    def _imports(self, module):
        paths = []
        for path, is_public in self.uses[module]:
            last = path.split(" as ")[-1].split("::")[-1]
            is_handed_on = is_public and not re.search(rf"\b{re.escape(last)}\b", self.body[module])
            if not is_handed_on:
                paths.append(path)
        paths += PATH_IN_CODE.findall(self.body[module])
        begun = [begun for begun in (self._absolute(module, path) for path in paths) if begun]
        return {self._owner(*one) for one in begun} - {module}

    def circles(self):
        """Modules that import each other: the strongly connected components of more than one (Tarjan 1972)."""
        order, low, stack, found = {}, {}, [], []

        def visit(module):
            order[module] = low[module] = len(order)
            stack.append(module)
            for other in self.imports[module]:
                if other not in order:
                    visit(other)
                    low[module] = min(low[module], low[other])
                elif other in stack:
                    low[module] = min(low[module], order[other])
            if low[module] == order[module]:
                circle = stack[stack.index(module) :]
                del stack[-len(circle) :]
                if len(circle) > 1:
                    found.append(sorted(circle))

        for module in self.files:
            if module not in order:
                visit(module)
        return found


def is_in_one_folder(circle):
    """Whether each module lies in one folder, or is the one that the folder belongs to."""
    folders = {module[:-1] for module in circle} | set(circle)
    return any(all(module[:-1] == folder or module == folder for module in circle) for folder in folders)


def main():
    sys.setrecursionlimit(10_000)
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    roots = []
    for folder, folders, files in os.walk("."):
        folders[:] = sorted(set(folders) - {".git", "target", "vendor"})
        if os.path.basename(folder) == "src":
            roots += [os.path.normpath(os.path.join(folder, file)) for file in ("lib.rs", "main.rs") if file in files]
    count, bad = 0, 0
    for root in roots:
        crate = Crate(root)
        for circle in crate.circles():
            count += 1
            is_bad = len(circle) > LARGEST or not is_in_one_folder(circle)
            bad += is_bad
            if is_bad or "--all" in sys.argv:
                print(f"{len(circle)} files of {root}:")
                for module in circle:
                    others = sorted("::".join(other) for other in crate.imports[module] if other in circle)
                    print(f"  {crate.files[module]} imports {', '.join(others)}")
    print(f"{count} circles in {len(roots)} crates, {bad} of them over {LARGEST} files or over folders")
    if count > MAX_CIRCLES:
        print(f"at most {MAX_CIRCLES} are allowed; move what both files need to a file below them (`--all` prints all circles)")
    sys.exit(bad > 0 or count > MAX_CIRCLES)


if __name__ == "__main__":
    main()
