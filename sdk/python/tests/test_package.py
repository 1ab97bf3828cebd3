"""The archives of the package, as its build backend makes them."""

import email
import importlib.util
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from types import ModuleType

import kaskade

PACKAGE = Path(__file__).resolve().parents[1]


def backend(folder: Path) -> ModuleType:
    """The build backend of a folder with the package's sources."""
    spec = importlib.util.spec_from_file_location("build_backend", folder / "build_backend.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Archives(unittest.TestCase):
    def test_the_source_archive_has_its_metadata_and_licences_and_makes_the_same_wheel(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            (here / "own").mkdir()
            (here / "unpacked").mkdir()
            source, wheel = backend(PACKAGE).build_sdist(here), backend(PACKAGE).build_wheel(here / "own")
            with tarfile.open(here / source) as archive:
                archive.extractall(here, filter="data")
            root = here / source.removesuffix(".tar.gz")
            information = email.message_from_string((root / "PKG-INFO").read_text())
            self.assertEqual((information["Name"], f"kaskade_client-{information['Version']}"), ("kaskade-client", root.name))
            licences = ["LICENSE-APACHE", "LICENSE-MIT"]
            self.assertEqual(information.get_all("License-File"), licences)
            for licence in licences:
                self.assertGreater((root / licence).stat().st_size, 500)
            self.assertEqual(backend(root).build_wheel(here / "unpacked"), wheel)
            self.assertEqual((here / "own" / wheel).read_bytes(), (here / "unpacked" / wheel).read_bytes())
            with zipfile.ZipFile(here / "own" / wheel) as archive:
                held = {name.rpartition("/")[2] for name in archive.namelist() if "/licenses/" in name}
                entries = archive.infolist()
            self.assertEqual(held, set(licences))
            self.assertEqual({entry.external_attr >> 16 & 0o777 for entry in entries}, {0o644})
            self.assertEqual({entry.compress_type for entry in entries}, {zipfile.ZIP_DEFLATED})
            self.assertEqual(information["Version"], kaskade.__version__)
            self.assertIn("Typing :: Typed", information.get_all("Classifier"))
            self.assertRegex(information["Project-URL"], "^Repository, https://")


if __name__ == "__main__":
    unittest.main()
