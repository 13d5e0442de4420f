#!/usr/bin/env python3
"""Writes the control API's reference, a chapter of the book, from its proto files.

    api.py PROTO... >CHAPTER

Prints Markdown: services with their methods, then messages and enums, each with the comments of the proto files; of what stands at a file's
beginning, only the first one's. Reads the part of proto3 that these files use. Anything else is an error with its line, so that nothing is
left out silently.
"""

import re
import sys

INTRODUCTION = """# Control API

This chapter is made from `control/proto/pinion/v1`. A node serves this API by gRPC on its Unix socket (`socket` in
`piniond.toml`), and with mutual TLS on TCP (`[api]`), with health checking and reflection. `pinion` is a client of it, and any gRPC client can
be another."""
TYPE = r"[A-Za-z_][\w.]*"
# A line of the proto file, by what it declares.
LINES = {
    "block": re.compile(r"(?P<kind>service|message|enum|oneof) (?P<name>\w+) \{(?P<end>\})?$"),
    "rpc": re.compile(rf"rpc (?P<name>\w+)\((?P<request>(?:stream )?{TYPE})\) returns \((?P<response>(?:stream )?{TYPE})\)(?:;| \{{)$"),
    "access": re.compile(r"option \((?P<name>access)\) = \{(?P<access>.*)\};$"),
    "field": re.compile(rf"(?:(?P<label>optional|repeated) )?(?P<type>{TYPE}) (?P<name>\w+) = (?P<number>\d+);$"),
    "value": re.compile(r"(?P<name>[A-Z]\w*) = (?P<number>\d+);$"),
    "end": re.compile(r"\}$"),
}
HEADER = re.compile(r'(?:syntax = "proto3"|package [\w.]+|import "[\w./]+");$')
# An option that stands on several lines, which is read as one.
OPTION = re.compile(r"option \(access\) = \{\s*([^}]*?)\s*\};")
SECTION = re.compile(r"// ---- (?P<text>.*?) ----$")


class Item:
    """A declaration with its comment, and the declarations in it."""

    def __init__(self, kind, name, comment, section="", **more):
        self.kind, self.name, self.comment, self.section = kind, name, comment, section
        self.items = []
        self.__dict__.update(more)

    def of(self, *kinds):
        return [item for item in self.items if item.kind in kinds]


def parse(name, text):
    """Returns the file as an item, whose comment is that of the file's beginning."""
    root = Item("file", "", [])
    open_items, comment, section = [root], [], ""
    text = OPTION.sub(lambda found: f"option (access) = {{{' '.join(found[1].split())}}};", text)
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if found := SECTION.match(line):
            section = found["text"]
        elif line.startswith("//"):
            comment.append(line.removeprefix("//").removeprefix(" "))
        elif HEADER.match(line):
            root.comment += comment
            comment = []
        elif line == "":
            # A comment with an empty line behind it belongs to the file.
            root.comment += comment
            comment = []
        else:
            kind, found = next(((kind, found) for kind, form in LINES.items() if (found := form.match(line))), (None, None))
            if found is None:
                sys.exit(f"api.py: {name}:{number}: this form is not known: {line}")
            if kind == "end":
                open_items.pop()
                if comment or not open_items:
                    sys.exit(f"api.py: {name}:{number}: this bracket closes nothing, or a comment stands before it")
                continue
            if kind == "access":
                open_items[-1].access = dict(part.split(": ") for part in found["access"].split(", "))
                continue
            values = {key: value for key, value in found.groupdict().items() if key not in ("kind", "name", "end")}
            item = Item(found.groupdict().get("kind", kind), found["name"], comment, section, **values)
            open_items[-1].items.append(item)
            if (kind == "block" and not found["end"]) or (kind == "rpc" and line.endswith("{")):
                open_items.append(item)
            comment = []
    if len(open_items) > 1:
        sys.exit(f"api.py: {name}: {open_items[-1].kind} {open_items[-1].name} is not closed")
    return root


def text_of(comment):
    """Returns a comment as Markdown, with indented parts as they are."""
    lines, is_code = [], False
    for line in comment:
        if line.startswith("  ") != is_code:
            is_code = not is_code
            lines.append("```text" if is_code else "```")
        lines.append(plain(line) if not is_code else line)
    return "\n".join(lines + ["```"] * is_code)


def cell_of(comment):
    return plain(" ".join(line for line in comment if line)).replace("|", "\\|")


def plain(line):
    """Keeps Markdown from taking a placeholder such as <64 hex digits> for HTML."""
    return line.replace("<", "&lt;").replace(">", "&gt;")


def all_types(item, path=""):
    """Yields messages and enums with their paths, those in others behind these."""
    for inner in item.of("message", "enum"):
        name = f"{path}{inner.name}"
        yield name, inner
        yield from all_types(inner, f"{name}.")


def linked(type_name, scope, known):
    """Returns a type as Markdown, as a link if it is one of the file's own."""
    stream, name = ("stream ", type_name[7:]) if type_name.startswith("stream ") else ("", type_name)
    # As in proto, the innermost scope counts.
    parts = scope.split(".") if scope else []
    for depth in range(len(parts), -1, -1):
        path = ".".join([*parts[:depth], name])
        if path in known:
            return f"{stream}[{path}](#{anchor(path)})"
    return f"{stream}`{name}`"


def anchor(path):
    return path.lower().replace(".", "")


def fields(message, path, known):
    rows = ["| number | field | type | |", "|---|---|---|---|"]
    for item in message.of("field", "oneof"):
        of_group = item.of("field") if item.kind == "oneof" else [item]
        for field in of_group:
            label = {"optional": "optional ", "repeated": "list of "}.get(field.label, "")
            about = cell_of(field.comment)
            if item.kind == "oneof":
                about = f"One of `{item.name}`. {about}".strip()
            rows.append(f"| {field.number} | `{field.name}` | {label}{linked(field.type, path, known)} | {about} |")
    return rows if len(rows) > 2 else ["No fields."]


def values(enum):
    rows = ["| number | value | |", "|---|---|---|"]
    return rows + [f"| {value.number} | `{value.name}` | {cell_of(value.comment)} |" for value in enum.of("value")]


def access_of(rpc):
    """Returns who may call a method, and what a call may take."""
    access = getattr(rpc, "access", None)
    if access is None:
        sys.exit(f"api.py: {rpc.name} does not state its access")
    role = access["role"].removeprefix("ROLE_").replace("_", " ").lower()
    most = f"{int(access['request_bytes_max']):,}"
    if "tenant_request_bytes_max" in access:
        most += f" bytes ({int(access['tenant_request_bytes_max']):,} of a tenant's caller)"
    else:
        most += " bytes"
    deadline = f"{int(access['deadline_s']):,} s" if access["deadline_s"] != "0" else "no limit"
    return f"Least role: {role}. A message of the request: at most {most}. Time for a call: {deadline}."


def chapter(root):
    known = dict(all_types(root))
    out = [INTRODUCTION, text_of(root.comment)]
    for service in root.of("service"):
        out += [f"## Service {service.name}", text_of(service.comment)]
        for rpc in service.of("rpc"):
            request, response = linked(rpc.request, "", known), linked(rpc.response, "", known)
            out += [f"### {rpc.name}", f"{request} → {response}", text_of(rpc.comment), access_of(rpc)]
    section = ""
    for path, item in known.items():
        if item.section != section:
            section = item.section
            title, _, rest = section.partition(". ")
            out += [f"## {title[0].upper()}{title[1:]}", rest]
        out += [f"### {path}", text_of(item.comment)]
        out.append("\n".join(fields(item, path, known) if item.kind == "message" else values(item)))
    return "\n\n".join(part for part in out if part) + "\n"


def parse_all(names):
    """Returns the files as one item."""
    roots = []
    for name in names:
        with open(name, encoding="utf-8") as file:
            roots.append(parse(name, file.read()))
    for root in roots[1:]:
        roots[0].items += root.items
    return roots[0]


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: api.py PROTO... >CHAPTER")
    print(chapter(parse_all(sys.argv[1:])), end="")


if __name__ == "__main__":
    main()
