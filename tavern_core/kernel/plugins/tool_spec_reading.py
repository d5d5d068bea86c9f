"""Turns the result of `tavern_register_tools` into ToolSpecs and factories.

Everything of a plugin is read before anything is registered: one invalid item fails the whole activation. A tool
declared without parameters is completed from its code (`merge_declaration`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.langchain_tools import is_tool, schema_of
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.contract.tool_context import ToolContext
from tavern_core.contract.tools import Offer, Tool, ToolFactory, ToolMark, mark_of, toolbox_methods
from tavern_core.errors import ActivationFailed, PluginError, ToolFileInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.plugins.remote_plugin_interface import DescribesItself
from tavern_core.kernel.plugins.tool_spec_validation import refuse_unsound
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.capability import DESTRUCTIVE
from tavern_core.model.naming_rules import RESERVED_NAMESPACES, camel, is_local_name, split_id
from tavern_core.model.nearest import fold
from tavern_core.model.parameter_guard_marks import MARK, guard_of
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.secret_names import is_secret_schema

if TYPE_CHECKING:
    from tavern_core.kernel.plugins.candidate import PluginCandidate
    from tavern_core.model.manifest import Manifest

INJECTED = {CallContext: "context", ToolCall: "call", ToolContext: "control"}
_AS_MARKED: Final = (
    "tags", "capabilities", "display_name", "optional", "examples", "read_only", "destructive", "idempotent", "fast",
    "timeout_ms", "requires_approval", "job", "limits", "untrusted",
)  # fmt: skip
"""The fields that a specification takes from the mark unchanged."""
DRAFT: Final = object()
"""The `ToolSpec.impl` of a returned mapping without parameters: its node, workflow or handler determines them."""
_FIELDS: Final = (
    "display_name", "version", "tags", "output_schema", "capabilities", "optional", "read_only", "destructive",
    "idempotent", "requires_approval", "timeout_ms", "untrusted",
)  # fmt: skip
_SPELLINGS: Final[Mapping[str, str]] = {spelling: name for name in _FIELDS for spelling in (name, camel(name))}
"""Fields of a tool with `execute` besides name, description and parameters: Python or JSON spelling → field."""
_CHAINS = 4  # an Offer of an Offer of … is a mistake


@dataclass(frozen=True, slots=True)
class OfferingPlugin:
    """The plugin whose offers are read."""

    name: str
    version: str
    aliases: Mapping[str, str]
    """Alias → local name, from the manifest."""
    is_builtin: bool = False
    from_mapping: Callable[[Mapping[str, Any]], ToolSpec] | None = None
    """Reads a mapping in the tool-file format; raises ToolFileInvalid."""
    named: Callable[[str], str] | None = None
    """Makes the ids of tools that the program itself registers, which may have other prefixes."""
    kinds: Collection[str] = ()
    """The kinds of tools for which plugins contribute executors."""

    @classmethod
    def of(cls, candidate: PluginCandidate, **more: Any) -> OfferingPlugin:
        """The plugin as declared; what it makes for one caller needs no `more`."""
        is_builtin = candidate.source == "builtin"
        return cls(candidate.name, candidate.version, candidate.facts.aliases, is_builtin, **more)


@dataclass(frozen=True, slots=True)
class OfferDescription:
    """An item that the plugin offers: a tool, or a factory with the known names of its tools."""

    spec: ToolSpec | None = None
    factory: ToolFactory | None = None
    names: tuple[str, ...] = ()
    """Full ids of a factory's tools."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The full ids of its tools, as far as they are known."""
        return self.names if self.spec is None else (self.spec.name,)


def describe(offers: Any, owner: OfferingPlugin, *, drafts: bool = False) -> list[OfferDescription]:
    """Everything in `offers`, in order.

    Args:
        drafts: allow tools without parameters (`DRAFT`), which the caller completes; else they are refused.

    Raises:
        PluginError: an item is not a tool, or its name or schema is invalid.
    """
    if offers is None:
        return []
    if isinstance(offers, str | bytes | Mapping) or not isinstance(offers, Iterable) or is_tool(offers):
        offers = [offers]
    found: list[OfferDescription] = []
    for item in offers:
        if isinstance(item, ToolFactory):
            names = item.names or ((item.name,) if item.name else ())
            found.append(OfferDescription(factory=item, names=tuple(full_id(n, owner) for n in names)))
        else:
            found += [OfferDescription(spec) for spec in specs_of(item, owner, drafts=drafts)]
    refuse_twins(found, owner)
    return found


def specs_of(item: Any, owner: OfferingPlugin, *, drafts: bool = False) -> list[ToolSpec]:
    """The tools of one item that is not a factory: one tool, or several for a toolbox or an Offer with `names`.

    Args:
        drafts: as for `describe`.

    Raises:
        PluginError: as `describe` does.
    """
    name, names, optional = None, None, False
    for _ in range(_CHAINS):
        if not isinstance(item, Offer):
            break
        name, names, optional = name or item.name, names or item.names, optional or item.optional
        item = item.thing
    things = list(item) if isinstance(item, list | tuple) else [item]
    specs = [spec for thing in things for spec in _tools_in(thing, owner, name)]
    for spec in specs:
        refuse_unsound(spec, kinds=owner.kinds)
    specs = [replace(s, capabilities=s.capabilities | {DESTRUCTIVE}) if s.destructive else s for s in specs]
    if not drafts and (bare := next((spec for spec in specs if spec.impl is DRAFT), None)) is not None:
        raise ToolFileInvalid(f"{bare.name} has no parameters", hint="add parameters: they cannot be derived here")
    if name is not None:
        if len(specs) != 1:
            raise ActivationFailed(
                f"{owner.name}: name={name!r} renames one tool, but {len(specs)} were offered", hint="use names=[...]"
            )
        specs = [replace(specs[0], name=full_id(name, owner))]
    if names is not None:
        wanted = [full_id(n, owner) for n in names]
        if [s.name for s in specs] != wanted:
            if len(specs) != len(wanted):
                raise ActivationFailed(
                    f"{owner.name}: names={list(names)} but {len(specs)} tools were offered: {[s.local_name for s in specs]}"
                )
            specs = [replace(s, name=n) for s, n in zip(specs, wanted, strict=True)]
    if optional:
        specs = [replace(spec, optional=True) for spec in specs]
    return specs


def full_id(written: str, owner: OfferingPlugin) -> str:
    """The id ``plugin:tool`` of a tool that its plugin calls `written`.

    Raises:
        ActivationFailed: another plugin's prefix, or an invalid local name (ACTIVATION_FAILED).
    """
    if owner.named is not None:
        return owner.named(written)
    if written in owner.aliases:
        written = split_id(owner.aliases[written])[1]
    prefix, local = split_id(written)
    if owner.is_builtin and prefix in RESERVED_NAMESPACES and is_local_name(local):
        return written
    if prefix and fold(prefix) != fold(owner.name):
        raise ActivationFailed(
            f"{owner.name}: tool id {written!r} has the prefix of another plugin",
            hint=f"drop the prefix, or map it in plugin.yaml: aliases: {{{written!r}: {local}}}",
        )
    if not is_local_name(local):
        raise ActivationFailed(
            f"{owner.name}: {local!r} is not a tool name", hint="use 1 to 64 letters, digits, _ . - (A-Z a-z 0-9)"
        )
    return f"{owner.name}:{local}"


def merge_declaration(draft: ToolSpec, coded: ToolSpec, plugin_version: str) -> ToolSpec:
    """Merge a tool's declaration with its code.

    The code wins, because it runs; requirements and warnings of both count.

    Args:
        plugin_version: the version that `coded` has if the code sets none.
    """
    return replace(
        with_cautions(coded, draft),
        description=coded.description or draft.description,
        version=draft.version if coded.version in ("", "0", plugin_version) else coded.version,
        tags=tuple(dict.fromkeys([*draft.tags, *coded.tags])),
        input_schema=with_marks(coded.input_schema, draft.input_schema),
        output_schema=draft.output_schema if coded.output_schema is None else coded.output_schema,
        display_name=coded.display_name or draft.display_name,
        aliases=tuple(dict.fromkeys([*draft.aliases, *coded.aliases])),
        examples=coded.examples or draft.examples,
        read_only=draft.read_only or coded.read_only,
        idempotent=draft.idempotent or coded.idempotent,
        timeout_ms=draft.timeout_ms if coded.timeout_ms is None else coded.timeout_ms,
        implementation=coded.implementation or draft.implementation,
        config_schema=coded.config_schema or draft.config_schema,
        job=draft.job or coded.job,
        limits=draft.limits.over(coded.limits),
    )


def with_cautions(spec: ToolSpec, other: ToolSpec) -> ToolSpec:
    """`spec` with the warnings of `other` added."""
    return replace(
        spec,
        capabilities=spec.capabilities | other.capabilities,
        optional=spec.optional or other.optional,
        destructive=spec.destructive or other.destructive,
        requires_approval=spec.requires_approval or other.requires_approval,
        untrusted=spec.untrusted or other.untrusted,
    )


def with_marks(coded: Mapping[str, Any], declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of the code, with the declaration's marks for secret and guarded parameters."""
    properties = coded.get("properties")
    if not isinstance(properties, Mapping):
        return coded
    marked = {}
    for name, declared_schema in (declared.get("properties") or {}).items():
        coded_schema = properties.get(name)
        if isinstance(declared_schema, Mapping) and isinstance(coded_schema, Mapping):
            marked[name] = _with_mark(coded_schema, declared_schema)
    return {**coded, "properties": {**properties, **marked}} if marked else coded


def _with_mark(coded: Mapping[str, Any], declared: Mapping[str, Any]) -> Mapping[str, Any]:
    merged = dict(coded)
    if isinstance(mark := declared.get(MARK), Mapping):
        coded_mark = coded.get(MARK)
        merged[MARK] = {**coded_mark, **mark} if isinstance(coded_mark, Mapping) else mark
    if is_secret_schema(declared) or guard_of(declared) is not None:
        merged = {**{key: declared[key] for key in ("format", "writeOnly") if key in declared}, **merged}
    return {**merged, "writeOnly": True} if is_secret_schema(declared) and not is_secret_schema(merged) else merged


def of_handler(thing: Any, draft: ToolSpec, owner: OfferingPlugin) -> ToolSpec:
    """The tool of a `handler` whose tool file has no parameters: its signature determines them, as with `@tool`.

    Args:
        thing: the object that ``module:name`` names.

    Raises:
        PluginError: not a tool, or a signature without a schema (ACTIVATION_FAILED, SCHEMA_INVALID).
    """
    if isinstance(thing, DescribesItself):
        return specs_of(Offer(thing.described(draft), name=draft.name), owner)[0]
    marked = isinstance(thing, Tool) or mark_of(thing) is not None or callable(getattr(thing, "execute", None))
    if not marked:
        if not callable(thing) or isinstance(thing, type):
            handler = draft.implementation.get("handler")
            raise ActivationFailed(f"{draft.id}: the handler {handler!r} is not a function", hint="name a function")
        thing = Tool(draft.name, thing)
    return specs_of(Offer(thing, name=draft.name), owner)[0]


def _tools_in(thing: Any, owner: OfferingPlugin, name: str | None) -> Iterator[ToolSpec]:
    if isinstance(thing, ToolSpec):
        yield _from_spec(thing, owner)
    elif isinstance(thing, Tool):
        yield _from_function(thing.run, replace(thing.mark, name=thing.name), owner)
    elif (mark := mark_of(thing)) is not None:
        yield _from_function(thing, mark, owner)
    elif isinstance(thing, Mapping):
        yield _from_mapping(thing, owner)
    elif isinstance(thing, type | ModuleType):
        raise _no_tool(thing, owner)
    elif callable(getattr(thing, "execute", None)) and isinstance(getattr(thing, "name", None), str):
        keys = ("name", "description", "parameters", "execute", "label", *_SPELLINGS)
        yield _from_mapping({k: getattr(thing, k) for k in keys if hasattr(thing, k)}, owner)
    elif not callable(thing) and (methods := toolbox_methods(thing)):
        for method in methods:
            yield _from_function(method, mark_of(method) or ToolMark(), owner)
    elif is_tool(thing):
        yield _from_langchain(thing, owner, name or thing.name)
    else:
        raise _no_tool(thing, owner)


def _no_tool(thing: Any, owner: OfferingPlugin) -> ActivationFailed:
    hint = (
        "return functions marked with @tool, Tool, ToolSpec, factory(...), objects with execute, tools of LangChain, or "
        "tool-file mappings"
    )
    if inspect.isfunction(thing):
        hint = f"mark it: @tool above def {thing.__name__}"
        if thing.__name__ == "<lambda>":
            hint = "give it a name: Tool('name', lambda ...)"
    elif isinstance(thing, type):
        hint = f"return an instance: {thing.__name__}()"
    return ActivationFailed(f"{owner.name}: {_short(thing)} is not a tool", hint=hint)


def _from_function(function: Callable[..., Any], mark: ToolMark, owner: OfferingPlugin) -> ToolSpec:
    from tavern_core.schema.signature import signature_schema

    found = signature_schema(function, inject=INJECTED)
    name = full_id(mark.name or found.name, owner)
    if mark.fast and inspect.iscoroutinefunction(function):
        raise ActivationFailed(
            f"{name}: fast=True is for sync functions, {found.name} is async",
            hint="leave fast out; async is fast anyway",
        )
    return ToolSpec(
        name=name,
        description=mark.description or found.description,
        kind="python",
        version=mark.version or owner.version,
        input_schema=mark.parameters if mark.parameters is not None else found.parameters,
        output_schema=mark.output if mark.output is not None else found.returns,  # type: ignore[arg-type]  # see there
        impl=PythonTarget(
            function,
            found.convert if mark.parameters is None else None,
            {k: v for k, v in found.injected.items() if v in ("call", "context", "control")},  # type: ignore[misc]
            annotation=None if mark.output is not None else found.returns,
            preview=mark.preview,
        ),
        plugin=owner.name,
        source=_source(function),
        **{name: getattr(mark, name) for name in _AS_MARKED},
    )


def _without_execute(data: Mapping[str, Any], name: Any, owner: OfferingPlugin) -> ToolSpec:
    """A mapping in the tool-file format."""
    if isinstance(name, str) and "parameters" in data and not {"id", "kind", "impl", "implementation"} & data.keys():
        raise ActivationFailed(
            f"{owner.name}: tool {name!r} has no `execute`",
            hint="write execute: a function of (tool_call_id, params)",
        )
    if owner.from_mapping is None:
        raise ToolFileInvalid(f"{owner.name}: tool mappings cannot be read here")
    return owner.from_mapping(data)


def _from_mapping(data: Mapping[str, Any], owner: OfferingPlugin) -> ToolSpec:
    """Seed 002's object ``{name, description, parameters, execute}``, or the tool-file format."""
    execute, name = data.get("execute"), data.get("name")
    if execute is None:
        return _without_execute(data, name, owner)
    if not isinstance(name, str):
        raise ActivationFailed(f"{owner.name}: a tool is called {name!r}", hint='write name: "..."')
    if not callable(execute):
        raise ActivationFailed(f"{owner.name}: `execute` of tool {name!r} cannot be called")
    parameters = data.get("parameters")
    if not isinstance(parameters, Mapping):
        raise ActivationFailed(
            f"{owner.name}: tool {name!r} has no parameters",
            hint='write parameters: {"type": "object", "properties": {}} for a tool without any',
        )
    fields = {_SPELLINGS[key]: value for key, value in data.items() if key in _SPELLINGS and value is not None}
    fields["version"] = str(fields.get("version") or owner.version)
    fields["optional"] = bool(fields.get("optional"))
    if data.get("label"):
        fields["display_name"] = str(data["label"])
    return ToolSpec(
        name=full_id(name, owner),
        description=str(data.get("description") or inspect.getdoc(execute) or ""),
        kind="python",
        input_schema=parameters,
        impl=PythonTarget(execute, style="execute"),
        plugin=owner.name,
        source=_source(execute),
        **fields,
    )


def _from_langchain(tool: Any, owner: OfferingPlugin, name: str) -> ToolSpec:
    try:
        schema = schema_of(tool)
    except (Exception, SystemExit) as error:
        raise ActivationFailed(
            f"{owner.name}: the parameters of {name!r:.80} are not known: {printed(error)}"
        ) from error
    return ToolSpec(
        full_id(name, owner),
        tool.description,
        "langchain",
        owner.version,
        input_schema=schema,
        impl=tool,
        plugin=owner.name,
    )


def _from_spec(spec: ToolSpec, owner: OfferingPlugin) -> ToolSpec:
    name = full_id(spec.name, owner)
    version = spec.version if spec.version != "0" else owner.version
    return replace(spec, name=name, plugin=owner.name, version=version)


def refuse_twins(found: Iterable[OfferDescription], owner: OfferingPlugin) -> None:
    """Refuse two tools of one plugin with the same name.

    Raises:
        PluginError: names are equal, or differ only in case, - and _ (PLUGIN_FAILED).
    """
    first_names: dict[str, str] = {}
    for name in (name for item in found for name in item.ids):
        if (twin := first_names.get(fold(name))) is not None:
            raise PluginError(
                f"{owner.name}: two tools are called {name!r}" + (f" and {twin!r}" if twin != name else ""),
                hint="names that differ only in case, - and _ count as the same",
            )
        first_names[fold(name)] = name


def ids_made(made: Any, owner: OfferingPlugin) -> tuple[str, ...]:
    """The full ids of the tools that a factory made for a caller.

    Raises:
        PluginError: it is not a tool (ACTIVATION_FAILED).
    """
    return () if made is None else tuple(spec.name for spec in specs_of(made, owner))


def assign_names(
    described: Sequence[OfferDescription], made: Mapping[int, tuple[str, ...]], declared: Iterable[str]
) -> tuple[list[OfferDescription], int]:
    """Assign known ids to factories without names: the ids of the tools made for the host, else those of plugin.yaml.

    Args:
        made: position of a factory without names → the ids of the tools that it made for the host.
        declared: ids that the code must return; ids without another source must come from factories without names.

    Returns:
        All items with known ids, and the number of factories without any known id.
    """
    named = [replace(item, names=made[n]) if n in made else item for n, item in enumerate(described)]
    offered = {i for item in named for i in item.ids}
    missing = tuple(tool_id for tool_id in declared if tool_id not in offered)
    loose = [item.factory for n, item in enumerate(described) if n in made and item.factory is not None]
    known = [item for item in named if item.ids]
    if missing and loose:
        return [*known, OfferDescription(factory=_any_of(loose), names=missing)], 0
    return known, len(named) - len(known)


def _any_of(factories: Sequence[ToolFactory]) -> ToolFactory:
    """Merge factories into one that makes the tools of all of them."""
    if len(factories) == 1:
        return factories[0]

    async def make(context: CallContext) -> list[Any]:
        found: list[Any] = []
        for factory in factories:
            made = factory.make(context)
            made = await made if inspect.isawaitable(made) else made
            found += [] if made is None else made if isinstance(made, list | tuple) else [made]
        return found

    return ToolFactory(make, optional=all(factory.optional for factory in factories))


def _source(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _short(thing: Any) -> str:
    return f"{type(thing).__name__} {getattr(thing, '__name__', '')}".strip()


def spec_from_mapping(data: Mapping[str, Any], manifest: Manifest) -> ToolSpec:
    """A tool in the tool-file format that a plugin returned instead of writing a file; a `DRAFT` without parameters.

    Raises:
        ToolFileInvalid: it is invalid; `findings` lists every problem (TOOL_FILE_INVALID).
    """
    from tavern_core.kernel.manifest.tool_files import CODE, read_tool_data, tool_spec
    from tavern_core.kernel.text.yaml_reader import YamlDocument

    document = YamlDocument(f"{manifest.name}: tool {data.get('id')!r}", "", dict(data), code=CODE)
    definition, findings = read_tool_data(dict(data), document)
    if definition is not None:
        reading = tool_spec(definition, manifest=manifest, document=document)
        findings = reading.findings
        if reading.spec is not None:
            if reading.is_draft and reading.spec.kind == "python" and "handler" not in reading.spec.implementation:
                raise ToolFileInvalid(
                    f"{document.file} has no parameters", hint="add parameters and a handler, or use @tool"
                )
            return replace(reading.spec, impl=DRAFT) if reading.is_draft else reading.spec
    errors = tuple(f for f in findings if f.severity == "error")
    raise ToolFileInvalid(str(errors[0]), hint=errors[0].hint, findings=errors)
