"""Checks one plugin whose plugin.yaml can be read: compares what it declares with its files and its source."""

from __future__ import annotations

import ast
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from posixpath import normpath
from typing import Final, Literal

from tavern_core.contract.core_services import CORE_SERVICES
from tavern_core.contract.hookspecs import HOOKS, Hook
from tavern_core.contract.permissions import TRYFIRST, requested_permissions
from tavern_core.errors import Finding, Location, ProfileInvalid, WorkflowInvalid
from tavern_core.graph.compile import compile_workflow
from tavern_core.graph.problems import FlowProblem
from tavern_core.kernel.access.profiles import parse_profile
from tavern_core.kernel.browser_assets import served_file
from tavern_core.kernel.discovery.manifest_facts import facts_of
from tavern_core.kernel.files.plugin_file_reader import LARGEST_READ, PluginFiles
from tavern_core.kernel.manifest.declared_tools import DeclaredTools, read_declared_tools
from tavern_core.kernel.manifest.manifest_reader import ManifestReading
from tavern_core.kernel.manifest.manifest_rules import declared_paths
from tavern_core.kernel.manifest.tool_files import TOOL_FILE_SUFFIX
from tavern_core.kernel.manifest.tool_ids import IdRefusal, canonical_id
from tavern_core.kernel.manifest.workflow_file_codec import read_workflow
from tavern_core.kernel.plugins.permitted_hooks import LIFE
from tavern_core.kernel.text.json_document import read_json
from tavern_core.model.json_pointer import split_pointer
from tavern_core.model.manifest import Entry, Manifest
from tavern_core.model.naming_rules import split_id
from tavern_core.model.nearest import did_you_mean, fold
from tavern_core.model.node import ABSENT, NodeSpec, Slot
from tavern_core.model.script_command import words_before_file
from tavern_core.model.tool import ToolSpec
from tavern_core.model.toolfile import workflow_file_names
from tavern_core.model.workflow import Workflow
from tavern_core.review.hook_return_scan import HookReturn
from tavern_core.review.hookimpl_scan import NAMED_SECTIONS, FoundHook, SourceScan
from tavern_core.review.name_resolution import UNKNOWN, Definition
from tavern_core.review.tool_signature_scan import unfit
from tavern_core.review.unused_permissions import unused_permissions
from tavern_core.schema.schema_check import likely_slips
from tavern_core.schema.validate import compile_validator

MANIFEST: Final = "MANIFEST_INVALID"
HOOK: Final = "HOOK_REFUSED"
TOOL: Final = "TOOL_FILE_INVALID"
_NEEDS_NO_SECTION: Final = frozenset({"tavern_register_tools"})


_OF_ANY_NODES: Final = frozenset({"DUPLICATE_NODE", "DUPLICATE_EDGE", "DANGLING_EDGE", "CYCLE", "TOO_LARGE"})


class _AnyNodes:
    """A library in which every node type exists and takes every edge, because only the code knows the real ones."""

    def node(self, type_: str) -> NodeSpec:
        return NodeSpec(type_, dynamic_slots=True)

    def node_types(self) -> Collection[str]:
        return ()

    def why_no_node(self, type_: str) -> str:
        return ""

    def workflow(self, id_: str) -> None:
        return None

    def workflow_ids(self) -> Collection[str]:
        return ()

    def problems_of(self, workflow: Workflow) -> Iterable[FlowProblem]:
        return ()


def _steps(pointer: str) -> Iterator[str | int]:
    """The steps of a JSON pointer, as a path in a document."""
    return (int(part) if part.isdigit() else part for part in split_pointer(pointer))


class ManifestCheck:
    """The checks of one plugin whose manifest can be read."""

    def __init__(self, manifest: Manifest, reading: ManifestReading, files: PluginFiles, scan: SourceScan) -> None:
        self._manifest, self._document, self._files, self._scan = manifest, reading.document, files, scan
        self._requested = requested_permissions(manifest)
        self._sections = facts_of(manifest).sections
        self._tools: DeclaredTools = read_declared_tools(manifest, reading.document, files)
        self._workflows_read: set[str] = set()
        self.undeclared: list[str] = []

    def run(self) -> Iterator[Finding]:
        yield from self._paths()
        yield from self._tools.findings
        yield from self._unread_tool_files()
        flows = [draft for draft in self._tools.drafts if draft.kind == "workflow"]
        for spec in sorted((*self._tools.specs, *flows), key=lambda each: each.name):
            yield from self._spec(spec)
        yield from self._workflow_folder()
        yield from self._profile_folder()
        yield from self._settings_of_tools()
        yield from self._scan.findings
        for hook in self._scan.hooks:
            yield from self._hook(hook)
        yield from self._lookalikes()
        yield from self._returned_tools()
        yield from self._capabilities_of_code()
        yield from self._handlers()
        yield from self._sections_of_code()
        yield from self._services()
        yield from self._targets()
        yield from self._aliases()
        yield from self._asked_services()
        has_code = any(self._sources_seen())
        yield from unused_permissions(self._manifest, self._document, self._scan, self._tools.specs, has_code=has_code)

    # Files -------------------------------------------------------------------------------------------------------------

    def _paths(self) -> Iterator[Finding]:
        for path, relative in declared_paths(self._manifest):
            if path[0] == "tools":
                continue  # reported by the tools themselves
            if path[0] == "frontend" and path[-1] in ("outputDir", "rootDir"):
                continue  # a build creates them; only the entries inside matter
            if problem := self._files.problem(self._served(path, relative)):
                where = self._document.locate(path)
                if path[0] == "frontend":
                    yield Finding(MANIFEST, problem, "build it, or correct the path", where, "warning")
                else:
                    yield Finding(MANIFEST, problem, "create it, or correct the path", where)

    def _unread_tool_files(self) -> Iterator[Finding]:
        """Files that look like tool files but are in a place where no tool files are searched."""
        read = {name for name, _ in self._tools.stamps}
        entry = self._manifest.tools.entry if isinstance(self._manifest.tools, Entry) else ""
        hint = (
            f"move it into {entry!r}, with a name like count{TOOL_FILE_SUFFIX}" if entry else "tools: {entry: ./tools}"
        )
        for relative, _ in self._files.files():
            is_hidden = "/." in f"/{relative}"
            if relative.lower().endswith(TOOL_FILE_SUFFIX) and relative not in read and not is_hidden:
                yield Finding(TOOL, "this tool file is not read", hint, Location(relative, 1, 1), "warning")

    def _served(self, path: tuple[str | int, ...], relative: str) -> str:
        """The path of a frontend file as the host serves it."""
        frontend = self._manifest.frontend
        if frontend is None or path[0] != "frontend" or path[1] == "dev":
            return relative
        return served_file(frontend, "vanilla" if path[1] == "vanilla" else "build", relative)[0]

    def _spec(self, spec: ToolSpec) -> Iterator[Finding]:
        if not spec.description:
            hint = "say what it does and when to use it; models choose by this"
            where = self._declared_at(spec, "description")
            yield Finding(TOOL, f"the tool {spec.local_name!r} has no description", hint, where, "warning")
        for key, schema in (("parameters", spec.input_schema), ("output", spec.output_schema or {})):
            for flaw in likely_slips(dict(schema)):
                yield self._flaw(spec, flaw.message, flaw.hint, key, *_steps(flaw.path), severity="warning")
        if spec.kind == "script":
            yield from self._script(spec)
        if spec.kind in ("script", "service") and spec.limits.cache_ms and not spec.read_only:
            hint = "if the tool changes nothing, write `securityContext: {readOnly: true}`; else delete cacheMs"
            message = "`cacheMs` has no effect, because the tool is not read-only"
            yield self._flaw(spec, message, hint, "limits", "cacheMs", severity="warning")
        if workflow := spec.implementation.get("workflowId"):
            yield from self._workflow(spec, str(workflow))
        if spec.examples:
            validator = compile_validator(spec.input_schema, name=spec.name)
            for number, example in enumerate(spec.examples):
                for problem_ in validator.problems(dict(example.arguments), limit=3):
                    message = f"example {number} of {spec.local_name!r} is refused by its own parameters: {problem_}"
                    where = self._declared_at(spec, "examples", number, "arguments", *_steps(problem_.path))
                    yield Finding(TOOL, message, "correct the example or the schema", where)

    def _settings_of_tools(self) -> Iterator[Finding]:
        """Settings of tools whose full key is also one of the plugin's own: ``extensions.text.count.most``."""
        own = {item.key for item in self._manifest.config_options}
        for spec in self._tools.specs:
            for number, item in enumerate(spec.config_schema):
                key = f"extensions.{self._manifest.name}.{spec.local_name}.{item['key']}"
                if key in own:
                    message = f"the setting {key!r} is declared in `configOptions`, too"
                    yield self._flaw(spec, message, "rename one of them", "configSchema", number, "key")

    def _workflow(self, spec: ToolSpec, written: str) -> Iterator[Finding]:
        """Check the file of a workflow tool: it exists and is a workflow; its edges make sense, whatever its nodes."""
        names = workflow_file_names(written)
        file = next((name for name in names if not self._files.problem(name)), None)
        if file is None:
            problem = self._files.problem(names[0])
            yield self._flaw(spec, problem, "create it, or correct the path", "implementation", "workflowId")
            return
        workflow = yield from self._workflow_file(file, spec.local_name, f"the tool {spec.local_name!r}: ")
        if workflow is not None and spec not in self._tools.drafts:
            yield from self._interface(spec, file, workflow.inputs())

    def _workflow_folder(self) -> Iterator[Finding]:
        """Check the files of `workflows.entry` that no tool names."""
        for file, id_ in self._in_entry(self._manifest.workflows):
            if file not in self._workflows_read:
                yield from self._workflow_file(file, id_, "")

    def _profile_folder(self) -> Iterator[Finding]:
        """Check the files of `profiles.entry`."""
        for file, name in self._in_entry(self._manifest.profiles, "agent_profile.json"):
            try:
                yield from parse_profile(self._files.read(file) or b"", file, name)[1]
            except ProfileInvalid as error:
                yield from error.findings

    def _in_entry(self, declared: object, inner: str = "") -> Iterator[tuple[str, str]]:
        """The JSON files of a section with an `entry`, and their names; `inner`: the file of a folder in it."""
        if not isinstance(declared, Entry):
            return
        entry = normpath(declared.entry)
        names = self._files.names(entry)
        for file in [entry] if names is None else [normpath(f"{entry}/{name}") for name in names]:
            name = file.rpartition("/")[2]
            if inner and not name.endswith(".json"):
                file = f"{file}/{inner}"
            is_hidden = name.startswith(".") or file.endswith(TOOL_FILE_SUFFIX)
            if file.endswith(".json") and not is_hidden and self._files.read(file) is not None:
                yield file, name.removesuffix(".json")

    def _workflow_file(self, file: str, id_: str, about: str) -> Generator[Finding, None, Workflow | None]:
        """Check that a file is a workflow whose edges make sense, whatever its nodes; None: it cannot be read."""
        self._workflows_read.add(normpath(file))
        content = self._files.read(file) or b""
        if len(content) == LARGEST_READ:
            return None  # the rest of it is unknown
        try:
            workflow = read_workflow(content, file, id_)
        except WorkflowInvalid as error:
            yield from error.findings
            return None
        for each in compile_workflow(workflow, _AnyNodes()).errors:
            if each.code in _OF_ANY_NODES:
                yield Finding(
                    TOOL if about else WorkflowInvalid.code, f"{about}{each.message}", each.hint, Location(file)
                )
        return workflow

    def _interface(self, spec: ToolSpec, file: str, inputs: Mapping[str, Slot]) -> Iterator[Finding]:
        """Check that the written parameters of a workflow tool fit the interface of its file."""
        parameters = spec.input_schema.get("properties", {})
        for name in parameters:
            if name not in inputs:
                hint = did_you_mean(name, inputs) or f"its inputs: {', '.join(inputs) or 'none'}"
                yield self._flaw(spec, f"{file} has no input {name!r}", hint, "parameters", "properties", name)
        for name, slot in inputs.items():
            if slot.required is True and slot.default is ABSENT and name not in parameters:
                message = f"{file} requires the input {name!r}, which is not a parameter"
                hint = "add it to the parameters, or leave `parameters` out: the interface of the file is used then"
                yield self._flaw(spec, message, hint, "parameters", "properties")

    def _flaw(
        self,
        spec: ToolSpec,
        message: str,
        hint: str,
        *inside: str | int,
        severity: Literal["error", "warning"] = "error",
    ) -> Finding:
        """A finding about a tool, or about the part `inside` of its declaration."""
        where = self._declared_at(spec, *inside)
        return Finding(TOOL, f"the tool {spec.local_name!r}: {message}", hint, where, severity)

    def _declared_at(self, spec: ToolSpec, *inside: str | int) -> Location:
        """The location of the declaration of a tool, or of a part of it: in its file, or in plugin.yaml."""
        file, _, place = spec.source.partition(": ")
        key, _, index = place.partition(".")
        if index.isdigit():
            return self._document.locate((key, int(index), *inside))
        file = file.partition(":")[0]
        text = self._files.read(file) if file.endswith(".json") else None
        return Location(file) if text is None else read_json(text, file, code=TOOL).locate(inside)

    def _script(self, spec: ToolSpec) -> Iterator[Finding]:
        words = [str(word) for word in spec.implementation.get("command", ())]
        file = "".join(words[words_before_file(words)[0] :][:1])
        if problem := self._files.problem(file):
            hint = "create it, or correct the path; it is relative to plugin.yaml"
            yield self._flaw(spec, problem, hint, "implementation", "command")
        cwd = spec.implementation.get("cwd")
        if isinstance(cwd, str) and self._files.names(cwd) is None:
            message = f"{cwd!r} is not a folder of the plugin"
            yield self._flaw(spec, message, "create it, or leave cwd out", "implementation", "cwd")

    # Hooks -------------------------------------------------------------------------------------------------------------

    def _hook(self, found: FoundHook) -> Iterator[Finding]:
        where = Location(found.file, found.line, 1)
        hook = HOOKS.get(found.name)
        if hook is None:
            hint = did_you_mean(found.name, HOOKS, 1) or "docs/hooks.md lists the hooks"
            yield Finding(HOOK, f"there is no hook {found.name!r}", hint, where)
            return
        yield from _form_problems(found, hook, where)
        if hook.section:
            replaces = hook.section == "services" and any(p.startswith("service:override:") for p in self._requested)
            if (
                hook.section not in self._sections
                and hook.name not in _NEEDS_NO_SECTION
                and hook.is_called
                and not replaces
            ):
                message = f"{hook.name} is implemented, but plugin.yaml has no section {hook.section!r}"
                yield Finding(HOOK, message, f"add to plugin.yaml the line `{hook.section}: [<names>]`", where)
        elif hook.name not in LIFE and not self._requested & set(hook.permissions):
            message = f"{hook.name} is implemented, but plugin.yaml does not request it"
            hint = f'add to permissions.hooks in plugin.yaml the line `- "{hook.permissions[0]}"`'
            yield Finding(HOOK, message, hint, where)
        if found.tryfirst and TRYFIRST not in self._requested:
            message = f"{hook.name} requests tryfirst, but plugin.yaml does not"
            yield Finding(HOOK, message, "add to permissions in plugin.yaml the line `tryfirst: true`", where)
        for argument, right in (hook.sensitive or {}).items():
            if argument in (*found.required, *found.optional) and right not in self._requested:
                message = f"{hook.name} takes {argument!r}, which needs the right {right!r}"
                yield Finding(HOOK, message, f"add to permissions in plugin.yaml `data: [{right}]`", where)
        if not hook.is_called:
            yield Finding(HOOK, f"{hook.name} is reserved: this host does not call it yet", "", where, "warning")

    def _lookalikes(self) -> Iterator[Finding]:
        marked = {hook.name for hook in self._scan.hooks}
        for name, file, line in self._scan.lookalikes:
            if name not in marked:
                message = f"{name} has the name of a hook but no @hookimpl: it is never called"
                yield Finding(HOOK, message, "write @hookimpl above it", Location(file, line, 1), "warning")

    def _sources_seen(self) -> Iterator[str]:
        return (relative for relative, _ in self._files.files() if relative.endswith(".py"))

    # Tools -------------------------------------------------------------------------------------------------------------

    def _returned_tools(self) -> Iterator[Finding]:
        wrong = (finding.details.get("tool") for finding in self._tools.findings if finding.severity == "error")
        declared = {*self._tools.ids, *filter(None, wrong)}  # what is wrong with those was reported
        returned: dict[str, tuple[str, int]] = {}
        folded: set[tuple[str, str]] = set()
        for local, file, line in self._scan.returned:
            found = canonical_id(local, self._manifest.name, self._manifest.aliases)
            if isinstance(found, IdRefusal):
                yield Finding(TOOL, found.message, found.hint, Location(file, line, 1))
            elif (file, fold(found.id)) in folded:  # a hook in a module that is never imported returns nothing
                hint = "leave one out; names that differ only in case, - and _ count as the same"
                yield Finding(TOOL, f"two tools are called {local!r}", hint, Location(file, line, 1))
            else:
                returned[found.id] = file, line
                folded.add((file, fold(found.id)))
        functions = {tool.name for tool in self._scan.tools}  # other objects may be of any kind
        for spec in (*self._tools.specs, *self._tools.drafts):
            if spec.kind != "python" and spec.name in returned and spec.local_name in functions:
                message = f"it is declared as a {spec.kind}, and tavern_register_tools returns a function of this name"
                hint = "rename one of them, or declare it with implementation: {type: python}"
                yield self._flaw(spec, message, hint, "implementation")
        missing_from_yaml = [name for name in returned if name not in declared]
        self.undeclared = [name.partition(":")[2] for name in missing_from_yaml]
        for name in missing_from_yaml:
            local = name.partition(":")[2]
            if declared:
                message = f"the tool {local!r} is returned, but plugin.yaml does not declare it: it is left out"
            else:
                message = f"the tool {local!r} is not declared in plugin.yaml: the plugin is imported at every start"
            hint = f"add to tools: `- {{id: {local}, implementation: {{type: python}}}}`, or run check with --write"
            file, line = returned[name]
            yield Finding(TOOL, message, hint, Location(file, line, 1), "error" if declared else "warning")
        if self._scan.is_complete:
            yield from self._not_returned({*returned})

    def _not_returned(self, returned: set[str]) -> Iterator[Finding]:
        for name in (spec.name for spec in self._tools.of_code):
            if name not in returned:
                local = name.partition(":")[2]
                message = f"plugin.yaml declares the tool {local!r}, but tavern_register_tools does not return it"
                hint = "return it, or delete the declaration: the plugin fails to activate like this"
                yield Finding(TOOL, message, hint, self._place_of(name))

    def _place_of(self, name: str) -> Location:
        for index, definition in enumerate(self._manifest.tools if isinstance(self._manifest.tools, tuple) else ()):
            identity = canonical_id(definition.id, self._manifest.name, self._manifest.aliases)
            if not isinstance(identity, IdRefusal) and identity.id == name:
                return self._document.locate(("tools", index, "id"))
        return self._document.locate(("tools",), key=True)

    def _handlers(self) -> Iterator[Finding]:
        """Check the ``module:function`` of tools: it must exist and accept the declared parameters."""
        names = self._scan.names
        for spec in (*self._tools.specs, *self._tools.drafts):
            target = str(spec.implementation.get("handler") or "")
            if spec.kind != "python" or (not target and "" in names.modules):
                continue
            where = self._declared_at(spec)
            if not target:
                message = f"{spec.name} is a Python function, but the plugin has no __init__.py that could return it"
                yield Finding(TOOL, message, "put the code into __init__.py next to plugin.yaml", where)
                continue
            module, _, path = target.partition(":")
            if "" not in names.modules:
                message = f"the plugin has no package in which {target!r} could be"
                yield Finding(TOOL, message, "add an __init__.py", where)
            elif (module_source := names.modules.get(names.inside(module))) is None:
                near = did_you_mean(module, [dotted for dotted in names.modules if dotted])
                hint = near or "create it, or correct the handler: module:function, within the plugin"
                yield Finding(TOOL, f"the handler {target!r} names no module of the plugin", hint, where)
            elif "." not in path and (meaning := names.find(module_source, path)) != UNKNOWN:
                if not isinstance(meaning, Definition):
                    hint = did_you_mean(path, module_source.bound) or "define it, or correct the handler"
                    yield Finding(TOOL, f"there is no handler {target!r} in {module_source.file}", hint, where)
                elif isinstance(meaning.node, ast.Constant | ast.List | ast.Dict | ast.Tuple):
                    yield Finding(TOOL, f"the handler {target!r} is not a function", "name a function", where)
                elif isinstance(meaning.node, ast.FunctionDef | ast.AsyncFunctionDef) and spec in self._tools.specs:
                    yield from unfit(meaning.node, spec.input_schema, where)

    def _sections_of_code(self) -> Iterator[Finding]:
        """Compare the contributions of hooks with the names in plugin.yaml."""
        nothing = HookReturn(is_complete=self._scan.is_complete)
        for section in NAMED_SECTIONS:
            found = self._scan.sections.get(section, nothing)
            written = getattr(self._manifest, section, None)
            items = written if isinstance(written, tuple) else ()  # not `workflows: {entry: …}`
            declared = [item.name for item in items if not isinstance(item, str)]
            overrides = self._manifest.permissions.services.override if section == "services" else ()
            for name, file, line in found.names if declared else ():
                if name not in (*declared, *overrides):
                    hint = did_you_mean(name, declared) or f"add it: {section}: [{', '.join([*declared, name])}]"
                    message = f"the {section[:-1]} {name!r} is offered, but plugin.yaml does not declare it"
                    yield Finding(HOOK, message, hint, Location(file, line, 1))
            offered = {name for name, _, _ in found.names}
            for index, name in enumerate(declared) if found.is_complete else ():
                if name not in offered:
                    message = f"plugin.yaml declares the {section[:-1]} {name!r}, but no hook offers it"
                    hint = did_you_mean(name, offered) or "offer it, or delete the declaration"
                    yield Finding(MANIFEST, message, hint, self._document.locate((section, index)), "warning")

    def _targets(self) -> Iterator[Finding]:
        """Tools that run a service or a node of this plugin, which must exist."""
        own_services = {service.name: service for service in self._scan.services}
        offered = self._scan.sections.get("services")
        has_nodes = "nodes" in self._sections or any(hook.name == "tavern_register_nodes" for hook in self._scan.hooks)
        for spec in (*self._tools.specs, *self._tools.drafts):
            where = self._declared_at(spec)
            service, method = (str(spec.implementation.get(key) or "") for key in ("service", "method"))
            if spec.kind == "service" and (found := own_services.get(service)) is not None and found.is_complete:
                methods = [each.name for each in found.methods]
                if method not in methods:
                    hint = did_you_mean(method, methods) or f"it has: {', '.join(methods) or 'no public method'}"
                    yield Finding(TOOL, f"the service {service!r} has no method {method!r}", hint, where)
            elif (
                spec.kind == "service"
                and offered is not None
                and offered.is_complete
                and (near := did_you_mean(service, own_services))
                and service not in own_services
            ):
                yield Finding(TOOL, f"the plugin offers no service {service!r}", near, where, "warning")
            owner, local = split_id(str(spec.implementation.get("nodeType") or ""))
            if spec.kind != "node" or not local:
                continue
            if owner in ("", self._manifest.name) and not has_nodes:
                message = f"the plugin has no node {local!r}: it contributes none"
                yield Finding(TOOL, message, "add `nodes: {entry: nodes}`, or name another's node", where)
            elif owner not in ("", "core", self._manifest.name, *self._manifest.depends_on):
                message = f"the node {owner}:{local} belongs to plugin {owner}, which {self._manifest.name} does not depend on"
                yield Finding(TOOL, message, f'add to plugin.yaml: `dependsOn: {{{owner}: ""}}`', where)

    def _aliases(self) -> Iterator[Finding]:
        """Further names of tools that the plugin does not have."""
        if not self._scan.is_complete or any(finding.severity == "error" for finding in self._tools.findings):
            return
        found = (
            canonical_id(local, self._manifest.name, self._manifest.aliases) for local, _, _ in self._scan.returned
        )
        ids = {*self._tools.ids, *(each.id for each in found if not isinstance(each, IdRefusal))}
        for written, target in self._manifest.aliases.items():
            local = target.rpartition(":")[2]
            if f"{self._manifest.name}:{local}" not in ids:
                hint = did_you_mean(local, [each.partition(":")[2] for each in ids]) or "correct it, or delete the line"
                where = self._document.locate(("aliases", written))
                yield Finding(MANIFEST, f"the plugin has no tool {local!r}", hint, where, "warning")

    def _asked_services(self) -> Iterator[Finding]:
        """Misspelt services of the host; services of other plugins are not known here."""
        asked = self._manifest.permissions.services
        own_services = {service.name for service in self._manifest.services or ()}
        for key, names in (("use", asked.use), ("write", asked.write), ("override", asked.override)):
            for index, name in enumerate(names):
                near = did_you_mean(name, CORE_SERVICES, 1)
                if near and name not in CORE_SERVICES and name not in own_services:
                    where = self._document.locate(("permissions", "services", key, index))
                    yield Finding(MANIFEST, f"the host has no service {name!r}", near, where, "warning")

    def _services(self) -> Iterator[Finding]:
        replaced = self._manifest.permissions.services.override  # for these, the marks of the replaced service count
        sent: set[tuple[str, int]] = set()
        for service in self._scan.services:
            for method in service.methods:
                where = method.file, method.line
                if method.effect != "unsaid" or service.name in replaced or where in sent:
                    continue
                sent.add(where)
                message = f"the method {method.name!r} of service {service.name!r} is not marked: it counts as changing, so service:use does not reach it"
                hint = "write @read_only above it when it only looks, else @mutates; both come from tavern_core"
                yield Finding("SERVICE_UNMARKED", message, hint, Location(*where, 1), "warning")

    def _capabilities_of_code(self) -> Iterator[Finding]:
        asked = {request.name for request in self._manifest.permissions.capabilities}
        for tool in self._scan.tools:
            for name in sorted({*tool.capabilities} - asked):
                message = f"the tool {tool.name!r} needs {name!r}, which plugin.yaml does not request"
                hint = f"add to permissions.capabilities in plugin.yaml the line `- {name}`"
                yield Finding(TOOL, message, hint, Location(tool.file, tool.line, 1))


def _form_problems(found: FoundHook, hook: Hook, where: Location) -> Iterator[Finding]:
    """Problems of the function itself that the host would refuse."""
    if found.is_wrapper:
        hint = "write a plain function; a modify-hook returns a changed copy"
        yield Finding(HOOK, f"{hook.name} is a pluggy wrapper; wrappers are not allowed", hint, where)
    elif found.is_generator:
        yield Finding(HOOK, f"{hook.name} is a generator", "return a value instead of yielding", where)
    arguments = ", ".join(hook.arguments)
    if found.variadic:
        yield Finding(HOOK, f"{hook.name} cannot take {found.variadic}", f"name what you want: {arguments}", where)
    for name in found.required:
        if name not in hook.arguments:
            hint = did_you_mean(name, hook.arguments, 1) or f"its arguments are: {arguments}"
            yield Finding(HOOK, f"{hook.name} has no argument {name!r}", hint, where)
