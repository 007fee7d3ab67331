"""Which accounts of a host can log in, read from the text of the files that say so."""

from __future__ import annotations

import pytest

from tfcluster.agent.accounts import login_accounts

SHELLS = "# /etc/shells: valid login shells\n/bin/sh\n/bin/bash\n/usr/bin/tmux\n"
LIMITS = "# the range\nUID_MIN\t\t\t 1000\nUID_MAX\t\t\t60000\n#UID_MAX 5\nSYS_UID_MIN 100\n"


def line(name: str, uid: int, shell: str = "/bin/bash") -> str:
    return f"{name}:x:{uid}:{uid}:Some One,,,:/home/{name}:{shell}\n"


@pytest.mark.parametrize(
    ("passwd", "login_defs", "shells", "found"),
    [
        ("", LIMITS, SHELLS, []),
        (line("root", 0) + line("me", 1000) + line("anna", 1001), LIMITS, SHELLS, ["anna"]),
        (line("anna", 1001) + line("ben", 1002, "/bin/sh"), LIMITS, SHELLS, ["anna", "ben"]),
        (line("me-too", 1000), LIMITS, SHELLS, []),
        (line("daemon", 999) + line("nobody", 65534), "", "", []),
        (line("late", 60001), LIMITS, SHELLS, []),
        (line("late", 60001), "", SHELLS, ["late"]),
        (line("early", 500), "UID_MIN 500\n", SHELLS, ["early"]),
        (line("early", 500), "UID_MIN many\nUID_MAX\n", SHELLS, []),
        (line("locked", 1001, "/usr/sbin/nologin") + line("none", 1002, "/bin/false"), LIMITS, SHELLS, []),
        (line("sync", 1001, "/bin/sync"), LIMITS, "", []),
        (line("odd", 1001, "/opt/shell"), LIMITS, SHELLS, []),
        (line("odd", 1001, "/opt/shell"), LIMITS, "", ["odd"]),
        (line("odd", 1001, "/opt/shell"), LIMITS, "# none yet\n", ["odd"]),
        (line("listed", 1001, "/sbin/nologin"), LIMITS, f"{SHELLS}/sbin/nologin\n", []),
        (line("default", 1001, ""), LIMITS, SHELLS, ["default"]),
        ("+::::::\n# anna\n\nanna:x:1001\nben:x:many:1:::/bin/sh\n:x:1001:1:::/bin/sh\n", LIMITS, SHELLS, []),
        (line("ünïcode\ufffd", 1001), LIMITS, SHELLS, ["ünïcode\ufffd"]),
    ],
)
def test_who_can_log_in_besides_us(passwd: str, login_defs: str, shells: str, found: list[str]) -> None:
    assert login_accounts(passwd, login_defs, shells, uid=1000) == found
