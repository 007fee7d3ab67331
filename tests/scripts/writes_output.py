"""Writes files of many kinds to the folder for output, and fails."""

import os
import sys
from pathlib import Path

output = Path(os.environ["TFCLUSTER_OUTPUT"])
(output / "deep").mkdir()
(output / "deep" / "model.bin").write_bytes(bytes(range(256)) * 4000)
(output / "empty \udcff").touch()
(output / "run.sh").write_text("true")
(output / "run.sh").chmod(0o755)
(output / "latest").symlink_to("deep/model.bin")
sys.exit(3)
