"""Settings have units in their names, are used, and not copied."""

from __future__ import annotations

import re
from pathlib import Path

from tfcluster import settings
from tfcluster.programs import settings as program_settings

ROOT = Path(settings.__file__).parent
MODULES = {Path(str(module.__file__)): module for module in (settings, program_settings)}

VALUES = {name: value for module in MODULES.values() for name, value in vars(module).items() if name.isupper()}


def test_every_setting_is_used_and_those_of_programs_by_programs_alone() -> None:
    sources = "".join(path.read_text() for path in ROOT.rglob("*.py"))
    assert VALUES.keys() - set(re.findall(r"\bsettings\.(\w+)", sources)) == set()
    names = [name for name in vars(program_settings) if name.isupper()]
    sources = "".join(path.read_text() for path in ROOT.rglob("*.py") if not path.is_relative_to(ROOT / "programs"))
    assert set(names) & set(re.findall(r"\bsettings\.(\w+)", sources)) == set()


def test_settings_are_read_when_they_are_used_and_not_copied() -> None:
    pattern = re.compile(
        r"from tfcluster\.(programs\.)?settings import|^_?[A-Z_0-9]+ = settings\.[A-Z_0-9]+$", re.MULTILINE
    )
    assert [str(path) for path in ROOT.rglob("*.py") if pattern.search(path.read_text())] == []


def has_unit(name: str, value: object) -> bool:
    """Return whether a setting that needs a unit has it in its name."""
    if isinstance(value, float | tuple):
        return re.search(r"_SECONDS(_|$)|_FACTOR$", name) is not None
    if isinstance(value, int) and value >= 1 << 12 and not name.endswith("_PORT"):
        return re.search(r"_(SECONDS|MS|BYTES|NUMBERS|VALUES|ITEMS|MAX)(_|$)", name) is not None
    return True


def test_a_setting_has_its_unit_in_its_name() -> None:
    assert [name for name, value in VALUES.items() if not has_unit(name, value)] == []
