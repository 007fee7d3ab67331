"""Timeouts, intervals, limits and retry counts of every part of tfcluster, with their reasons.

The unit is the end of the name; a name without one is a number of things. Modules read `settings.NAME` when they use
it, so that a test can override it: by monkeypatch.setattr, in other processes by TEST_SETTINGS (see
tests/changed/sitecustomize.py). What users configure is in the spec and in options. This module imports nothing.
"""

# Start, connect to and stop an agent.
AGENT_START_SECONDS = 60.0  # until it listens: it may have to load TensorFlow's library from a slow disk
PYTHON_ANSWER_SECONDS = 20.0  # for an environment's Python to say what it is; its file system may not answer
AGENT_CONNECT_SECONDS = 10.0  # an agent may be starting, about to exit, or have lost its socket
AGENT_CONNECT_INTERVAL_SECONDS = 0.02  # between two attempts to connect
AGENT_START_INTERVAL_SECONDS = 0.5  # between two agents that are started because none listens
AGENT_START_IF_LOCKED_SECONDS = 3.0  # the same, while a process seems to be its agent: one that exits takes a while
GREETING_SECONDS = 1.0  # for an agent to greet; then only the timeout of the request applies
AGENT_EXIT_SECONDS = 30.0  # after SIGKILL; or to kill helper processes and unload TensorFlow on a busy host
AGENT_EXIT_UNANNOUNCED_SECONDS = 2.0  # the same, if the command hung up before the agent announced that it exits
AGENT_EXIT_POLL_SECONDS = 2.0  # meanwhile, another command may give the agent a cluster again
UPGRADE_DRIVERS_SECONDS = 30.0  # until an older fork server has imported TensorFlow and started the runs' drivers
AGENT_END_SECONDS = 3.0  # between SIGTERM and SIGKILL to an agent that is replaced
AGENT_FIRST_REQUEST_SECONDS = 10.0  # then an agent without a cluster exits; a stalled machine may delay the request
AGENT_DRAIN_SECONDS = 1.0  # for an agent that exits to send the last messages of its streams
AGENT_BACKLOG = 64  # requests that connect at the same time
AGENT_STDERR_MAX_BYTES = 1 << 20  # a longer file is renamed when the next agent starts
HOST_CHECKS_SECONDS = 40.0  # a name server that does not answer delays each lookup; less than the command waits
PREFLIGHT_EXIT_SECONDS = 10.0  # for agents of a preflight, also on hosts that cannot be reached any more
TURN_SECONDS = 0.002  # of long work in an agent, before other work runs; a request waits for about ten of them

# Requests to an agent, and the protocol.
RPC_TIMEOUT_SECONDS = 10.0  # until the first line of the response, which most methods send immediately
RPC_SLOW_TIMEOUT_SECONDS = 60.0  # the same, for methods that wait for something, and for other hosts, which may be busy
RPC_LINE_MAX_BYTES = 16 * 2**20  # the topology of a thousand tasks takes less than 1 MiB
RPC_REQUEST_MAX_BYTES = 4 * 2**20  # less, so that many at the same time do not take much of the agent's memory
RPC_BLOCK_MAX_BYTES = 2**20  # of an uploaded file
RPC_BLOCK_LINE_BYTES = 64  # of the line before it
RPC_UPLOAD_WAITING_BYTES = 4 * 2**20  # of an upload in the agent's memory; then the command has to wait
RPC_UPLOAD_LOOK_SECONDS = 1.0  # between two looks whether a command that waits is still there
UPLOAD_MIN_FREE_BYTES = 256 * 2**20  # that an upload leaves on the disk
CODE_UNASKED_BYTES = 100 * 2**20  # of code that is sent without a question: more is data, or was left there by mistake
CODE_UNASKED_FILES_MAX = 10_000  # the same, for the number of files
IGNORE_STARS_MAX = 4  # in a name of a pattern of .tfclusterignore: each more takes ten times as long to match
CODE_FILES_MAX = 100_000  # the list of them is one message
CODE_MANIFEST_MAX_BYTES = 64 * 2**20  # of CODE_FILES_MAX files
CODE_FILES_PER_TURN = 500  # checked in the cache: some milliseconds
CODE_CACHE_MAX_BYTES = 4 * 2**30  # of sent code that a host keeps
CODE_CACHE_KEEP_SECONDS = 3600.0  # since its last use, however large the cache is: a run may be about to copy it
OUTPUT_BLOCK_BYTES = 256 * 2**10  # of a file that is fetched: read and encoded in a millisecond
FETCH_NAME_CHARACTERS = 50  # of a file's name, in that of its incomplete copy: 255 bytes at most
CODE_CACHE_SECONDS = 50.0  # to look for all files of a tree there, or to prune it, on a slow disk
COMMIT_CHARACTERS = 10  # of a git commit's 40 that are shown
NOTE_REPEAT_SECONDS = 86400.0  # before `up` shows a note about a cluster again
GIT_SECONDS = 30.0  # for git to list the files of a large work tree on a slow disk
GIT_STATUS_SECONDS = 5.0  # for git to say at what commit a work tree is: a run does not wait long for its record
RECONNECT_INITIAL_SECONDS = 0.1  # the back-off of a command that has lost its agent
RECONNECT_MAX_SECONDS = 1.0  # a link that is back is used within five seconds
STREAM_AGENTS = 4  # agents in a row that may die without sending an event of a run before its command gives up
WAIT_AGENTS = 3  # the same, for a command that starts a cluster, waits for it or stops it
LOG_AGENTS = 5  # the same, for `logs`
THREAD_POLL_SECONDS = 0.2  # a thread that waits for an agent's next line checks whether it has been stopped
SIGNAL_POLL_SECONDS = 1.0  # the main thread, which waits for threads, handles a signal that it was told of too early
PRIVATE_NETWORK_THREADS_SECONDS = 5.0  # for the threads of a request to end, which keep a process out of it
COMMAND_NEW_OBJECTS_MAX = 50_000  # until a command looks for garbage among them: more than it imports
SIGNAL_REPEAT_SECONDS = 0.01  # until a signal that a finalizer swallowed is sent again; it has ended by then
RESPONSE_QUEUE_ITEMS = 4096  # received and not consumed; beyond it, back-pressure leaves them in the agents' buffers
UNEXPECTED_DATA_CHARACTERS = 80  # shown of a frame that is not understood
IO_BLOCK_BYTES = 1 << 16  # read at once from a file or pipe
# Requests to all hosts of a cluster.
HOST_TIMEOUT_SECONDS = 30.0  # the default of --timeout, for slow hosts: unreachable ones are noticed earlier
HOST_ERROR_DELAY_SECONDS = 1.0  # then an unreachable host is named although others have not answered yet
PROFILE_COLLECT_SECONDS = 120.0  # for a server to write its trace, which grows with what ran meanwhile
PROFILE_PART_BYTES = 1 << 18  # of a trace in one event
TENSORBOARD_START_SECONDS = 120.0  # to import TensorFlow, even from a slow disk, and say where it serves
TENSORBOARD_PORT = 6006  # on this machine, unless it is taken: where TensorBoard is by default
EXEC_TERMINATE_SECONDS = 5.0  # for a command of `exec` on a host after SIGTERM, until SIGKILL
EXEC_END_SECONDS = 1.0  # for the agent to say that a command has ended, after the program that carried its streams
EXEC_POLL_SECONDS = 0.1  # between two checks whether it has exited
COMPLETION_SECONDS = 2.0  # for a shell that completes a command line: its user waits, and types on without
CANCEL_TIMEOUT_SECONDS = 20.0  # for an interrupted command to cancel its run; another Ctrl-C ends the wait
SIGNAL_TIMEOUT_SECONDS = 5.0  # for a script to get a signal, such as Ctrl-Z, before its command stops without it
INTERRUPTS_TO_CANCEL = 3  # a script may handle Ctrl-C and continue; this many in a row are meant for one that hangs
INTERRUPTS_ROW_SECONDS = 3.0  # between two of them
LOG_RECONNECT_SECONDS = 5.0  # without --follow, until a host can be reached again
PLANS_MAX = 5  # made by a command, if the cluster changes each time before the plan is carried out
DOWN_RECONNECT_SECONDS = 10.0  # until a host can be reached again whose connection broke while it was stopped
DOWN_RUNS_SECONDS = 15.0  # for runs to end before their tasks are stopped; later they end with their tasks
CONNECTIVITY_CONNECT_SECONDS = 5.0  # from host to host; a firewall that drops packets shows only as a timeout
CONNECTIVITY_ANSWER_SECONDS = 10.0  # for a host to answer a connection, and to send back what it was sent
CONNECTIVITY_ACCEPT_RETRY_SECONDS = 0.05  # after a connection could not be accepted, such as without descriptors
CONNECTIVITY_ANSWERS_MAX = 64  # at the same time, of a host: more than others try it, and few enough for strangers
CONNECTIVITY_REPLY_SECONDS = 40.0  # more than all of the above and the margin
CONNECTIVITY_ALL_PAIRS_HOSTS = 15  # with more, each host tries only some of the others: 48 hosts have 2,256 pairs
CONNECTIVITY_MARGIN_SECONDS = 10.0  # the connecting process starts slowly on a busy host
CLOCK_OFFSET_MAX_SECONDS = 5.0  # with more, times of one host cannot be compared with those of another
# Views that follow a cluster.
LIVE_POLL_SECONDS = 1.0  # between two questions of a view to an agent, while somebody looks
LIVE_LOOK_SECONDS = 20.0  # after somebody has looked: the page asks again within ten seconds
LIVE_TIMEOUT_SECONDS = 10.0  # for an agent to answer
LIVE_USAGE_SECONDS = 3.0  # between two measurements of what a host and its tasks use; each costs an agent 3 ms
LIVE_SAMPLES = 100  # of what hosts and tasks use, that are kept: of five minutes
LIVE_CHANGE_SECONDS = 3.0  # in which the first answer to a view waits for the end of a change
LIVE_WAIT_SECONDS = 30.0  # between two questions to all hosts about what a run waits for
LIVE_RETRY_SECONDS = 5.0  # between two checks whether the cluster is up again on a host
LIVE_EVENTS = 500  # the last ones
LIVE_RUNS = 100  # the last ones of each host
LIVE_VALUE_MAX_CHARS = 16_384  # of a value of a run's result, or of its error, that views get
LIVE_EVENTS_BYTES = 1 << 18  # of the log of events, after which only the latest ones are read
LIVE_HISTORIES = 50  # of runs whose curves are kept
LIVE_HISTORY_SECONDS = 0.5  # in which the first answer about a run waits for its curves
LIVE_LOG_LINES = 500  # the last ones of a log that is opened
LIVE_LOG_LINES_MAX = 20_000  # of a log that is open, in the memory of `top`
TOP_WIDE_COLUMNS = 150  # from which on the events are beside the tables
TOP_REFRESH_SECONDS = 0.25  # at least, between two redraws of the screen of `top`
# OpenSSH, and what is started on a host by it.
SSH_FIRST_MESSAGE_SECONDS = 60.0  # ssh connects, and a login shell and Python start, perhaps on a busy host
SSH_CONNECT_SECONDS = 8
SSH_LOGINS_AT_ONCE = 8  # of one command to the same machine: from 10 on, sshd's default MaxStartups refuses some
SSH_BUSY_SECONDS = (0.2, 1.0)  # at least and at most, after a login that sshd has refused until the next
SHELL_SECONDS = 10.0  # for a shell on a host to run a command after the login, or after the shell before it
SSH_KEEPALIVE_SECONDS = 2  # without traffic, until ssh sends a probe
SSH_KEEPALIVE_PROBES = 2  # without a reply, until ssh closes the connection, another interval later
SSH_PERSIST_SECONDS = 300  # a link, or ssh's shared connection for `exec`, stays open for the next command
SSH_EXIT_SECONDS = 5.0
SSH_CONTROL_SECONDS = 5.0  # for a program of OpenSSH that tells something, or closes the shared connection
SSH_OUTPUT_KEPT_BYTES = 4096  # of a login shell's output, for an error message
SSH_OUTPUT_MAX_BYTES = 1 << 20  # of a login shell's output before the first message: then the session is ended
SSH_ERROR_LINES = 8
REMOTE_REPLY_SECONDS = 30.0  # once a host has begun to handle a request
REMOTE_STARTS_AT_ONCE = 32  # sessions of one command that start, or start an agent
HOST_STARTS_AT_ONCE = 32  # hosts that `up` has check ports and start the agent's helpers, or start tasks
REMOTE_OPEN_SECONDS = 100.0  # an agent starts from a slow disk, perhaps after another one has shut down
PING_SECONDS = 3.0  # without data over a link, until its other end is asked for a sign of life
PING_LOST_SECONDS = 10.0  # without one, until the connection is given up and opened again
HOST_LINK_START_SECONDS = 20.0  # for the link process to start and to answer, on a machine that is busy with many hosts
HOST_LINK_REPLY_SECONDS = 5.0  # for the link process to answer
HOST_LINK_CHECK_SECONDS = 1.0  # between two looks at whether a link is lost or not used any more
HOST_LINK_WINDOW_BYTES = 1 << 18  # of a carried connection, in each direction, on the way
HOST_LINK_FRAME_BYTES = 1 << 16  # at most, in one frame
HOST_LINK_REQUESTS_AT_ONCE = 64  # that a host answers, such as to start an agent
REMOTE_HANG_UP_SECONDS = 60.0  # for a connection to end whose command has disconnected, until it is cut off
HOST_END_QUESTION_SECONDS = 120.0  # for a provider to say when a host ends: its scheduler may be busy
HOST_END_RETRY_SECONDS = 60.0  # until an agent asks again, if there was no answer
HOST_END_AGE_SECONDS = 10.0  # of that answer, for a status: the time of a job may have been changed
HOST_END_WAIT_SECONDS = 1.0  # of a status for that answer: it shows the last one if the scheduler is slow
REMOTE_SURVEY_SECONDS = 60.0  # packages are looked up, perhaps on a network file system
REMOTE_SETUP_SECONDS = 3600.0  # each setup command, which may compile and download
DRY_RUN_CONNECT_SECONDS = 3.0  # to an agent that another command may have just started, or that is about to exit

# Start and stop tasks.
STOP_GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL: TensorFlow's servers need less
READY_TIMEOUT_SECONDS = 60.0  # the default of --timeout: servers that initialize GPUs take half a minute
MAX_TASKS = 1000  # of a cluster: each costs the agent four descriptors
FIRST_PORT = 2222  # that of TensorFlow's examples
LAST_PORT = 32767  # the kernel's ephemeral range begins above
PORT_BACKLOG = 1024  # every host may connect to every task at the same time
START_RETRY_SECONDS = 1.0  # between two attempts to start a task whose port is taken, or for which the disk is full
PORT_OWNER_CACHE_SECONDS = 10.0
FORK_ANSWER_SECONDS = 10  # a fork that tries what the kernel supports takes milliseconds
MIN_FREE_DISK_BYTES = 50 * 2**20  # for the state directory
STATE_FILE_MAX_BYTES = 64 * 2**20  # the journal of a thousand tasks takes 2 MiB; a run's result may hold a parameter
JOURNAL_CHANGES_FACTOR = 2  # a journal is compacted when its changes take this many times as much as the snapshot,
JOURNAL_CHANGES_MIN_BYTES = 1 << 18  # and at least so much: a snapshot is synced to the disk, and so is rare
LOCK_FILE_MAX_BYTES = 1 << 12
KILL_SECONDS = 30.0  # after SIGKILL: the kernel frees the memory of GPUs first
UNRECORDED_EXIT_SECONDS = 2.0  # for an earlier agent and its helpers; a process that runs on is one that was left
PROCESS_EXIT_POLL_SECONDS = 0.02  # until processes that were killed are gone
STDOUT_LINE_MAX_BYTES = 1 << 14  # the C library writes a longer line of a server in parts
# Health of tasks.
HEALTH_INTERVAL_SECONDS = 4.0  # between probes of servers that answer: the agent of 16 takes 0.5 % of a core
HEALTH_RETRY_SECONDS = 3.0  # the same, while one does not answer: a busy machine can keep it from that for some seconds
STATUS_INTERVAL_PER_TASK_SECONDS = 0.0005  # between statuses that are sent at changes; one takes 0.1 ms for each task
TOPOLOGY_HOSTS = 3  # at most, that are asked for a topology that is later than that of the first host
STATUS_REUSE_SECONDS = 0.1  # of a status without a change since, by concurrent requests
PROBE_TIMEOUT_SECONDS = 1.5  # shorter than the interval, so that a check has ended when the next one is due
PROBE_RETRY_SECONDS = 0.05  # of a task that is starting: a command may be waiting for it
PROBE_RETRIES = 20
PROBE_LATE_SECONDS = 1.0  # a failure that is reported later shows that the prober or the machine stalled, not the task
PROBE_REPLY_SECONDS = 0.02  # that a reply waits for others, whose servers were asked at the same time
PROBE_BROKEN_SECONDS = 10.0  # then the prober itself is broken: importing gRPC or a busy host takes less
PROBE_THREADS_MAX = 256  # servers that may hang at the same time without delaying the probes of others
PROBE_CHANNEL_SECONDS = 60.0  # without a request to a server, until its connection is closed; no request takes as long
FAILED_PROBES_MAX = 3  # in a row, until a task that was ready counts as unresponsive
FAILED_PROBES_MAX_STARTING = 20  # until a task that has never answered is killed: GPUs take a minute to initialize
DEVICE_LIST_SECONDS = 2.0  # for a task to list its devices
OOM_SAMPLES = 4  # the oldest is 30 s old: tearing down hundreds of gigabytes takes less; older kills hit others
OOM_SAMPLE_INTERVAL_SECONDS = 10.0
CPU_SAMPLE_MIN_SECONDS = 0.5  # the kernel counts hundredths of a second: over less, the percentage is noise
USAGE_WAIT_SECONDS = 0.3  # for the load of GPUs: the one before is shown if it takes longer
GPU_REPORT_IDLE_SECONDS = 30.0  # without a question; then the process that asks the driver ends
FAILED_TASK_LOG_LINES = 8  # in the message about a task that failed
FAILED_TASK_LOG_BYTES = 4096  # a line of megabytes is truncated instead of being read

# Logs of tasks.
LOG_FILE_BYTES = 10_000_000  # the default of `logs: size`
LOG_FILES = 5  # the default of `logs: count`
LOG_FILE_MIN_BYTES = 1000
LOG_FILE_MAX_BYTES = 10**15
LOG_LINE_MAX_BYTES = 1 << 20  # a longer line is stored as several
LOG_BUFFER_KEPT_BYTES = 1 << 16  # at the end of a capture buffer: readers read the newest lines there
LOG_BUFFER_FREED_BYTES = 1 << 18  # at least, each time that a part of a capture buffer is freed
LOG_WRITER_ROUND_SECONDS = 0.01  # a task that prints continuously wakes the log writer no more often
LOG_WRITER_POLL_SECONDS = 0.1  # without inotify
LOG_WRITER_ORPHAN_POLL_SECONDS = 1.0  # after the agent has exited, of the file that marks running tasks
LOG_WRITER_LOCK_SECONDS = 0.005  # between two attempts to lock the logs of a log writer that was told to end
HELPER_RESTART_SECONDS = 0.5  # of a log writer, or forwarder, that has died
LOG_READ_RETRIES = 20  # while the log writer moves the lines that are read
LOG_FOLLOW_SECONDS = 0.05  # between two reads of followed logs; where inotify cannot be used, also of quiet ones
LOG_CHECK_SECONDS = 1.0  # between two reads of quiet followed logs: their folder may have been deleted and made again
LATE_TASK_SECONDS = 10.0  # then `up` shows what the tasks print that are not ready; most are within two
EVENT_LOG_FILE_BYTES = 1_000_000
EVENT_LOG_FILES = 4
LOG_UNWRITTEN_MAX = 1000  # lines of these logs that wait in memory until a full disk has room again
NOTICES_MAX = 100  # that wait for one webhook or command; of more, the oldest are dropped
NOTICE_SECONDS = 30.0  # for a webhook or a command to accept a notice
NOTICE_RETRY_SECONDS = (5.0, 30.0)  # before each further attempt
HOST_AWAY_SECONDS = 30.0  # without an answer of any task on a host, until there is a notice

# Runs: the agent's part.
RUN_DRIVER_START_SECONDS = 120.0  # to import TensorFlow, even from a slow disk, and fork: then the fork server is hung
RUN_FORK_SERVERS = 3  # asked in a row for a run's driver: one may be killed or stopped
RUN_STOP_GRACE_SECONDS = 8.0  # from SIGTERM to SIGKILL for a driver that hangs: then no one ends its program's children
RUN_OWNER_RECONNECT_SECONDS = 60.0  # for the command that waits for a run whose agent died; it tries immediately
RUN_ALL_TASKS_LOST_SECONDS = 5.0  # then a run is stopped; a task that died has restarted by then
RUN_READ_INTERVAL_SECONDS = 0.01  # a program that prints continuously wakes the agent no more often
RUN_POLL_SECONDS = 0.02  # of what a followed run writes, only where inotify's limits are exhausted
RUN_PROBE_SECONDS = 1.0  # of this host's tasks, before a run
RUN_REMOTE_PROBE_SECONDS = 3.0  # of other hosts' tasks, half of it over the connection that exists and half over a new
RUN_REMOTE_PROBE_RETRY_SECONDS = 0.1  # one; a refused connection is tried again for a second: the server may restart
RUN_REMOTE_PROBE_RETRIES = 10
RUN_CLEANUP_TIMEOUT_SECONDS = 1.0  # for a server to clear a run's variables
RUN_CLEANUP_BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)  # before each retry on a server that is stopped or busy
RUN_OUTPUT_BYTES = 100_000_000  # the default of `logs: run`
RUNS_OUTPUT_BYTES = 2_000_000_000  # the default of `logs: runs`
RUN_OUTPUT_MIN_BYTES = 1_000_000  # a smaller one would be freed a part at a time
RUN_OUTPUT_MARKS = 16  # places in the output of the size of the limit, up to one of which the oldest is freed
RUNS_KEPT = 100  # of those that ended; the folders of older ones are removed
RUN_OUTPUT_LINE_MAX_BYTES = 1 << 18  # a longer line is streamed in pieces
RUN_RESULT_EVENTS = 100  # at the end of the events, searched for the result: threads may emit others after it
RUN_ERROR_LINES = 10  # of the output of a run that failed without a result
RUN_ERROR_MAX_CHARS = 2000

# Runs: the driver's and the command's part.
DRIVER_POLL_SECONDS = 5.0  # between two checks of what no event reports
DRIVER_EXIT_SECONDS = 10.0  # for an interpreter whose program has ended: destructors run, and TensorFlow's threads end
DRIVER_DRAIN_BLOCKS = 16  # of IO_BLOCK_BYTES: what a program has left in a pipe, which holds at most 1 MiB
DRIVER_STDIN_SECONDS = 10.0  # for the command to hand its standard input over
INTERRUPT_HANDLED_SECONDS = 1.0  # for Python to handle Ctrl-C, until the command says that the next one ends the run
RESULT_MAX_CHARS = 1 << 23  # of what `tfcluster.result` is given: a mean of as many slices as a command line can name
RESULT_MAX_DEPTH = 100
NOTES_MAX = 100
NOTE_MAX_CHARS = 1000
PROGRAM_MESSAGE_MAX_BYTES = 1 << 25  # of a script to its driver; a script may write anything to the driver's socket
JOB_END_SECONDS = 3600.0  # the same before the end of a job of Slurm or of a pod, which ends what is left
DRIVER_TERMINATE_SECONDS = 3.0  # for a program after SIGTERM; much less than RUN_STOP_GRACE_SECONDS
# Groups of processes: their coordinator and their hosts.
GROUP_START_SECONDS = 60.0  # for all hosts to connect to the coordinator, and to reserve their ports
GROUP_RECONNECT_SECONDS = 0.5  # between two attempts
GROUP_ADMISSIONS_MAX = 64  # connections without a proof; more are closed at once
GROUP_RETURN_SECONDS = 300.0  # for a host that was lost to connect again, before a group that is restarted fails
GROUP_REJOIN_SECONDS = 2.0  # between two attempts of the command to have it connect
GROUP_PROOF_SECONDS = 3.0  # for a connection to prove that it belongs to the group, before it may be closed
GROUP_PROOF_MAX_BYTES = 1 << 10
GROUP_CAUSE_SECONDS = 2.0  # for a member that the first error names to exit with its own error
GROUP_LINE_SECONDS = 0.2  # for which the begin of a line that a member prints waits for the rest of it
GROUP_STOP_SECONDS = 5.0  # for the other members after SIGTERM, when one has failed
GROUP_PREEMPTION_SECONDS = 30.0  # for the other members to save their state too, when one was preempted
GROUP_EVALUATOR_SECONDS = 30.0  # for the evaluator to evaluate the last checkpoint, when the training is done
GROUP_WORKERS_SECONDS = 5.0  # in which a worker must not have computed to be ended, when the chief of a ps is done
GROUP_IDLE_CPU_PERCENT = 3  # of a core, by such a worker; a server that has nothing to do takes less than one
GROUP_RESTART_SECONDS = 1.0  # before the first restart of a group that has failed; doubles with each further one
GROUP_RESTART_MAX_SECONDS = 30.0
GROUP_FAILURE_LINES = 10  # of the output of a member that has failed, which the error shows
GROUP_LINES_IN_VIEW = 24  # of all output, which a terminal shows still; the error need not repeat them
# Sweeps.
SWEEP_TRIALS_MAX = 1_000  # of a sweep; its record has them all
SWEEP_VALUES_MAX = 10_000  # of a parameter: more trials than a sweep has can be drawn from
SWEEP_LOSSES_MAX = 3  # hosts that a trial may have lost, which might be its own doing; then it has failed
# Connections between hosts, forwarders, and their certificates.
LINK_CONNECT_SECONDS = 10.0  # for a host to accept a connection, and for each part of the proof what it is
LINK_SECONDS = 15  # without an answer, after which a host counts as lost; the kernel takes whole seconds
PROGRAM_PORTS = 32  # of each host of a private cluster, for the members of `launch` and what else programs start there
FORWARDER_START_SECONDS = 30.0  # a busy host; meanwhile it is started again if it dies
FORWARD_BLOCK_BYTES = 1 << 18  # moved at once: larger ones were not faster
FORWARD_ADMISSIONS_MAX = 512  # connections without a proof, an eighth from one address; each more replaces the oldest
FORWARD_EXHAUSTED_SECONDS = 0.1  # until connections are accepted again when no descriptor was left
FORWARD_LOG_SECONDS = 60.0  # in which a forwarder's log has equal lines about connections once
FORWARD_LOG_LINES_MAX = 20  # about connections, in the same time; more are only counted
CERTIFICATE_EARLY_DAYS = 2  # that certificates are valid before they are made: clocks may differ by a day
CERTIFICATE_DAYS = 3650  # no host accepts them after `down`; in the last tenth of them `up` makes new ones
# A cluster of `launch --spec` or `--workers` whose command was killed. On this machine only that breaks a connection;
# elsewhere a laptop that sleeps, or a network that is down for some minutes, must not end a training.
LAUNCH_LEASE_SECONDS = 30.0
LAUNCH_REMOTE_LEASE_SECONDS = 600.0
LEASE_START_SECONDS = 1.0  # before the first request, and between retries: most runs end before
LEASE_RENEWALS = 3  # during one lease
LEASE_TIMEOUT_SECONDS = 5.0

# Python stacks of programs, and programs that wait for tasks.
HOST_END_SIGNAL = 30  # SIGPWR, to an agent and to drivers: this host ends soon, as its job or its pod does
STACK_SIGNAL = 23  # SIGURG: a process that has just executed another program ignores it, and few programs use it
STACK_FD_MAX = 1024  # a descriptor far beyond it would cost the kernel memory
STACK_FDS = 16  # the descriptor of the stacks is one of the last ones
STACK_SECONDS = 3.0  # for all threads of a process to be written, on a busy machine
STACK_PAUSE_SECONDS = 0.5  # for threads that run to wait for something, so that stacks can be read without a risk
STACK_LOOKS = 2  # at a thread that has handled the signal and written nothing
STACK_MAIN_LOOKS = 50  # at the main thread, which has executed Python: only a full disk keeps it from writing
STACK_POLL_SECONDS = 0.001  # a thread that sleeps answers within one; TensorFlow has some hundred threads
STACK_PROCESSES_MAX = 32  # of a program that are shown
STACK_SEARCH_MAX = 512  # processes of a run that are looked at for them, which the agent does at once
WAIT_CHECK_SECONDS = 1.5  # between two checks of a script that runs: why it waits is shown within ten seconds
WAIT_CPU_MAX_PERCENT = 10  # of a core, by a program that waits, and by a task that does not compute
WAIT_READ_SECONDS = 4.5  # between two reads of a program's stacks while only its main thread stands still
WAIT_HOSTS_SECONDS = 4.0  # for other hosts to tell the command why their tasks do not serve
WAIT_REPEAT_SECONDS = 5.0  # between two diagnoses of the same wait
WAIT_UNEXPLAINED_SECONDS = 4.5  # until a program waits although all tasks answer; connecting to many takes a while
WAIT_TIMEOUT_SECONDS = 4.0  # for the last diagnosis of a run whose time is over
WAIT_PROBE_SECONDS = 1.0  # for a task to answer
WAIT_CONNECT_SECONDS = 1.5  # for a connection to a task; a firewall that drops packets shows only as a timeout

# What programs report.
PROGRESS_INTERVAL_SECONDS = 0.1
ESTIMATE_MIN_PERCENT = 5  # of the work, until how long the rest takes is estimated: compiling comes first
ESTIMATE_SECONDS = 10.0  # since the start, until it is estimated with less work done; both are also in runview.js
METRIC_POINTS = 250  # of a series of tfcluster.metric; after them a new one each 1/250 of the time since the first
METRIC_NAMES_MAX = 100  # a name for each step would be a mistake
METRIC_SERIES_MAX = 10_000  # of all names together: a few for each of many workers
METRIC_NAME_MAX_CHARS = 80

# The spec.
SPEC_MAX_BYTES = 1 << 20
PIPE_OPEN_SECONDS = 5.0  # for another process to open a named pipe that the user gave as a file
SPEC_MAX_DEPTH = 50
SPEC_MAX_VALUES = 20_000  # aliases may multiply them
SPEC_NUMBER_MAX_CHARS = 100  # Python takes long to convert longer ones

# Output, and folders.
LISTED_NAMES = 4  # in a sentence; the others are counted
LISTED_EXAMPLES = 3  # of accounts, and of large files
LISTED_RUNS = 5  # that begin with an ambiguous prefix
ERROR_VALUE_MAX_CHARS = 60
STATUS_RUNS = 8
RUN_VALUES = 3  # in a line of `runs`
PIPE_COLUMNS = 1000  # a pipe has no width; with this one nothing is truncated or wrapped
PIPE_PROGRESS_SECONDS = 1.0  # between two lines of progress
PIPE_PROGRESS_FEW = 4  # hosts or tasks that are counted, until not every change is a line
PIPE_PROGRESS_FACTOR = 8  # with more: by what fewer remain at the next line
DIAGRAM_BOXES_MAX = 60  # a diagram with more is unreadable
LOGIN_PATH = "/usr/local/bin:/usr/bin:/bin"  # the variable PATH of a login, where no shell sets it
TEMPORARY_FOLDER = "/tmp"  # every user can create one in it

# The page of `dashboard`.
DASHBOARD_VIEW_SECONDS = 10.0  # for something new, until a page asks again
DASHBOARD_LOG_SECONDS = 1.0  # between two questions of a page for new lines
DASHBOARD_QUIET_SECONDS = 10.0  # the same while none are expected
DASHBOARD_LINES_MAX = 5000  # in one answer
DASHBOARD_METRICS_SECONDS = 2.0  # for a host to answer, when /metrics is asked for
DASHBOARD_REQUEST_SECONDS = 30.0  # for a browser to send a request, or to read a part of an answer
DASHBOARD_STRANGERS_MAX = 32  # connections without the token: a browser opens six
DASHBOARD_LINES, DASHBOARD_RUNS = 500, 100  # that are shown at first
