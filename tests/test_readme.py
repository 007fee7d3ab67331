"""What the README and docs/ claim is run: their commands in order with what they print, their files, programs, links.

Commands that need other machines are in `sh` blocks: those for two hosts are run, the others must be understood.
In a `console` block a line behind a command is one that it prints, or the id of the run that it leaves alone: where
that id stands in later commands, the real one is meant. A block whose first line is `# NAME` is a file of that name.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.conftest import ROOT, WITH_PLOTS, Sandbox, make_sandbox, mostly_slow, not_warm
from tests.hosts import HERE, ssh_hosts
from tfcluster.cli.main import cli
from tfcluster.core.resolve import resolve_spec
from tfcluster.errors import ExitCode
from tfcluster.spec.hosts import HostSpec
from tfcluster.spec.load import load_spec

README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
WITH_COMMANDS = [document for document in DOCUMENTS if "```console" in document.read_text()]
TOUR = ROOT / "examples" / "tour" / "README.md"
LONG = [README, ROOT / "docs" / "programs.md", TOUR]
FOR_OTHER_MACHINES = [page for page in DOCUMENTS if "```sh\n" in page.read_text()]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What `sh` blocks say that needs no other machine.
RUN_HERE = ("tfcluster validate ", "tfcluster manifests pods.yaml  ", 'eval "$(tfcluster completion bash)"')
COMMAND_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
FILE = re.compile(r"# (\w+\.\w+)\n")


@dataclass
class Command:
    """A command of a document, with the lines that it prints among others."""

    words: str
    prints: list[str]

    def run(self, sandbox: Sandbox, environment: dict[str, str]) -> str:
        """What it prints; one that follows something is interrupted, as a reader would, when it has said something."""
        follows = re.search(r" -f\b|dashboard$", self.words) is not None
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"exec {self.words}" if follows else self.words],
            cwd=sandbox.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        first = ""
        if follows:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
        output = first + process.communicate(timeout=120)[0]
        assert process.returncode == (130 if follows else 0), f"{self.words}\n{output}"
        return output


def blocks(document: Path, language: str) -> list[str]:
    """Those that are no files."""
    return blocks_of(document.read_text(), language)


def blocks_of(text: str, language: str) -> list[str]:
    """The blocks of a part of a document that are no files."""
    return [found for kind, found in BLOCK.findall(text) if kind == language and not FILE.match(found)]


def files(document: Path) -> dict[str, str]:
    found = [(FILE.match(text), text) for _, text in BLOCK.findall(document.read_text())]
    return {match[1]: text for match, text in found if match}


def commands(text: str) -> list[Command]:
    """The commands of a document or of a part of it."""
    found: list[Command] = []
    for line in "".join(blocks_of(text, "console")).splitlines():
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ "), []))
        else:
            found[-1].prints.append(line)
    return found


def parts(document: Path) -> list[str]:
    """The parts of a document that have commands, each with its heading."""
    return [part for part in re.split(r"^## ", document.read_text(), flags=re.MULTILINE) if commands(part)]


class Reader:
    """Someone who types the commands of a document in a folder, with its files, and compares what they print."""

    def __init__(self, document: Path, sandbox: Sandbox) -> None:
        self.document = document
        self.sandbox = sandbox
        self._left = parts(document)
        self._ids: dict[str, str] = {}
        # Members that wait for one that has failed ignore SIGTERM, and are killed sooner.
        sooner = sandbox.with_settings({"GROUP_STOP_SECONDS": 1, "GROUP_RESTART_SECONDS": 0.1})
        self._environment = {**sandbox.environment, **WITH_PLOTS, **sooner, "PATH": COMMAND_PATH}
        (sandbox.folder / "examples").symlink_to(ROOT / "examples")
        for name, text in files(document).items():
            (sandbox.folder / name).write_text(text)

    def read_up_to(self, part: str) -> None:
        """Run the commands of a part, after those of the parts before it, unless they have been run."""
        while part in self._left:
            self.read(self._left.pop(0))

    def read(self, text: str) -> None:
        """Run the commands of a part, or of the whole document, in order, and check what they print."""
        for command in commands(text):
            for written, real in self._ids.items():
                command.words = command.words.replace(written, real)
            output = command.run(self.sandbox, self._environment)
            if command.words.endswith(" --detach"):
                (written,), (real,) = command.prints, output.splitlines()
                assert re.sub(r"-\w+", "", written) == re.sub(r"-\w+", "", real), "the program's name"
                self._ids[written] = real
            else:
                printed = {line.strip() for line in output.splitlines()}
                assert set(command.prints) <= printed, f"{command.words}\n{output}"


@pytest.mark.parametrize(
    "document",
    mostly_slow([each for each in WITH_COMMANDS if each not in LONG], fast=[ROOT / "docs" / "scripts.md"]),
    ids=lambda document: document.stem,
)
def test_the_commands_work_as_written(document: Path, sandbox: Sandbox) -> None:
    assert len(commands(document.read_text())) >= 3
    Reader(document, sandbox).read(document.read_text())
    assert sandbox.leftovers() == []


@pytest.fixture(scope="module")
def reader_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Reader]]:
    """The one reader of each document whose parts are tests, in their order; the last command leaves nothing up."""
    readers: dict[Path, Reader] = {}
    with contextlib.ExitStack() as stack:

        def reader_of(document: Path) -> Reader:
            if document not in readers:
                sandbox = stack.enter_context(make_sandbox(tmp_path_factory.mktemp("reader")))
                readers[document] = Reader(document, sandbox)
            return readers[document]

        yield reader_of
        assert [left for reader in readers.values() for left in reader.sandbox.leftovers()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "part"),
    [(document, part) for document in LONG for part in parts(document)],
    ids=lambda value: str(value.relative_to(ROOT)) if isinstance(value, Path) else value.partition("\n")[0],
)
def test_the_commands_of_a_part_work_as_written(reader_of: Callable[[Path], Reader], document: Path, part: str) -> None:
    reader_of(document).read_up_to(part)


@pytest.mark.slow
def test_the_tour_has_lost_one_worker_and_recorded_a_metric(reader_of: Callable[[Path], Reader]) -> None:
    reader = reader_of(TOUR)
    reader.read_up_to(parts(TOUR)[-1])
    sandbox = reader.sandbox
    events = sandbox.json_lines("events", "-c", "demo")
    assert [each["event"] for each in events if each["task"] == "worker:1"].count("died") == 1
    assert "loss" in sandbox.json("runs", "page", "-c", "demo")["result"]["metrics"]


def test_long_documents_have_parts_with_commands() -> None:
    assert [document for document in LONG if len(parts(document)) < 3] == []


def test_the_tour_has_the_commands_at_the_top_of_each_script_in_order() -> None:
    text = TOUR.read_text()
    scripts = re.findall(r"^\[(\w+\.py)\]", text, re.MULTILINE)
    assert sorted(scripts) == sorted(path.name for path in TOUR.parent.glob("*.py"))
    at_top: list[str] = []
    for script in scripts:
        source = (TOUR.parent / script).read_text()
        assert len(source.splitlines()) <= 60, script
        at_top += (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[1].splitlines()
    assert [command.words for command in commands(text)] == at_top


def test_the_readme_is_short_its_spec_is_the_example_and_its_picture_and_make_targets_exist() -> None:
    assert len(README.read_text().splitlines()) <= 200
    (shown,) = blocks(README, "yaml")
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples" / "cluster.yaml").read_text())
    assert (ROOT / "docs" / "terminal.svg").read_text().startswith("<svg")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks(README, "sh"):
        for line in block.splitlines():
            if line.startswith("make "):
                assert line.removeprefix("make ") in targets


def test_the_demo_takes_down_no_cluster_that_it_has_not_started(sandbox: Sandbox) -> None:
    (sandbox.folder / "own.yaml").write_text("name: make-demo\njobs: {worker: {tasks: 1}}\nwarm: false\n")
    sandbox("up", "own.yaml")
    make = ["make", "-C", str(ROOT), "-o", ".venv/installed", f"BIN={Path(sys.executable).parent}", "demo"]
    result = subprocess.run(make, env=sandbox.environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert "a cluster make-demo is up already" in result.stderr
    assert sandbox.status()["state"] == "running"
    sandbox("down", "-c", "make-demo")


def test_every_spec_shown_can_be_laid_out(tmp_path: Path) -> None:
    for document in DOCUMENTS:
        folder = tmp_path / document.stem
        folder.mkdir()
        for name, text in files(document).items():
            (folder / name).write_text(text)
        for spec in folder.glob("*.yaml"):
            assert resolve_spec(load_spec(spec), str(spec)).tasks
    assert (tmp_path / "hosts" / "two.yaml").read_text() == (tmp_path / "README" / "two.yaml").read_text()


@pytest.mark.parametrize("document", FOR_OTHER_MACHINES, ids=lambda document: document.stem)
def test_commands_for_other_machines_are_understood(document: Path, tmp_path: Path) -> None:
    for name, text in files(document).items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PATH": COMMAND_PATH, "PYTHONPATH": str(ROOT)}
    for line in "".join(blocks(document, "sh")).splitlines():
        command, *words = shlex.split(line, comments=True) or [""]
        if line.startswith(RUN_HERE):
            told = ["bash", "-c", line]
            subprocess.run(told, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, timeout=120, check=True)
        elif command == "tfcluster":
            assert {word for word in words if word.endswith(".yaml")} <= files(document).keys(), line
            # Behind a script or module, --help would be an option of the script.
            arguments = takewhile(lambda word: not word.endswith(".py") and word not in ("-m", "&&", "|", ">"), words)
            result = CliRunner().invoke(cli, [*arguments, "--help"])  # unknown words are refused all the same
            assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_the_commands_for_two_hosts_work() -> None:
    """Those of the README, then those of docs/hosts.md, with our addresses in place of theirs."""
    documents = [README, ROOT / "docs" / "hosts.md"]
    lines = [line for each in documents for line in "".join(blocks(each, "sh")).splitlines()]
    commands = [*dict.fromkeys(line for line in lines if line.startswith(("tfcluster ", "ssh root@gpubox true")))]
    assert len(commands) == 8, commands
    with ssh_hosts("gpubox") as hosts:
        spec = files(README)["two.yaml"].replace("10.0.0.10", hosts.address(HERE))
        spec = spec.replace("10.0.0.11", hosts.address("gpubox")).replace("/opt/tf/bin/python", sys.executable)
        (hosts.folder / "two.yaml").write_text(not_warm(spec.replace(", gpus: 1", "")))
        environment = {**os.environ, **hosts.environment}
        environment["PATH"] = f"{hosts.folder / 'bin'}:{COMMAND_PATH}"
        for line in [*commands, "tfcluster down"]:
            shorter = line.replace("--samples 1e10", "--samples 1e7")
            result = subprocess.run(
                hosts.command("bash", "-c", shorter),
                cwd=hosts.folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"


def test_the_keys_of_a_host_and_the_exit_codes_are_all_there() -> None:
    hosts = (ROOT / "docs" / "hosts.md").read_text()
    assert [key for key in HostSpec.model_fields if f"`{key}" not in hosts] == []
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs" / "automation.md").read_text(), re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(", ")} == {int(code) for code in ExitCode}


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", TOUR], ids=lambda document: document.stem)
def test_the_links_lead_somewhere(document: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", document.read_text()) if "://" not in link]
    assert links
    for link in links:
        path, _, place = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        if place:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert place in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings], link
