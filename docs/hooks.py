"""MkDocs hooks: links to files outside docs/, and executable command blocks.

A page links to a file of the repository by its relative path, as GitHub resolves it. The site has no such file, so the link becomes
one to the repository; a path that does not exist is a warning, which fails a strict build.

Blocks fenced as `sh test` or `sh test background` are executed by a test; the site shows them as `sh`.
"""

import logging
import posixpath
import re
from pathlib import Path

LOG = logging.getLogger("mkdocs.hooks.repository")
LINK = re.compile(r"(?<!\!)\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)\s#]*)(?P<anchor>#[^)]*)?\)")
FENCE = re.compile(r"^```sh test[a-z ]*$", re.MULTILINE)
REVISION = "blob/main"


def on_page_markdown(markdown, page, config, files):
    root = Path(config.config_file_path).parent
    folder = posixpath.dirname("docs/" + page.file.src_uri)

    def replace(match):
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        if path.startswith("docs/"):
            return match[0]
        if not (root / path).exists():
            LOG.warning("%s links to %s, which the repository does not have", page.file.src_uri, path)
        return f"[{match['text']}]({config.extra['repository']}/{REVISION}/{path}{match['anchor'] or ''})"

    return FENCE.sub("```sh", LINK.sub(replace, markdown))
