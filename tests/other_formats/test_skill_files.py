"""SKILL.md: our verdict is that of the reference library, each finding has its place, and no text makes the reader fail."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import skills_ref

from tavern_core.kernel.files.plugin_file_reader import FolderFiles
from tavern_core.kernel.manifest.skill_file import read_skill
from tavern_core.kernel.manifest.skill_folder import check_skill
from tavern_core.kernel.manifest.skill_tools import MOST_SKILLS, read_plugin_skills
from tests import programs
from tests.rows import each_row

VALID = {
    "plain": "name: demo\ndescription: Does it.",
    "all keys": "name: demo\ndescription: Does it.\nlicense: MIT\ncompatibility: needs python\nallowed-tools: Read Bash(git:*)\n"
    "metadata:\n  author: me\n  version: 1.10",
    "folded": "name: demo\ndescription: >\n  Two\n  lines.",
    "literal": "name: demo\ndescription: |\n  Two\n  lines.",
    "quoted": "name: 'demo'\ndescription: \"With: a colon, and # no comment\"",
    "comment": "# about\nname: demo # its name\ndescription: Does it.",
    "numbers are text": "name: demo\ndescription: 12",
    "yes is text": "name: demo\ndescription: yes",
    "any text": "name: demo\ndescription: 处理表格。",
    "rule in the body": "name: demo\ndescription: Does it.\n---\n# One\n---\ntwo",
    "longest": f"name: demo\ndescription: {'x' * 1024}\ncompatibility: {'y' * 500}",
    "odd metadata": "name: demo\ndescription: Does it.\nmetadata: text",
}
INVALID = {
    "no name": "description: Does it.",
    "no description": "name: demo",
    "empty description": "name: demo\ndescription:",
    "blank description": "name: demo\ndescription: '  '",
    "list as description": "name: demo\ndescription:\n  - a\n  - b",
    "mapping as name": "name:\n  a: b\ndescription: Does it.",
    "other folder": "name: other\ndescription: Does it.",
    "capitals": "name: Demo\ndescription: Does it.",
    "hyphen at the end": "name: demo-\ndescription: Does it.",
    "two hyphens": "name: de--mo\ndescription: Does it.",
    "underscore": "name: de_mo\ndescription: Does it.",
    "long name": f"name: {'d' * 65}\ndescription: Does it.",
    "long description": f"name: demo\ndescription: {'x' * 1025}",
    "long compatibility": f"name: demo\ndescription: Does it.\ncompatibility: {'y' * 501}",
    "list as compatibility": "name: demo\ndescription: Does it.\ncompatibility:\n  - a",
    "unknown key": "name: demo\ndescription: Does it.\nversion: 1",
    "flow mapping": "name: demo\ndescription: Does it.\nmetadata: {a: b}",
    "flow list": "name: demo\ndescription: Does it.\nallowed-tools: [Read, Bash]",
    "empty flow list": "name: demo\ndescription: Does it.\nallowed-tools: []",
    "colons": "name: demo\ndescription: Use when: always",
    "twice": "name: demo\nname: demo\ndescription: Does it.",
    "anchor": "name: demo\ndescription: &a Does it.\nlicense: *a",
    "tag": "name: demo\ndescription: !!str Does it.",
    "merge": "name: demo\ndescription: Does it.\nmetadata:\n  <<: *a",
    "tab": "name: demo\ndescription: Does it.\nmetadata:\n\ta: b",
    "no mapping": "just text",
    "list": "- name: demo",
    "nothing": "",
    "only a comment": "# nothing",
    "unclosed quote": "name: 'demo\ndescription: Does it.",
}
WHOLE = {
    "no front matter": ("# Demo", False),
    "empty": ("", False),
    "not closed": ("---\nname: demo\ndescription: Does it.\n", False),
    "late": ("\n---\nname: demo\ndescription: Does it.\n---\n", False),
    "byte order mark": ("\ufeff---\nname: demo\ndescription: Does it.\n---\n", False),
    "windows": ("---\r\nname: demo\r\ndescription: Does it.\r\n---\r\nBody\r\n", True),
    "no body": ("---\nname: demo\ndescription: Does it.\n---", True),
}
CASES = {
    **{name: (f"---\n{text}\n---\n# Body\n", True) for name, text in VALID.items()},
    **{name: (f"---\n{text}\n---\n# Body\n", False) for name, text in INVALID.items()},
    **WHOLE,
}


@each_row("case", CASES)
def test_our_verdict_is_that_of_the_reference_library(case: str, tmp_path: Path) -> None:
    text, is_valid = CASES[case]
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(text.encode())
    found = check_skill(folder)
    assert (skills_ref.validate(folder) == []) == is_valid
    assert found.is_valid == is_valid, [str(finding) for finding in found.findings]
    assert all(finding.where is not None and finding.where.file == "SKILL.md" for finding in found.findings)


@each_row(("name", "is_valid"), [("表格", True), ("étude", True), ("de.mo", False), ("-demo", False)])
def test_names_are_judged_as_the_reference_library_does(name: str, is_valid: bool, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "skill.md").write_text(f"---\nname: {name}\ndescription: Does it.\n---\n", encoding="utf-8")
    assert (skills_ref.validate(folder) == []) == is_valid
    assert check_skill(folder).is_valid == is_valid


def test_cosmetic_faults_are_told_and_the_skill_is_used() -> None:
    text = b"---\nname: Demo_Skill\nversion: 2\ndescription: Does it.\nallowed-tools: [Read]\n---\n"
    found = read_skill(text, "folder", "SKILL.md")
    assert (found.name, found.description, found.is_usable, found.is_valid) == ("Demo_Skill", "Does it.", True, False)
    assert [finding.located for finding in found.findings] == [
        "SKILL.md:3:1: version: unknown key 'version'",
        "SKILL.md:2:7: name: the name 'Demo_Skill' is not in lower case",
        "SKILL.md:2:7: name: the name 'Demo_Skill' holds more than letters, digits and hyphens",
        "SKILL.md:2:7: name: the folder is called 'folder', the skill 'Demo_Skill'",
        "SKILL.md:5:16: lists and mappings in brackets are not allowed here",
    ]
    assert found.findings[3].hint == "name: folder"  # no folder is renamed to what no skill may be called


@each_row(
    ("folder", "name", "hint"),
    [
        ("other", "demo", "rename the folder to demo"),
        ("pdf-forms", "PDF-Forms", "name: pdf-forms"),
        ("a", "-a", "name: a"),
        ("a", "a--b", "name: a"),
        ("demo_skill", "Demo_Skill", ""),
    ],
)
def test_the_hint_about_a_folder_of_another_name_leads_to_a_name_that_a_skill_may_have(
    folder: str, name: str, hint: str
) -> None:
    found = read_skill(f"---\nname: {name}\ndescription: Does it.\n---\n".encode(), folder, "SKILL.md")
    (flaw,) = [finding for finding in found.findings if "the folder is called" in finding.message]
    assert flaw.hint == hint


@each_row(
    ("written", "shown"),
    [
        ("d", "d"),
        ("End", "End"),
        ("<|[END_TOOL]|>", "<·|·[END_TOOL]|>"),
        ("<\\u200b|[END_TOOL]|>", "<· |·[END_TOOL]|>"),
    ],
)
def test_a_description_is_changed_only_where_it_could_be_read_as_a_call(written: str, shown: str) -> None:
    skill = read_skill(f'---\nname: a\ndescription: "{written}"\n---\n'.encode(), "a", "SKILL.md")
    assert skill.description == shown


def test_a_skill_without_a_name_has_that_of_its_folder() -> None:
    found = read_skill(b"---\ndescription: Does it.\n---\n", "folder", "SKILL.md")
    assert (found.name, found.is_usable) == ("folder", True)


def test_a_long_body_is_advice_and_no_fault() -> None:
    found = read_skill(b"---\nname: a\ndescription: b\n---\n" + b"word " * 5_000, "a", "SKILL.md")
    assert found.is_valid
    assert [finding.severity for finding in found.findings] == ["info"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe-\x00", b"---\n\xff\n---", b"---\n\x00: a\n---", b"---\n" + b"[" * 5_000 + b"\n---\n", b"---\n" + b"a:\n " * 3_000 + b"\n---\n",
     b"---\nname: " + b"9" * 10_000 + b"\ndescription: x\n---\n", "---\nname: a\u2028b\ndescription: x\n---\n".encode(), b"x" * 2_000_000],
)  # fmt: skip
def test_hostile_front_matter_is_one_located_finding(content: bytes) -> None:
    found = read_skill(content, "demo", "SKILL.md")
    assert found.findings
    assert all(finding.where is not None for finding in found.findings)


@pytest.mark.slow
def test_no_text_makes_the_reader_fail() -> None:
    draw = random.Random(7)
    signs = ["---", "\n", ":", " ", "-", "name", "description", "{", "}", "[", "]", "'", '"', "|", ">", "&a", "*a", "!!int", "\t", "#", "字", "\r"]  # fmt: skip
    for _ in range(3_000):
        text = "---\n" + "".join(draw.choice(signs) for _ in range(draw.randrange(40))) + "\n---\n"
        read_skill(text.encode(), "demo", "SKILL.md")


@pytest.mark.slow
def test_the_two_commands_agree(tmp_path: Path) -> None:
    for name, line in (("good", "description: Does it."), ("bad", "flow: [1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\n{line}\n---\n")
        code = "import sys; from skills_ref.cli import main; sys.exit(main())"
        theirs = subprocess.run(
            [sys.executable, "-c", code, "validate", tmp_path / name], capture_output=True, check=False
        )
        ours = programs.tavern("skills", "check", f"{name}/SKILL.md", "--json", cwd=tmp_path, home=tmp_path / "home")
        assert (theirs.returncode == 0, ours.returncode == 0) == (name == "good", name == "good")
        assert json.loads(ours.stdout)["valid"] is (name == "good")


def test_the_skills_of_a_folder_are_checked_at_once(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        line = "description: Does it.\n" * (name == "good")
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\n{line}---\n")
    (tmp_path / "notes").mkdir()
    ours = programs.tavern("skills", "check", ".", "--json", cwd=tmp_path, home=tmp_path / "home")
    assert [(skill["valid"]) for skill in json.loads(ours.stdout)["skills"]] == [False, True]


@pytest.mark.slow
def test_a_plugin_with_too_many_skills_says_which_are_not_used(tmp_path: Path) -> None:
    for number in range(MOST_SKILLS + 2):
        (tmp_path / f"other-{number:03}.txt").touch()  # what is no skill does not count
        folder = tmp_path / f"skill-{number:03}"
        folder.mkdir()
        (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: Does it.\n---\n")
    found = read_plugin_skills("office", ".", FolderFiles(tmp_path))
    assert len(found.specs) == MOST_SKILLS
    assert [finding.located for finding in found.findings] == [
        "skill-500: there are more than 500 skills; 'skill-500' and those after it are not used"
    ]
