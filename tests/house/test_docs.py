"""Documents that describe the code are compared with it."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from pathlib import Path

import pytest
from kio.schema.index import api_key_map

from headrace.agent.apis import acl_table
from headrace.config import topic_docs
from headrace.config.docs import markdown
from headrace.protocol.api_table import WHY_NOT, with_table
from headrace.protocol.api_versions import APIS
from headrace.scan.docs import with_options
from tests.spark import versions
from tests.tools.installing import KAFKA_VERSION

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^    .*$|`[^`\n]*`", re.MULTILINE)
"""Not a link: `bucket[16](customer)`."""
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:[a-z_.]+/)+[A-Za-z_.]*)`")
BOX = re.compile(
    r"(?<![\w/.])((?:agent|cli|compactor|config|examples|jobs|load|metastore|migrations|protocol|scan|spark|storage|tables|tests)/[\w/]+\.(?:py|sql|sh))\b"
)
"""A file in a drawing."""
HEADER = re.compile(r'(?:#[^\n]*\n)*r?"""(.*?)"""', re.DOTALL)
"""The docstring of a module."""
NAMED_FILE = re.compile(r"(?<![\w/.*{}<>-])((?:\.\./)*(?:[\w.-]+/)*\w[\w-]*\.(?:py|sql))\b(?![\w/*]|\.\w)")
"""A file of Python or SQL in a header; no pattern (`test_*.py`), and no module (`pyspark.sql.types`)."""
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


def test_configuration_page_is_what_the_settings_say() -> None:
    page = (ROOT / "docs" / "operate" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `make docs`"


def test_configs_page_is_what_the_tables_say() -> None:
    page = (ROOT / "docs" / "operate" / "TOPIC_CONFIGS.md").read_text(encoding="utf-8")
    assert page == topic_docs.markdown(), "run `make docs`"


def test_the_options_of_spark_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "start" / "SPARK.md").read_text(encoding="utf-8")
    assert page == with_options(page), "run `make docs`"
    with pytest.raises(ValueError, match="markers"):
        with_options("a page without a table")


def test_the_versions_of_spark_are_those_that_were_run() -> None:
    page = (ROOT / "docs" / "start" / "SPARK.md").read_text(encoding="utf-8")
    found = json.loads(versions.VERSIONS_RUN.read_text())
    assert page == versions.with_versions(page, found), "run `make spark-versions`"
    assert not any(one["failed"] for one in found.values())
    for line in versions.SUPPORTED:
        assert line.rpartition(".")[0] in page
    with pytest.raises(ValueError, match="markers"):
        versions.with_versions("a page without a table", found)


def test_the_table_of_rules_is_what_is_enforced() -> None:
    page = (ROOT / "docs" / "operate" / "ACLS.md").read_text(encoding="utf-8")
    assert page == acl_table.with_table(page), "run `make docs`"
    with pytest.raises(ValueError, match="markers"):
        acl_table.with_table("a page without a table")


def test_the_table_of_apis_is_what_is_served() -> None:
    page = (ROOT / "docs" / "start" / "COMPATIBILITY.md").read_text(encoding="utf-8")
    assert page == with_table(page), "run `make docs`"
    assert not APIS.keys() & WHY_NOT.keys(), "served, and yet there is a reason why not"
    with pytest.raises(ValueError, match="markers"):
        with_table("a page without a table")


def test_every_api_of_kafkas_is_served_or_has_a_reason() -> None:
    assert api_key_map.keys() <= APIS.keys() | WHY_NOT.keys()


def test_every_setting_has_a_meaning() -> None:
    for line in markdown().splitlines():
        if line.startswith("| `"):
            assert not line.endswith("|  |"), line


def test_the_glossary_is_sorted_and_gives_one_meaning_each() -> None:
    page = (ROOT / "docs" / "GLOSSARY.md").read_text(encoding="utf-8")
    _, _, *words = [row.split("|")[1].strip().lower() for row in page.splitlines() if row.startswith("| ")]
    assert len(words) > 50
    assert words == sorted(set(words))


def test_every_link_between_the_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = [(page, CODE.sub("", page.read_text(encoding="utf-8"))) for page in pages]
    links = [(page, link) for page, text in texts for link in LINK.findall(text)]
    assert len(links) > 50
    assert not [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]


def test_every_example_is_on_its_page_and_in_a_test() -> None:
    """A file of examples/ is what a test runs."""
    page = (ROOT / "docs" / "INTEGRATIONS.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    files = [path.relative_to(ROOT) for path in (ROOT / "examples").rglob("*.*") if path.suffix != ".pyc"]
    assert len(files) > 10
    for path in files:
        assert f"](../{path})" in page, path
        folder = f'"{path.parent.name}"'
        named = (f'{folder} / "{path.name}"', f'"{path.parent.name}/{path.name}"', f'"{path.stem}"')
        assert any(name in tests for name in named), path


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/operate/bench.md", "(Apache Kafka {} with its load generator)"),
        ("docs/operate/bench.md", "headrace-test-tools/kafka-{}/lib"),
        ("docs/INTEGRATIONS.md", "on Apache Kafka {};"),
        ("docs/start/COMPATIBILITY.md", "the message classes of Kafka {} "),
    ],
)
def test_pages_name_the_tests_version_of_kafka(page: str, words: str) -> None:
    assert words.format(KAFKA_VERSION) in (ROOT / page).read_text(encoding="utf-8")


def test_every_decision_is_in_their_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    titles = {page.name: page.read_text(encoding="utf-8").split("\n")[0] for page in DECISIONS}
    assert titles
    for name, title in titles.items():
        assert title.startswith(f"# {int(name[:4])}. "), name
        assert f"| [{name[:4]}]({name}) | {title.split('. ', 1)[1]} |" in index, name


def test_a_replaced_amended_or_moved_decision_says_so_first() -> None:
    """Below its title; the index has the same, and the decision that came later exists."""
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    later = dict(re.findall(r"^\| \[(\d{4})\].*\| (\w+ (?:by|in) [\d, ]+) \|$", index, re.MULTILINE))
    said = {}
    for page in DECISIONS:
        first = page.read_text(encoding="utf-8").split("\n")[2]
        if first.startswith(("Replaced by ", "Amended by ", "Now in ")):
            numbers = re.findall(r"\[(\d+)\]\((\d{4})-", first)
            assert all(int(number) == int(name) > int(page.name[:4]) for number, name in numbers), page.name
            said[page.name[:4]] = f"{' '.join(first.split()[:2]).lower()} {', '.join(number for number, _ in numbers)}"
    assert later == said
    assert len(said) > 10


def test_paths_named_in_the_documents_exist() -> None:
    """ARCHITECTURE.md draws each box as a file: a part that was deleted must go from the page too."""
    dated = {"decisions", "results"}
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name not in dated]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for path in {*PATH.findall(text), *BOX.findall(text)}:
            assert (ROOT / path).exists(), f"{page.name} names {path}, which is not there"


def test_no_module_header_names_a_file_that_is_not_there() -> None:
    """A header may name a file by its path from the root or from its folder, or by the end of its path."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    paths = {path for path in listed if (ROOT / path).exists()}
    ends = {"/".join(parts[start:]) for path in paths for parts in [path.split("/")] for start in range(len(parts))}
    absent = [
        f"{path}: {name}"
        for path in sorted(paths)
        if path.endswith(".py") and (header := HEADER.match((ROOT / path).read_text(encoding="utf-8")))
        for name in sorted(set(NAMED_FILE.findall(header[1])))
        if name not in ends and posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) not in paths
    ]
    assert not absent, absent


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (
            "Place: under offset_commit.py, ../share/owner.py and lay_out.sql.",
            ["offset_commit.py", "../share/owner.py", "lay_out.sql"],
        ),
        ("Source: pyspark.sql.datasource, bucket.properties, and every test_*.py below tests/.", []),
    ],
)
def test_the_files_that_a_header_names_are_found(header: str, named: list[str]) -> None:
    assert NAMED_FILE.findall(header) == named


def test_documents_and_chart_use_kafkas_names_for_addresses() -> None:
    """The settings of older versions are named only where the change log says that they are removed."""
    old = re.compile(r"(?i)(kafka|advertised)([._-])(host|port)\b")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "results"]
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *pages]
    files += [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    lines = [(file.name, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    used = {(name, line) for name, line in lines if old.search(line)}
    assert {name for name, line in used if "are removed" in line} == {"CHANGELOG.md"}
    assert not [(name, line) for name, line in used if "are removed" not in line]


def test_the_readme_fits_two_screens_and_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 100
    assert len(set(LINK.findall(readme))) <= 15
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / link).resolve() for link in LINK.findall(index)}
    pages = {
        path for folder in ("start", "operate", "understand", ".") for path in (ROOT / "docs" / folder).glob("*.md")
    }
    assert {path.resolve() for path in pages} - {(ROOT / "docs" / "README.md").resolve()} <= listed
