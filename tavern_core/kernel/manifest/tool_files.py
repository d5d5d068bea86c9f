"""From the text of a *.tool.json file to a ToolDefinition, and from a definition to the ToolSpec the host keeps.

    text --read_json--> data --shape (pydantic)--> ToolDefinition --tool_spec--> ToolSpec
                                                        |
    plugin.yaml `tools:` list --------------------------+--> incomplete: {id, implementation: {type: python}}

One file defines one tool, and one broken file hides no other. An unknown key is an error (FEATURES B1). Nothing here opens
a file. Sources: seed 000 §6.3, §10.2, 001 §5.2, FEATURES B1-B8, B14.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.errors import Finding
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.manifest.implementation_validation import KINDS, shell_signs, split_command, withheld
from tavern_core.kernel.manifest.key_shape_examples import SHAPES
from tavern_core.kernel.manifest.tool_ids import IdRefusal, canonical_id
from tavern_core.kernel.settings.setting_value_validation import setting_problems
from tavern_core.kernel.text.document import LocatedDocument
from tavern_core.kernel.text.json_document import JsonDocument, read_json
from tavern_core.model.call_limits import NO_LIMITS
from tavern_core.model.capability import DESTRUCTIVE, is_capability, known_capability
from tavern_core.model.environment_variables import PERMISSION, is_name
from tavern_core.model.json_pointer import split_pointer
from tavern_core.model.manifest import Manifest
from tavern_core.model.nearest import did_you_mean, known_instead
from tavern_core.model.path_problem import MOST_FINDINGS, Path
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.tool import ENDPOINT_KINDS, Example, ToolSpec
from tavern_core.model.toolfile import Implementation, ToolDefinition
from tavern_core.schema.schema_check import whole_flaws
from tavern_core.schema.tree import normalise_schema

CODE: Final = "TOOL_FILE_INVALID"
TOOL_FILE_SUFFIX: Final = ".tool.json"


@dataclass(frozen=True, slots=True)
class ToolFileReading:
    """The content of one tool file; `definition` is None if a finding is an error."""

    definition: ToolDefinition | None
    findings: tuple[Finding, ...]
    document: JsonDocument


@dataclass(frozen=True, slots=True)
class SpecReading:
    """The result of reading one definition."""

    id: str = ""
    """The canonical id; empty when what was written is none."""
    spec: ToolSpec | None = None
    """None when there is no tool."""
    findings: tuple[Finding, ...] = ()
    is_draft: bool = False
    """A python tool whose parameters come from its signature: known after activation or from the cache."""


def read_tool_file(text: str | bytes, file: str) -> ToolFileReading:
    """Read one *.tool.json.

    Args:
        text: characters, or bytes in UTF-8 (a byte order mark is fine).
        file: its name in findings.
    """
    document = read_json(text, file, code=CODE)
    if document.findings:
        return ToolFileReading(None, document.findings, document)
    if not isinstance(document.data, dict):
        hint = 'begin with {"id": …}; one file, one tool' if isinstance(document.data, list) else ""
        finding = Finding(CODE, "a tool file holds one JSON object", hint, document.locate(()))
        return ToolFileReading(None, (finding,), document)
    definition, findings = read_tool_data(document.data, document)
    return ToolFileReading(definition, findings, document)


def read_tool_data(
    data: Mapping[str, Any], document: LocatedDocument
) -> tuple[ToolDefinition | None, tuple[Finding, ...]]:
    """The same for a definition that is data already: one that code returned, or a part of a larger document.

    Args:
        data: in the format of a tool file; ``$schema`` is for editors and ignored.
        document: where findings point.
    """
    data = {key: value for key, value in data.items() if key != "$schema"}
    try:
        return ToolDefinition.model_validate(data), ()
    except ValidationError as error:
        return None, tuple(each.finding(CODE, document) for each in explain(error, data, ToolDefinition, SHAPES))


def tool_spec(
    definition: ToolDefinition,
    *,
    manifest: Manifest,
    document: LocatedDocument,
    path: Path = (),
) -> SpecReading:
    """Make the specification of one declared tool of the plugin `manifest` describes.

    Args:
        definition: from a tool file or from `tools:` of the manifest.
        document: the target of findings.
        path: the place of the definition in it: ``()`` in a tool file, ``("tools", 2)`` inline.
    """
    return _ToolSpecBuilder(definition, manifest, document, path).make()


@dataclass
class _ToolSpecBuilder:
    """Builds the spec of one definition; collects findings."""

    definition: ToolDefinition
    manifest: Manifest
    document: LocatedDocument
    path: Path
    findings: list[Finding] = field(default_factory=list)
    id: str = ""
    """The canonical id, once it is known."""
    is_refused: bool = False
    """Whether there is no tool."""

    def make(self) -> SpecReading:
        identity = canonical_id(self.definition.id, self.manifest.name, self.manifest.aliases)
        if isinstance(identity, IdRefusal):
            self.id = self.definition.id  # as it was written: it has no other
            self.refuse(("id",), identity.message, identity.hint)
            return SpecReading(findings=tuple(self.findings))
        self.id = identity.id
        implementation = self.implementation()
        capabilities = self.capabilities(is_code=implementation is not None and implementation.type == "python")
        parameters = self.schema("parameters", self.definition.parameters)
        output = self.schema("output", self.definition.output)
        self.check_settings()
        if implementation is not None:
            self.check_implementation(implementation)
        if implementation is None or self.is_refused:
            return SpecReading(identity.id, findings=tuple(self.findings))
        is_draft = implementation.type in ("python", "node", "workflow") and parameters is None
        spec = self.spec(identity.id, identity.alias, implementation, capabilities, parameters, output)
        return SpecReading(identity.id, spec, tuple(self.findings), is_draft)

    # Parts -------------------------------------------------------------------------------------------------------------

    def implementation(self) -> Implementation | None:
        """The implementation, with `handler` as the short form of a python one."""
        implementation, handler = self.definition.implementation, self.definition.handler
        if handler is not None:
            if implementation is not None and (
                implementation.type != "python" or implementation.handler not in (None, handler)
            ):
                self.refuse(("handler",), "`handler` and `implementation` say two things", "delete one of them")
                return None
            return Implementation(type="python", handler=handler)
        if implementation is None:
            hint = "add `implementation: {type: python}`, or type script with a command"
            self.refuse(("implementation",), "the key 'implementation' is missing", hint)
        return implementation

    def capabilities(self, *, is_code: bool) -> frozenset[str]:
        """The needs of the tool, from both spellings; the manifest must request each. Destructive tools need one more.

        A Python tool whose need is not requested stays, so that its declaration holds for what the code returns; its calls
        are refused.
        """
        asked = {request.name for request in self.manifest.permissions.capabilities}
        spellings: list[tuple[Path, tuple[str, ...]]] = [
            (("capabilities",), self.definition.capabilities),
            (("securityContext", "capabilities"), self.definition.security_context.capabilities),
        ]
        found: set[str] = set()
        for path, names in spellings:
            for index, name in enumerate(names):
                if len(self.findings) >= MOST_FINDINGS:
                    break
                if not is_capability(name):
                    self.refuse((*path, index), f"{name!r:.80} is not a capability", known_capability(name))
                elif name not in asked:
                    message = f"the tool needs {name!r}, which plugin.yaml does not request"
                    hint = f"add `- {name}` under permissions.capabilities in plugin.yaml"
                    self.report((*path, index), message, hint, "error", is_refused=not is_code)
                found.add(name)
        if self.definition.security_context.destructive and DESTRUCTIVE not in found:
            found.add(DESTRUCTIVE)
            self.expect(DESTRUCTIVE, ("securityContext", "destructive"))
        return frozenset(found)

    def expect(self, name: str, path: Path) -> None:
        """Warn of a need that plugin.yaml does not request: every call will be refused."""
        if all(request.name != name for request in self.manifest.permissions.capabilities):
            message = f"the tool needs {name!r}, which plugin.yaml does not request"
            self.report(path, message, f"add `- {name}` under permissions.capabilities in plugin.yaml", "warning")

    def schema(self, key: str, written: Any) -> Any:
        """A checked copy of one of the schemas; None if there is none."""
        if written is None or isinstance(written, bool):
            return written
        schema = normalise_schema(dict(written))
        for flaw in whole_flaws(schema):
            path = (key, *(int(p) if p.isdigit() else p for p in split_pointer(flaw.path)))
            self.report(path, flaw.message, flaw.hint, flaw.severity)
        if key == "parameters":
            if schema.get("type", "object") != "object":
                self.refuse((key, "type"), "parameters must be of type object", "write `type: object`")
            schema.setdefault("type", "object")
        return dict(schema)

    def check_settings(self) -> None:
        names: set[str] = set()
        for index, item in enumerate(self.definition.config_schema):
            path: Path = ("configSchema", index)
            if "." in item.key:
                short = item.key.rpartition(".")[2] or "option"
                self.refuse((*path, "key"), f"the key {item.key!r} of a tool's setting has no dots", f"write {short}")
            if item.key in names:
                self.refuse((*path, "key"), f"the setting {item.key!r} is declared twice", "rename or delete one")
            names.add(item.key)
            for problem in setting_problems(item):
                self.refuse((*path, *problem.path), problem.message, problem.hint)

    def check_implementation(self, implementation: Implementation) -> None:
        if (check := KINDS.get(implementation.type)) is None:
            self.check_foreign_kind(implementation.type)
            return  # a kind of a plugin: its executor checks it
        for key in implementation.model_extra or {}:
            known = [f.alias or name for name, f in Implementation.model_fields.items()]
            self.refuse(("implementation", key), f"unknown key {key!r:.80}", known_instead(key, known), at_key=True)
        for key, message, hint in check(implementation):
            path = ("handler",) if key == "handler" and self.definition.handler else ("implementation", key)
            self.refuse(path, message, hint)
        for index, name in enumerate(implementation.env):
            if is_name(name) and not withheld(name):
                self.expect(PERMISSION + name, ("implementation", "env", index))
        if implementation.type == "script" and (signs := shell_signs(implementation.command)):
            message = f"no shell runs the command: {' '.join(signs)} and what follows are arguments of the script"
            hint = "do this within the script; if they are meant as arguments, write the command as a list of words"
            self.report(("implementation", "command"), message, hint, "warning")
        if implementation.type in ("script", "service", *ENDPOINT_KINDS) and self.definition.parameters is None:
            hint = "add `parameters: {type: object, properties: {…}}`; an empty one means: no arguments"
            self.refuse(("parameters",), f"a tool of type {implementation.type} needs `parameters`", hint)
        elif implementation.type == "service" and "properties" not in (self.definition.parameters or {}):
            hint = "add `properties: {…}`; an empty one means: no arguments"
            self.refuse(("parameters",), "the parameters of a tool of type service need `properties`", hint)

    def check_foreign_kind(self, kind: str) -> None:
        """Check a kind that is not the host's: contributed by this plugin or a dependency, or a typing error."""
        own_kinds = [declared.name for declared in self.manifest.executors or ()]
        near = did_you_mean(kind, [*KINDS, *own_kinds], 1)
        if kind in own_kinds or not near or self.manifest.depends_on or self.manifest.executors == ():
            return
        hint = f"{near} A kind of another plugin needs `dependsOn` in plugin.yaml"
        self.refuse(("implementation", "type"), f"there is no kind of tool {kind!r:.80}", hint)

    def _source(self) -> str:
        # Not the line: finding it means reading the text a second time, for every tool of every plugin.
        place = ".".join(str(part) for part in self.path)
        return f"{self.document.file}: {place}" if place else self.document.file

    def _aliases(self, name: str, alias: str) -> tuple[str, ...]:
        local = name.rpartition(":")[2]
        aliases = [written for written, target in self.manifest.aliases.items() if target.rpartition(":")[2] == local]
        return tuple(dict.fromkeys([*([alias] if alias else []), *aliases]))

    def spec(
        self,
        name: str,
        alias: str,
        implementation: Implementation,
        capabilities: frozenset[str],
        parameters: dict[str, Any] | None,
        output: dict[str, Any] | None,
    ) -> ToolSpec:
        definition, security = self.definition, self.definition.security_context
        timeout = min((each for each in (implementation.timeout, definition.timeout) if each), default=None)
        optional: dict[str, Any] = {} if parameters is None else {"input_schema": parameters}
        return ToolSpec(
            name=name,
            description=definition.description,
            kind=implementation.type,
            version=definition.version or self.manifest.version,
            tags=definition.tags,
            output_schema=output,
            capabilities=capabilities,
            display_name=definition.display_name,
            plugin=self.manifest.name,
            optional=definition.optional,
            aliases=self._aliases(name, alias),
            examples=tuple(Example(e.arguments, e.description, e.result) for e in definition.examples),
            read_only=security.read_only,
            destructive=security.destructive,
            idempotent=security.idempotent,
            untrusted=security.untrusted,
            timeout_ms=timeout,
            implementation=_implementation_data(implementation, timeout),
            config_schema=tuple(
                item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in definition.config_schema
            ),
            source=self._source(),
            requires_approval=security.requires_approval,
            job=definition.job,
            limits=definition.limits.limits() if definition.limits is not None else NO_LIMITS,
            **optional,
        )

    # Findings ----------------------------------------------------------------------------------------------------------

    def refuse(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self.report(path, message, hint, "error", at_key=at_key)

    def report(
        self, path: Path, message: str, hint: str, severity: Any, *, at_key: bool = False, is_refused: bool = True
    ) -> None:
        self.is_refused |= severity == "error" and is_refused
        where = self.document.locate((*self.path, *path), key=at_key)
        details = {"tool": self.id} if self.id else {}
        self.findings.append(Finding(CODE, message, hint, where, severity, details))


def _implementation_data(implementation: Implementation, timeout: int | None) -> dict[str, Any]:
    """The implementation for executors, with the effective time-out."""
    data: dict[str, Any] = implementation.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if implementation.type == "script":
        data["command"] = list(split_command(implementation.command or ""))
    if "timeout" in data:
        data["timeout"] = timeout
    return data
