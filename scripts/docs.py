"""Write docs/mink-*.md from the programs' help and types, docs/api.md from docstrings, the table in
docs/samplers.md from the registry, and mink-serve's OpenAPI document from its types.
"""

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent, fill
from typing import Any

import click
import msgspec
from platformdirs import user_config_path

import mink_local
from mink_local.bench.cli import cli as bench
from mink_local.chat.cli import cli as chat
from mink_local.chat.loop import COMMANDS
from mink_local.evals.cli import cli as evals
from mink_local.generation.answer import Loop
from mink_local.manage.cli import cli as models
from mink_local.samplers import SAMPLERS
from mink_local.serve.bodies import ErrorBody, Json, Output
from mink_local.serve.cli import cli as serve
from mink_local.serve.request.fields import Fields, SamplingFields, sampler_fields
from mink_local.serve.request.parsing import with_sampler_fields
from mink_local.serve.table import ENDPOINTS, Endpoint
from mink_local.version import __version__

DOCS = Path(__file__).parents[1] / "docs"
PROGRAMS = {
    "mink-chat": chat,
    "mink-eval": evals,
    "mink-models": models,
    "mink-serve": serve,
    "mink-bench": bench,
}
MAIN = (
    "load_model", "PlacementOptions", "Model", "Reply", "Answers", "Answer", "Piece", "SamplingParams",
    "Constraints", "Request", "MinK",
)  # fmt: skip
FOR_PROGRAMS = ("add", "advance", "opens_reasoning")  # used by this package's programs only
HELP = "<!-- help: written by scripts/docs.py, do not edit below -->"
GENERATED = "<!-- Written by scripts/docs.py: do not edit. -->\n\n"


class MarkdownFormatter(click.HelpFormatter):
    """Writes help as Markdown, whatever the layout of the installed click."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002
        self.write(f"Usage: `{prog} {args}`\n")

    def write_heading(self, heading: str) -> None:
        self.write(f"**{heading}**\n\n")

    def write_text(self, text: str) -> None:
        for block in cleandoc(text).split("\n\n"):
            lines = block.strip("\n")
            is_verbatim = lines.startswith("\b\n")
            self.write(f"```\n{lines[2:]}\n```\n\n" if is_verbatim else f"{' '.join(lines.split())}\n\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 0, col_spacing: int = 0) -> None:  # noqa: ARG002
        for term, text in rows:
            self.write(f"- `{term}`" + (f": {' '.join(text.split())}" if text else "") + "\n")


def help_texts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """Yield the help of a program and of each of its commands as sections."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    formatter = MarkdownFormatter()
    command.format_help(context, formatter)
    level = "##" if parent is None else "###"
    yield f"{level} {context.command_path}\n\n{formatter.getvalue().strip()}\n"
    if isinstance(command, click.Group):
        for child in (name for name in command.list_commands(context) if not command.commands[name].hidden):
            yield from help_texts(command.commands[child], child, context)


def chat_commands() -> str:
    rows = [f"/{one.usage}\n{paragraphs(one.details)}" for one in COMMANDS.values()]
    return "\n".join(["## Commands of the chat", "", "```", *rows, "```", ""])


def paragraphs(text: str) -> str:
    """Return a text indented and wrapped at 100 columns."""
    blank = "    "
    return "\n".join(
        fill(line, 100, initial_indent=blank, subsequent_indent=blank) for line in text.split("\n")
    )


def api() -> Iterator[str]:
    """Yield the reference for `mink_local`'s exports: `MAIN` first, then the samplers, then errors."""
    yield "# mink_local: reference\n\nImport it from `mink_local`. By task: [python.md](python.md).\n"
    things = [getattr(mink_local, name) for name in mink_local.__all__ if not name.startswith("_")]
    errors = [thing for thing in things if inspect.isclass(thing) and issubclass(thing, Exception)]
    for name in [*MAIN, *mink_local.__all__]:
        thing = getattr(mink_local, name)
        if thing in things and thing not in errors:
            things.remove(thing)
            yield f"## {name}\n\n{entry(thing)}"
            if inspect.isclass(thing):
                yield from members(thing)
    rows = [
        f"| `{error.__name__}` | {bases(error)} | {cleandoc(error.__doc__ or '').partition(chr(10))[0]} |"
        for error in errors
    ]
    yield "\n".join(["## Errors", "", "| error | is a | |", "|---|---|---|", *rows, ""])


def bases(error: type) -> str:
    """Return what an error is too, as far as it is public."""
    return ", ".join(f"`{base.__name__}`" for base in error.__bases__ if not base.__name__.startswith("_"))


def members(kind: type) -> Iterator[str]:
    """Yield a class's public methods, then a list of its properties."""
    names = [name for name in vars(kind) if not name.startswith("_") and name not in FOR_PROGRAMS]
    public = {name: vars(kind)[name] for name in names if vars(kind)[name].__doc__}
    for name, value in public.items():
        if inspect.isfunction(value) and value.__name__ == name:  # and no other name for one
            yield f"### {kind.__name__}.{name}\n\n{entry(value)}"
    properties = [(name, value) for name, value in public.items() if isinstance(value, property)]
    if properties:
        yield f"### Properties of {kind.__name__}\n"
        yield "".join(f"- `{name}: {returned(value.fget)}`: {value.__doc__}\n" for name, value in properties)


def returned(function: object) -> str:
    """Return a function's return type as written in its source."""
    node = ast.parse(dedent(inspect.getsource(function))).body[0]  # type: ignore[arg-type]
    assert isinstance(node, ast.FunctionDef)
    assert node.returns is not None
    return ast.unparse(node.returns)


def entry(thing: object) -> str:
    """Return the signature with all defaults, and the docstring."""
    source = dedent(inspect.getsource(thing))  # type: ignore[arg-type]
    node = ast.parse(source).body[0]
    signature = ""
    if isinstance(node, ast.FunctionDef):
        lines = source.split("\n")[node.lineno - 1 : node.body[0].lineno - 1]
        signature = "\n".join(lines).removeprefix("def ").removesuffix(":") + "\n\n"
    elif isinstance(node, ast.ClassDef) and dataclasses.is_dataclass(thing):
        options = "".join(f"    {option},\n" for option in dataclass_options(node, thing))
        signature = f"{node.name}(\n{options})\n\n" if options else f"{node.name}()\n\n"
    text = f"{signature}{inspect.getdoc(thing)}\n"
    text = re.sub(r": Unpack\[\w+\]", "", text)  # described in the docstring
    for name in FOR_PROGRAMS:  # in a signature or a docstring, with indented continuation lines
        text = re.sub(rf"^    {name}: .*\n(?:     .*\n)*", "", text, flags=re.MULTILINE)
    return f"```text\n{text}```\n"


def dataclass_options(node: ast.ClassDef, thing: Any) -> Iterator[str]:
    """Yield a dataclass's options with their types, as written in the source, and defaults."""
    types = {
        line.target.id: ast.unparse(line.annotation)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    first_by_name = next((field for field in dataclasses.fields(thing) if field.kw_only), None)
    for field in dataclasses.fields(thing):
        if field is first_by_name:
            yield "*"
        make = field.default_factory
        value = field.default if make is dataclasses.MISSING else make()
        shown = f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else repr(value)
        default = "" if value is dataclasses.MISSING else f" = {shown}"
        yield f"{field.name}: {types[field.name]}{default}"


def with_samplers(page: str) -> str:
    """Return docs/samplers.md with its table generated from the registry."""
    rows = ["| name | options and defaults | keeps |", "|---|---|---|"]
    for name, sampler in SAMPLERS.items():
        options = ", ".join(f"`{option}`" for option in str(sampler()).partition(":")[2].split(",") if option)
        rows.append(f"| `{name}` | {options} | {sampler.keeps} |")
    table = "\n".join(rows)
    return re.sub(
        r"(?<=<!-- begin: samplers -->\n).*?(?=\n<!-- end -->)", lambda _: table, page, flags=re.DOTALL
    )


def server_api() -> Iterator[str]:
    """Yield mink-serve's endpoints, then a table of fields for each request and response type."""
    yield "# mink-serve: requests and responses\n\n| endpoint | request | response | |\n|---|---|---|---|"
    for path, endpoint in ENDPOINTS.items():
        types = [type_link(endpoint.request), type_link(endpoint.response)]
        yield f"| {' | '.join([f'`{endpoint.method} {path}`', *types, summary_of(endpoint)])} |"
    for path, endpoint in ENDPOINTS.items():
        if endpoint.chunk is not None:
            yield f"\nA stream of `{path}` consists of {type_link(endpoint.chunk)}s."
    yield f"\nThe body of an error is an {type_link(ErrorBody)}."
    described = schemas()
    sampling = msgspec.json.schema_components([SamplingFields])[1]["SamplingFields"]["properties"]
    sampling |= {name: described["ChatRequest"]["properties"][name] for name in sampler_fields()}
    kinds = kinds_by_name(Output) | kinds_by_name(Fields) | {"Loop": Loop}
    for name, schema in sorted((described | {"SamplingFields": {"properties": sampling}}).items()):
        kind = kinds[name]
        summary = cleandoc(kind.__doc__ or "").partition("\n\nAttributes:")[0].replace("\n", " ")
        shared = issubclass(kind, SamplingFields) and kind is not SamplingFields
        more = " It also has the [sampling fields](#samplingfields)." if shared else ""
        yield f"\n## {name}\n\n{summary}{more}\n\n| field | type | |\n|---|---|---|"
        texts = field_texts(kind)
        for field, field_schema in schema["properties"].items():
            if shared and field in sampling:
                continue
            is_required = issubclass(kind, Fields) and field in schema.get("required", ())
            text = f"{'Required. ' if is_required else ''}{texts.get(field, '')}"
            yield f"| `{field}` | {type_text(field_schema)} | {text} |"
    yield ""


def openapi() -> Json:
    """Return mink-serve's OpenAPI document."""
    paths = {path: {one.method.lower(): _operation(path, one)} for path, one in ENDPOINTS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mink-serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas()},
    }


def schemas() -> Json:
    """Return the JSON schemas of all types by name, with the samplers' own fields in requests."""
    kinds: list[type] = [ErrorBody]
    for one in ENDPOINTS.values():
        if one.request is not None:
            kinds.append(with_sampler_fields(one.request))
        kinds += [kind for kind in (one.response, one.chunk) if kind not in (None, str)]
    _, schemas = msgspec.json.schema_components(
        dict.fromkeys(kinds), ref_template="#/components/schemas/{name}"
    )
    return schemas


def _operation(path: str, endpoint: Endpoint) -> Json:
    kinds = {"application/json": endpoint.response, "text/event-stream": endpoint.chunk}
    if endpoint.response is str:
        kinds = {"text/plain": str}
    content = {name: _content(kind) for name, kind in kinds.items() if kind is not None}
    error = {"description": "An error.", "content": {"application/json": _content(ErrorBody)}}
    responses = {"200": {"description": "The result.", "content": content}, "default": error}
    operation: Json = {"summary": summary_of(endpoint), "responses": responses}
    if endpoint.request is not None:
        body = {"application/json": _content(endpoint.request)}
        operation["requestBody"] = {"required": True, "content": body}
    if names := re.findall(r"{(\w+)}", path):
        common = {"in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [{"name": name, **common} for name in names]
    return operation


def summary_of(endpoint: Endpoint) -> str:
    """Return what an endpoint does."""
    return str(endpoint.handler.__doc__).partition("\n")[0]


def _content(kind: type) -> Json:
    [schema], _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return {"schema": schema}


def kinds_by_name(base: type) -> dict[str, type]:
    """Return a class and all that are based on it, by their names."""
    found: dict[str, type] = {}
    kinds: list[type] = base.__subclasses__()
    for kind in kinds:
        found |= kinds_by_name(kind)
    return found | {base.__name__: base}


def type_link(kind: type | None) -> str:
    if kind in (None, str):
        return "text" if kind is str else ""
    [schema], _ = msgspec.json.schema_components([kind])
    return type_text(schema)


def field_texts(kind: type) -> dict[str, str]:
    """Return the descriptions of a type's fields, from its classes' docstrings."""
    texts = {
        field: f"The option {option} of {sampler.name}."
        for sampler in SAMPLERS.values()
        for field, option in sampler.request_fields.items()
    }
    for base in reversed(kind.__mro__):
        _, _, attributes = cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
            texts[name] = re.sub(r"\s+", " ", text)
    return texts


def type_text(schema: dict[str, Any]) -> str:
    """Describe a JSON schema's type."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(
            dict.fromkeys(type_text(one) for one in schema["anyOf"] if one.get("type") != "null")
        )
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    if isinstance(schema.get("items"), dict):
        return f"list of {type_text(schema['items'])}"
    limits = [f"{schema[name]:,}" for name in ("minimum", "maximum") if name in schema]
    return f"{schema.get('type', 'any')}{f' {limits[0]} to {limits[1]}' if len(limits) == 2 else ''}"


def documents() -> dict[str, str]:
    """Return all generated documents by their paths in docs."""
    helps = {f"{name}.md": list(help_texts(command, name)) for name, command in PROGRAMS.items()}
    helps["mink-chat.md"].append(chat_commands())
    here = str(user_config_path("mink-local"))
    pages = {
        name: f"{guide(name)}{HELP}\n\n" + "\n".join(sections).replace(here, "~/.config/mink-local")
        for name, sections in helps.items()
    }
    pages |= {
        "api.md": GENERATED + "\n".join(api()),
        "mink-serve-api.md": GENERATED + "\n".join(server_api()),
        "../mink_local/serve/openapi.json": json.dumps(openapi(), indent=1) + "\n",
    }
    return pages | {"samplers.md": with_samplers((DOCS / "samplers.md").read_text(encoding="utf-8"))}


def guide(name: str) -> str:
    """Return what people have written above a page's help."""
    return (DOCS / name).read_text(encoding="utf-8").partition(HELP)[0]


@click.command()
def main() -> None:
    """Write the generated pages, and the generated parts of others."""
    for name, text in documents().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
