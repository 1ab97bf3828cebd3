"""A build backend of the standard library alone, so that `pip install ./sdk/python` needs no network.

It implements PEP 517 and PEP 660 for one pure package in `src/`.
"""

import base64
import hashlib
import io
import stat
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME, VERSION = PROJECT["name"], PROJECT["version"]
PACKAGE = "kaskade"
# The name of files: PEP 427 and PEP 625 allow no hyphen in it.
STEM = f"{NAME.replace('-', '_')}-{VERSION}"
INFO = f"{STEM}.dist-info"
TAG = "py3-none-any"


def _licences():
    """The licences: in the repository's root, or, in an unpacked source archive, beside this file; none in a copy of this folder alone."""
    folder = ROOT if (ROOT / "LICENSE-MIT").exists() else ROOT.parent.parent
    licences = [folder / "LICENSE-APACHE", folder / "LICENSE-MIT"]
    return [path for path in licences if path.exists()]


def _metadata():
    lines = ["Metadata-Version: 2.4", f"Name: {NAME}", f"Version: {VERSION}", f"Summary: {PROJECT['description']}"]
    lines += [f"Requires-Python: {PROJECT['requires-python']}", f"License-Expression: {PROJECT['license']['text']}"]
    lines += [f"License-File: {path.name}" for path in _licences()]
    lines += [f"Classifier: {classifier}" for classifier in PROJECT["classifiers"]]
    lines += [f"Project-URL: {name}, {url}" for name, url in PROJECT["urls"].items()]
    lines += [f"Requires-Dist: {requirement}" for requirement in PROJECT["dependencies"]]
    for extra, requirements in PROJECT["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / PROJECT["readme"]).read_text()]
    return "\n".join(lines)


def _wheel(folder, files):
    files |= {f"{INFO}/licenses/{path.name}": path.read_bytes() for path in _licences()}
    files |= {
        f"{INFO}/METADATA": _metadata().encode(),
        f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode(),
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{INFO}/RECORD"] = f"{record}{INFO}/RECORD,,\n".encode()
    wheel = f"{STEM}-{TAG}.whl"
    with zipfile.ZipFile(Path(folder) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # A fixed time makes the same wheel of the same files.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel and returns its name."""
    source = ROOT / "src"
    paths = [path for path in sorted(source.glob(f"{PACKAGE}/**/*")) if path.suffix == ".py" or path.name == "py.typed"]
    return _wheel(wheel_directory, {path.relative_to(source).as_posix(): path.read_bytes() for path in paths})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds a wheel that refers to the sources."""
    return _wheel(wheel_directory, {f"_{PACKAGE}.pth": f"{ROOT / 'src'}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    """Builds the source archive and returns its name."""
    with tarfile.open(Path(sdist_directory) / f"{STEM}.tar.gz", "w:gz") as archive:
        for path in ("pyproject.toml", "build_backend.py", "README.md", "src"):
            archive.add(ROOT / path, f"{STEM}/{path}", filter=lambda entry: None if "__pycache__" in entry.name else entry)
        for path in _licences():
            archive.add(path, f"{STEM}/{path.name}")
        information = tarfile.TarInfo(f"{STEM}/PKG-INFO")
        information.size = len(_metadata().encode())
        archive.addfile(information, io.BytesIO(_metadata().encode()))
    return f"{STEM}.tar.gz"
