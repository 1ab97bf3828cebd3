"""Checks what MkDocs does not see: links of the Markdown files outside docs/, words, lists that must follow the code, and results.

    python3 docs/check.py            # from anywhere
    python3 docs/check.py --write    # writes the tables of fields and of claims, then checks
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

import claims
import fields

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)

# Written by tests from the code, or quoted from it.
GENERATED = {"docs/reference/cli.md", "docs/reference/errors.md"}
# Names the former commands.
HISTORY = "CHANGELOG.md"

# Words of a former private dialect; the glossary has the terms.
WORDS = [
    r"doors?\b", r"desks?\b", r"giants?\b", r"foretell\w*", r"foretold", r"whoever", r"nobody", r"everybody", r"somebody",
    r"where absent", r"of one's own", r"one's own", r"without end", r"turned away", r"is seen\b", r"mended", r"reckon\w*",
    r"ever after", r"for ever\b", r"go(es)? on\b", r"went on\b", r"hears?\b", r"(is|was|were|has|never) heard", r"heard (of|lately|within)", r"told\b", r"anew\b",
    r"begun\b", r"vouch\w*", r"as so many\b", r"the least( there|:)", r"at the most\b", r"who(se)? (asks|sends|serves|listens|watches)\b",
]
# Flags, commands, settings, metrics and functions of former versions, in code too.
FORMER = [
    r"--qps", r"--looks", r"--prompt(?!-)\b", r"--stretch", r"kaskade (weigh|channels|replan|reproduce)\b", r"auth init --app",
    r"--no-guard", r"--(entry-)?hop(?!-)\b", r"--link(?!-)\b", r"--fewest", r"--(annealing-)?moves", r"--spacing", r"top --every", r"--mean-over",
    r"(plan|simulate)\b.* --policy", r"--record\b", r"--no-torch", r"selftest\b.* --python", r"--objective thresholds", r"--solver-time",
    r"plan placement\b.* --(exact|period)\b",
    r"replan_on_drift", r"kaskade_(time_per_output_token_seconds|variant_cost_millionths_total)", r"least_batches", r"standby\.(rise|give_up)", r"on_drift", r"right_from", r"max_bodies", r"ingress\.drain\b(?!_)", r"slo = \"",
    r"\[(pipeline\.)?planner\] (limit|every|hop|policy|demand|factors)\b", r"\[pipeline\] hop\b", r"\[generation\] requests",
    r"\[durable\] (give_up|silence|results|dead|in_flight)\b", r"\[data\.\w+\.completions", r"`(last|per)-task`", r"opportunistic_rerouting",
    r"kaskade_(fault_replies_total|variant_busy_microseconds|(ready|full|behind)_processes|plan_epoch_number|certified_place_number)",
    r"kaskade_(stale_answers|forged_results|unreadable_messages|queue_full_refusals|fan_out_children_requests)_total",
    r"kaskade_(variant_batch_size_requests|energy_per_request_joules)", r"Client::(ask|leave|durably|open|wait_for)\b", r"client\.(ask|leave|durably)\(",
]
LONGEST_LINE = 500


def pages():
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "examples/*/*.md", "docker/*.md", "sdk/*/*.md"):
        yield from sorted(ROOT.glob(pattern))


def slug(heading):
    """The anchor of a heading, as the `toc` extension of Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(path):
    text = FENCED.sub("", path.read_text())
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return {slug(heading) for heading in plain}


def links(path, text):
    for target in LINK.findall(text) + IMAGE.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists():
            yield f"link to {target}, which does not exist"
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            yield f"link to {target}, which has no such heading"


def words(text, former=FORMER):
    for number, line in enumerate(text.splitlines(), 1):
        prose = re.sub(r"`[^`]*`", "", line)
        for word, where in [(word, prose) for word in WORDS] + [(word, line) for word in former]:
            match = re.search(r"(?<![\w/_])" + word, where, re.IGNORECASE)
            if match:
                yield f"line {number}: `{match[0]}` is none of the glossary's words"
        if len(line) > LONGEST_LINE:
            yield f"line {number}: {len(line)} characters; at most {LONGEST_LINE}"


def code_words():
    """Comments and texts of the code use the words of the pages; `begun` is the verb's participle there."""
    banned = [word for word in WORDS if "begun" not in word]
    paths = (path for pattern in ("src/**/*.rs", "*/src/**/*.rs", "plans/*/src/**/*.rs") for path in sorted(ROOT.glob(pattern)))
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if "test" in name or name.startswith(("papers/", "oip/")):
            continue
        code = re.split(r"^(?:#\[cfg\(test\)\]\n)?mod tests", path.read_text(), flags=re.MULTILINE)[0]
        for number, line in enumerate(code.splitlines(), 1):
            comment = re.search(r"//.*", line)
            prose = comment[0] if comment else " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', line))
            prose = re.sub(r"`[^`]*`|\{[^}]*\}|\[[^\]]*\]", "", prose)
            for word in banned:
                if match := re.search(r"(?<![\w/_])" + word, prose, re.IGNORECASE):
                    yield f"{name}:{number}: `{match[0]}` is none of the glossary's words"


def metrics():
    """The metrics page names the metrics of the code, all of them and no other."""
    page = ROOT / "docs/reference/metrics.md"
    named = set(re.findall(r"`(kaskade_[a-z_]+)", page.read_text()))
    sources = [*ROOT.glob("actors/src/**/*.rs"), *ROOT.glob("gateway/src/**/*.rs")]
    counted = set(re.findall(r'^pub(?:\(crate\))? const \w+: &str = "(kaskade_[a-z_]+)"', "\n".join(path.read_text() for path in sources), re.MULTILINE))
    for name in sorted(counted - named):
        yield f"`{name}` is in the code and not on the page"
    for name in sorted(named - counted):
        yield f"`{name}` is on the page and not in the code"


def architectures():
    """The architectures pages name every architecture of the registries, which name them as `config.json` does."""
    page = "\n".join(path.read_text() for path in sorted((ROOT / "docs/reference/architectures").glob("*.md")))
    before, _, popular = page.partition("## Popular checkpoints")
    supported = before + popular.partition("\n## ")[2]
    sources = [path.read_text() for path in ROOT.glob("models/src/**/*.rs") if "test" not in str(path.relative_to(ROOT))]
    name = re.compile(r'"([A-Z]\w+(?:For[A-Z]\w+|LMHeadModel))"|MODEL_TYPE: &str = "([a-z-]+)"')
    known = {first or second for source in sources for first, second in name.findall(source.partition("#[cfg(test)]\nmod ")[0])}
    for architecture in sorted(known):
        if f"`{architecture}`" not in supported:
            yield f"`{architecture}` is in the code and on none of the pages"


def wire():
    """The wire page names every subject, header and field of the code."""
    page = (ROOT / "docs/reference/wire.md").read_text()
    actors = ROOT / "actors/src"
    routes = (actors / "subjects.rs").read_text().partition("pub enum Route")[2].partition("\n}\n")[0]
    for name in re.findall(r"^    /// `([a-z_]+)", routes, re.MULTILINE):
        if f"`kaskade.<app>.{name}" not in page:
            yield f"the subject `{name}` is in the code and not on the page"
    for name in re.findall(r'HeaderName::from_static\("([\w-]+)"\)', (actors / "wire/headers.rs").read_text()):
        if f"`{name}" not in page:
            yield f"the header `{name}` is in the code and not on the page"
    for file in ("client.rs", "stage.rs", "heartbeat.rs", "control.rs", "stage_reply.rs", "energy.rs", "certificates.rs"):
        text = (actors / "wire" / file).read_text()
        for struct, body in re.findall(r"^pub struct (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            for field in re.findall(r"^    pub (\w+):", body, re.MULTILINE):
                if not re.search(rf"`{field}\??`", page):
                    yield f"`{field}` of {struct} is in the code and not on the page"


def variables():
    """The command line's page names the environment variables that the program reads."""
    page = (ROOT / "docs/reference/cli.md").read_text()
    sources = "\n".join(path.read_text() for path in ROOT.glob("src/**/*.rs") if path.name != "reference.rs")
    for name in sorted(set(re.findall(r'env(?: = |::var(?:_os)?\()"([A-Z_]+)"', sources))):
        if f"`{name}`" not in page:
            yield f"`{name}` is in the code and not on the page"


def faults():
    """Every page states as many faults as the table of the suite has rows."""
    page = (ROOT / "docs/evidence/results/faults.md").read_text()
    table = page.partition("<!-- faults -->")[2].partition("<!-- /faults -->")[0]
    rows = len(re.findall(r"^\| [a-z-]+ \|", table, re.MULTILINE)) - 1
    for path in pages():
        name = path.relative_to(ROOT).as_posix()
        for stated in re.findall(r"(\d+) faults", path.read_text() if name != HISTORY else ""):
            if int(stated) != rows:
                yield f"{name}: {stated} faults; the table of the suite has {rows}"


def headlines():
    """Every row of the evidence page's tables has its figures in headlines.json, and these stand in the row."""
    page = (ROOT / "docs/evidence/index.md").read_text()
    results = json.loads((ROOT / "docs/evidence/results/headlines.json").read_text())["figures"]
    rows = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        table = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]
        if not table:
            continue
        plan = table[0].index("plan") if "plan" in table[0] else None
        for cells in table[2:]:
            name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cells[0])
            rows[title, f"{name} {cells[plan]}" if plan else name] = " | ".join(cells)
    for row in rows.keys() - {(figure["section"], figure["row"]) for figure in results}:
        yield f"headlines.json has no figure of `{row[1]}` ({row[0]})"
    for figure in results:
        named = f"headlines.json: `{figure['figure']}` of `{figure['row']}`"
        if figure["figure"] not in rows.get((figure["section"], figure["row"]), ""):
            yield f"{named} is not on the page"
        if str(figure["value"]) not in figure["figure"].replace(",", ""):
            yield f"{named} is not {figure['value']}"
        for key in ("unit", "command", "hardware", "date", "commit"):
            if not figure[key]:
                yield f"{named} has no {key}"


def main():
    if "--write" in sys.argv[1:]:
        fields.write()
        claims.write()
    problems = []
    for path in pages():
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        plain = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
        problems += [f"{name}: {problem}" for problem in links(path, plain)]
        if name not in GENERATED:
            problems += [f"{name}: {problem}" for problem in words(text, [] if name == HISTORY else FORMER)]
    problems += [f"docs/reference/wire.md: {problem}" for problem in wire()]
    problems += [f"docs/reference/cli.md: {problem}" for problem in variables()]
    problems += [f"docs/evidence/index.md: {problem}" for problem in headlines()]
    problems += [f"docs/reference/metrics.md: {problem}" for problem in metrics()]
    problems += [f"docs/reference/architectures: {problem}" for problem in architectures()]
    problems += fields.stale()
    problems += claims.stale()
    problems += claims.sums(*((ROOT / page).read_text() for page in ("docs/evidence/index.md", "README.md", "docs/index.md")))
    problems += faults()
    problems += code_words()
    print("\n".join(problems) or "links, words and lists are sound")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
