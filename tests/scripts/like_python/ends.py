"""Ends in the way that its argument names."""
# $ python ./ends.py exception
# $ python ./ends.py SIGTERM
# $ python ./ends.py thread
# error: ends.py ended with exit code 6
# slow $ python ./ends.py message
# slow $ python ./ends.py atexit
# slow $ python ./ends.py 256
# slow $ python ./ends.py large
# slow $ printf "print('x'\n" > broken.py; python ./broken.py

import atexit
import os
import signal
import sys
import threading

open("left.txt", "w").write("x")
match sys.argv[1]:
    case "exception":
        raise ValueError("no\ndata")
    case "SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    case "thread":
        threading.Thread(target=os._exit, args=(6,)).start()
    case "message":
        sys.exit("no data")
    case "atexit":
        atexit.register(os._exit, 9)
    case "256":
        sys.exit(256)
    case "large":
        sys.exit(2**70)  # it does not fit into an integer of C
