"""What `run mean` prints."""

from __future__ import annotations

from tfcluster.programs.mean.render import summary


def test_all_digits_and_as_many_slices_as_one_can_read() -> None:
    shards = [{"task": f"/job:worker/task:{index}", "count": index + 1, "mean": 0.5} for index in range(20)]
    result = {"mean": 1 / 3, "variance": None, "count": 210, "shards": shards}
    lines = [line.plain for line in summary(result, 2.0)]
    assert lines[:4] == [
        "mean = 0.3333333333333333, variance not finite (the population's), of 210 numbers",
        "2.0s, 105 numbers/s",
        "20 slices, means:",
        "  worker:0: 0.5 of 1 number",
    ]
    assert lines[-2:] == ["  worker:15: 0.5 of 16 numbers", "  and 4 more, which -o json shows"]
