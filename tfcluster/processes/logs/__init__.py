"""Capture the output of the tasks' processes and copy it to rotating log files of bounded size."""
