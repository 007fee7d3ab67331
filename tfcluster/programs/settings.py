"""Timeouts, intervals, limits and retry counts of the programs, with their reasons; see `tfcluster.settings`."""

# Calls of programs to tasks.
STEP_TIMEOUT_MS = 120_000  # a step takes half a second, and a task that does not respond must not block a run forever
SERVER_CHECK_TIMEOUT_MS = 10_000
MAP_STEP_SECONDS = 0.4  # a round trip (1 ms) does not matter, and progress and cancelling are quick
MAP_SHARDS_PER_DEVICE = 4
MAP_RETRY_INITIAL_SECONDS = 0.1  # of a lost device: an agent restarts a killed server within tens of milliseconds
MAP_RETRY_MAX_SECONDS = 1.0
MAP_ALL_LOST_SECONDS = 5.0  # then the work fails
MAP_POLL_SECONDS = 0.5  # of the results, to find out that all devices are lost
MAP_SHARD_LOSSES_MAX = 5  # tasks lost on one shard, which may crash every task that works on it
SESSION_SERVER_POLL_SECONDS = 0.5  # during a step: a session whose server died would block until its timeout
SESSION_CONNECT_SECONDS = 5.0  # the kernel asks again after 1 and after 3 s
SESSION_CLOSE_SECONDS = 3.0
MEAN_RANDOM_NUMBERS_MAX = 2**42  # for the driver's memory: 350 bytes for each window of 2^22 numbers
MEAN_SHARDS = 16  # are shown
TEXT_BLOCK_NUMBERS = 1 << 16  # converted at once: little memory, and few calls

# Expressions of `run graph`.
EXPRESSION_MAX_CHARS = 4000  # more than a person writes by hand
EXPRESSION_CONTEXT_CHARS = 40  # shown on either side of a syntax error

# Training (linear, expfit).
TRAINING_STEPS = 1000  # the default of --steps
TRAINING_CALL_SECONDS = 0.3  # a round trip (a few ms) does not matter, and progress and cancelling are quick
TRAINING_FIRST_STEPS = 10  # in the first call: their duration is not known, and Adagrad is close after ten
TRAINING_METRIC_SECONDS = 0.3  # between two metric events of a worker; less at the start
TRAINING_POINTS_MAX = 50_000_000  # constants of 16 bytes: a graph is one protobuf message of at most 2 GiB
TRAINING_CALL_EXAMPLES_MAX = 1 << 20  # 8 MB
TRAINING_CURVE_POINTS = 200
PARAMETER_RECOVERY_SECONDS = 15.0  # of a lost task: an agent restarts a hanging one after 12 s
PARAMETER_CALL_TIMEOUT_MS = 10_000  # a block of steps takes 300 ms
PARAMETER_RETRY_SECONDS = 0.1
SNAPSHOT_INTERVAL_SECONDS = 1.0  # the loss of a parameter server costs the steps since the last snapshot
EVALUATION_INTERVAL_SECONDS = 0.5
EVALUATION_SCORES_MIN = 1000  # with twice as many every second one is dropped, so that a run of days keeps few
WORKERS_LOST_SECONDS = 30.0  # all of them; then the training fails
EVALUATOR_JOIN_SECONDS = 10.0  # of the last score; a thread that is blocked by a hanging server ends with the driver
CANCELLED_READ_SECONDS = 0.5  # with the next two, less than DRIVER_TERMINATE_SECONDS: read the variables for a last
CANCELLED_JOIN_SECONDS = 1.0  # checkpoint, wait for the evaluator,
CANCELLED_CLOSE_SECONDS = 0.5  # and close the sessions
