"""Tables of fields in the reference pages, generated from the JSON schemas.

A table stands between `<!-- fields of app.schema.json: WorkerConfig -->` and `<!-- end of fields -->`; without a definition's name it is the
root's. `python3 docs/check.py --write` writes the tables, and `python3 docs/check.py` compares them.
"""

import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
APP = tuple(f"reference/app-toml/{name}.md" for name in ("index", "models", "data", "planning", "operation"))
PAGES = (*APP, "reference/plan.md", "reference/profile.md")
MARKED = re.compile(r"(<!-- fields of ([\w.]+)(?:: (\w+))? -->\n).*?(<!-- end of fields -->)", re.DOTALL)

# Definitions that are one value with a form of its own.
SCALARS = {"HumanDuration": "duration", "ByteSize": "size", "SubjectToken": "name", "Address": "address", "Positive": "number", "Finite": "number", "Watts": "number", "IdleWatts": "number", "Share": "share", "AuditShare": "share"}


def pointed(schema, node):
    """The definition that a node refers to, with its name; the node itself without a name if it refers to none."""
    for part in node.get("anyOf", [node]):
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            return name, schema["$defs"][name]
    return None, node


def choices(node):
    """The values of a definition with alternatives: constants, `kind` of tagged objects, or the only field of others."""
    for one in node["oneOf"]:
        if "const" in one:
            yield f"`{one['const']}`"
        for value in one.get("enum", []):
            yield f"`{value}`"
        tags = [f"`{field} = {value['const']}`" for field, value in one.get("properties", {}).items() if "const" in value]
        if tags:
            yield tags[0]
        elif "properties" in one:
            yield "`{ " + ", ".join(one["properties"]) + " }`"


def type_of(schema, node):
    name, target = pointed(schema, node)
    if name in SCALARS:
        return SCALARS[name]
    if "oneOf" in target:
        return ", ".join(choices(target))
    kind = target.get("type", "any")
    if isinstance(kind, list):
        kind = next(one for one in kind if one != "null")
    if kind == "array":
        return f"list of {type_of(schema, target['items'])}"
    if kind == "object" and name:
        return f"`{name}`"
    if kind == "object":
        values = target.get("additionalProperties")
        by_name = node.get("patternProperties", {})
        values = next(iter(by_name.values()), values)
        return f"map to {type_of(schema, values if isinstance(values, dict) else {})}"
    return kind


def toml(value):
    """A value as app.toml has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def written(value):
    return f"`{toml(value)}`"


def row(schema, name, node, required):
    text = " ".join(node.get("description", "").split())
    # Links to other items of the code become their names.
    text = re.sub(r"\[(`[^`]+`)\](?:\([\w:]+\))?", r"\1", text)
    stated = re.search(r" ?\[default: ([^\]]+)\]", text)
    if stated:
        text = text.replace(stated[0], "")
    target = pointed(schema, node)[1]
    if required:
        default = "required"
    elif "properties" in target:
        default = stated[1] if stated else "its defaults" if target is not node and "anyOf" not in node else "none"
    elif stated:
        default = stated[1]
    elif "default" in node:
        default = written(node["default"])
    else:
        default = "empty" if target.get("type") in ("array", "object") else "none"
    return f"| `{name}` | {type_of(schema, node)} | {default} | {text} |".replace("|  |", "| |")


def table(file, definition):
    schema = json.loads((DOCS / file).read_text())
    node = schema["$defs"][definition] if definition else schema
    required = node.get("required", [])
    # Required fields in the order of the type, which the schema keeps only for them.
    names = required + [name for name in node["properties"] if name not in required]
    rows = [row(schema, name, node["properties"][name], name in required) for name in names]
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def filled(text):
    """The text of a page with its tables as the schemas have them."""
    return MARKED.sub(lambda found: f"{found[1]}\n{table(found[2], found[3])}\n{found[4]}", text)


def stale():
    shown = {}
    for page in PAGES:
        text = (DOCS / page).read_text()
        if filled(text) != text:
            yield f"docs/{page}: a table of fields is not that of the schema; `python3 docs/check.py --write` writes it"
        for found in MARKED.finditer(text):
            pages, names = shown.setdefault(found[2], ([], set()))
            pages.append(page)
            names.add(found[3] or "")
    for file, (pages, names) in shown.items():
        schema = json.loads((DOCS / file).read_text())
        objects = {name for name, node in schema.get("$defs", {}).items() if "properties" in node}
        for name in sorted(objects - names):
            yield f"docs/{pages[0]}: `{name}` of {file} has no table"


def write():
    for page in PAGES:
        path = DOCS / page
        path.write_text(filled(path.read_text()))
