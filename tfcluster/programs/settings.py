"""Timeouts, intervals, limits and retry counts of the programs, with their reasons; see `tfcluster.settings`."""

# Calls of programs to tasks.
STEP_TIMEOUT_MS = 120_000  # a step takes half a second, and a task that does not respond must not block a run forever
SERVER_CHECK_TIMEOUT_MS = 10_000
MAP_STEP_SECONDS = 0.4  # a round trip (1 ms) does not matter, and progress and cancelling are quick
MAP_RETRY_INITIAL_SECONDS = 0.1  # of a lost device: an agent restarts a killed server within tens of milliseconds
MAP_RETRY_MAX_SECONDS = 1.0
MAP_ALL_LOST_SECONDS = 5.0  # then the work fails
MAP_POLL_SECONDS = 0.5  # of the results, to find out that all devices are lost
MAP_SHARD_LOSSES_MAX = 5  # tasks lost on one shard, which may crash every task that works on it
SESSION_SERVER_POLL_SECONDS = 0.5  # during a step: a session whose server died would block until its timeout
SESSION_CONNECT_SECONDS = 5.0  # the kernel asks again after 1 and after 3 s
SESSION_CLOSE_SECONDS = 3.0

# Expressions of `run graph`.
EXPRESSION_MAX_CHARS = 4000  # more than a person writes by hand
EXPRESSION_CONTEXT_CHARS = 40  # shown on either side of a syntax error
